#include "sim/plan/check/plan_check.h"

#include "sim/base/parallel.h"
#include "sim/plan/check/check_rows.h"
#include "sim/plan/visit_items.h"

#include <algorithm>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Tables of a plan have an entry for every step of every rank.
constexpr int64_t kMaxStepsOfRanks = int64_t{1} << 27;

/// Checks ids: does the plan have such a rank, list, buffer, head or item?
class IdJudge {
 public:
  explicit IdJudge(const Plan& plan) : plan_(plan) {}

  int64_t num_ranks() const { return plan_.layout.cp_size; }
  bool is_rank(RankId id) const { return to_index(id) >= 0 && to_index(id) < plan_.layout.cp_size; }
  bool is_list(RunListId id) const { return plan_.run_lists.has(id); }
  bool is_buffer(BufferId id) const { return plan_.buffers.has(id); }
  bool are_heads(HeadRange heads, int32_t limit) const {
    return heads.begin >= 0 && heads.begin < heads.end && heads.end <= limit;
  }

  bool is_sound(const BufferSpec& buffer) const {
    return is_rank(buffer.rank) && buffer.rows >= 0 &&
           (buffer.tokens == kNoTokens || is_list(buffer.tokens));
  }
  bool is_sound(const HomeBuffers& home, bool has_backward) const {
    return is_buffer(home.q) && is_buffer(home.kv) && is_buffer(home.out) &&
           (!has_backward ||
            (is_buffer(home.d_out) && is_buffer(home.dq) && is_buffer(home.dkv))) &&
           (home.stats == kNoBuffer || is_buffer(home.stats)) &&
           (home.replica == kNoBuffer || is_buffer(home.replica));
  }
  bool is_sound(const ComputeItem& item, Direction direction) const {
    return is_rank(item.rank) && is_buffer(item.q) && is_buffer(item.kv) && is_buffer(item.out) &&
           (direction == Direction::forward ||
            (is_buffer(item.d_out) && is_buffer(item.dq) && is_buffer(item.dkv))) &&
           is_list(item.q_tokens) && is_list(item.kv_tokens) &&
           are_heads(item.heads, plan_.scenario.attention.heads) && item.first_slice >= 0 &&
           item.num_slices >= 0 &&
           item.num_slices <= static_cast<int64_t>(plan_.slices.size()) - item.first_slice;
  }
  bool is_sound(const TransferItem& item, Direction) const {
    return is_rank(item.src) && is_rank(item.dst) && is_buffer(item.from) && is_buffer(item.to) &&
           are_heads(item.heads, plan_.scenario.attention.heads) &&
           (item.from_rows == kAllRows || is_list(item.from_rows)) &&
           (item.to_rows == kAllRows || is_list(item.to_rows)) &&
           (item.tokens == kNoTokens || is_list(item.tokens));
  }
  bool is_sound(const ReorderItem& item, Direction) const {
    return is_rank(item.rank) && is_buffer(item.from) && is_buffer(item.to) && is_list(item.order);
  }
  bool is_sound(const MergeItem& item, Direction) const {
    return is_rank(item.rank) && is_buffer(item.into) && item.order >= 0 &&
           (item.partial == kNoBuffer || is_buffer(item.partial)) &&
           (item.into_rows == kAllRows || is_list(item.into_rows));
  }
  bool is_sound(const FinishItem& item, Direction) const {
    return is_rank(item.rank) && is_buffer(item.buffer);
  }

 private:
  const Plan& plan_;
};

/// Checks that every item of one kind is in exactly one stage, of its own step, and has valid ids.
std::optional<std::string> check_items(const IdJudge& judge, const Pass& pass, Direction direction,
                                       StageKind kind, std::optional<ItemId>& wrong) {
  int64_t next = 0;
  for (const Stage& stage : pass.stages) {
    if (stage.kind != kind) continue;
    if (stage.begin != next || stage.end < stage.begin || stage.end > count_items(pass, kind)) {
      return fmt::format("step {}: a {} stage holds items [{}, {}) where {} is due",
                         to_index(stage.step), to_name(kind), stage.begin, stage.end, next);
    }
    next = stage.end;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const auto complaint = [&](const auto& item) -> std::optional<std::string> {
        if (item.step != stage.step)
          return fmt::format("step {}: {} {} calls itself step {}", to_index(stage.step),
                             to_name(kind), i, to_index(item.step));
        if (!judge.is_sound(item, direction))
          return fmt::format("step {}: {} {} has an invalid id", to_index(stage.step),
                             to_name(kind), i);
        return std::nullopt;
      };
      if (auto text = visit_item(pass, kind, i, complaint)) {
        wrong = ItemId{direction, kind, i};
        return text;
      }
    }
  }
  if (next == count_items(pass, kind)) return std::nullopt;
  return fmt::format("{} {} is in no stage", to_name(kind), next);
}

std::optional<std::string> check_pass(const IdJudge& judge, const Pass& pass, Direction direction,
                                      std::optional<ItemId>& wrong) {
  int32_t step = 0;
  for (const Stage& stage : pass.stages) {
    if (to_index(stage.step) < step || to_index(stage.step) >= pass.num_steps)
      return fmt::format("step {} of {} comes after step {}", to_index(stage.step), pass.num_steps,
                         step);
    step = to_index(stage.step);
  }
  if (pass.num_steps > kMaxStepsOfRanks / judge.num_ranks())
    return fmt::format("{} steps of {} ranks are more than the limit of {}", pass.num_steps,
                       judge.num_ranks(), kMaxStepsOfRanks);
  if (pass.num_steps != (pass.stages.empty() ? 0 : step + 1))
    return fmt::format("{} steps are announced, the last is step {}", pass.num_steps, step);
  for (const StageKind kind : {StageKind::transfer, StageKind::reorder, StageKind::compute,
                               StageKind::merge, StageKind::finish}) {
    if (auto text = check_items(judge, pass, direction, kind, wrong)) return text;
  }
  return std::nullopt;
}

std::optional<std::string> check_lists(const Plan& plan) {
  for (const RunListId id : plan.run_lists.ids()) {
    const RunList& list = plan.run_lists[id];
    const int64_t pool = static_cast<int64_t>(plan.runs.size());
    if (list.first < 0 || list.count < 0 || list.count > pool - list.first)
      return fmt::format("run list {} lies outside the pool", to_index(id));
    int64_t rows = 0;
    for (const TokenRun& run : plan.list(id)) {
      if (run.stride < 1 || run.begin < 0)
        return fmt::format("run list {} has a run that steps by {} from {}", to_index(id),
                           run.stride, run.begin);
      if (run.end > 2 * kMaxTokens || (run.count() > 0 && run.last() >= kMaxTokens))
        return fmt::format("run list {} has an id above the limit of {}", to_index(id), kMaxTokens);
      rows += run.count();
      if (rows > kMaxTokens)
        return fmt::format("run list {} has more rows than the limit of {}", to_index(id),
                           kMaxTokens);
    }
    if (rows != list.rows)
      return fmt::format("run list {} declares {} rows and has {}", to_index(id), list.rows, rows);
  }
  return std::nullopt;
}

}  // namespace

CheckResult check_structure(const Plan& plan) {
  const IdJudge judge(plan);
  const bool has_backward = plan.scenario.numerics.backward;
  const size_t ranks = static_cast<size_t>(plan.scenario.parallel.cp_size);
  if (plan.layout.cp_size != plan.scenario.parallel.cp_size || plan.q_lists.size() != ranks ||
      plan.kv_lists.size() != ranks || plan.home.size() != ranks ||
      plan.layout.slots.sequences.size() != plan.scenario.batch.lengths.size()) {
    return broken("buffers", "the layout is of other ranks or sequences than the scenario");
  }
  if (auto text = check_lists(plan)) return broken("buffers", *text);
  for (const RankId rank : plan.home.ids()) {
    if (!judge.is_list(plan.q_lists[rank]) || !judge.is_list(plan.kv_lists[rank]) ||
        !judge.is_sound(plan.home[rank], has_backward))
      return broken("buffers",
                    fmt::format("rank {} has no list or no home buffer", to_index(rank)));
  }
  for (const BufferId id : plan.buffers.ids()) {
    if (!judge.is_sound(plan.buffer(id)))
      return broken("buffers", fmt::format("buffer {} names what does not exist", to_index(id)));
  }
  for (const Direction direction : kDirections) {
    std::optional<ItemId> wrong;
    if (auto text = check_pass(judge, plan.pass(direction), direction, wrong))
      return broken("buffers", fmt::format("{}, {}", to_name(direction), *text), wrong);
  }
  if (!has_backward && !plan.backward.stages.empty())
    return broken("buffers", "the plan has a backward pass, but numerics.backward is off");
  return passed("buffers", "ids, lists and stages are sound");
}

std::vector<CheckResult> inspect_plan(const Plan& plan) {
  // All other checks use ids that this check has proved.
  if (CheckResult structure = check_structure(plan); !structure.ok) return {structure};
  std::vector<CheckResult> checks;
  checks.push_back(check_ownership(plan));
  checks.push_back(check_buffers(plan));
  // The later checks use what the first two have proved.
  if (!checks[0].ok || !checks[1].ok) return checks;
  // The longest two share their own work among the threads.
  checks.push_back(check_coverage(plan));
  checks.push_back(check_movement(plan));
  std::vector<CheckResult (*)(const Plan&)> later{check_partials, check_gradients, check_bytes};
  if (has_rounds(plan.scenario.parallel)) later.push_back(check_rounds);
  checks.resize(4 + later.size());
  for_each_index(static_cast<int64_t>(later.size()), [&](int64_t i) {
    checks[static_cast<size_t>(4 + i)] = later[static_cast<size_t>(i)](plan);
  });
  return checks;
}

Result<CheckedPlan> check_plan(Plan plan) {
  CheckedPlan checked;
  checked.checks_ = inspect_plan(plan);
  for (const CheckResult& check : checked.checks_) {
    if (!check.ok)
      return make_error(ErrorKind::failed,
                        "the plan is wrong (" + check.name + "): " + check.detail);
  }
  checked.plan_ = std::make_shared<const Plan>(std::move(plan));
  return checked;
}

CheckedPlan admit_faulty_plan(Plan plan, std::string why) {
  CheckedPlan checked;
  checked.checks_ = inspect_plan(plan);
  checked.plan_ = std::make_shared<const Plan>(std::move(plan));
  checked.admitted_because_ = std::move(why);
  return checked;
}

}  // namespace cpscope
