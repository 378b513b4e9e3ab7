#pragma once

#include "kernels/lower/lowered_plan.h"

#include <algorithm>
#include <cstdint>
#include <vector>

/// A plan carried out with numbers that stand for what was read to make them: two plans whose
/// answers have the same numbers do the same.
namespace cpscope::kernels {

/// A number of its own for every two; never one that was rounded.
inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9E3779B97F4A7C15u ^ (b + 0xBF58476D1CE4E5B9u + (a << 6) + (a >> 2));
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  return (z ^ (z >> 31)) & ~uint64_t{1};
}

inline uint64_t round_to_dtype(uint64_t value) { return value == 0 ? 0 : value | 1; }

/// Zeros are nothing to add to.
inline uint64_t add(uint64_t sum, uint64_t value) { return sum == 0 ? value : mix(sum, value); }

/// A plan carried out with one number for each row of each head.
class Numbers {
 public:
  /// `lowered`: what the plan is part of; nullptr: its items are its own.
  Numbers(const Plan& plan, const LoweredPlan* lowered) : plan_(plan), lowered_(lowered) {
    for (const BufferSpec& spec : plan.buffers)
      held_.emplace_back(static_cast<size_t>(spec.rows * spec.heads.size()), 0);
    for (size_t r = 0; r < plan.home.size(); ++r) {
      for (const BufferId id : {plan.home[r].q, plan.home[r].kv, plan.home[r].d_out}) {
        if (id == kNoBuffer) continue;
        for (size_t i = 0; i < held(id).size(); ++i)
          held(id)[i] = mix(static_cast<uint64_t>(to_index(id)) + 1, i);
      }
    }
  }

  void carry_out(bool is_backward) {
    const Pass& pass = is_backward ? plan_.backward : plan_.forward;
    for (const Stage& stage : pass.stages) {
      const std::vector<size_t> items = order_of(stage, is_backward);
      for (const size_t item : items) visit(pass, stage.kind, item, is_backward);
      for (const size_t item : items) {
        if (stage.kind != StageKind::transfer || !is_share(item, is_backward)) continue;
        for (uint64_t& value : held(pass.transfers[item].to)) value = round_to_dtype(value);
      }
    }
  }

  const std::vector<uint64_t>& of(BufferId id) { return held(id); }

 private:
  std::vector<uint64_t>& held(BufferId id) { return held_[static_cast<size_t>(to_index(id))]; }

  uint64_t& at(BufferId id, int64_t row, int32_t head) {
    const BufferSpec& spec = plan_.buffer(id);
    return held(id).at(static_cast<size_t>(row * spec.heads.size() + head - spec.heads.begin));
  }

  uint64_t digest(BufferId id, const std::vector<int64_t>& rows, int32_t head) {
    uint64_t sum = 1;
    for (const int64_t row : rows) sum = mix(sum, at(id, row, head));
    return sum;
  }

  std::vector<int64_t> rows_of(RunListId list, int64_t count) const {
    if (list != kAllRows) return expand(plan_.list(list));
    std::vector<int64_t> rows(static_cast<size_t>(count));
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(i);
    return rows;
  }

  bool is_share(size_t item, bool is_backward) const {
    return lowered_ != nullptr && lowered_->origins_of(is_backward).are_shares[item];
  }

  /// Shares are added at last, in the order of the plan; nothing but whole sums is rounded.
  std::vector<size_t> order_of(const Stage& stage, bool is_backward) const {
    std::vector<size_t> items, shares;
    for (auto i = static_cast<size_t>(stage.begin); i < static_cast<size_t>(stage.end); ++i) {
      const bool waits = stage.kind == StageKind::transfer && is_share(i, is_backward);
      (waits ? shares : items).push_back(i);
    }
    std::stable_sort(shares.begin(), shares.end(), [&](size_t a, size_t b) {
      const auto& origins = lowered_->origins_of(is_backward).of(StageKind::transfer);
      return origins[a] < origins[b];
    });
    items.insert(items.end(), shares.begin(), shares.end());
    return items;
  }

  void transfer(const TransferItem& item, Rounding rounding, bool is_share) {
    const bool is_gradient = item.payload == Payload::dq || item.payload == Payload::dkv;
    const bool is_rounded_on_way =
        rounding.values || (is_gradient && item.link != LinkClass::self && !item.wire_fp32);
    const int64_t count = item.from_rows != kAllRows ? plan_.rows(item.from_rows)
                          : item.tokens != kNoTokens ? plan_.rows(item.tokens)
                                                     : plan_.buffer(item.from).rows;
    const std::vector<int64_t> from = rows_of(item.from_rows, count);
    const std::vector<int64_t> to = rows_of(item.to_rows, count);
    for (size_t i = 0; i < from.size(); ++i) {
      for (int32_t head = item.heads.begin; head < item.heads.end; ++head) {
        uint64_t& target = at(item.to, to[i], head);
        const uint64_t held = at(item.from, from[i], head);
        const uint64_t value = is_rounded_on_way ? round_to_dtype(held) : held;
        target = item.landing == Landing::add ? add(target, value) : value;
        if (!is_share && (rounding.sums || is_narrow(item.to))) target = round_to_dtype(target);
      }
    }
  }

  /// What an item does with what stands where its results go.
  struct Put {
    bool merges = false, rounds = false;
    bool may_round = true;  // to the dtype, if the buffer holds that
  };

  JoinedPart whole(const ComputeItem& item, int64_t origin) const {
    return {origin, 0, {{0, plan_.rows(item.kv_tokens), 1}}};
  }

  void compute(const ComputeItem& item, const JoinedPart& part, bool is_backward, Put own) {
    const Attention& attention = plan_.scenario.attention;
    const int32_t group = attention.heads / attention.kv_heads;
    const int64_t q_rows = plan_.rows(item.q_tokens);
    const std::vector<int64_t> all_q = rows_of(kAllRows, q_rows), kv = expand(part.kv_rows);
    const uint64_t origin = static_cast<uint64_t>(part.origin) + 1;
    for (int32_t head = item.heads.begin; head < item.heads.end; ++head) {
      const uint64_t keys = mix(origin, digest(item.kv, kv, head / group));
      for (int64_t row = 0; row < q_rows; ++row) {
        const uint64_t query = mix(keys, at(item.q, row, head));
        if (!is_backward) {
          put(item.out, row, head, query, own);
          continue;
        }
        const uint64_t value = mix(query, mix(at(item.out, row, head), at(item.d_out, row, head)));
        put(item.dq, row, head, value, own);
      }
    }
    const HeadRange kv_heads = kv_heads_of(attention, item.heads);
    for (int32_t head = kv_heads.begin; is_backward && head < kv_heads.end; ++head) {
      uint64_t queries = origin;
      for (int32_t q = std::max(item.heads.begin, head * group);
           q < std::min(item.heads.end, (head + 1) * group); ++q) {
        for (const BufferId id : {item.q, item.out, item.d_out})
          queries = mix(queries, digest(id, all_q, q));
      }
      for (const int64_t row : kv) {
        const uint64_t value = mix(queries, at(item.kv, row, head));
        put(item.dkv, row, head, value, {});
      }
    }
  }

  void put(BufferId id, int64_t row, int32_t head, uint64_t value, Put own) {
    uint64_t& target = at(id, row, head);
    target = own.merges ? add(target, value) : value;
    if ((is_narrow(id) && own.may_round) || own.rounds) target = round_to_dtype(target);
  }

  bool is_narrow(BufferId id) const {
    return lowered_ != nullptr && lowered_->is_narrow[static_cast<size_t>(to_index(id))];
  }

  void visit(const Pass& pass, StageKind kind, size_t i, bool is_backward) {
    switch (kind) {
      case StageKind::transfer:
        return transfer(
            pass.transfers[i],
            lowered_ == nullptr ? Rounding{} : lowered_->origins_of(is_backward).roundings[i],
            is_share(i, is_backward));
      case StageKind::reorder: {
        const ReorderItem& item = pass.reorders[i];
        const std::vector<int64_t> order = expand(plan_.list(item.order));
        const HeadRange heads = plan_.buffer(item.to).heads;
        for (size_t row = 0; row < order.size(); ++row) {
          for (int32_t head = heads.begin; head < heads.end; ++head)
            at(item.to, static_cast<int64_t>(row), head) = at(item.from, order[row], head);
        }
        return;
      }
      case StageKind::compute: {
        const ComputeItem& item = pass.computes[i];
        if (item.num_slices == 0) return;
        if (lowered_ == nullptr) {
          return compute(item, whole(item, static_cast<int64_t>(i)), is_backward, {});
        }
        const LoweredPlan::Origins& origins = lowered_->origins_of(is_backward);
        std::vector<JoinedPart> parts{whole(item, origins.of(StageKind::compute)[i])};
        if (!origins.parts.empty()) parts = origins.parts[i];
        // Joined parts are one softmax, or one sum: as if merged, and then rounded.
        for (size_t part = 0; part < parts.size(); ++part) {
          const bool is_last = part + 1 == parts.size();
          const OwnMerge& own = origins.own_merges[i];
          compute(item, parts[part], is_backward,
                  {own.merges || part > 0, own.rounds && is_last, is_last});
        }
        return;
      }
      case StageKind::merge: {
        const MergeItem& item = pass.merges[i];
        std::vector<uint64_t>& into = held(item.into);
        if (item.partial == kNoBuffer) {
          std::fill(into.begin(), into.end(), 0);
          return;
        }
        for (size_t n = 0; n < into.size(); ++n) {
          // A ring slot may be larger than the rows that it holds now, or smaller.
          if (n >= held(item.partial).size()) continue;
          const uint64_t partial = held(item.partial)[n];
          into[n] = item.order == 0 ? partial : add(into[n], partial);
          if (rounds_merge(i, is_backward) || is_narrow(item.into))
            into[n] = round_to_dtype(into[n]);
        }
        return;
      }
      case StageKind::finish:  // a sink is added row by row
        for (uint64_t& value : held(pass.finishes[i].buffer)) value = round_to_dtype(value);
        return;
    }
  }

  bool rounds_merge(size_t i, bool is_backward) const {
    return lowered_ != nullptr && lowered_->origins_of(is_backward).rounds[i];
  }

  const Plan& plan_;
  const LoweredPlan* lowered_;
  std::vector<std::vector<uint64_t>> held_;  // [buffer][row, head]
};

}  // namespace cpscope::kernels
