#include "gui/model/describe.h"

#include "gui/model/axis.h"
#include "gui/model/error_field.h"
#include "gui/model/item_words.h"
#include "gui/model/token_parts.h"
#include "sim/clock/clock.h"
#include "sim/plan/round_steps.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <variant>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

std::string_view side_name(Side side) { return side == Side::q ? "queries" : "keys"; }

struct Namer {
  const PlanIndex* plan;

  std::string operator()(const Nothing&) const { return "nothing"; }
  std::string operator()(const TokenRange& t) const {
    if (t.end == t.begin + 1)
      return fmt::format("token {} of {}", print_count(t.begin), side_name(t.side));
    return fmt::format("tokens {} of {}", print_range(t.begin, t.end), side_name(t.side));
  }
  std::string operator()(const PairRange& p) const {
    return fmt::format("queries {} x keys {}", print_range(p.q_begin, p.q_end),
                       print_range(p.k_begin, p.k_end));
  }
  std::string operator()(const RankTarget& r) const { return fmt::format("rank {}", r.rank); }
  std::string operator()(const LinkTarget& l) const {
    return fmt::format("link {} -> {}", l.src, l.dst);
  }
  std::string operator()(const ItemId& i) const {
    return fmt::format("{} {} {}", to_name(i.direction), to_name(i.kind), i.index);
  }
  std::string operator()(const StepTarget& s) const {
    if (plan == nullptr || s.step < 0 || s.step >= static_cast<int32_t>(plan->steps().size()))
      return fmt::format("step number {} of the schedule", s.step + int64_t{1});
    const StepRef& step = plan->steps()[static_cast<size_t>(s.step)];
    return fmt::format("step {} of {}, {}", step.step + 1, plan->pass(step.direction).num_steps,
                       to_name(step.direction));
  }
  std::string operator()(const RowTarget& r) const {
    const bool is_known = r.tensor >= 0 && static_cast<size_t>(r.tensor) < std::size(kErrorTensors);
    return fmt::format("{}[token {}, head {}]",
                       is_known ? kErrorTensors[static_cast<size_t>(r.tensor)] : "tensor",
                       print_count(r.token), r.head);
  }
};

/// "rank 2, local rows [0, 64)", "ranks 2 and 5", "7 ranks", "no owner".
std::string owners_text(const PlanIndex& plan, const TokenRange& tokens) {
  constexpr size_t kMostRuns = 100'000;
  constexpr int64_t kMostTokens = 2048;
  const int64_t count = tokens.end - tokens.begin;
  if (plan.are_heads_owned(tokens.side)) return "every rank, each its own heads";
  const OwnedRow first = plan.owner(tokens.side, tokens.begin);
  if (count == 1)
    return first.rank < 0
               ? "no owner"
               : fmt::format("rank {}, local row {}", first.rank, print_count(first.row));
  // Of so many runs, only those of a short range are looked at within a frame.
  if (plan.owned(tokens.side).size() > kMostRuns &&
      (plan.has_stripes(tokens.side) || count > kMostTokens))
    return fmt::format("many ranks, first {}, last {}", first.rank,
                       plan.owner(tokens.side, tokens.end - 1).rank);
  const std::vector<OwnedPart> parts = owned_parts(plan, tokens);
  if (parts.empty()) return "no owner";
  const OwnedPart& part = parts.front();
  if (parts.size() == 1 && part.runs == 1 && part.tokens == count)
    return fmt::format("rank {}, local rows {}", part.rank,
                       print_range(part.first_row, part.first_row + count));
  if (parts.size() == 1) return fmt::format("rank {}", part.rank);
  if (parts.size() > 4) return count_text(static_cast<int64_t>(parts.size()), "rank");
  std::string text = "ranks ";
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += i + 1 == parts.size() ? " and " : ", ";
    text += std::to_string(parts[i].rank);
  }
  return text;
}

struct Describer {
  const PlanIndex& plan;

  std::string operator()(const Nothing&) const { return "Nothing is selected"; }
  std::string operator()(const TokenRange& t) const {
    const int64_t sequence = plan.sequence_of(t.side, t.begin);
    const bool is_within = sequence == plan.sequence_of(t.side, t.end - 1);
    std::string place = !is_within     ? "more than one sequence"
                        : sequence < 0 ? "tail behind all sequences"
                                       : fmt::format("sequence {}", sequence);
    if (t.end == t.begin + 1 && !plan.is_valid(t.side, t.begin)) place += ", padding";
    return fmt::format("{}: {}, {}, {}", capitalise(Namer{&plan}(t)),
                       count_text(t.end - t.begin, "token"), owners_text(plan, t), place);
  }
  std::string operator()(const PairRange& p) const {
    const int64_t area = (p.q_end - p.q_begin) * (p.k_end - p.k_begin);
    const int64_t visible = plan.count_visible(p.q_begin, p.q_end, p.k_begin, p.k_end);
    return fmt::format("{}: {} visible, {}", capitalise(Namer{&plan}(p)),
                       count_text(visible, "pair"), share_text(visible, area));
  }
  std::string operator()(const RankTarget& r) const {
    const Plan& p = plan.plan();
    const auto i = static_cast<size_t>(r.rank);
    return fmt::format(
        "Rank {}: {}, computes {} visible pairs, sends {}", r.rank,
        count_text(p.rows(p.q_lists[RankId{r.rank}]), "query token"),
        share_text(plan.summary().pairs_by_rank[i], plan.summary().visible_pairs),
        print_bytes(plan.summary().forward_bytes[i] + plan.summary().backward_bytes[i]));
  }
  std::string operator()(const LinkTarget& l) const {
    return fmt::format("Link {} -> {}: what rank {} sends to rank {}", l.src, l.dst, l.src, l.dst);
  }
  std::string operator()(const ItemId& i) const {
    const ItemFacts facts = facts_of(plan, i);
    std::string text = capitalise(Namer{&plan}(i)) + ": ";
    text += i.kind == StageKind::transfer
                ? fmt::format("rank {} to rank {}", facts.rank, facts.other_rank)
                : fmt::format("rank {}", facts.rank);
    text += ", " + Namer{&plan}(StepTarget{facts.step});
    const std::string amount = describe_amount(plan.plan(), i);
    if (!amount.empty()) text += ", " + amount;
    return text;
  }
  std::string operator()(const StepTarget& s) const {
    const StepRef& step = plan.steps()[static_cast<size_t>(s.step)];
    std::string text = capitalise(Namer{&plan}(s)) + ": ";
    constexpr int32_t kMost = 5;
    for (int32_t g = step.first_stage; g < step.end_stage; ++g) {
      const StageRef& stage = plan.stages()[static_cast<size_t>(g)];
      if (g > step.first_stage) text += ", ";
      if (g == step.first_stage + kMost)
        return text + fmt::format("and {} more stages", step.end_stage - g);
      text += count_text(stage.end - stage.begin, to_name(stage.kind));
    }
    return text;
  }
  std::string operator()(const RowTarget& r) const {
    const Side side = side_of_tensor(r.tensor);
    const int64_t sequence = plan.sequence_of(side, r.token);
    return fmt::format(
        "{}: {}, {}", capitalise(Namer{&plan}(r)), owners_text(plan, {side, r.token, r.token + 1}),
        !plan.is_valid(side, r.token) ? "padding" : fmt::format("sequence {}", sequence));
  }
};

}  // namespace

int32_t round_of_step(const PlanIndex& index, const StepRef& step) {
  const Plan& plan = index.plan();
  for (int32_t g = step.first_stage; !plan.layout.rounds.empty() && g < step.end_stage; ++g) {
    const StageRef& stage = index.stages()[static_cast<size_t>(g)];
    if (stage.kind != StageKind::compute) continue;
    const ComputeItem& item =
        index.pass(stage.direction).computes[static_cast<size_t>(stage.begin)];
    const int32_t round = round_of_queries(plan, item.q_tokens);
    if (round >= 0) return round;
  }
  return -1;
}

const CpRound* round_at(const PlanIndex& index, Moment moment) {
  const std::vector<CpRound>& rounds = index.plan().layout.rounds;
  if (rounds.empty() || index.stages().empty()) return nullptr;
  const auto last = static_cast<int32_t>(index.stages().size()) - 1;
  const int32_t step = index.step_of_stage(std::clamp(moment.first_stage, 0, last));
  const int32_t round = round_of_step(index, index.steps()[static_cast<size_t>(step)]);
  return round < 0 ? nullptr : &rounds[static_cast<size_t>(round)];
}

std::string name_round(const Layout& layout, const CpRound& round) {
  constexpr size_t kMostNamed = 12;
  std::vector<std::string> names;
  for (const CpGroup& group : round.groups) {
    if (names.size() == kMostNamed) break;
    const int32_t first = group.first_rank, end = first + group.size - 1;
    names.push_back(group.size == 1 ? fmt::format("{}", first)
                                    : fmt::format("{} to {}", first, end));
  }
  std::string text =
      fmt::format("round {} of {}, groups of ranks: {}", &round - layout.rounds.data() + 1,
                  layout.rounds.size(), fmt::join(names, ", "));
  if (round.groups.size() > names.size())
    text += fmt::format(" and {} more", round.groups.size() - names.size());
  return text;
}

std::string describe_group(const Layout& layout, const CpRound& round, const CpGroup& group) {
  constexpr size_t kMostNamed = 8;
  const auto named = static_cast<std::ptrdiff_t>(std::min(kMostNamed, group.sequences.size()));
  std::string text = fmt::format(
      "round {} of {}: {} {} {}", &round - layout.rounds.data() + 1, layout.rounds.size(),
      group.size == 1 ? fmt::format("rank {} has", group.first_rank)
                      : fmt::format("ranks {} to {} share", group.first_rank,
                                    group.first_rank + group.size - 1),
      group.sequences.size() == 1 ? "sequence" : "sequences",
      fmt::join(group.sequences.begin(), group.sequences.begin() + named, ", "));
  if (group.sequences.size() > kMostNamed)
    text += fmt::format(" and {} more", group.sequences.size() - kMostNamed);
  return text;
}

std::string with_round(const std::string& title, const PlanIndex& index, Moment moment) {
  const CpRound* const round = round_at(index, moment);
  const std::vector<CpRound>& rounds = index.plan().layout.rounds;
  if (round == nullptr) return title;
  return fmt::format("{}, round {} of {}", title, round - rounds.data() + 1, rounds.size());
}

std::string name_target(const Target& target, const PlanIndex* plan) {
  return std::visit(Namer{plan}, target);
}

std::string describe_target(const Target& target, const PlanIndex& plan) {
  return std::visit(Describer{plan}, target);
}

std::string capitalise(std::string text) {
  // Names of tensors are not capitalised.
  if (text.find('[') != std::string::npos && text.find(' ') > text.find('[')) return text;
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z')
    text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

std::string print_item(const ItemId& item) {
  return fmt::format("{}.{}.{}", to_name(item.direction), to_name(item.kind), item.index);
}

std::optional<ItemId> parse_item(std::string_view text) {
  const size_t first = text.find('.');
  if (first == std::string_view::npos) return std::nullopt;
  const size_t second = text.find('.', first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  const std::string_view pass = text.substr(0, first),
                         kind = text.substr(first + 1, second - first - 1);
  // The suffix that a record adds (".rank3.step1.out") gives no more information.
  std::string_view number = text.substr(second + 1);
  number = number.substr(0, number.find('.'));
  if (pass != "forward" && pass != "backward") return std::nullopt;
  for (const StageKind candidate : kStageKinds) {
    if (kind != to_name(candidate)) continue;
    ItemId item{pass == "backward" ? Direction::backward : Direction::forward, candidate, 0};
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), item.index);
    if (error != std::errc() || end != number.data() + number.size() || item.index < 0)
      return std::nullopt;
    return item;
  }
  return std::nullopt;
}

std::string count_text(int64_t count, std::string_view noun) {
  const std::string number = print_count(count) + " ";
  if (count == 1) return number + std::string(noun);
  if (noun == "query") return number + "queries";
  return number + std::string(noun) + (noun == "finish" ? "es" : "s");
}

std::string print_flops(double flops) {
  static constexpr const char* kUnits[] = {"FLOP",  "kFLOP", "MFLOP", "GFLOP",
                                           "TFLOP", "PFLOP", "EFLOP"};
  size_t unit = 0;
  while (flops >= 999.5 && unit + 1 < std::size(kUnits)) {
    flops /= 1000;
    ++unit;
  }
  return fmt::format("{:.3g} {}", flops, kUnits[unit]);
}

std::string share_text(int64_t part, int64_t whole) {
  if (whole == 0) return "0 % of 0";
  return fmt::format("{} of {}", print_share(part, whole), print_count(whole));
}

HeadRange heads_of(const PlanIndex& plan, const ItemId& item) {
  const auto of_buffer = [&](BufferId id) { return plan.plan().buffer(id).heads; };
  return visit_item(plan.plan(), item,
                    Overload{[](const TransferItem& i) { return i.heads; },
                             [](const ComputeItem& i) { return i.heads; },
                             [&](const ReorderItem& i) { return of_buffer(i.to); },
                             [&](const MergeItem& i) { return of_buffer(i.into); },
                             [&](const FinishItem& i) { return of_buffer(i.buffer); }});
}

ItemFacts facts_of(const PlanIndex& plan, const ItemId& item) {
  const ItemColumns& columns = plan.columns(item.direction, item.kind);
  const auto i = static_cast<size_t>(item.index);
  ItemFacts facts;
  facts.rank = columns.rank[i];
  if (item.kind == StageKind::transfer) facts.other_rank = columns.other_rank[i];
  facts.stage = plan.stage_of(item);
  facts.step = plan.step_of_stage(facts.stage);
  facts.heads = heads_of(plan, item);
  return facts;
}

std::string bytes_formula(const Plan& plan, const WireBytes& wire) {
  const Attention& attention = plan.scenario.attention;
  const int32_t qk = attention.head_dim_qk, v = attention.head_dim_v;
  const bool is_kv = side_of(wire.payload) == Side::kv;
  const std::string copies = wire.copies > 1 ? print_count(wire.copies) + " x " : "";
  if (wire.payload == Payload::partial || wire.payload == Payload::stats ||
      wire.payload == Payload::lse) {
    const int32_t statistic = plan.scenario.numerics.dtype == Dtype::fp64 ? 8 : 4;
    const std::string row =
        wire.payload == Payload::stats ? fmt::format("{} bytes of lse and delta", 2 * statistic)
        : wire.payload == Payload::lse ? fmt::format("{} bytes of lse", statistic)
                                       : fmt::format("(head_dim {} x {} + {} of lse)", v,
                                                     count_text(wire.element, "byte"), statistic);
    return fmt::format("{}{} x {} x {} = {}", copies, count_text(wire.rows, "token"),
                       count_text(wire.heads, "head"), row, print_bytes(wire.bytes));
  }
  std::string head_dim;
  if (!is_kv) {
    const bool is_qk = wire.payload == Payload::q || wire.payload == Payload::dq;
    head_dim = fmt::format("head_dim {}", is_qk ? qk : v);
  } else if (attention.expands_rows()) {
    head_dim =
        fmt::format("(latent_dim {} + {})", attention.latent_dim, qk - attention.latent_nope_dim);
  } else if (attention.latent_dim > 0) {
    head_dim = fmt::format("head_dim {}, v in it", qk);
  } else if (qk == v) {
    head_dim = fmt::format("head_dim {} x 2 tensors", qk);
  } else {
    head_dim = fmt::format("(head_dim {} + {})", qk, v);
  }
  return fmt::format("{}{} x {} x {} x {} = {}", copies, count_text(wire.rows, "token"),
                     count_text(wire.heads, is_kv ? "KV head" : "head"), head_dim,
                     count_text(wire.element, "byte"), print_bytes(wire.bytes));
}

double flops_of(const PlanIndex& plan, Direction direction, int64_t pairs) {
  return flops_per_pair(plan.plan().scenario.attention, direction) * static_cast<double>(pairs);
}

std::string flops_equation(const PlanIndex& plan, Direction direction, int64_t pairs) {
  return flops_formula(plan, direction, pairs) + " = " +
         print_flops(flops_of(plan, direction, pairs));
}

std::string flops_formula(const PlanIndex& plan, Direction direction, int64_t pairs) {
  const Attention& attention = plan.plan().scenario.attention;
  const int32_t qk = attention.head_dim_qk, v = attention.head_dim_v;
  const bool is_backward = direction == Direction::backward;
  if (qk == v)
    return fmt::format("{} x {} pairs x head_dim {}", is_backward ? 10 : 4, print_count(pairs), qk);
  return is_backward
             ? fmt::format("2 x {} pairs x (3 x head_dim {} + 2 x {})", print_count(pairs), qk, v)
             : fmt::format("2 x {} pairs x (head_dim {} + {})", print_count(pairs), qk, v);
}

}  // namespace cpscope::gui
