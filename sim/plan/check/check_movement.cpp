#include "sim/base/parallel.h"
#include "sim/plan/check/check_rows.h"
#include "sim/plan/item_uses.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr int64_t kNothing = -1;

/// Content of a buffer while the checker steps through the plan.
struct Content {
  RunListId tokens = kNoTokens;  // tokens that its rows hold now
  bool is_complete = false;      // every row of every head has been written
  int64_t landed = 0;  // (row, head) cells that transfers have filled since it was last complete
  int64_t result_of = kNothing;  // partial: the compute item whose result is not merged yet
  int32_t merges = 0;            // accumulators: merges so far
  bool is_finished = false;
  bool has_arrived = false;  // a partial result of another rank, not merged yet
  bool was_sent = false;     // an unfinished sum that its owner has got
};

/// A rectangle (rows x heads) that was written to a buffer; those of one stage must not overlap.
struct Landed {
  BufferId buffer;
  RunListId rows;
  HeadRange heads;
  int64_t transfer;
};

class Walk {
 public:
  explicit Walk(const Plan& plan)
      : plan_(plan),
        contents_(plan.buffers.size()),
        picker_(plan),
        read_in_(plan.buffers.size()),
        written_in_(plan.buffers.size()) {
    for (const BufferId id : plan.buffers.ids()) {
      const BufferSpec& spec = plan.buffer(id);
      at(id).tokens = spec.tokens;
      // A buffer without rows is complete from the start.
      at(id).is_complete = at(id).is_finished = spec.tokens != kNoTokens && spec.rows == 0;
    }
    for (const HomeBuffers& home : plan.home) {
      at(home.q).is_complete = true;
      at(home.kv).is_complete = true;
      if (home.d_out != kNoBuffer) at(home.d_out).is_complete = true;
      if (home.replica != kNoBuffer) at(home.replica).is_complete = true;
    }
  }

  std::optional<std::string> run(Direction direction) {
    const Pass& pass = plan_.pass(direction);
    direction_ = direction;
    merged_.assign(pass.computes.size(), 0);
    for (const HomeBuffers& home : plan_.home) {
      if (direction == Direction::backward && home.stats != kNoBuffer)
        at(home.stats).is_complete = at(home.stats).is_finished = at(home.out).is_finished;
    }
    for (const Stage& stage : pass.stages) {
      if (auto text = run_stage(pass, stage)) return text;
    }
    for (size_t c = 0; c < pass.computes.size(); ++c) {
      const int32_t expected = pass.computes[c].num_slices == 0   ? 0
                               : direction == Direction::backward ? 2
                                                                  : 1;
      if (merged_[c] != expected) {
        item_ = ItemId{direction, StageKind::compute, static_cast<int64_t>(c)};
        return fmt::format("the result of rank {}, step {} is merged {} times, {} expected",
                           to_index(pass.computes[c].rank), to_index(pass.computes[c].step),
                           merged_[c], expected);
      }
    }
    return std::nullopt;
  }

  /// The item that was looked at last; nothing at the end of a pass.
  const std::optional<ItemId>& item() const { return item_; }

  std::optional<std::string> check_answers() const {
    for (const RankId rank : plan_.home.ids()) {
      const HomeBuffers& home = plan_.home[rank];
      for (const BufferId id : direction_ == Direction::backward ? std::vector{home.dq, home.dkv}
                                                                 : std::vector{home.out}) {
        if (!at(id).is_complete)
          return fmt::format("rank {} ends without its {}", to_index(rank),
                             to_name(plan_.buffer(id).kind));
        if (!at(id).is_finished)
          return fmt::format("rank {} never finishes its {}", to_index(rank),
                             to_name(plan_.buffer(id).kind));
      }
    }
    return std::nullopt;
  }

 private:
  Content& at(BufferId id) { return contents_[id]; }
  const Content& at(BufferId id) const { return contents_[id]; }

  std::optional<std::string> run_stage(const Pass& pass, const Stage& stage) {
    if (stage.kind == StageKind::transfer) return run_transfers(pass, stage);
    ++stage_;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const Overload run_item{
          [](const TransferItem&) -> std::optional<std::string> { return std::nullopt; },
          [&](const ReorderItem& item) { return reorder(item); },
          [&](const ComputeItem& item) { return compute(item, i); },
          [&](const MergeItem& item) { return merge(item); },
          [&](const FinishItem& item) { return finish(item); }};
      item_ = ItemId{direction_, stage.kind, i};
      if (auto text =
              visit_item(pass, stage.kind, i, [&](const auto& item) { return touch(item); }))
        return text;
      if (auto text = visit_item(pass, stage.kind, i, run_item)) return text;
    }
    return std::nullopt;
  }

  /// Items of a stage may run at the same time: none may write what another reads or writes.
  template <class Item>
  std::optional<std::string> touch(const Item& item) {
    // Merges into one sum follow item order, which the check of their numbers proves.
    constexpr bool kIsMerge = std::is_same_v<Item, MergeItem>;
    BufferId shared = kNoBuffer;
    visit_reads(item, [&](BufferId id) {
      const bool is_own_sum = kIsMerge && is_written(item, id);
      if (written_in_[id] == stage_ && !is_own_sum) shared = id;
    });
    visit_writes(item, [&](BufferId id) {
      if ((written_in_[id] == stage_ && !kIsMerge) || read_in_[id] == stage_) shared = id;
    });
    if (shared != kNoBuffer)
      return fmt::format(
          "step {}, rank {}: two items of one stage use buffer {}, and one writes it",
          to_index(item.step), to_index(rank_of(item)), to_index(shared));
    visit_reads(item, [&](BufferId id) {
      if (!is_written(item, id)) read_in_[id] = stage_;
    });
    visit_writes(item, [&](BufferId id) { written_in_[id] = stage_; });
    return std::nullopt;
  }

  template <class Item>
  static bool is_written(const Item& item, BufferId buffer) {
    bool is_written = false;
    visit_writes(item, [&](BufferId id) { is_written = is_written || id == buffer; });
    return is_written;
  }

  std::string name(const TransferItem& item) const {
    return fmt::format("step {}: {} from rank {} to rank {}", to_index(item.step),
                       to_name(item.payload), to_index(item.src), to_index(item.dst));
  }

  template <class Item>
  static std::string name(const Item& item, std::string_view kind) {
    return fmt::format("step {}, rank {}: {}", to_index(item.step), to_index(item.rank), kind);
  }

  /// All transfers of a stage run at the same time: what one writes no other of the stage may read.
  std::optional<std::string> run_transfers(const Pass& pass, const Stage& stage) {
    std::vector<Content> before;
    before.reserve(static_cast<size_t>(stage.end - stage.begin));
    std::vector<std::pair<const RowPair, bool>*> added;  // to same_tokens_
    ++stage_;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const TransferItem& item = pass.transfers[i];
      item_ = ItemId{direction_, stage.kind, i};
      const Content& from = at(item.from);
      const bool is_result = plan_.buffer(item.from).role == BufferRole::partial;
      if (!from.is_complete || (is_result && from.result_of == kNothing))
        return name(item) + ": the sender does not hold what it sends";
      const bool is_share = item.landing == Landing::add || item.payload == Payload::partial;
      // The sum of dq that travels with the queries of a ring is finished at home.
      const bool is_sum_of_ring =
          item.payload == Payload::dq && plan_.buffer(item.from).tokens == kNoTokens && !is_result;
      const bool is_answer =
          item.payload == Payload::out || item.payload == Payload::dq || is_result;
      if (is_answer && !is_share && !is_sum_of_ring && !from.is_finished)
        return name(item) + ": the sender has not finished what it sends";
      if (is_share && from.is_finished && plan_.buffer(item.from).rows > 0)
        return name(item) + ": a share is finished before the sum is whole";
      if (narrows_share(item) && !from.is_finished)
        return name(item) + ": a share of a gradient travels in the dtype, dkv_wire says fp32";
      if (at(item.to).has_arrived)
        return name(item) + ": overwrites a partial result that was not merged yet";
      read_in_[item.from] = stage_;
      before.push_back(from);
      const auto rows = row_pair_of(item, from);
      if (!rows) continue;
      const auto [known, is_new] = same_tokens_.try_emplace(*rows, false);
      if (is_new) added.push_back(&*known);
    }
    compare_rows(added);
    landed_.clear();
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const TransferItem& item = pass.transfers[i];
      item_ = ItemId{direction_, stage.kind, i};
      if (read_in_[item.to] == stage_)
        return name(item) + ": lands in a buffer that is being sent in the same stage";
      if (item.landing == Landing::add) {
        if (!at(item.to).is_complete)
          return name(item) + ": adds to a buffer that was never started";
        if (at(item.to).is_finished && plan_.buffer(item.to).rows > 0)
          return name(item) + ": adds to a sum that is finished";
      } else if (auto text = land(item, before[i - stage.begin])) {
        return text;
      }
      if (auto text = check_tokens(item, before[i - stage.begin])) return text;
    }
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const TransferItem& item = pass.transfers[i];
      if (item.payload == Payload::partial || item.payload == Payload::lse)
        at(item.to).has_arrived = at(item.to).is_complete;
      if (item.landing == Landing::add || item.payload == Payload::partial) give_away(item.from);
    }
    std::stable_sort(landed_.begin(), landed_.end(), [](const Landed& a, const Landed& b) {
      return to_index(a.buffer) < to_index(b.buffer);
    });
    for (auto first = landed_.begin(); first != landed_.end();) {
      const auto last = std::find_if(
          first, landed_.end(), [&](const Landed& part) { return part.buffer != first->buffer; });
      item_ = ItemId{direction_, stage.kind, first->transfer};
      const bool is_whole = last == first + 1 && first->rows == kAllRows;
      const std::span<const Landed> parts(&*first, static_cast<size_t>(last - first));
      if (auto text = is_whole ? std::nullopt : check_disjoint(parts))
        return fmt::format("buffer {}: {}", to_index(first->buffer), *text);
      first = last;
    }
    return std::nullopt;
  }

  /// True if a gradient of a custom plan, whose wires no schedule says, travels in fewer bits than
  /// dkv_wire says. A sum that is finished is in the dtype already.
  bool narrows_share(const TransferItem& item) const {
    const Numerics& numerics = plan_.scenario.numerics;
    return plan_.scenario.parallel.comm_type == CommType::custom && item.src != item.dst &&
           (item.payload == Payload::dkv || item.payload == Payload::dq) &&
           element_bytes(wire_dtype(item, numerics)) < element_bytes(dkv_wire_dtype(numerics)) &&
           plan_.rows_of(item) > 0;
  }

  /// The owner of the rows has got a sum: a compute item's result is used up by that, a sum of
  /// several may be begun anew.
  void give_away(BufferId id) {
    Content& content = at(id);
    if (plan_.buffer(id).role != BufferRole::partial) {
      content.was_sent = true;
    } else if (content.result_of != kNothing) {
      ++merged_[content.result_of];
      content.result_of = kNothing;
      content.is_complete = false;
    }
  }

  std::optional<std::string> land(const TransferItem& item, const Content& from) {
    Content& to = at(item.to);
    const BufferSpec& spec = plan_.buffer(item.to);
    if (spec.tokens == kNoTokens) {
      if (item.tokens == kNoTokens)
        return name(item) + ": a transfer into a ring buffer names no tokens";
      if (item.heads != spec.heads)
        return name(item) + ": some heads of the ring buffer are not sent";
      if (written_in_[item.to] == stage_)
        return name(item) + ": a ring buffer is filled twice in one stage";
      written_in_[item.to] = stage_;
      landed_.push_back({item.to, item.to_rows, item.heads, item_->index});
      to.tokens = item.tokens;
      to.is_complete = true;
      to.is_finished = from.is_finished;
      to.merges = from.merges;
      return std::nullopt;
    }
    const int64_t rows = item.to_rows == kAllRows ? spec.rows : plan_.rows(item.to_rows);
    if (rows == 0) return std::nullopt;
    if (to.is_complete) to.landed = 0;
    if (to.landed == 0) to.is_finished = true;
    to.is_finished = to.is_finished && from.is_finished;
    to.landed += rows * item.heads.size();
    landed_.push_back({item.to, item.to_rows, item.heads, item_->index});
    if (to.landed > spec.rows * spec.heads.size())
      return name(item) + ": more rows are written than the buffer has";
    to.is_complete = to.landed == spec.rows * spec.heads.size();
    return std::nullopt;
  }

  std::optional<std::string> check_disjoint(std::span<const Landed> parts) {
    std::map<std::pair<int32_t, int32_t>, std::vector<TokenRun>> by_heads;
    int32_t covered = 0;
    for (const Landed& part : parts) {
      auto& rows = by_heads[{part.heads.begin, part.heads.end}];
      if (part.rows == kAllRows) {
        rows.push_back({0, int64_t{1} << 31, 1});
      } else {
        const auto list = plan_.list(part.rows);
        rows.insert(rows.end(), list.begin(), list.end());
      }
    }
    for (auto& [heads, rows] : by_heads) {
      if (heads.first < covered)
        return fmt::format("transfers of overlapping heads land at head {}", heads.first);
      covered = heads.second;
      if (const int64_t row = first_shared(rows); row >= 0)
        return fmt::format("two transfers write row {}", row);
    }
    return std::nullopt;
  }

  /// Rows of two lists: (list, rows) twice.
  using RowPair = std::tuple<int32_t, int32_t, int32_t, int32_t>;

  /// The rows that a transfer reads and writes, if they are not the same ones.
  std::optional<RowPair> row_pair_of(const TransferItem& item, const Content& from) const {
    const RunListId target = plan_.buffer(item.to).tokens;
    const RunListId claimed = target == kNoTokens ? item.tokens : target;
    // A sum without any share yet: zeros are right for every token.
    if (from.tokens == kNoTokens || claimed == kNoTokens) return std::nullopt;
    if (claimed == from.tokens && item.from_rows == item.to_rows) return std::nullopt;
    // The rows of a gradient are those that its keys came from: both ways are one question.
    auto one = std::pair(to_index(from.tokens), to_index(item.from_rows));
    auto other = std::pair(to_index(claimed), to_index(item.to_rows));
    if (other < one) std::swap(one, other);
    return std::tuple_cat(one, other);
  }

  /// Compares the rows of the transfers of a stage that have not been compared yet.
  void compare_rows(const std::vector<std::pair<const RowPair, bool>*>& added) {
    const int64_t count = std::ssize(added), blocks = std::min<int64_t>(count, 64);
    for_each_index(blocks, [&](int64_t block) {
      RowPicker picker(plan_);
      std::vector<TokenRun> sent, expected;
      for (int64_t i = count * block / blocks; i < count * (block + 1) / blocks; ++i) {
        auto& [rows, is_same] = *added[static_cast<size_t>(i)];
        picker.pick(RunListId{std::get<0>(rows)}, RunListId{std::get<1>(rows)}, sent);
        picker.pick(RunListId{std::get<2>(rows)}, RunListId{std::get<3>(rows)}, expected);
        is_same = same_ids(sent, expected);
      }
    });
  }

  /// Checks that the rows sent hold the same tokens as the rows of the target.
  std::optional<std::string> check_tokens(const TransferItem& item, const Content& from) {
    const RunListId target = plan_.buffer(item.to).tokens;
    if (target != kNoTokens && item.tokens != kNoTokens && item.tokens != target)
      return name(item) + ": claims other tokens than the receiver's";
    if (target == kNoTokens && item.tokens == kNoTokens && from.tokens != kNoTokens)
      return name(item) + ": a transfer into a ring buffer names no tokens";
    if (const auto rows = row_pair_of(item, from); rows && !same_tokens_.at(*rows))
      return name(item) + ": the rows sent are not the tokens that the receiver expects";
    return std::nullopt;
  }

  std::optional<std::string> reorder(const ReorderItem& item) {
    const auto where = [&] { return name(item, "reorder"); };
    if (plan_.buffer(item.from).rank != item.rank || plan_.buffer(item.to).rank != item.rank)
      return where() + " crosses ranks";
    if (plan_.buffer(item.from).kind != plan_.buffer(item.to).kind ||
        plan_.buffer(item.from).heads != plan_.buffer(item.to).heads)
      return where() + " turns one tensor into another";
    if (!at(item.from).is_complete) return where() + " reads a buffer that is not complete";
    if (plan_.rows(item.order) != plan_.buffer(item.to).rows)
      return where() + " does not fill its target";
    const auto key = std::tuple(to_index(at(item.from).tokens), to_index(item.order),
                                to_index(plan_.buffer(item.to).tokens), -2);
    const auto [known, is_new] = same_tokens_.try_emplace(key, false);
    if (is_new) {
      known->second = same_ids(picker_.pick(at(item.from).tokens, item.order),
                               plan_.list(plan_.buffer(item.to).tokens));
    }
    if (!known->second) return where() + " puts tokens where others are expected";
    at(item.to).is_complete = true;
    at(item.to).is_finished = at(item.from).is_finished;
    return std::nullopt;
  }

  std::optional<std::string> compute(const ComputeItem& item, int64_t index) {
    const auto where = [&] { return name(item, "compute"); };
    const BufferSpec &q = plan_.buffer(item.q), &kv = plan_.buffer(item.kv);
    const HeadRange kv_heads = kv_heads_of(plan_.scenario.attention, item.heads);
    if (q.rank != item.rank || kv.rank != item.rank)
      return where() + " reads another rank's memory";
    if (q.kind != BufferKind::q || kv.kind != BufferKind::kv)
      return where() + " takes another tensor for q or kv";
    if (!at(item.q).is_complete || at(item.q).tokens != item.q_tokens)
      return where() + " does not hold the queries that it reads";
    if (!at(item.kv).is_complete || at(item.kv).tokens != item.kv_tokens)
      return where() + " does not hold the keys that it reads";
    if (item.heads.begin < q.heads.begin || item.heads.end > q.heads.end)
      return where() + " reads query heads that it does not hold";
    if (kv_heads.begin < kv.heads.begin || kv_heads.end > kv.heads.end)
      return where() + " reads KV heads that it does not hold";
    if (direction_ == Direction::backward) {
      if (!(at(item.out).is_finished && at(item.d_out).is_complete))
        return where() + " lacks out or d_out";
      const bool has_stats = plan_.buffer(item.out).kind == BufferKind::stats;
      if (!holds_queries(item, item.out, has_stats ? BufferKind::stats : BufferKind::out) ||
          !holds_queries(item, item.d_out, BufferKind::d_out))
        return where() + " reads out or d_out of other queries";
    }
    if (item.num_slices == 0) return std::nullopt;
    const std::array gradients{item.dq, item.dkv};
    for (const BufferId id : direction_ == Direction::backward
                                 ? std::span<const BufferId>(gradients)
                                 : std::span(&item.out, 1)) {
      if (!fits_result(item, id)) return where() + " writes to a buffer that is not made for it";
      if (at(id).result_of != kNothing)
        return where() + " overwrites a result that was not merged yet";
      at(id).result_of = index;
      at(id).is_complete = true;
      at(id).is_finished = false;
      at(id).tokens = plan_.buffer(id).kind == BufferKind::dkv ? item.kv_tokens : item.q_tokens;
    }
    return std::nullopt;
  }

  /// True if the buffer is this rank's own, with the rows and heads of the item's queries.
  bool holds_queries(const ComputeItem& item, BufferId id, BufferKind kind) const {
    const BufferSpec& spec = plan_.buffer(id);
    return spec.rank == item.rank && spec.kind == kind && at(id).tokens == item.q_tokens &&
           spec.heads.begin <= item.heads.begin && spec.heads.end >= item.heads.end;
  }

  /// True if the buffer can hold the item's result on this rank until it is merged.
  bool fits_result(const ComputeItem& item, BufferId id) const {
    const BufferSpec& spec = plan_.buffer(id);
    const BufferKind kind = direction_ == Direction::forward ? BufferKind::out
                            : id == item.dq                  ? BufferKind::dq
                                                             : BufferKind::dkv;
    const bool is_kv = kind == BufferKind::dkv;
    const HeadRange heads = is_kv ? kv_heads_of(plan_.scenario.attention, item.heads) : item.heads;
    return spec.rank == item.rank && spec.kind == kind && spec.role == BufferRole::partial &&
           spec.rows >= plan_.rows(is_kv ? item.kv_tokens : item.q_tokens) &&
           spec.heads.begin <= heads.begin && spec.heads.end >= heads.end;
  }

  std::optional<std::string> merge(const MergeItem& item) {
    const auto where = [&] { return name(item, "merge"); };
    Content& into = at(item.into);
    if (plan_.buffer(item.into).rank != item.rank) return where() + " writes another rank's memory";
    if (item.order == 0) {
      if (into.is_complete && plan_.buffer(item.into).rows > 0 && !into.was_sent)
        return where() + " overwrites a sum that holds results";
      into.merges = 0;
      into.is_finished = into.was_sent = false;
      if (plan_.buffer(item.into).tokens == kNoTokens) into.tokens = kNoTokens;
    } else if (!into.is_complete) {
      return where() + " adds to a sum that was never started";
    } else if (into.is_finished && plan_.buffer(item.into).rows > 0) {
      return where() + " adds to a sum that is finished";
    }
    // The order in a travelling sum counts the hops that it has made; idle ranks leave gaps.
    const BufferSpec& sum = plan_.buffer(item.into);
    const bool travels =
        sum.kind == BufferKind::dkv || (sum.kind == BufferKind::dq && sum.tokens == kNoTokens);
    const bool is_next = item.order == into.merges;
    if (!is_next && !(travels && item.order > into.merges && item.order <= to_index(item.step))) {
      return fmt::format("merge {} has order {}, expected {}", where(), item.order, into.merges);
    }
    into.merges = item.order + 1;
    into.is_complete = true;
    if (item.partial == kNoBuffer) return std::nullopt;
    Content& partial = at(item.partial);
    if (partial.result_of == kNothing && !partial.has_arrived)
      return where() + " reads a result that is not there";
    const BufferSpec &from = plan_.buffer(item.partial), &to = plan_.buffer(item.into);
    const bool is_lse = from.kind == BufferKind::stats && direction_ == Direction::forward &&
                        to.kind == BufferKind::out;
    if (from.rank != item.rank || (from.kind != to.kind && !is_lse) ||
        from.heads.begin < to.heads.begin || from.heads.end > to.heads.end)
      return where() + " adds another tensor or another rank's result";
    const RunListId tokens = partial.tokens;
    if (into.tokens == kNoTokens) into.tokens = tokens;
    if (!are_rows_of(into.tokens, item.into_rows, tokens))
      return where() + " adds rows of other tokens";
    if (plan_.rows(tokens) > plan_.buffer(item.into).rows)
      return where() + " adds more rows than the buffer has";
    if (partial.result_of != kNothing) ++merged_[partial.result_of];
    partial.result_of = kNothing;
    partial.has_arrived = partial.is_complete = false;
    partial.landed = 0;
    return std::nullopt;
  }

  /// True if rows `rows` of the list `all` are the tokens of another list.
  bool are_rows_of(RunListId all, RunListId rows, RunListId tokens) {
    if (rows == kAllRows) return all == tokens;
    const int64_t count = plan_.rows(all);
    for (const TokenRun& run : plan_.list(rows)) {
      if (run.count() > 0 && run.last() >= count) return false;
    }
    return same_ids(picker_.pick(all, rows), plan_.list(tokens));
  }

  std::optional<std::string> finish(const FinishItem& item) {
    const auto where = [&] { return name(item, "finish"); };
    Content& content = at(item.buffer);
    if (plan_.buffer(item.buffer).rank != item.rank) return where() + " of another rank's memory";
    if (!content.is_complete) return where() + " of a sum that was never started";
    if (content.is_finished && plan_.buffer(item.buffer).rows > 0)
      return where() + " happens twice";
    content.is_finished = true;
    return std::nullopt;
  }

  const Plan& plan_;
  IdVector<BufferId, Content> contents_;
  RowPicker picker_;
  std::vector<int32_t> merged_;
  Direction direction_ = Direction::forward;
  std::optional<ItemId> item_;
  int32_t stage_ = 0;
  IdVector<BufferId, int32_t> read_in_, written_in_;  // the last stage that did
  std::vector<Landed> landed_;                        // of this stage
  std::map<RowPair, bool> same_tokens_;
};

}  // namespace

CheckResult check_movement(const Plan& plan) {
  Walk walk(plan);
  for (const Direction direction : kDirections) {
    if (direction == Direction::backward && !plan.scenario.numerics.backward) continue;
    if (auto text = walk.run(direction))
      return broken("movement", fmt::format("{}, {}", to_name(direction), *text), walk.item());
    if (auto text = walk.check_answers()) return broken("movement", *text);
  }
  return passed("movement",
                fmt::format("{} transfers carry what their senders hold to where it is read; every "
                            "result is merged once, in order",
                            plan.forward.transfers.size() + plan.backward.transfers.size()));
}

}  // namespace cpscope
