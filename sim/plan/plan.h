#pragma once

#include "sim/base/id_vector.h"
#include "sim/base/ids.h"
#include "sim/base/result.h"
#include "sim/plan/band.h"
#include "sim/plan/batch_slots.h"
#include "sim/plan/direction.h"
#include "sim/plan/layout.h"
#include "sim/plan/token_run.h"
#include "sim/scenario/scenario.h"

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// The content of the rows of a buffer. kv and dkv hold two tensors, K and V, or K
/// alone if V is a part of it (latent_dim); out also holds the
/// lse of its rows. stats holds the lse and delta = rowsum(d_out * out) of finished rows, which is
/// what the backward needs of out where queries move.
enum class BufferKind : uint8_t { q, kv, out, d_out, dq, dkv, stats };

/// The purpose of a buffer.
enum class BufferRole : uint8_t {
  home,            // the rank's own rows in local order
  ring_a,          // KV or dKV of another rank, even hops
  ring_b,          // the same, odd hops
  outer_a,         // rows of another window's ranks, even hops
  outer_b,         // the same, odd hops
  rank_order,      // rows of several ranks, one rank after another
  sequence_order,  // the same rows by ascending token id
  received,        // rows of another rank, or its partial results for this rank's rows
  moved,           // query-side rows that this rank computes for others, heads of its own rows that
                   // it computes in a stage, or its own keys without those that every rank holds
  partial,         // one compute item's result before it is merged
  round            // those of the rank's own rows that a round of cp_sizes computes
};

/// The content of a transfer. partial: o and lse of rows that are not finished; they are merged by
/// the owner of the rows. lse: that of results that are not finished, without their o; it lands in
/// a stats buffer.
enum class Payload : uint8_t { q, kv, out, d_out, dq, dkv, stats, partial, lse };

/// The kind of wire that a transfer uses. `self` stays on the rank and costs nothing on the wire.
/// outer_ring: between the windows of a double ring, while the inner rings go on.
enum class LinkClass : uint8_t { self, ring, group, direct, outer_ring };

/// Write mode: rows replace the old content, or are added to it (dKV shares of several ranks; out,
/// after each rank has scaled its results by the lse of all; the lse is then that of the rank's own
/// addend).
enum class Landing : uint8_t { replace, add };

enum class StageKind : uint8_t { transfer, reorder, compute, merge, finish };

/// Runs [first, first + count) of the plan's pool.
struct RunList {
  int64_t first = 0;
  int64_t count = 0;
  int64_t rows = 0;  // number of ids in the runs
};

/// One buffer of one rank. `tokens` are the tokens of its rows. The rows of a ring buffer change
/// from hop to hop and name no tokens (kNoTokens).
struct BufferSpec {
  RankId rank{};
  BufferKind kind{};
  BufferRole role{};
  RunListId tokens{};
  int64_t rows = 0;  // capacity
  HeadRange heads;   // query heads for q, out, d_out, dq; KV heads for kv, dkv
};

inline constexpr RunListId kNoTokens{-1};
inline constexpr RunListId kAllRows{-1};
inline constexpr BufferId kNoBuffer{-1};

/// Attention of `heads` between the rows of q and the rows of KV given by `slices`. Without slices
/// the rank idles in this step. Forward writes a partial (normalised o, lse) to `out`; backward
/// reads out (or stats), d_out and writes partials to dq and dkv.
struct ComputeItem {
  StepId step{};
  RankId rank{};
  BufferId q{}, kv{}, out{}, d_out = kNoBuffer, dq = kNoBuffer, dkv = kNoBuffer;
  RunListId q_tokens{}, kv_tokens{};
  HeadRange heads;
  int64_t first_slice = 0;
  int64_t num_slices = 0;
  int64_t visible_pairs = 0;  // (query, key, query head) triples
};

/// Rows that go from a buffer of src to a buffer of dst.
struct TransferItem {
  StepId step{};
  RankId src{}, dst{};
  BufferId from{}, to{};
  RunListId from_rows = kAllRows;  // rows of `from`
  RunListId to_rows = kAllRows;    // rows of `to`, the same number
  RunListId tokens = kNoTokens;    // tokens of the rows, when a ring buffer is filled
  HeadRange heads;
  int64_t bytes = 0;  // on the wire, statistics included; 0 for link class self
  Payload payload{};
  LinkClass link{};
  Landing landing{};
  bool wire_fp32 = false;  // dkv, partial, unfinished dq: travels in fp32 instead of the dtype
};

/// Rows of `to` gathered from `from`: to[i] = from[order[i]].
struct ReorderItem {
  StepId step{};
  RankId rank{};
  BufferId from{}, to{};
  RunListId order{};
};

/// Adds a partial to an accumulator: (o, lse) by log-sum-exp, gradients by sum. `order` counts the
/// merges into one accumulator; the first empties it before. A partial may hold only some of the
/// accumulator's heads, and one that was sent by another rank only some rows. If only its lse was
/// sent (stats), the accumulator's o is scaled to the lse of both.
struct MergeItem {
  StepId step{};
  RankId rank{};
  BufferId partial{}, into{};
  int32_t order = 0;
  RunListId into_rows = kAllRows;  // rows of `into`, one for each row of the partial
};

/// Turns the accumulator into the answer: for `out` the sink is added, once, and values are rounded
/// to the dtype.
struct FinishItem {
  StepId step{};
  RankId rank{};
  BufferId buffer{};
};

/// Items [begin, end) of one kind. Stages run in order. Items of one stage write different rows and
/// may run at the same time, except that transfers that `add` into one buffer follow item order.
struct Stage {
  StepId step{};
  StageKind kind{};
  int64_t begin = 0;
  int64_t end = 0;
};

/// One direction of the schedule.
struct Pass {
  int32_t num_steps = 0;
  std::vector<Stage> stages;
  std::vector<ComputeItem> computes;
  std::vector<TransferItem> transfers;
  std::vector<ReorderItem> reorders;
  std::vector<MergeItem> merges;
  std::vector<FinishItem> finishes;

  int64_t num_items() const {
    return static_cast<int64_t>(computes.size() + transfers.size() + reorders.size() +
                                merges.size() + finishes.size());
  }
};

/// The buffers of one rank that hold its inputs and answers in local order.
struct HomeBuffers {
  BufferId q{}, kv{}, out{}, d_out = kNoBuffer, dq = kNoBuffer, dkv = kNoBuffer;
  /// K and V of the keys that every rank holds (kv_replicated), all heads, if there are any. Loaded
  /// like home.kv, which holds those of them that the rank owns once more.
  BufferId replica = kNoBuffer;
  /// Only where queries move in the backward. Complete when it begins: lse and delta follow from
  /// out and d_out.
  BufferId stats = kNoBuffer;
};

/// The complete schedule, made before anything runs. Immutable once made.
struct Plan {
  Scenario scenario;
  Layout layout;
  std::vector<TokenRun> runs;  // pool
  IdVector<RunListId, RunList> run_lists;
  std::vector<BandSlice> slices;  // pool; forward and backward share it
  IdVector<BufferId, BufferSpec> buffers;
  IdVector<RankId, HomeBuffers> home;
  IdVector<RankId, RunListId> q_lists;  // token list of the home q buffer
  IdVector<RankId, RunListId> kv_lists;
  Pass forward;
  Pass backward;  // empty when numerics.backward is off
  uint64_t hash = 0;

  Pass& pass(Direction direction) { return direction == Direction::backward ? backward : forward; }
  const Pass& pass(Direction direction) const {
    return direction == Direction::backward ? backward : forward;
  }
  std::span<const TokenRun> list(RunListId id) const {
    const RunList& entry = run_lists[id];
    return std::span(runs).subspan(static_cast<size_t>(entry.first),
                                   static_cast<size_t>(entry.count));
  }
  /// The token lists of the ranks' home buffers.
  const IdVector<RankId, RunListId>& lists(Side side) const {
    return side == Side::q ? q_lists : kv_lists;
  }
  int64_t rows(RunListId id) const { return run_lists[id].rows; }
  const BufferSpec& buffer(BufferId id) const { return buffers[id]; }
  /// The number of rows that a transfer carries.
  int64_t rows_of(const TransferItem& item) const {
    if (item.from_rows != kAllRows) return rows(item.from_rows);
    if (item.to_rows != kAllRows) return rows(item.to_rows);
    return item.tokens != kNoTokens ? rows(item.tokens) : buffer(item.from).rows;
  }
  std::span<const BandSlice> slices_of(const ComputeItem& item) const {
    return std::span(slices).subspan(static_cast<size_t>(item.first_slice),
                                     static_cast<size_t>(item.num_slices));
  }
};

inline constexpr size_t kPayloads = static_cast<size_t>(Payload::lse) + 1;

/// The kind of the buffers that a payload goes to; of those that it comes from too, except that an
/// lse comes from out.
BufferKind kind_of(Payload payload);

/// KV heads that the query heads read (query head h reads KV head h * kv_heads / heads).
HeadRange kv_heads_of(const Attention& attention, HeadRange heads);

/// Elements of one row of one head: head_dim_qk + head_dim_v for kv and dkv, key_dim() alone if one
/// tensor stands for both. Statistics, which are never in the dtype, are not counted.
int64_t lanes_of(BufferKind kind, const Attention& attention);

/// True if the item's partial has all heads of its accumulator.
bool has_all_heads(const Plan& plan, const MergeItem& item);

/// True if the item merges the lse of a partial, whose rows are on another rank.
bool has_lse_alone(const Plan& plan, const MergeItem& item);

/// The dtype of a transfer's values on the wire.
Dtype wire_dtype(const TransferItem& item, const Numerics& numerics);

/// True where q, k, v and d_out are quantised before they travel (dtype fp8) and travel in 8 bits.
/// Exchanges of heads that a ring follows are in bf16: TransformerEngine quantises after them.
bool sends_fp8(const TransferItem& item, const Scenario& scenario);

/// Bytes of one element of a transfer on the wire.
int64_t wire_element_bytes(const TransferItem& item, const Scenario& scenario);

/// Bytes that a rank sends in a pass so that all ranks have the same scales (dtype fp8): each amax
/// that is reduced over the ranks, in fp32, counted as sent to every other rank. recipe current:
/// one of q, k and v together, and one of d_out; delayed: also those of P and out, and of dP and of
/// dq, dk and dv together, for the next step; mxfp8: none. Plans have no items for them.
int64_t scale_bytes(const Scenario& scenario, Direction direction);

/// Bytes of the lse and delta that a transfer of `rows` rows carries: fp32, or fp64 if the dtype
/// is; 0 if it carries none, or stays on its rank.
int64_t small_bytes(const TransferItem& item, int64_t rows, const Numerics& numerics);

/// Bytes that a transfer puts on the wire, statistics included; 0 if it stays on its rank.
int64_t wire_bytes(const Plan& plan, const TransferItem& item);

/// A hash that differs whenever two plans differ in any item (FNV-1a over all arrays and the
/// scenario's printed text).
uint64_t hash_plan(const Plan& plan);

std::string to_hex(uint64_t value);
std::string_view to_name(BufferKind value);
std::string_view to_name(BufferRole value);
std::string_view to_name(Payload value);
std::string_view to_name(StageKind value);
std::string_view to_name(LinkClass value);

}  // namespace cpscope
