#include "sim/plan/check/share_sums.h"
#include "sim/plan/scaled_partials.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Steps through the forward; knows of every sum how its rows are scaled.
class ScaleWalk {
 public:
  explicit ScaleWalk(const Plan& plan)
      : plan_(plan),
        lse_(plan, BufferKind::out, Followed::lse),
        states_(plan.buffers.size()),
        picker_(plan) {
    for (size_t i = 0; i < plan.forward.computes.size(); ++i) {
      const ComputeItem& item = plan.forward.computes[i];
      if (item.num_slices == 0) continue;
      const Share share = lse_.share_of(item, static_cast<int64_t>(i));
      due_[{share.tokens, share.heads.begin, share.heads.end}] += share.weight;
    }
  }

  CheckResult run() {
    for (const Stage& stage : plan_.forward.stages) {
      for (int64_t i = stage.begin; i < stage.end; ++i) {
        const ItemId id{Direction::forward, stage.kind, i};
        const auto complaint = visit_item(plan_, id, [&](const auto& item) { return look(item); });
        if (complaint) return broken("partials", *complaint, id);
        visit_item(plan_, id, [&](const auto& item) { lse_.follow(id, item); });
      }
    }
    return passed("partials", "every result is scaled by the lse of all results of its rows");
  }

 private:
  /// A sum of results.
  struct State {
    bool has_results = false;  // of computes, merged by their lse
    bool is_scaled = false;    // to an lse that was gathered
    bool is_added = false;     // from results that ranks had scaled
  };
  using Complaint = std::optional<std::string>;
  /// [head] How much a sum of fingerprints changes there.
  using HeadSteps = std::map<int32_t, uint64_t>;

  static void add_step(HeadSteps& steps, HeadRange within, HeadRange heads, uint64_t weight) {
    const int32_t begin = std::max(heads.begin, within.begin),
                  end = std::min(heads.end, within.end);
    if (begin >= end) return;
    steps[begin] += weight;
    steps[end] -= weight;
  }
  static std::optional<int32_t> first_wrong_head(const HeadSteps& steps) {
    uint64_t sum = 0;
    for (const auto& [head, step] : steps) {
      sum += step;
      if (sum != 0) return head;
    }
    return std::nullopt;
  }

  static std::string where(StepId step, RankId rank) {
    return fmt::format("forward, step {}, rank {}", to_index(step), to_index(rank));
  }

  Complaint look(const ComputeItem& item) {
    if (item.num_slices > 0) states_[item.out] = {};
    return std::nullopt;
  }

  Complaint look(const ReorderItem& item) {
    states_[item.to] = states_[item.from];
    return std::nullopt;
  }

  Complaint look(const MergeItem& item) {
    if (plan_.buffer(item.into).kind != BufferKind::out) return std::nullopt;
    State& into = states_[item.into];
    if (item.order == 0) {
      into = {};
      own_lse_.erase(item.into);
    }
    if (item.partial == kNoBuffer) return std::nullopt;
    const std::string place = where(item.step, item.rank);
    if (into.is_added)
      return place +
             ": a result is merged by its lse into a sum of results that are scaled already";
    if (plan_.buffer(item.partial).kind == BufferKind::stats) {
      into.is_scaled = true;
      return std::nullopt;
    }
    const State& partial = states_[item.partial];
    if (partial.is_scaled || partial.is_added)
      return place + ": a result that is scaled already is merged by its lse";
    into.has_results = true;
    return std::nullopt;
  }

  Complaint look(const TransferItem& item) {
    if (kind_of(item.payload) != BufferKind::out && item.payload != Payload::lse)
      return std::nullopt;
    const State& from = states_[item.from];
    const auto complain = [&](const std::string& what) {
      return fmt::format("{}: {} to rank {}", where(item.step, item.src), what, to_index(item.dst));
    };
    if (item.payload == Payload::lse) {
      if (from.is_added) return complain("the lse of a sum of scaled results goes");
      return std::nullopt;
    }
    if (item.landing == Landing::replace) {
      if (from.is_scaled)
        return complain("a result that is scaled by the lse of other ranks goes alone");
      if (item.payload == Payload::partial && from.is_added)
        return complain("a sum of scaled results goes as a partial result");
      states_[item.to] = from;
      return std::nullopt;
    }
    if (from.is_added) return complain("a sum of scaled results is added once more: it goes");
    State& to = states_[item.to];
    if (to.has_results || to.is_scaled)
      return complain("scaled results are added to a sum of other results: they go");
    if (const auto row = first_wrong_scale(item))
      return complain(fmt::format(
          "results of query token {}, head {} are scaled by another lse than that of all ranks' "
          "results and go",
          row->token, row->head));
    to.is_added = true;
    if (item.src == item.dst) {
      own_lse_[item.to].push_back({plan_.buffer(item.to).tokens, item.to_rows, item.heads, 1});
    }
    return std::nullopt;
  }

  Complaint look(const FinishItem& item) {
    const BufferSpec& spec = plan_.buffer(item.buffer);
    if (spec.kind != BufferKind::out || spec.rows == 0) return std::nullopt;
    const State& state = states_[item.buffer];
    if (state.is_scaled)
      return where(item.step, item.rank) +
             ": results that are scaled by the lse of other ranks are finished alone";
    if (!state.is_added) return std::nullopt;
    ShareLedger ledger(plan_);
    ledger.add({spec.tokens, kAllRows, spec.heads, ~uint64_t{0}});
    for (const Share& part : own_lse_[item.buffer]) ledger.add(part);
    if (const auto row = ledger.first_difference())
      return fmt::format(
          "{}: query token {}, head {} has not the lse of one result of its own rank",
          where(item.step, item.rank), row->token, row->head);
    return std::nullopt;
  }

  /// First of the rows that a transfer adds whose sender did not scale by the lse of all results.
  std::optional<TokenHead> first_wrong_scale(const TransferItem& item) {
    const RunListId tokens = plan_.buffer(item.from).tokens;
    const std::vector<Share>& known = lse_.of(item.from);
    // Nearly always all results are of the same rows.
    const auto is_whole = [&](RunListId list, RunListId rows) {
      return list == tokens && rows == kAllRows;
    };
    const bool is_simple =
        std::all_of(due_.begin(), due_.end(),
                    [&](const auto& due) { return is_whole(std::get<0>(due.first), kAllRows); }) &&
        std::all_of(known.begin(), known.end(),
                    [&](const Share& share) { return is_whole(share.tokens, share.rows); });
    if (!is_simple) return first_wrong_row(item, known);
    // The same for all rows of the buffer.
    HeadSteps steps;
    for (const auto& [key, weight] : due_)
      add_step(steps, item.heads, {std::get<1>(key), std::get<2>(key)}, weight);
    for (const Share& share : known) add_step(steps, item.heads, share.heads, 0 - share.weight);
    const std::optional<int32_t> head = first_wrong_head(steps);
    const std::vector<TokenRun> rows =
        head ? picker_.pick(tokens, item.from_rows) : std::vector<TokenRun>();
    if (rows.empty()) return std::nullopt;
    return TokenHead{rows.front().begin, *head};
  }

  /// The same row by row.
  std::optional<TokenHead> first_wrong_row(const TransferItem& item,
                                           const std::vector<Share>& known) {
    std::unordered_map<int64_t, HeadSteps> rows;  // [token]
    for (const TokenRun& run : picker_.pick(plan_.buffer(item.from).tokens, item.from_rows)) {
      for (int64_t i = 0; i < run.count(); ++i) rows[run.at(i)];
    }
    const auto add = [&](const std::vector<TokenRun>& runs, HeadRange heads, uint64_t weight) {
      for (const TokenRun& run : runs) {
        for (int64_t i = 0; i < run.count(); ++i) {
          const auto row = rows.find(run.at(i));
          if (row != rows.end()) add_step(row->second, item.heads, heads, weight);
        }
      }
    };
    for (const auto& [key, weight] : due_)
      add(picker_.pick(std::get<0>(key), kAllRows), {std::get<1>(key), std::get<2>(key)}, weight);
    for (const Share& share : known)
      add(picker_.pick(share.tokens, share.rows), share.heads, 0 - share.weight);
    std::optional<TokenHead> first;
    for (const auto& [token, steps] : rows) {
      const std::optional<int32_t> head = first_wrong_head(steps);
      if (head && (!first || token < first->token)) first = TokenHead{token, *head};
    }
    return first;
  }

  const Plan& plan_;
  ShareSums lse_;
  IdVector<BufferId, State> states_;
  std::map<BufferId, std::vector<Share>> own_lse_;  // rows whose lse came with the rank's addend
  RowPicker picker_;
  // Fingerprints of all computes with these queries and heads.
  std::map<std::tuple<RunListId, int32_t, int32_t>, uint64_t> due_;
};

}  // namespace

CheckResult check_scales(const Plan& plan) {
  if (!adds_scaled_partials(plan)) return passed("partials", "no result is scaled");
  return ScaleWalk(plan).run();
}

}  // namespace cpscope
