#include "gui/model/describe.h"

#include "gui/model/axis.h"
#include "gui/model/error_field.h"
#include "gui/model/list_hits.h"
#include "sim/clock/clock.h"
#include "sim/plan/visit_items.h"

#include <charconv>
#include <cmath>
#include <variant>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

std::string range_text(int64_t begin, int64_t end) {
  return fmt::format("[{}, {})", print_count(begin), print_count(end));
}

std::string_view side_name(Side side) { return side == Side::q ? "queries" : "keys"; }

struct Namer {
  const PlanIndex* plan;

  std::string operator()(const Nothing&) const { return "nothing"; }
  std::string operator()(const TokenRange& t) const {
    if (t.end == t.begin + 1)
      return fmt::format("token {} of {}", print_count(t.begin), side_name(t.side));
    return fmt::format("tokens {} of {}", range_text(t.begin, t.end), side_name(t.side));
  }
  std::string operator()(const PairRange& p) const {
    return fmt::format("queries {} x keys {}", range_text(p.q_begin, p.q_end),
                       range_text(p.k_begin, p.k_end));
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

/// The ranks that own the ids of a range.
struct Owners {
  std::vector<int32_t> ranks;  // ascending
  bool is_one_run = false;     // the ids are consecutive local rows of one rank
};

/// Returns nothing when there are too many runs to check.
std::optional<Owners> find_range_owners(const PlanIndex& plan, const TokenRange& tokens) {
  constexpr int64_t kMostTokens = 2048;
  constexpr size_t kMostRuns = 100'000;
  std::vector<bool> owns(static_cast<size_t>(plan.num_ranks()), false);
  int64_t runs = 0;
  if (plan.owned(tokens.side).size() <= kMostRuns) {
    for (const OwnedRun& owned : plan.owned(tokens.side)) {
      if (owned.run.begin >= tokens.end) break;
      if (!meets(owned.run, {tokens.begin, tokens.end})) continue;
      owns[static_cast<size_t>(owned.rank)] = true;
      ++runs;
    }
  } else if (tokens.end - tokens.begin <= kMostTokens) {
    for (int64_t token = tokens.begin; token < tokens.end; ++token) {
      const int32_t rank = plan.owner(tokens.side, token).rank;
      if (rank >= 0) owns[static_cast<size_t>(rank)] = true;
    }
  } else {
    return std::nullopt;
  }
  Owners owners{{}, runs == 1};
  for (size_t r = 0; r < owns.size(); ++r) {
    if (owns[r]) owners.ranks.push_back(static_cast<int32_t>(r));
  }
  return owners;
}

/// "rank 2, local rows [0, 64)", "ranks 2 and 5", "7 ranks", "no owner".
std::string owners_text(const PlanIndex& plan, const TokenRange& tokens) {
  const OwnedRow first = plan.owner(tokens.side, tokens.begin);
  const OwnedRow last = plan.owner(tokens.side, tokens.end - 1);
  const std::optional<Owners> owners = find_range_owners(plan, tokens);
  if (!owners) return fmt::format("many ranks, first {}, last {}", first.rank, last.rank);
  const std::vector<int32_t>& ranks = owners->ranks;
  if (ranks.empty()) return "no owner";
  if (tokens.end == tokens.begin + 1)
    return fmt::format("rank {}, local row {}", first.rank, print_count(first.row));
  if (owners->is_one_run && last.row - first.row == tokens.end - 1 - tokens.begin)
    return fmt::format("rank {}, local rows {}", first.rank, range_text(first.row, last.row + 1));
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  if (ranks.size() > 4) return count_text(static_cast<int64_t>(ranks.size()), "rank");
  std::string text = "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
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
    return fmt::format("Rank {}: {}, computes {} visible pairs, sends {}", r.rank,
                       count_text(p.rows(p.q_lists[RankId{r.rank}]), "query token"),
                       share_text(plan.summary().pairs_by_rank[i], plan.summary().visible_pairs),
                       print_bytes(static_cast<double>(plan.summary().forward_bytes[i] +
                                                       plan.summary().backward_bytes[i])));
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
    const Pass& pass = plan.pass(i.direction);
    const auto at = static_cast<size_t>(i.index);
    if (i.kind == StageKind::transfer) {
      const TransferItem& item = pass.transfers[at];
      text += fmt::format(
          ", {} {}", to_name(item.payload),
          item.src == item.dst ? "local copy" : print_bytes(static_cast<double>(item.bytes)));
    } else if (i.kind == StageKind::compute) {
      text += pass.computes[at].num_slices == 0
                  ? ", idle: no key is visible"
                  : ", " + count_text(pass.computes[at].visible_pairs, "pair");
    }
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
      text += count_items_text(stage.end - stage.begin, stage.kind);
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

std::string count_items_text(int64_t count, StageKind kind) {
  const std::string_view name = to_name(kind);
  return fmt::format("{} {}{}", print_count(count), name,
                     count == 1 ? "" : (kind == StageKind::finish ? "es" : "s"));
}

std::string count_text(int64_t count, std::string_view noun) {
  const std::string number = print_count(count) + " ";
  if (count == 1) return number + std::string(noun);
  return number + (noun == "query" ? "queries" : std::string(noun) + "s");
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
  return fmt::format("{} of {}",
                     print_share(static_cast<double>(part) / static_cast<double>(whole)),
                     print_count(whole));
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

int64_t rows_of(const Plan& plan, const TransferItem& item) {
  if (item.from_rows != kAllRows) return plan.rows(item.from_rows);
  return item.tokens != kNoTokens ? plan.rows(item.tokens) : plan.buffer(item.from).rows;
}

int64_t wire_element_bytes(const Plan& plan, const TransferItem& item) {
  const Numerics& numerics = plan.scenario.numerics;
  return item.payload == Payload::dkv && item.wire_fp32 ? dkv_wire_bytes(numerics)
                                                        : element_bytes(numerics.dtype);
}

std::string bytes_formula(const Plan& plan, const WireBytes& wire) {
  const Attention& attention = plan.scenario.attention;
  const int32_t qk = attention.head_dim_qk, v = attention.head_dim_v;
  const bool is_kv = side_of(wire.payload) == Side::kv;
  std::string head_dim;
  if (!is_kv) {
    const bool is_qk = wire.payload == Payload::q || wire.payload == Payload::dq;
    head_dim = fmt::format("head_dim {}", is_qk ? qk : v);
  } else if (qk == v) {
    head_dim = fmt::format("head_dim {} x 2 tensors", qk);
  } else {
    head_dim = fmt::format("(head_dim {} + {})", qk, v);
  }
  return fmt::format(
      "{}{} x {} x {} x {} = {}", wire.copies > 1 ? print_count(wire.copies) + " x " : "",
      count_text(wire.rows, "token"), count_text(wire.heads, is_kv ? "KV head" : "head"), head_dim,
      count_text(wire.element, "byte"), print_bytes(static_cast<double>(wire.bytes)));
}

double flops_of(const PlanIndex& plan, Direction direction, int64_t pairs) {
  return flops_per_pair(plan.plan().scenario.attention, direction) * static_cast<double>(pairs);
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
