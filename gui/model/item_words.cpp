#include "gui/model/item_words.h"

#include "gui/model/axis.h"
#include "gui/model/describe.h"

#include <fmt/format.h>

namespace cpscope::gui {

std::string_view name_rows(BufferKind kind) {
  constexpr std::string_view kNames[] = {
      "queries", "keys and values", "outputs",      "output gradients",
      "dQ",      "dK and dV",       "lse and delta"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view name_rows(Payload payload) {
  if (payload == Payload::lse) return "lse";
  return payload == Payload::partial ? "partial results" : name_rows(kind_of(payload));
}

std::string name_heads(HeadRange heads, Side side) {
  const std::string_view kind = side == Side::kv ? "KV head" : "head";
  if (heads.size() == 1) return fmt::format("{} {}", kind, heads.begin);
  return fmt::format("{}s [{}, {})", kind, heads.begin, heads.end);
}

std::string name_step(const PlanIndex& plan, int32_t step) {
  const StepRef& ref = plan.steps()[static_cast<size_t>(step)];
  return fmt::format("{} step {}", to_name(ref.direction), ref.step + 1);
}

std::string name_stage(const PlanIndex& plan, int32_t stage) {
  const StepRef& step = plan.steps()[static_cast<size_t>(plan.step_of_stage(stage))];
  return fmt::format("stage {} of {}", stage - step.first_stage + 1,
                     step.end_stage - step.first_stage);
}

std::string_view describe_role(BufferRole role) {
  constexpr std::string_view kWords[] = {"own rows in local order",
                                         "passing by, even hops",
                                         "passing by, odd hops",
                                         "from another window, even hops",
                                         "from another window, odd hops",
                                         "one rank after another",
                                         "by ascending token",
                                         "rows of others that own queries need",
                                         "rows computed for others",
                                         "one result before it is merged"};
  static_assert(std::size(kWords) == static_cast<size_t>(BufferRole::partial) + 1);
  return kWords[static_cast<size_t>(role)];
}

std::string_view made_by(StageKind kind) {
  constexpr std::string_view kWords[] = {"arrived by", "put in order by", "computed by",
                                         "merged by", "finished by"};
  return kWords[static_cast<size_t>(kind)];
}

std::string_view used_by(StageKind kind) {
  constexpr std::string_view kWords[] = {"sent by", "put in order by", "used by", "taken by",
                                         "finished by"};
  return kWords[static_cast<size_t>(kind)];
}

std::string describe_amount(const Plan& plan, const ItemId& id) {
  const Pass& pass = plan.pass(id.direction);
  const auto at = static_cast<size_t>(id.index);
  if (id.kind == StageKind::transfer) {
    const TransferItem& item = pass.transfers[at];
    return fmt::format("{} {}", to_name(item.payload),
                       item.src == item.dst ? "local copy" : print_bytes(item.bytes));
  }
  if (id.kind != StageKind::compute) return "";
  const ComputeItem& item = pass.computes[at];
  return item.num_slices == 0 ? "idle: no key is visible" : count_text(item.visible_pairs, "pair");
}

std::string describe_finish(const Plan& plan, const FinishItem& item) {
  const Scenario& scenario = plan.scenario;
  const bool has_sink = scenario.attention.softmax_type != SoftmaxType::vanilla &&
                        plan.buffer(item.buffer).kind == BufferKind::out;
  return fmt::format("{}sums are rounded to {}",
                     has_sink ? "the sink enters each row's softmax, once, and " : "",
                     dtype_name(scenario.numerics));
}

std::string describe_payloads(const std::array<int64_t, kPayloads>& bytes) {
  std::string text;
  for (size_t p = 0; p < bytes.size(); ++p) {
    if (bytes[p] > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", to_name(static_cast<Payload>(p)),
                          print_bytes(bytes[p]));
  }
  return text;
}

}  // namespace cpscope::gui
