#pragma once

// Private to the reference library: the hooks of the watched walker. Every intentional error of a
// walk is implemented here.

#include "reference/plan_walk.h"
#include "sim/run/executor_fault.h"

#include <map>
#include <utility>
#include <vector>

namespace cpscope::reference {

/// Watches a walk and makes the planted mistake.
template <class T>
class FaultySeam {
 public:
  static constexpr bool kIsOpen = true;
  struct Setup {
    const WatchedWalk* walk = nullptr;
  };
  FaultySeam(const WalkParts<T>& parts, const Setup& setup);

  void after_load();
  /// dtype fp8: before the ranks agree on scales and quantise.
  void change_rules(QuantisedRules& rules);
  void after_quantising(const QuantisedRules& rules);
  void before_stage(const Pass& pass, const Stage& stage, Direction direction);
  void after_stage(const Pass& pass, const Stage& stage, Direction direction);
  /// Runs an item wrongly instead of the walk, if the planted mistake requires it.
  bool replaces(const TransferItem& item);
  bool replaces(const MergeItem& item);
  bool replaces(const FinishItem& item);
  int32_t kv_head_of(int32_t head) const;
  LatentSum<T> latent_sum(const ComputeItem& item) const;
  int32_t weights_head_of(const ComputeItem& item, int32_t head) const;
  /// Change where an item's rows stand, and how it numbers terms, if the planted mistake does.
  void alter_places(const ComputeItem& item, Direction direction, TilePlaces& places) const;
  void alter_terms(const ComputeItem& item, Direction direction, TermNumbers& numbers) const;
  void after_run(Answer& answer);

 private:
  /// True if this mistake is planted and applies here.
  bool makes(Mistake mistake, RankId rank, StepId step) const;
  bool makes(Mistake mistake) const;
  const Attention& attention() const { return parts_.plan.scenario.attention; }
  int64_t cells(const BufferSpec& spec) const { return spec.rows * spec.heads.size(); }

  // Mistakes in loading and moving rows (faulty_seam_rows.cpp).
  void rotate_by_wrong_positions();
  void rotate_side(const Tensor& tensor, RankId rank, Side side, AlignedVector<T>& rows);
  /// The position by which a row is rotated: it is number `local` of the `rows` that the rank has
  /// of its sequence, of which the first is at position `first`.
  int64_t wrong_position(RankId rank, int64_t rows, int64_t local, int64_t first) const;
  void load_heads_of_stages();
  void return_heads_of_stages(Answer& answer) const;
  int32_t place_in_stages(int32_t head) const;
  void transpose_landed_heads(const TransferItem& item);
  void move_first_kv_head(const TransferItem& item);
  void multiply_landed(const TransferItem& item, T factor);

  // Mistakes in computes and merges.
  void spoil_partial(const ComputeItem& item);
  void restore_untouched(const ComputeItem& item, const BufferMemory<T>& before);
  void exchange_lse(const ComputeItem& item);
  void spoil_finished(const FinishItem& item);
  void merge_out_wrongly(const MergeItem& item);

  // Recording of the trace.
  void record_load();
  void record_frame(Direction direction, int64_t index, StepId step, StageKind kind);
  void record_work(const Pass& pass, const Stage& stage, Direction direction);
  std::vector<uint64_t> fingerprint(BufferId id) const;

  WalkParts<T> parts_;
  WatchedWalk walk_;
  std::map<BufferId, BufferMemory<T>> fresh_out_;  // [home out] its memory before the run
  std::vector<BufferMemory<T>> before_;            // [item of the present stage] its partial
  std::map<std::pair<RankId, RunListId>, AlignedVector<T>> tile_lse_;  // [rank, kv list]
  IdVector<RankId, float> descales_;  // dtype fp8: [rank] of q, k and v
};

}  // namespace cpscope::reference
