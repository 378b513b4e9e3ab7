#include "sim/plan/document/document_parts.h"

#include <unordered_set>

namespace cpscope {
namespace {

/// Rows and runs that a proof reads; minutes. The plans of a planner need far less.
constexpr int64_t kMostWork = int64_t{1} << 34;
/// Entries of the tables of rows that a proof makes; gigabytes.
constexpr int64_t kMostEntries = int64_t{1} << 27;

int64_t add_up(int64_t a, int64_t b) { return std::min(a + b, int64_t{1} << 61); }

/// Counts what the checks of a plan will read, each list as often as they do. What two items have
/// in common is read once.
class ProofSize {
 public:
  explicit ProofSize(const Plan& plan) : plan_(plan), cost_(plan.run_lists.size()) {
    // Runs of unit stride are cut where they meet runs of another one.
    int64_t stride = 1;
    for (const TokenRun& run : plan.runs) {
      if (run.count() > 1) stride = std::max(stride, run.stride);
    }
    for (const RunListId id : plan.run_lists.ids()) {
      for (const TokenRun& run : plan.list(id))
        cost_[id] = add_up(cost_[id], std::min(run.count(), run.stride == 1 ? stride : kMaxTokens));
    }
    for (const auto* lists : {&plan.q_lists, &plan.kv_lists}) {
      for (const RunListId list : *lists) work_ = add_up(work_, cost_[list]);
    }
    count_cuts();
  }

  std::optional<std::string> complaint() {
    for (const Direction direction : kDirections) {
      const Pass& pass = plan_.pass(direction);
      for (const ComputeItem& item : pass.computes) add(item);
      for (const TransferItem& item : pass.transfers) add(item);
      for (const MergeItem& item : pass.merges)
        add_rows(plan_.buffer(item.into).tokens, item.into_rows);
      for (const ReorderItem& item : pass.reorders)
        add_rows(plan_.buffer(item.from).tokens, item.order);
      if (work_ > kMostWork || entries_ > kMostEntries)
        return fmt::format("to prove it, about {} rows and runs must be read, the limit is {}",
                           std::max(work_, entries_), work_ > kMostWork ? kMostWork : kMostEntries);
    }
    return std::nullopt;
  }

 private:
  /// Heads at which the shares of gradients change.
  void count_cuts() {
    std::vector<int32_t> cuts(static_cast<size_t>(kMaxHeads) + 2, 0);
    const auto mark = [&](HeadRange heads) {
      for (const int32_t head : {heads.begin, heads.end}) {
        if (head >= 0 && head <= kMaxHeads) cuts[static_cast<size_t>(head)] = 1;
      }
    };
    for (const BufferSpec& buffer : plan_.buffers) mark(buffer.heads);
    for (const Pass* pass : {&plan_.forward, &plan_.backward}) {
      for (const ComputeItem& item : pass->computes) {
        mark(item.heads);
        mark(kv_heads_of(plan_.scenario.attention, item.heads));
      }
      for (const TransferItem& item : pass->transfers) mark(item.heads);
    }
    for (size_t i = 1; i < cuts.size(); ++i) cuts[i] += cuts[i - 1];
    cuts_ = std::move(cuts);
  }
  int64_t cuts_in(HeadRange heads) const {
    const auto at = [&](int32_t head) {
      return cuts_[static_cast<size_t>(std::clamp(head, 0, kMaxHeads))];
    };
    return std::max(1, at(heads.end) - at(heads.begin) + 1);
  }

  bool is_new(uint64_t a, uint64_t b, uint64_t c) {
    return seen_.insert((a * 0x9E3779B97F4A7C15ULL ^ b) * 0xBF58476D1CE4E5B9ULL ^ c).second;
  }
  template <class Id>
  static uint64_t bits(Id id) {
    return static_cast<uint32_t>(to_index(id));
  }
  static uint64_t bits(HeadRange heads) {
    return static_cast<uint64_t>(static_cast<uint32_t>(heads.begin)) << 32 |
           static_cast<uint32_t>(heads.end);
  }

  /// Cost of picking rows of a list of tokens.
  int64_t pick_cost(RunListId tokens, RunListId rows) const {
    const int64_t runs = tokens == kNoTokens ? 0 : plan_.run_lists[tokens].count;
    if (rows == kAllRows) return runs;
    return add_up(cost_[rows], std::min(runs, plan_.rows(rows)));
  }
  void add_rows(RunListId tokens, RunListId rows) {
    if (rows != kAllRows) work_ = add_up(work_, pick_cost(tokens, rows));
  }

  void add(const ComputeItem& item) {
    if (item.num_slices == 0) return;
    if (result_lists_.insert(item.q_tokens).second)
      result_rows_ = add_up(result_rows_, plan_.rows(item.q_tokens));
    for (const auto& [list, side] :
         {std::pair{item.q_tokens, Side::q}, std::pair{item.kv_tokens, Side::kv}}) {
      const HeadRange heads =
          side == Side::q ? item.heads : kv_heads_of(plan_.scenario.attention, item.heads);
      if (is_new(bits(list), bits(heads), static_cast<uint64_t>(side)))
        work_ = add_up(work_, cost_[list] * cuts_in(heads));
      if (is_new(bits(list), 7, static_cast<uint64_t>(side)))
        entries_ = add_up(entries_, std::min(plan_.rows(list), pieces_of(list, side)));
    }
  }

  /// Parts of runs inside one sequence, at most.
  int64_t pieces_of(RunListId list, Side side) const {
    const auto& sequences = plan_.layout.slots.sequences;
    const auto sequence_of = [&](int64_t token) {
      return std::upper_bound(
                 sequences.begin(), sequences.end(), token,
                 [&](int64_t id, const SequenceSlot& slot) { return id < slot.side(side).begin; }) -
             sequences.begin();
    };
    int64_t pieces = 0;
    for (const TokenRun& run : plan_.list(list)) {
      const int64_t spanned = sequence_of(run.last()) - sequence_of(run.begin) + 1;
      pieces = add_up(pieces, std::min(run.count(), 3 * spanned));
    }
    return pieces;
  }

  void add(const TransferItem& item) {
    const RunListId from = plan_.buffer(item.from).tokens, to = plan_.buffer(item.to).tokens;
    const uint64_t rows = bits(item.from_rows) << 32 | bits(item.to_rows);
    const RunListId claimed = to == kNoTokens ? item.tokens : to;
    const int64_t cost = add_up(pick_cost(from, item.from_rows), pick_cost(claimed, item.to_rows));
    if (is_new(bits(from) << 32 | bits(claimed), rows, 8)) work_ = add_up(work_, cost);
    if (item.to_rows != kAllRows) work_ = add_up(work_, cost_[item.to_rows]);
    const bool is_sum = item.payload == Payload::partial || item.payload == Payload::dq ||
                        item.payload == Payload::dkv || item.landing == Landing::add;
    if (is_sum && is_new(bits(from) << 32 | bits(claimed), rows, bits(item.heads) * 2 + 1))
      work_ = add_up(work_, cost * cuts_in(item.heads));
    if (item.payload == Payload::lse)
      scale_parts_ += item.from_rows == kAllRows && item.to_rows == kAllRows ? 0 : 1;
    // Rows that are scaled by parts of results are looked at one by one.
    const bool is_scaled = item.payload == Payload::out && item.landing == Landing::add;
    if (is_scaled && (result_lists_.size() > 1 || scale_parts_ > 0))
      work_ = add_up(work_, std::min(add_up(plan_.rows_of(item), result_rows_), kMostWork) *
                                std::min<int64_t>(1 + scale_parts_, int64_t{1} << 26));
    // group_cast looks at every query row that moves.
    if (plan_.scenario.parallel.comm_type == CommType::group_cast && item.src != item.dst)
      work_ = add_up(work_, plan_.rows_of(item));
  }

  const Plan& plan_;
  IdVector<RunListId, int64_t> cost_;  // runs, and ids of runs with a stride
  std::vector<int32_t> cuts_;          // [head] cuts up to this head
  std::unordered_set<uint64_t> seen_;
  int64_t work_ = 0, entries_ = 0;
  std::unordered_set<RunListId> result_lists_;  // queries of computes
  int64_t result_rows_ = 0;                     // of these lists together
  int64_t scale_parts_ = 0;                     // lse transfers of some rows
};

}  // namespace

std::optional<Error> refuse_large_proof(const Plan& plan) {
  const auto text = ProofSize(plan).complaint();
  if (!text) return std::nullopt;
  return make_refusal("the plan is too large to be proved: " + *text,
                      "use longer runs of tokens and rows, and fewer lists", {});
}

}  // namespace cpscope
