#pragma once

#include "gui/model/item_columns.h"
#include "gui/model/target.h"
#include "sim/plan/mask_bands.h"
#include "sim/plan/plan_check.h"
#include "sim/plan/plan_summary.h"

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace cpscope::gui {

/// One stage of the plan: forward stages first, then backward ones, numbered through.
struct StageRef {
  bool is_backward = false;
  int32_t step = 0;  // of its pass
  StageKind kind{};
  int64_t begin = 0, end = 0;  // items of its kind in its pass
};

/// One step of one pass and its stages.
struct StepRef {
  bool is_backward = false;
  int32_t step = 0;         // of its pass
  int32_t first_stage = 0;  // in PlanIndex::stages
  int32_t end_stage = 0;
};

/// Where the playhead stands: stages before first_stage are done, [first_stage, end_stage) happen
/// now, later ones have not begun. One stage, or all stages of one step.
struct Moment {
  int32_t first_stage = 0;
  int32_t end_stage = 0;

  friend bool operator==(const Moment&, const Moment&) = default;
};

enum class When : uint8_t { done, now, later };

/// Token ids of one run of one rank.
struct OwnedRun {
  TokenRun run;
  int32_t rank = 0;
  int64_t row = 0;  // local row of run.begin
};

/// Which rank holds a token, and at which local row. rank -1: nobody.
struct OwnedRow {
  int32_t rank = -1;
  int64_t row = -1;
};

/// Items and band slices that a frame has the time to look through.
inline constexpr int64_t kLargePlan = 100'000;

/// A proved plan and what views look up in it again and again. Made once a plan, never changed.
class PlanIndex {
 public:
  explicit PlanIndex(CheckedPlan checked);

  const Plan& plan() const { return checked_.plan(); }
  const CheckedPlan& checked() const { return checked_; }
  const PlanSummary& summary() const { return summary_; }
  const Pass& pass(bool is_backward) const {
    return is_backward ? plan().backward : plan().forward;
  }
  /// Ranks and tokens of all items of a pass, packed for quick looking through.
  const PassColumns& columns(bool is_backward) const { return columns_[is_backward ? 1 : 0]; }
  /// Pairs of different ranks between which something travels, in either pass.
  int64_t num_links() const { return num_links_; }
  /// Items and band slices of both passes: how much there is to look through.
  int64_t size() const { return size_; }
  /// Would looking through it hold up a frame?
  bool is_large() const { return size_ > kLargePlan; }
  int32_t num_ranks() const { return plan().layout.cp_size; }
  int64_t tokens(Side side) const {
    return side == Side::q ? plan().layout.slots.tokens : plan().layout.slots.kv_tokens;
  }

  std::span<const StageRef> stages() const { return stages_; }
  std::span<const StepRef> steps() const { return steps_; }
  /// Number of the step in steps() that a stage belongs to.
  int32_t step_of_stage(int32_t stage) const;
  /// All stages of a step of steps().
  Moment moment_of_step(int32_t step) const;
  /// One stage alone.
  Moment moment_of_stage(int32_t stage) const { return {stage, stage + 1}; }
  /// Done, now or later, for a stage seen from a moment.
  static When when(int32_t stage, Moment moment);

  /// Runs of all ranks by first id. Strided runs of different ranks interleave.
  std::span<const OwnedRun> owned(Side side) const { return owned_[side == Side::kv ? 1 : 0]; }
  /// Does a run of a rank leave ids out?
  bool has_stripes(Side side) const { return widest_extent_[side == Side::kv ? 1 : 0] > 0; }
  /// Numbers of the items of a stage that belong to a rank (transfers: that it sends), in order.
  std::vector<int64_t> items_of(const StageRef& stage, int32_t rank) const {
    return columns(stage.is_backward)[static_cast<size_t>(stage.kind)].items_of(stage.begin,
                                                                                stage.end, rank);
  }
  /// Who holds a packed padded id. O(log runs) where runs have unit stride.
  OwnedRow owner(Side side, int64_t token) const;
  /// Number of the sequence whose slot holds the id, -1 in the tail.
  int64_t sequence_of(Side side, int64_t token) const;
  /// Does a valid token stand there?
  bool is_valid(Side side, int64_t token) const;
  /// Visible keys x queries of one head in ids [q0, q1) x [k0, k1), from the mask alone.
  int64_t count_visible(int64_t q0, int64_t q1, int64_t k0, int64_t k1) const;
  /// Stage of an item.
  int32_t stage_of(const ItemTarget& item) const;
  const MaskBands& mask() const { return mask_; }

 private:
  CheckedPlan checked_;
  PlanSummary summary_;
  MaskBands mask_;
  std::array<PassColumns, 2> columns_;
  int64_t num_links_ = 0, size_ = 0;
  std::vector<StageRef> stages_;
  std::vector<StepRef> steps_;
  std::vector<OwnedRun> owned_[2];
  int64_t widest_extent_[2] = {0, 0};  // ids from first to last of the longest strided run
};

/// Ids [begin, end) of a sequence's slot on one side; those from valid_end on are padding.
struct SlotIds {
  int64_t begin = 0, valid_end = 0, end = 0;
};
SlotIds slot_ids(const SequenceSlot& sequence, Side side);

/// Items of stages [first_stage, end_stage) of PlanIndex::stages.
int64_t count_stage_items(const PlanIndex& index, int32_t first_stage, int32_t end_stage);

using SharedPlan = std::shared_ptr<const PlanIndex>;

}  // namespace cpscope::gui
