#include "kernels/attention/attention_decode.h"
#include "kernels/lower/lowered_check.h"
#include "kernels/run/item_shape.h"
#include "kernels/run/rank_engine.h"
#include "sim/run/dtype.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace cpscope::kernels {
namespace {

/// Most bytes that one kernel pushes; it counts groups of 16 bytes in 32 bits.
constexpr int64_t kMostPushedBytes = int64_t{1} << 33;

/// True if an item, or the items of a rank joined, may be one of the decode kernel's.
bool may_decode(const Plan& plan) {
  IdVector<RankId, SliceSums> of_rank(plan.home.size());
  for (const ComputeItem& item : plan.forward.computes) {
    const SliceSums sums = sum_slices(plan.slices_of(item));
    if (is_decode(shape_of_item(plan, item, sums))) return true;
    SliceSums& joined = of_rank[item.rank];
    joined.pairs += sums.pairs;
    joined.rows = std::max(joined.rows, sums.rows);
    joined.rows_together = std::max(joined.rows_together, sums.rows_together);
    AttentionShape shape = shape_of_item(plan, item, joined);
    shape.kv_rows = std::numeric_limits<int32_t>::max();  // of both; that many at most
    if (is_decode(shape)) return true;
  }
  return false;
}

/// The work of a rank's kernel if it writes all pieces that the rank sends.
struct PushedPieces {
  bool is_needed = false, is_possible = true;  // some do not go straight; all can be pushed
  int64_t bytes = 0, copies = 0, flags = 0;

  bool has_room() const {
    return is_possible && copies <= RowPush::kMostCopies && flags <= RowPush::kMostFlags &&
           bytes <= kMostPushedBytes;
  }
};

/// For a pass whose inputs arrive in pieces.
IdVector<RankId, PushedPieces> count_pushed_pieces(const LoweredPlan& lowered,
                                                   Direction direction) {
  const Pass& pass = lowered.plan.pass(direction);
  IdVector<RankId, PushedPieces> pushed(lowered.plan.home.size());
  for (size_t i = 0; i < pass.transfers.size(); ++i) {
    if (lowered.notes[direction].transfers[i].piece == kWhole) continue;
    const TransferItem& item = pass.transfers[i];
    PushedPieces& by_sender = pushed[item.src];
    by_sender.is_needed |= !goes_straight(lowered, item);
    by_sender.is_possible &= can_be_pushed(lowered, item);
    by_sender.bytes += item.bytes;
    by_sender.copies += item.payload == Payload::kv ? 2 : 1;
    ++by_sender.flags;
  }
  return pushed;
}

/// True if every piece of inputs can arrive while kernels wait for it: by copies only, or written
/// by a kernel that begins before them. Records which ranks' kernels write them.
bool can_come_in_pieces(LoweredPlan& lowered) {
  for (const Direction direction : kDirections) {
    PassNotes& notes = lowered.notes[direction];
    if (!notes.is_cut) continue;
    const IdVector<RankId, PushedPieces> pushed = count_pushed_pieces(lowered, direction);
    for (const RankId rank : pushed.ids()) {
      if (pushed[rank].is_needed && !pushed[rank].has_room()) return false;
      notes.ranks[rank].pushes_all_pieces = pushed[rank].is_needed;
    }
  }
  return true;
}

}  // namespace

Result<std::vector<std::string>> passes_left_out(const Environment& environment) {
  Result<std::vector<std::string>> names =
      parse_pass_names(environment("CPSCOPE_WITHOUT").value_or(""));
  if (names) return names;
  Error error = names.error();
  error.complaints.front().where = "CPSCOPE_WITHOUT";
  return error;
}

LoweredPlan lower_for_devices(const CheckedPlan& checked, const RunOptions& options,
                              const LoweringTarget& target) {
  const Plan& plan = checked.plan();
  const Generation newest =
      target.generation.value_or(newest_generation(target.compute_capability));
  const auto has_hopper_forward = [&](const ComputeItem& item) {
    return newest == Generation::sm90 && item.dq == kNoBuffer &&
           why_not_forward(newest, shape_of_heads(plan, item)).empty();
  };
  Lowering lowering;
  // Expanded rows have their gradients contracted to fp32, item by item.
  lowering.saves_work = !options.observer && checked.admitted_because().empty() &&
                        !is_merged_in_dtype(plan.scenario.numerics) &&
                        !plan.scenario.attention.expands_rows();
  lowering.without = target.without;
  lowering.pieces = target.pieces;
  lowering.pieces.most = std::min(lowering.pieces.most, Arrivals::kMostPieces);
  // Recipe delayed casts the gradients of each item before they are merged.
  const std::optional<Fp8>& fp8 = plan.scenario.numerics.fp8;
  const bool casts_gradients = fp8 && fp8->recipe == Fp8Recipe::delayed;
  const auto has_fused_backward = [&](const ComputeItem& item) {
    const AttentionShape shape = shape_of_heads(plan, item);
    return item.dq != kNoBuffer && !casts_gradients && why_not_backward(newest, shape).empty() &&
           is_backward_fused(newest, shape);
  };
  lowering.can_merge = [&](const ComputeItem& item) {
    return has_hopper_forward(item) || has_fused_backward(item);
  };
  // Codes of fp8 are made of whole inputs, before the kernel begins; the kernels of decode and of
  // latent attention do not wait.
  if (plan.scenario.numerics.fp8 || plan.scenario.attention.latent_dim > 0 ||
      (lowering.pieces.most > 1 && may_decode(plan)))
    lowering.pieces = {};
  lowering.waits_for_pieces = lowering.can_merge;
  lowering.writes_dtype = [&](const ComputeItem& item) {
    return element_bytes(plan.scenario.numerics.dtype) == 2 && lowering.waits_for_pieces(item);
  };
  lowering.heads_together = [&](const Plan& of, const ComputeItem& item) {
    if (!has_hopper_forward(item)) return 1;
    const AttentionShape shape = shape_of_item(of, item, sum_slices(of.slices_of(item)));
    return forward_tile_shape(newest, shape).heads;
  };
  lowering.adds_shares = target.adds_shares;
  // A joined item starts only after inputs have arrived: with pieces that takes little time.
  if (lowering.pieces.most > 1) lowering.can_join = lowering.waits_for_pieces;
  LoweredPlan lowered = lower_plan(plan, lowering);
  // Otherwise kernels would wait for multiprocessors that they occupy themselves.
  if (!can_come_in_pieces(lowered)) {
    lowering.pieces = {};
    lowering.can_join = nullptr;
    lowered = lower_plan(plan, lowering);
  }
  if (const auto error = check_lowered(plan, lowered)) throw DeviceError(to_text(*error));
  return lowered;
}

}  // namespace cpscope::kernels
