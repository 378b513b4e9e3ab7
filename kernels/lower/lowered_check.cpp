#include "kernels/lower/lowered_check.h"

#include "sim/base/parallel.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

/// What a row holds before anything is written to it.
constexpr uint64_t kNothing = ~uint64_t{0};
/// Zeros, which change no sum.
constexpr uint64_t kZero = 0;

/// A number of its own for every two, and never one that was rounded. (splitmix64's finaliser)
uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9E3779B97F4A7C15u ^ (b + 0xBF58476D1CE4E5B9u + (a << 6) + (a >> 2));
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  return (z ^ (z >> 31)) & ~uint64_t{1};
}

uint64_t round_to_dtype(uint64_t value) {
  return value == kZero || value == kNothing ? value : value | 1;
}

uint64_t add_to(uint64_t sum, uint64_t value) {
  if (value == kZero) return sum;
  return sum == kZero ? value : mix(sum, value);
}

/// Ranges of heads that no buffer and no item cuts further; one head stands for all of a range.
class HeadUnits {
 public:
  HeadUnits(const Plan& plan, const LoweredPlan& lowered)
      : group_(plan.scenario.attention.heads / plan.scenario.attention.kv_heads) {
    std::set<int32_t> kv{0, plan.scenario.attention.kv_heads}, q;
    const auto cut_q = [&](int32_t head) {
      q.insert(head);
      kv.insert({head / group_, (head + group_ - 1) / group_});
    };
    const auto cut = [&](HeadRange heads, bool is_kv) {
      for (const int32_t head : {heads.begin, heads.end}) {
        if (is_kv) {
          kv.insert(head);
        } else {
          cut_q(head);
        }
      }
    };
    for (const Plan* one : {&plan, &lowered.plan}) {
      for (const BufferSpec& spec : one->buffers)
        cut(spec.heads, spec.kind == BufferKind::kv || spec.kind == BufferKind::dkv);
      for (const Direction direction : kDirections) {
        const Pass& pass = one->pass(direction);
        for (const ComputeItem& item : pass.computes) cut(item.heads, false);
        for (const TransferItem& item : pass.transfers)
          cut(item.heads, item.payload == Payload::kv || item.payload == Payload::dkv);
      }
    }
    for (const int32_t head : kv) q.insert(head * group_);
    kv_.assign(kv.begin(), kv.end());
    q_.assign(q.begin(), q.end());
  }

  /// Units of a range of heads: of KV heads or of query heads.
  HeadRange of(HeadRange heads, bool is_kv) const {
    const std::vector<int32_t>& ends = is_kv ? kv_ : q_;
    return {place(ends, heads.begin), place(ends, heads.end)};
  }
  /// The unit of KV heads that a unit of query heads reads.
  int32_t kv_unit_of(int32_t q_unit) const {
    const int32_t head = q_[static_cast<size_t>(q_unit)] / group_;
    return static_cast<int32_t>(std::upper_bound(kv_.begin(), kv_.end(), head) - kv_.begin()) - 1;
  }
  int32_t num_kv_units() const { return static_cast<int32_t>(kv_.size()) - 1; }
  /// Units of query heads that read a unit of KV heads.
  HeadRange readers_of(int32_t kv_unit) const {
    const auto unit = static_cast<size_t>(kv_unit);
    return of({kv_[unit] * group_, kv_[unit + 1] * group_}, false);
  }

 private:
  static int32_t place(const std::vector<int32_t>& ends, int32_t head) {
    return static_cast<int32_t>(std::lower_bound(ends.begin(), ends.end(), head) - ends.begin());
  }

  int32_t group_;
  std::vector<int32_t> q_, kv_;  // where units begin, and the last end
};

bool holds_kv(BufferKind kind) { return kind == BufferKind::kv || kind == BufferKind::dkv; }

/// The number of consecutive rows that every list takes together, so that one stands for all of
/// them: 1 where documents have any length or rows are taken with a stride, thousands in a ring of
/// one sequence.
int64_t find_block_rows(const Plan& plan, const LoweredPlan& lowered) {
  int64_t block = 0;
  const auto cut = [&](std::span<const TokenRun> runs) {
    for (const TokenRun& run : runs)
      block = std::gcd(std::gcd(block, run.stride == 1 ? run.begin : 1), run.count());
  };
  for (const Plan* one : {&plan, &lowered.plan}) {
    for (const BufferSpec& spec : one->buffers) block = std::gcd(block, spec.rows);
    for (const RunListId id : one->run_lists.ids()) cut(one->list(id));
  }
  for (const Direction direction : kDirections) {
    for (const ComputeNote& note : lowered.notes[direction].computes) {
      for (const JoinedPart& part : note.parts) cut(part.kv_rows);
    }
  }
  return std::max<int64_t>(1, block);
}

/// A plan carried out with one number for each block of rows and unit of heads, for one unit of KV
/// heads and the query heads that read it: no other heads meet them.
class NumberRun {
 public:
  /// lowered: what the plan is part of; nullptr: it is the plan itself.
  NumberRun(const Plan& plan, const LoweredPlan* lowered, const HeadUnits& units, int32_t kv_unit,
            int64_t block_rows)
      : plan_(plan),
        lowered_(lowered),
        units_(units),
        kv_unit_{kv_unit, kv_unit + 1},
        q_units_(units.readers_of(kv_unit)),
        block_rows_(block_rows) {
    for (const BufferSpec& spec : plan.buffers) {
      spans_.push_back(units_of(spec.heads, holds_kv(spec.kind)));
      held_.push_back(std::vector<uint64_t>(
          static_cast<size_t>(spec.rows / block_rows * spans_.back().size()), kNothing));
    }
    for (const HomeBuffers& home : plan.home) {
      for (const BufferId id : {home.q, home.kv, home.replica, home.d_out}) {
        if (id == kNoBuffer) continue;
        for (size_t i = 0; i < held(id).size(); ++i)
          held(id)[i] = mix(static_cast<uint64_t>(to_index(id)) + 1, i);
      }
    }
  }

  void carry_out(Direction direction) {
    direction_ = direction;
    const Pass& pass = plan_.pass(direction);
    if (direction == Direction::backward) make_sent_statistics();
    for (const Stage& stage : pass.stages) {
      const std::vector<size_t> items = order_of(stage);
      // A sum of shares begins with zeros in all its rows.
      for (const size_t item : items) {
        if (is_share(stage.kind, item)) fill(pass.transfers[item].to, kZero);
      }
      for (const size_t item : items) {
        where_ = fmt::format("{} {} of the {} pass", to_name(stage.kind), item, to_name(direction));
        visit_item(pass, stage.kind, static_cast<int64_t>(item),
                   [&](const auto& of) { visit(item, of); });
      }
      for (const size_t item : items) {
        if (is_share(stage.kind, item)) round(pass.transfers[item].to);
      }
    }
  }

  const std::vector<uint64_t>& of(BufferId id) const { return held_[id]; }
  /// The first read of a row that nothing was written to; empty if there is none.
  const std::string& unwritten() const { return unwritten_; }

 private:
  std::vector<uint64_t>& held(BufferId id) { return held_[id]; }
  void fill(BufferId id, uint64_t value) { std::fill(held(id).begin(), held(id).end(), value); }
  void round(BufferId id) {
    for (uint64_t& value : held(id)) value = round_to_dtype(value);
  }

  /// They follow from out and d_out before the backward begins.
  void make_sent_statistics() {
    for (const HomeBuffers& home : plan_.home) {
      if (home.stats == kNoBuffer) continue;
      const std::vector<uint64_t>&out = held(home.out), &d_out = held(home.d_out);
      for (size_t i = 0; i < out.size(); ++i)
        held(home.stats)[i] = out[i] == kNothing ? kNothing : mix(out[i], d_out[i]);
    }
  }

  uint64_t& at(BufferId id, int64_t row, int32_t unit) {
    const HeadRange span = spans_[id];
    return held(id).at(static_cast<size_t>(row * span.size() + unit - span.begin));
  }

  /// For a compute item or a transfer, which read nothing but what was written.
  uint64_t read(BufferId id, int64_t row, int32_t unit) {
    const uint64_t value = at(id, row, unit);
    if (value == kNothing && unwritten_.empty())
      unwritten_ = fmt::format("{} reads row {} of buffer {} ({} of rank {}), which nothing writes",
                               where_, row * block_rows_, to_index(id),
                               to_name(plan_.buffer(id).kind), to_index(plan_.buffer(id).rank));
    return value;
  }

  uint64_t digest(BufferId id, const std::vector<int64_t>& rows, int32_t unit) {
    uint64_t sum = 1;
    for (const int64_t row : rows) sum = mix(sum, read(id, row, unit));
    return sum;
  }

  /// Units of a range of heads in which this run takes part.
  HeadRange units_of(HeadRange heads, bool is_kv) const {
    const HeadRange all = units_.of(heads, is_kv), own = is_kv ? kv_unit_ : q_units_;
    const int32_t begin = std::max(all.begin, own.begin);
    return {begin, std::max(begin, std::min(all.end, own.end))};
  }

  std::vector<int64_t> blocks_of(std::span<const TokenRun> runs) const {
    if (block_rows_ == 1) return expand(runs);
    std::vector<int64_t> blocks;
    for (const TokenRun& run : runs) {
      for (int64_t row = run.begin; row < run.end; row += block_rows_)
        blocks.push_back(row / block_rows_);
    }
    return blocks;
  }

  /// Blocks of a list, or the first `count` blocks.
  std::vector<int64_t> blocks_of(RunListId list, int64_t count) const {
    if (list != kAllRows) return blocks_of(plan_.list(list));
    std::vector<int64_t> rows(static_cast<size_t>(count));
    std::iota(rows.begin(), rows.end(), int64_t{0});
    return rows;
  }

  /// nullptr for the plan itself.
  const PassNotes* notes() const {
    return lowered_ == nullptr ? nullptr : &lowered_->notes[direction_];
  }
  bool is_share(StageKind kind, size_t item) const {
    return kind == StageKind::transfer && lowered_ != nullptr && notes()->transfers[item].is_share;
  }
  bool is_narrow(BufferId id) const {
    return lowered_ != nullptr && lowered_->buffers[id].is_narrow;
  }

  /// Shares are added last, in the order of the plan; only their whole sums are rounded.
  std::vector<size_t> order_of(const Stage& stage) const {
    std::vector<size_t> items, shares;
    for (auto i = static_cast<size_t>(stage.begin); i < static_cast<size_t>(stage.end); ++i)
      (is_share(stage.kind, i) ? shares : items).push_back(i);
    std::stable_sort(shares.begin(), shares.end(), [&](size_t a, size_t b) {
      return notes()->transfers[a].origin < notes()->transfers[b].origin;
    });
    items.insert(items.end(), shares.begin(), shares.end());
    return items;
  }

  void visit(size_t index, const TransferItem& item) {
    const bool is_share = this->is_share(StageKind::transfer, index);
    const Rounding rounding = lowered_ == nullptr ? Rounding{} : notes()->transfers[index].rounding;
    const bool is_sum = item.payload == Payload::dq || item.payload == Payload::dkv ||
                        item.payload == Payload::partial || item.landing == Landing::add;
    const bool is_rounded =
        rounding.values || (is_sum && item.link != LinkClass::self && !item.wire_fp32);
    const int64_t count = plan_.rows_of(item) / block_rows_;
    const std::vector<int64_t> from = blocks_of(item.from_rows, count);
    const std::vector<int64_t> to = blocks_of(item.to_rows, count);
    const HeadRange units =
        units_of(item.heads, item.payload == Payload::kv || item.payload == Payload::dkv);
    for (size_t i = 0; i < from.size(); ++i) {
      for (int32_t unit = units.begin; unit < units.end; ++unit) {
        uint64_t& target = at(item.to, to[i], unit);
        const uint64_t sent = read(item.from, from[i], unit);
        const uint64_t value = is_rounded ? round_to_dtype(sent) : sent;
        if (item.landing == Landing::add || is_share) {
          read(item.to, to[i], unit);
          target = add_to(target, value);
        } else {
          target = value;
        }
        if (!is_share && (rounding.sums || is_narrow(item.to))) target = round_to_dtype(target);
      }
    }
  }

  /// How an item writes its results.
  struct Write {
    bool merges = false;    // with what is there
    bool rounds = false;    // to the dtype
    bool may_round = true;  // to the dtype, if the buffer holds that
  };

  void put(BufferId id, int64_t row, int32_t unit, uint64_t value, Write how) {
    uint64_t& target = at(id, row, unit);
    if (how.merges) read(id, row, unit);
    target = how.merges ? add_to(target, value) : value;
    if ((is_narrow(id) && how.may_round) || how.rounds) target = round_to_dtype(target);
  }

  void compute(const ComputeItem& item, const JoinedPart& part, Write how) {
    const int64_t q_rows = plan_.rows(item.q_tokens) / block_rows_;
    const std::vector<int64_t> all_q = blocks_of(kAllRows, q_rows), kv = blocks_of(part.kv_rows);
    const uint64_t origin = static_cast<uint64_t>(part.origin) + 1;
    const HeadRange units = units_of(item.heads, false);
    for (int32_t unit = units.begin; unit < units.end; ++unit) {
      const uint64_t keys = mix(origin, digest(item.kv, kv, units_.kv_unit_of(unit)));
      for (int64_t row = 0; row < q_rows; ++row) {
        const uint64_t query = mix(keys, read(item.q, row, unit));
        if (direction_ == Direction::forward) {
          put(item.out, row, unit, query, how);
          continue;
        }
        const uint64_t value =
            mix(query, mix(read(item.out, row, unit), read(item.d_out, row, unit)));
        put(item.dq, row, unit, value, how);
      }
    }
    if (direction_ == Direction::forward) return;
    const HeadRange kv_units = units_of(kv_heads_of(plan_.scenario.attention, item.heads), true);
    for (int32_t unit = kv_units.begin; unit < kv_units.end; ++unit) {
      const HeadRange readers = units_.readers_of(unit);
      uint64_t queries = origin;
      for (int32_t q = std::max(units.begin, readers.begin); q < std::min(units.end, readers.end);
           ++q) {
        for (const BufferId id : {item.q, item.out, item.d_out})
          queries = mix(queries, digest(id, all_q, q));
      }
      for (const int64_t row : kv)
        put(item.dkv, row, unit, mix(queries, at(item.kv, row, unit)), {});
    }
  }

  /// A kernel writes zeros to rows of dk and dv that no part of a joined item has.
  void write_zeros(const ComputeItem& item) {
    const HeadRange units = units_of(kv_heads_of(plan_.scenario.attention, item.heads), true);
    for (int64_t row = 0; row < plan_.rows(item.kv_tokens) / block_rows_; ++row) {
      for (int32_t unit = units.begin; unit < units.end; ++unit) at(item.dkv, row, unit) = kZero;
    }
  }

  void visit(size_t i, const ComputeItem& item) {
    if (item.num_slices == 0) return;
    ComputeNote planned;
    planned.origin = static_cast<int64_t>(i);
    const ComputeNote& note = lowered_ == nullptr ? planned : notes()->computes[i];
    const std::vector<JoinedPart> parts = joined_parts(note, item, plan_);
    if (!note.parts.empty() && direction_ == Direction::backward) write_zeros(item);
    // Joined parts are one softmax, or one sum: as if merged, and then rounded.
    for (size_t part = 0; part < parts.size(); ++part) {
      const bool is_last = part + 1 == parts.size();
      compute(item, parts[part],
              {note.own_merge.merges || part > 0, note.own_merge.rounds && is_last, is_last});
    }
  }

  void visit(size_t /*index*/, const ReorderItem& item) {
    const std::vector<int64_t> order = blocks_of(plan_.list(item.order));
    const HeadRange units = spans_[item.to];
    for (size_t row = 0; row < order.size(); ++row) {
      for (int32_t unit = units.begin; unit < units.end; ++unit)
        at(item.to, static_cast<int64_t>(row), unit) = read(item.from, order[row], unit);
    }
  }

  void visit(size_t i, const MergeItem& item) {
    const bool has_all_rows = item.into_rows == kAllRows;
    const bool is_whole = has_all_rows && (item.partial == kNoBuffer || has_all_heads(plan_, item));
    if (item.partial == kNoBuffer || (item.order == 0 && !is_whole)) fill(item.into, kZero);
    if (item.partial == kNoBuffer) return;
    const std::vector<uint64_t>& partial = held(item.partial);
    const auto width = static_cast<size_t>(spans_[item.partial].size()),
               into_width = static_cast<size_t>(spans_[item.into].size());
    const auto first = static_cast<size_t>(spans_[item.partial].begin - spans_[item.into].begin);
    const bool rounds = lowered_ != nullptr && notes()->merges[i].rounds;
    // A ring slot may be larger than the rows that it holds now, or smaller.
    const int64_t count =
        std::min(plan_.buffer(item.into).rows, plan_.buffer(item.partial).rows) / block_rows_;
    const std::vector<int64_t> rows = blocks_of(item.into_rows, count);
    for (size_t n = 0; n < rows.size() * width; ++n) {
      if (partial.at(n) == kNothing) continue;
      uint64_t& into =
          held(item.into)[static_cast<size_t>(rows[n / width]) * into_width + first + n % width];
      into = item.order == 0 && is_whole ? partial[n] : add_to(into, partial[n]);
      if (rounds || is_narrow(item.into)) into = round_to_dtype(into);
    }
  }

  /// A sink is added row by row.
  void visit(size_t /*index*/, const FinishItem& item) { round(item.buffer); }

  const Plan& plan_;
  const LoweredPlan* lowered_;
  const HeadUnits& units_;
  const HeadRange kv_unit_, q_units_;
  const int64_t block_rows_;
  Direction direction_ = Direction::forward;
  IdVector<BufferId, HeadRange> spans_;             // units of heads
  IdVector<BufferId, std::vector<uint64_t>> held_;  // [row, unit]
  std::string where_, unwritten_;
};

/// Calls visit(index, item) for the items of a kind that the stages have.
template <class Item, class Visit>
void visit_items(const Plan& plan, Direction direction, Visit visit) {
  for_each_item(plan, direction,
                Overload{[&](const ItemId& id, const Item& item) {
                           visit(static_cast<size_t>(id.index), item);
                         },
                         [](const ItemId&, const auto&) {}});
}

std::string compare_bytes(const Plan& plan, const Plan& made, Direction direction) {
  std::map<std::pair<RankId, RankId>, int64_t> bytes;
  visit_items<TransferItem>(plan, direction, [&](size_t, const TransferItem& item) {
    bytes[{item.src, item.dst}] += item.bytes;
  });
  visit_items<TransferItem>(made, direction, [&](size_t, const TransferItem& item) {
    bytes[{item.src, item.dst}] -= item.bytes;
  });
  for (const auto& [ranks, difference] : bytes) {
    if (difference != 0)
      return fmt::format("rank {} sends rank {} {} bytes {} than planned in the {} pass",
                         to_index(ranks.first), to_index(ranks.second), std::abs(difference),
                         difference > 0 ? "fewer" : "more", to_name(direction));
  }
  return "";
}

std::string compare_pairs(const Plan& plan, const LoweredPlan& lowered, Direction direction) {
  const std::vector<ComputeItem>& planned = plan.pass(direction).computes;
  std::vector<int64_t> missing(planned.size());
  for (size_t i = 0; i < planned.size(); ++i) missing[i] = planned[i].visible_pairs;
  visit_items<ComputeItem>(lowered.plan, direction, [&](size_t i, const ComputeItem& item) {
    const ComputeNote& note = lowered.notes[direction].computes[i];
    if (note.parts.empty()) missing[static_cast<size_t>(note.origin)] -= item.visible_pairs;
    // An item of some heads has as large a share of each part's pairs.
    for (const JoinedPart& part : note.parts) {
      const auto origin = static_cast<size_t>(part.origin);
      missing[origin] -= part.visible_pairs / planned[origin].heads.size() * item.heads.size();
    }
  });
  for (size_t i = 0; i < missing.size(); ++i) {
    if (missing[i] != 0)
      return fmt::format("compute {} of the {} pass lacks {} pairs", i, to_name(direction),
                         missing[i]);
  }
  return "";
}

/// The receiver's kernel counts pieces by its own cuts: piece n is complete when it has the heads
/// up to cut n from every sender.
std::string check_pieces(const LoweredPlan& lowered, Direction direction) {
  const PassNotes& notes = lowered.notes[direction];
  if (!notes.is_cut) return "";
  const Pass& pass = lowered.plan.pass(direction);
  const std::vector<TransferItem>& transfers = pass.transfers;
  int64_t num_inputs = 0;  // transfers before the first compute
  for (const Stage& stage : pass.stages) {
    if (stage.kind == StageKind::compute) break;
    if (stage.kind == StageKind::transfer) num_inputs = stage.end;
  }
  std::map<std::pair<RankId, RankId>, int32_t> last;  // piece of a sender and a receiver
  for (size_t i = 0; i < static_cast<size_t>(num_inputs); ++i) {
    const int32_t piece = notes.transfers[i].piece;
    const TransferItem& item = transfers[i];
    const HeadCuts& cuts = notes.ranks[item.dst].cuts;
    const std::vector<int32_t>& ends = item.payload == Payload::kv ? cuts.kv : cuts.q;
    const auto n = static_cast<size_t>(piece);
    const bool is_expected = piece >= 0 && n < ends.size() &&
                             (n == 0 || item.heads.begin >= ends[n - 1]) &&
                             (n + 1 == ends.size() || item.heads.end <= ends[n]);
    int32_t& before = last[{item.src, item.dst}];
    if (is_expected && piece >= before) {
      before = piece;
      continue;
    }
    return fmt::format(
        "transfer {} of the {} pass brings heads {} to {} to rank {} as piece {}, which that rank "
        "does not expect there",
        i, to_name(direction), item.heads.begin, item.heads.end, to_index(item.dst), piece);
  }
  return "";
}

/// Shares are added, whatever a transfer alone would do.
std::string check_shares(const LoweredPlan& lowered, Direction direction) {
  const std::vector<TransferItem>& transfers = lowered.plan.pass(direction).transfers;
  for (size_t i = 0; i < transfers.size(); ++i) {
    if (lowered.notes[direction].transfers[i].is_share && transfers[i].landing != Landing::add)
      return fmt::format("transfer {} of the {} pass is a share that replaces its sum", i,
                         to_name(direction));
  }
  return "";
}

/// What differs in the answers of one unit of KV heads, and the query heads that read it.
std::string compare_answers(const Plan& plan, const LoweredPlan& lowered, const HeadUnits& units,
                            int32_t kv_unit, int64_t block_rows) {
  NumberRun planned(plan, nullptr, units, kv_unit, block_rows),
      made(lowered.plan, &lowered, units, kv_unit, block_rows);
  for (const Direction direction : kDirections) {
    planned.carry_out(direction);
    made.carry_out(direction);
    // A plan that was admitted although it reads too early stays what it is.
    if (!made.unwritten().empty() && planned.unwritten().empty()) return made.unwritten();
  }
  std::vector<BufferId> answers = lowered.answers;
  for (const HomeBuffers& home : plan.home)
    answers.insert(answers.end(), {home.out, home.dq, home.dkv});
  for (const BufferId id : answers) {
    if (id == kNoBuffer) continue;
    const std::vector<uint64_t>&expected = planned.of(id), &seen = made.of(id);
    const auto first =
        std::mismatch(expected.begin(), expected.end(), seen.begin(), seen.end()).first;
    if (first == expected.end() && expected.size() == seen.size()) continue;
    const BufferSpec& spec = plan.buffer(id);
    const auto width = static_cast<int64_t>(expected.size()) / (spec.rows / block_rows);
    return fmt::format("{} of rank {} differs, first in row {}", to_name(spec.kind),
                       to_index(spec.rank), (first - expected.begin()) / width * block_rows);
  }
  return "";
}

}  // namespace

std::optional<Error> check_lowered(const Plan& plan, const LoweredPlan& lowered) {
  const auto fail = [&](const std::string& what) {
    return make_error(ErrorKind::failed, "the lowered plan is not the plan: " + what);
  };
  for (const Direction direction : kDirections) {
    for (const std::string& what :
         {compare_bytes(plan, lowered.plan, direction), compare_pairs(plan, lowered, direction),
          check_pieces(lowered, direction), check_shares(lowered, direction)}) {
      if (!what.empty()) return fail(what);
    }
  }
  const HeadUnits units(plan, lowered);
  const int64_t block_rows = find_block_rows(plan, lowered);
  std::vector<std::string> differences(static_cast<size_t>(units.num_kv_units()));
  for_each_index(units.num_kv_units(), [&](int64_t unit) {
    differences[static_cast<size_t>(unit)] =
        compare_answers(plan, lowered, units, static_cast<int32_t>(unit), block_rows);
  });
  for (const std::string& what : differences) {
    if (!what.empty()) return fail(what);
  }
  return std::nullopt;
}

}  // namespace cpscope::kernels
