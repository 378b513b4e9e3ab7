#pragma once

#include "sim/base/id_vector.h"
#include "sim/plan/mask_bands.h"
#include "sim/plan/piece_table.h"
#include "sim/plan/plan.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// Limits of a plan: a larger one is refused before it is built, because it would not fit in
/// memory.
inline constexpr int64_t kMaxPlanItems = int64_t{1} << 27;
inline constexpr int64_t kMaxPlanSlices = int64_t{1} << 27;

/// Assembles a plan: run lists, buffers, slices and items. The planners use nothing else.
class PlanBuilder {
 public:
  PlanBuilder(const Scenario& scenario, Layout layout);

  Plan& plan() { return plan_; }
  const Plan& plan() const { return plan_; }
  const Scenario& scenario() const { return plan_.scenario; }
  const Attention& attention() const { return plan_.scenario.attention; }
  const MaskBands& mask() const { return mask_; }
  const BatchSlots& slots() const { return plan_.layout.slots; }
  int32_t num_ranks() const { return plan_.layout.cp_size; }
  IdSequence<RankId> ranks() const { return IdSequence<RankId>(static_cast<size_t>(num_ranks())); }
  bool has_backward() const { return plan_.scenario.numerics.backward; }
  HeadRange all_heads() const { return {0, attention().heads}; }
  /// The heads of the queries that a rank owns.
  HeadRange owned_heads(RankId rank) const {
    return plan_.layout.q_heads.has(rank) ? plan_.layout.q_heads[rank] : all_heads();
  }
  HeadRange all_kv_heads() const { return {0, attention().kv_heads}; }

  RunListId add_list(const std::vector<TokenRun>& runs);
  /// Makes room for so many more runs.
  void expect_runs(int64_t count);
  BufferId add_buffer(RankId rank, BufferKind kind, BufferRole role, RunListId tokens, int64_t rows,
                      HeadRange heads);
  /// A buffer whose rows are exactly the tokens of the list.
  BufferId add_buffer(RankId rank, BufferKind kind, BufferRole role, RunListId tokens,
                      HeadRange heads);
  /// A buffer for one compute item's result with the rows and heads of `like`.
  BufferId add_partial(BufferId like);

  /// Home buffers of every rank in local order.
  void add_home_buffers();
  /// The statistics of every rank's rows, for a backward in which queries move.
  void add_home_stats();

  /// Items pushed between open and close form one stage. Empty stages are dropped.
  void open_stage(Pass& pass, int32_t step, StageKind kind);
  void close_stage();

  void add_compute(ComputeItem item);
  /// Fills in bytes and link (self when src == dst).
  void add_transfer(TransferItem item);
  void add_reorder(RankId rank, BufferId from, BufferId to, RunListId order);
  void add_merge(RankId rank, BufferId partial, BufferId into, int32_t order,
                 RunListId into_rows = kAllRows);
  void add_finish(RankId rank, BufferId buffer);

 private:
  StepId step() const { return StepId{open_step_}; }

  Plan plan_;
  MaskBands mask_;
  Pass* open_pass_ = nullptr;
  int32_t open_step_ = 0;
  StageKind open_kind_{};
  int64_t open_begin_ = 0;
};

/// One intersection to compute: indices into tables of q and KV pieces.
struct SliceJob {
  int32_t q_table = 0;
  int32_t kv_table = 0;
};

struct SliceRange {
  int64_t first = 0;
  int64_t count = 0;
  int64_t pairs = 0;  // (query, key) pairs of one head
};

/// Intersects all jobs, on all cores, into plan.slices; ranges are returned in job order. Empty
/// when the slices exceed kMaxPlanSlices.
std::optional<std::vector<SliceRange>> intersect_all(PlanBuilder& builder,
                                                     const std::vector<PieceTable>& q_tables,
                                                     const std::vector<PieceTable>& kv_tables,
                                                     const std::vector<SliceJob>& jobs);

/// The same with tables of KV lists, kNoTokens for none, of which only those in work are kept:
/// where every rank has a long list of its own, all tables together would fill gigabytes.
std::optional<std::vector<SliceRange>> intersect_all(PlanBuilder& builder,
                                                     const std::vector<PieceTable>& q_tables,
                                                     const std::vector<RunListId>& kv_lists,
                                                     const std::vector<SliceJob>& jobs);

Error too_many_slices();

/// Copies slices and pair count into a compute item; pairs are multiplied by the item's query
/// heads.
void set_slices(ComputeItem& item, const SliceRange& range);

}  // namespace cpscope
