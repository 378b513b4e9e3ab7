#include "kernels/lower/lowered_check.h"

#include "kernels/lower/item_buffers.h"

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
      for (const Pass* pass : {&one->forward, &one->backward}) {
        for (const ComputeItem& item : pass->computes) cut(item.heads, false);
        for (const TransferItem& item : pass->transfers)
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

/// A plan carried out with one number for each row and unit of heads.
class NumberRun {
 public:
  /// lowered: what the plan is part of; nullptr: it is the plan itself.
  NumberRun(const Plan& plan, const LoweredPlan* lowered, const HeadUnits& units)
      : plan_(plan), lowered_(lowered), units_(units) {
    for (const BufferSpec& spec : plan.buffers) {
      spans_.push_back(units.of(spec.heads, holds_kv(spec.kind)));
      held_.emplace_back(static_cast<size_t>(spec.rows * spans_.back().size()), kNothing);
    }
    for (const HomeBuffers& home : plan.home) {
      for (const BufferId id : {home.q, home.kv, home.d_out}) {
        if (id == kNoBuffer) continue;
        for (size_t i = 0; i < held(id).size(); ++i)
          held(id)[i] = mix(static_cast<uint64_t>(to_index(id)) + 1, i);
      }
    }
  }

  void carry_out(bool is_backward) {
    is_backward_ = is_backward;
    const Pass& pass = is_backward ? plan_.backward : plan_.forward;
    for (const Stage& stage : pass.stages) {
      const std::vector<size_t> items = order_of(stage);
      for (const size_t item : items) visit(pass, stage.kind, item);
      for (const size_t item : items) {
        if (stage.kind != StageKind::transfer || !is_share(item)) continue;
        for (uint64_t& value : held(pass.transfers[item].to)) value = round_to_dtype(value);
      }
    }
  }

  const std::vector<uint64_t>& of(BufferId id) const { return held_[place_of(id)]; }
  /// The first read of a row that nothing was written to; empty if there is none.
  const std::string& unwritten() const { return unwritten_; }

 private:
  std::vector<uint64_t>& held(BufferId id) { return held_[place_of(id)]; }

  uint64_t& at(BufferId id, int64_t row, int32_t unit) {
    const HeadRange span = spans_[place_of(id)];
    return held(id).at(static_cast<size_t>(row * span.size() + unit - span.begin));
  }

  /// For a compute item or a transfer, which read nothing but what was written.
  uint64_t read(BufferId id, int64_t row, int32_t unit) {
    const uint64_t value = at(id, row, unit);
    if (value == kNothing && unwritten_.empty())
      unwritten_ = fmt::format("{} reads row {} of buffer {} ({} of rank {}), which nothing writes",
                               where_, row, to_index(id), to_name(plan_.buffer(id).kind),
                               to_index(plan_.buffer(id).rank));
    return value;
  }

  uint64_t digest(BufferId id, const std::vector<int64_t>& rows, int32_t unit) {
    uint64_t sum = 1;
    for (const int64_t row : rows) sum = mix(sum, read(id, row, unit));
    return sum;
  }

  std::vector<int64_t> rows_of(RunListId list, int64_t count) const {
    if (list != kAllRows) return expand(plan_.list(list));
    std::vector<int64_t> rows(static_cast<size_t>(count));
    std::iota(rows.begin(), rows.end(), int64_t{0});
    return rows;
  }

  const LoweredPlan::Origins* origins() const {
    return lowered_ == nullptr ? nullptr : &lowered_->origins_of(is_backward_);
  }
  bool is_share(size_t item) const { return lowered_ != nullptr && origins()->are_shares[item]; }
  bool is_narrow(BufferId id) const {
    return lowered_ != nullptr && lowered_->is_narrow[place_of(id)];
  }

  /// Shares are added last, in the order of the plan; only their whole sums are rounded.
  std::vector<size_t> order_of(const Stage& stage) const {
    std::vector<size_t> items, shares;
    for (auto i = static_cast<size_t>(stage.begin); i < static_cast<size_t>(stage.end); ++i) {
      const bool waits = stage.kind == StageKind::transfer && is_share(i);
      (waits ? shares : items).push_back(i);
    }
    std::stable_sort(shares.begin(), shares.end(), [&](size_t a, size_t b) {
      const std::vector<int64_t>& planned = origins()->of(StageKind::transfer);
      return planned[a] < planned[b];
    });
    items.insert(items.end(), shares.begin(), shares.end());
    return items;
  }

  void transfer(const TransferItem& item, Rounding rounding, bool is_share) {
    const bool is_gradient = item.payload == Payload::dq || item.payload == Payload::dkv;
    const bool is_rounded =
        rounding.values || (is_gradient && item.link != LinkClass::self && !item.wire_fp32);
    const int64_t count = item.from_rows != kAllRows ? plan_.rows(item.from_rows)
                          : item.tokens != kNoTokens ? plan_.rows(item.tokens)
                                                     : plan_.buffer(item.from).rows;
    const std::vector<int64_t> from = rows_of(item.from_rows, count);
    const std::vector<int64_t> to = rows_of(item.to_rows, count);
    const HeadRange units =
        units_.of(item.heads, item.payload == Payload::kv || item.payload == Payload::dkv);
    for (size_t i = 0; i < from.size(); ++i) {
      for (int32_t unit = units.begin; unit < units.end; ++unit) {
        uint64_t& target = at(item.to, to[i], unit);
        const uint64_t sent = read(item.from, from[i], unit);
        const uint64_t value = is_rounded ? round_to_dtype(sent) : sent;
        if (item.landing == Landing::add) {
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
    const int64_t q_rows = plan_.rows(item.q_tokens);
    const std::vector<int64_t> all_q = rows_of(kAllRows, q_rows), kv = expand(part.kv_rows);
    const uint64_t origin = static_cast<uint64_t>(part.origin) + 1;
    const HeadRange units = units_.of(item.heads, false);
    for (int32_t unit = units.begin; unit < units.end; ++unit) {
      const uint64_t keys = mix(origin, digest(item.kv, kv, units_.kv_unit_of(unit)));
      for (int64_t row = 0; row < q_rows; ++row) {
        const uint64_t query = mix(keys, read(item.q, row, unit));
        if (!is_backward_) {
          put(item.out, row, unit, query, how);
          continue;
        }
        const uint64_t value =
            mix(query, mix(read(item.out, row, unit), read(item.d_out, row, unit)));
        put(item.dq, row, unit, value, how);
      }
    }
    if (!is_backward_) return;
    const HeadRange kv_units = units_.of(kv_heads_of(plan_.scenario.attention, item.heads), true);
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
    const HeadRange units = units_.of(kv_heads_of(plan_.scenario.attention, item.heads), true);
    for (int64_t row = 0; row < plan_.rows(item.kv_tokens); ++row) {
      for (int32_t unit = units.begin; unit < units.end; ++unit) at(item.dkv, row, unit) = kZero;
    }
  }

  void compute(const ComputeItem& item, size_t i) {
    if (item.num_slices == 0) return;
    const JoinedPart whole{static_cast<int64_t>(i), 0, {{0, plan_.rows(item.kv_tokens), 1}}};
    if (lowered_ == nullptr) return compute(item, whole, {});
    std::vector<JoinedPart> parts{whole};
    parts[0].origin = origins()->of(StageKind::compute)[i];
    if (!origins()->parts.empty()) {
      parts = origins()->parts[i];
      if (is_backward_) write_zeros(item);
    }
    // Joined parts are one softmax, or one sum: as if merged, and then rounded.
    const OwnMerge& own = origins()->own_merges[i];
    for (size_t part = 0; part < parts.size(); ++part) {
      const bool is_last = part + 1 == parts.size();
      compute(item, parts[part], {own.merges || part > 0, own.rounds && is_last, is_last});
    }
  }

  void reorder(const ReorderItem& item) {
    const std::vector<int64_t> order = expand(plan_.list(item.order));
    const HeadRange units = spans_[place_of(item.to)];
    for (size_t row = 0; row < order.size(); ++row) {
      for (int32_t unit = units.begin; unit < units.end; ++unit)
        at(item.to, static_cast<int64_t>(row), unit) = read(item.from, order[row], unit);
    }
  }

  void merge(const MergeItem& item, size_t i) {
    std::vector<uint64_t>& into = held(item.into);
    if (item.partial == kNoBuffer) {
      std::fill(into.begin(), into.end(), kZero);
      return;
    }
    const std::vector<uint64_t>& partial = held(item.partial);
    const bool rounds = lowered_ != nullptr && origins()->rounds[i];
    // A ring slot may be larger than the rows that it holds now, or smaller.
    for (size_t n = 0; n < std::min(into.size(), partial.size()); ++n) {
      if (partial[n] == kNothing) continue;
      into[n] = item.order == 0 ? partial[n] : add_to(into[n], partial[n]);
      if (rounds || is_narrow(item.into)) into[n] = round_to_dtype(into[n]);
    }
  }

  void visit(const Pass& pass, StageKind kind, size_t i) {
    where_ = fmt::format("{} {} of the {} pass", to_name(kind), i,
                         is_backward_ ? "backward" : "forward");
    switch (kind) {
      case StageKind::transfer:
        return transfer(pass.transfers[i],
                        lowered_ == nullptr ? Rounding{} : origins()->roundings[i], is_share(i));
      case StageKind::reorder:
        return reorder(pass.reorders[i]);
      case StageKind::compute:
        return compute(pass.computes[i], i);
      case StageKind::merge:
        return merge(pass.merges[i], i);
      case StageKind::finish:  // a sink is added row by row
        for (uint64_t& value : held(pass.finishes[i].buffer)) value = round_to_dtype(value);
        return;
    }
  }

  const Plan& plan_;
  const LoweredPlan* lowered_;
  const HeadUnits& units_;
  bool is_backward_ = false;
  std::vector<HeadRange> spans_;             // [buffer] its units of heads
  std::vector<std::vector<uint64_t>> held_;  // [buffer][row, unit]
  std::string where_, unwritten_;
};

const Pass& pass_of(const Plan& plan, bool is_backward) {
  return is_backward ? plan.backward : plan.forward;
}

const char* name_of(bool is_backward) { return is_backward ? "backward" : "forward"; }

/// Calls visit(item number) for the items of a kind that the stages have carried out.
template <class Visit>
void visit_items(const Pass& pass, StageKind kind, Visit visit) {
  for (const Stage& stage : pass.stages) {
    for (int64_t i = stage.begin; stage.kind == kind && i < stage.end; ++i)
      visit(static_cast<size_t>(i));
  }
}

std::string compare_bytes(const Plan& plan, const Plan& made, bool is_backward) {
  std::map<std::pair<RankId, RankId>, int64_t> bytes;
  const auto add = [&](const Pass& pass, int64_t sign) {
    visit_items(pass, StageKind::transfer, [&](size_t i) {
      const TransferItem& item = pass.transfers[i];
      bytes[{item.src, item.dst}] += sign * item.bytes;
    });
  };
  add(pass_of(plan, is_backward), 1);
  add(pass_of(made, is_backward), -1);
  for (const auto& [ranks, difference] : bytes) {
    if (difference != 0)
      return fmt::format("rank {} sends rank {} {} bytes {} than planned in the {} pass",
                         to_index(ranks.first), to_index(ranks.second), std::abs(difference),
                         difference > 0 ? "fewer" : "more", name_of(is_backward));
  }
  return "";
}

std::string compare_pairs(const Plan& plan, const LoweredPlan& lowered, bool is_backward) {
  const std::vector<ComputeItem>& planned = pass_of(plan, is_backward).computes;
  const Pass& made = pass_of(lowered.plan, is_backward);
  const LoweredPlan::Origins& origins = lowered.origins_of(is_backward);
  std::vector<int64_t> missing(planned.size());
  for (size_t i = 0; i < planned.size(); ++i) missing[i] = planned[i].visible_pairs;
  visit_items(made, StageKind::compute, [&](size_t i) {
    if (origins.parts.empty()) {
      missing[static_cast<size_t>(origins.of(StageKind::compute)[i])] -=
          made.computes[i].visible_pairs;
      return;
    }
    // An item of some heads has as large a share of each part's pairs.
    for (const JoinedPart& part : origins.parts[i]) {
      const auto origin = static_cast<size_t>(part.origin);
      missing[origin] -=
          part.visible_pairs / planned[origin].heads.size() * made.computes[i].heads.size();
    }
  });
  for (size_t i = 0; i < missing.size(); ++i) {
    if (missing[i] != 0)
      return fmt::format("compute {} of the {} pass lacks {} pairs", i, name_of(is_backward),
                         missing[i]);
  }
  return "";
}

/// The receiver's kernel counts pieces by its own cuts: piece n is complete when it has the heads
/// up to cut n from every sender.
std::string check_pieces(const LoweredPlan& lowered, bool is_backward) {
  const LoweredPlan::Origins& origins = lowered.origins_of(is_backward);
  if (!origins.is_cut()) return "";
  const Pass& pass = pass_of(lowered.plan, is_backward);
  const std::vector<TransferItem>& transfers = pass.transfers;
  int64_t num_inputs = 0;  // transfers before the first compute
  for (const Stage& stage : pass.stages) {
    if (stage.kind == StageKind::compute) break;
    if (stage.kind == StageKind::transfer) num_inputs = stage.end;
  }
  std::map<std::pair<RankId, RankId>, int32_t> last;  // piece of a sender and a receiver
  for (size_t i = 0; i < static_cast<size_t>(num_inputs); ++i) {
    const int32_t piece = origins.pieces[i];
    const TransferItem& item = transfers[i];
    const HeadCuts& cuts = origins.cuts[static_cast<size_t>(to_index(item.dst))];
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
        i, name_of(is_backward), item.heads.begin, item.heads.end, to_index(item.dst), piece);
  }
  return "";
}

}  // namespace

std::optional<Error> check_lowered(const Plan& plan, const LoweredPlan& lowered) {
  const auto fail = [&](const std::string& what) {
    return make_error(ErrorKind::failed, "the lowered plan is not the plan: " + what);
  };
  const HeadUnits units(plan, lowered);
  NumberRun planned(plan, nullptr, units), made(lowered.plan, &lowered, units);
  for (const bool is_backward : {false, true}) {
    for (const std::string& what :
         {compare_bytes(plan, lowered.plan, is_backward), compare_pairs(plan, lowered, is_backward),
          check_pieces(lowered, is_backward)}) {
      if (!what.empty()) return fail(what);
    }
    planned.carry_out(is_backward);
    made.carry_out(is_backward);
    // A plan that was admitted although it reads too early stays what it is.
    if (!made.unwritten().empty() && planned.unwritten().empty()) return fail(made.unwritten());
  }
  const auto compare = [&](BufferId id) -> std::string {
    if (id == kNoBuffer || planned.of(id) == made.of(id)) return "";
    const auto wanted = std::mismatch(planned.of(id).begin(), planned.of(id).end(),
                                      made.of(id).begin(), made.of(id).end())
                            .first;
    const BufferSpec& spec = plan.buffer(id);
    const int64_t width = units.of(spec.heads, holds_kv(spec.kind)).size();
    return fmt::format("{} of rank {} differs, first in row {}", to_name(spec.kind),
                       to_index(spec.rank), (wanted - planned.of(id).begin()) / width);
  };
  for (const HomeBuffers& home : plan.home) {
    for (const BufferId id : {home.out, home.dq, home.dkv}) {
      if (const std::string what = compare(id); !what.empty()) return fail(what);
    }
  }
  for (const BufferId id : lowered.answers) {
    if (const std::string what = compare(id); !what.empty()) return fail(what);
  }
  return std::nullopt;
}

}  // namespace cpscope::kernels
