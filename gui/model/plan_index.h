#pragma once

#include "gui/model/item_columns.h"
#include "gui/model/target.h"
#include "sim/base/id_vector.h"
#include "sim/plan/check/plan_check.h"
#include "sim/plan/direction.h"
#include "sim/plan/mask_bands.h"
#include "sim/plan/plan_summary.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace cpscope::gui {

/// One stage of the plan. Numbering: forward stages first, then backward ones.
struct StageRef {
  Direction direction = Direction::forward;
  int32_t step = 0;  // step number in its pass
  StageKind kind{};
  int64_t begin = 0, end = 0;  // items of its kind in its pass
};

/// One step of one pass and its stages.
struct StepRef {
  Direction direction = Direction::forward;
  int32_t step = 0;         // step number in its pass
  int32_t first_stage = 0;  // index in PlanIndex::stages
  int32_t end_stage = 0;
};

/// The position of the playhead: stages before first_stage are done, [first_stage, end_stage)
/// happen now, later ones have not begun. One stage, or all stages of one step.
struct Moment {
  int32_t first_stage = 0;
  int32_t end_stage = 0;

  friend bool operator==(const Moment&, const Moment&) = default;
};

enum class When : uint8_t { done, now, later };

/// The token ids of one run of one rank.
struct OwnedRun {
  TokenRun run;
  int32_t rank = 0;
  int64_t row = 0;  // local row of run.begin
};

/// The rank that holds a token, and its local row. rank -1: no rank, or not one alone.
struct OwnedRow {
  int32_t rank = -1;
  int64_t row = -1;
};

/// The number of items and band slices that can be visited within a frame.
inline constexpr int64_t kLargePlan = 100'000;

/// A proved plan with lookup tables for views. Made once per plan, never changed.
class PlanIndex {
 public:
  explicit PlanIndex(CheckedPlan checked);

  const Plan& plan() const { return checked_.plan(); }
  const CheckedPlan& checked() const { return checked_; }
  const PlanSummary& summary() const { return summary_; }
  const Pass& pass(Direction direction) const { return plan().pass(direction); }
  /// Ranks and tokens of all items of a pass, packed for fast scans.
  const PassColumns& columns(Direction direction) const { return columns_[direction]; }
  const ItemColumns& columns(Direction direction, StageKind kind) const {
    return columns_[direction][static_cast<size_t>(kind)];
  }
  /// Number of pairs of different ranks with a transfer in either pass.
  int64_t num_links() const { return num_links_; }
  /// Number of items and band slices of both passes.
  int64_t size() const { return size_; }
  /// True if visiting all of them would take longer than a frame.
  bool is_large() const { return size_ > kLargePlan; }
  int32_t num_ranks() const { return plan().layout.cp_size; }
  int64_t tokens(Side side) const { return plan().layout.slots.tokens_of(side); }

  std::span<const StageRef> stages() const { return stages_; }
  std::span<const StepRef> steps() const { return steps_; }
  /// Index in steps() of the step that a stage belongs to.
  int32_t step_of_stage(int32_t stage) const;
  /// The moment with all stages of a step of steps().
  Moment moment_of_step(int32_t step) const;
  /// The moment with one stage.
  Moment moment_of_stage(int32_t stage) const { return {stage, stage + 1}; }
  /// Whether a stage is done, now or later at a moment.
  static When when(int32_t stage, Moment moment);

  /// Runs of all ranks, ordered by first id. Strided runs of different ranks interleave.
  std::span<const OwnedRun> owned(Side side) const { return owned_[side == Side::kv ? 1 : 0]; }
  /// True if a rank has a run with a stride greater than 1.
  bool has_stripes(Side side) const { return widest_extent_[side == Side::kv ? 1 : 0] > 0; }
  /// Indices of the items of a stage that belong to a rank (transfers: those that it sends), in
  /// order.
  std::vector<int64_t> items_of(const StageRef& stage, int32_t rank) const {
    return columns(stage.direction, stage.kind).items_of(stage.begin, stage.end, rank);
  }
  /// The same, and for transfers those that it receives too.
  std::vector<int64_t> items_with(const StageRef& stage, int32_t rank) const;
  /// True if every rank has all rows of the side, of heads of its own (q_owner).
  bool are_heads_owned(Side side) const {
    return side == Side::q && plan().layout.q_heads.size() > 0;
  }
  /// The rank that holds a packed padded id with all its heads. O(log runs) if runs have unit
  /// stride.
  OwnedRow owner(Side side, int64_t token) const;
  /// The rank that owns a head of a packed padded id; -1 if there is none.
  int32_t owner_of_head(Side side, int64_t token, int64_t head) const;
  /// Index of the first sequence whose slot ends after the id; their number if there is none.
  size_t first_sequence(Side side, int64_t token) const;
  /// Index of the sequence whose slot holds the id, -1 in the tail.
  int64_t sequence_of(Side side, int64_t token) const;
  /// True if the id holds a valid token.
  bool is_valid(Side side, int64_t token) const;
  /// Number of visible (query, key) pairs of one head in ids [q0, q1) x [k0, k1), from the mask
  /// alone.
  int64_t count_visible(int64_t q0, int64_t q1, int64_t k0, int64_t k1) const;
  /// The stage of an item.
  int32_t stage_of(const ItemId& item) const;
  const MaskBands& mask() const { return mask_; }

 private:
  CheckedPlan checked_;
  PlanSummary summary_;
  MaskBands mask_;
  ByDirection<PassColumns> columns_;
  int64_t num_links_ = 0, size_ = 0;
  std::vector<StageRef> stages_;
  std::vector<StepRef> steps_;
  std::vector<OwnedRun> owned_[2];
  int64_t widest_extent_[2] = {0, 0};  // ids from first to last of the longest strided run
};

/// Number of items in stages [first_stage, end_stage) of PlanIndex::stages.
int64_t count_stage_items(const PlanIndex& index, int32_t first_stage, int32_t end_stage);

/// [rank] (query, key, head) triples that are computed in the stages of a moment.
IdVector<RankId, int64_t> pairs_by_rank(const PlanIndex& index, Moment moment);

using SharedPlan = std::shared_ptr<const PlanIndex>;

}  // namespace cpscope::gui
