#include "sim/plan/check/plan_check.h"

#include "sim/plan/check/check_rows.h"

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Checks ids: does the plan have such a rank, list, buffer, head or item?
class IdJudge {
 public:
  explicit IdJudge(const Plan& plan) : plan_(plan) {}

  bool is_rank(RankId id) const { return to_index(id) >= 0 && to_index(id) < plan_.layout.cp_size; }
  bool is_list(RunListId id) const {
    return to_index(id) >= 0 && static_cast<size_t>(to_index(id)) < plan_.run_lists.size();
  }
  bool is_buffer(BufferId id) const {
    return to_index(id) >= 0 && static_cast<size_t>(to_index(id)) < plan_.buffers.size();
  }
  bool are_heads(HeadRange heads, int32_t limit) const {
    return heads.begin >= 0 && heads.begin < heads.end && heads.end <= limit;
  }

  bool is_sound(const BufferSpec& buffer) const {
    return is_rank(buffer.rank) && buffer.rows >= 0 &&
           (buffer.tokens == kNoTokens || is_list(buffer.tokens));
  }
  bool is_sound(const HomeBuffers& home, bool backward) const {
    return is_buffer(home.q) && is_buffer(home.kv) && is_buffer(home.out) &&
           (!backward || (is_buffer(home.d_out) && is_buffer(home.dq) && is_buffer(home.dkv)));
  }
  bool is_sound(const ComputeItem& item, bool backward) const {
    return is_rank(item.rank) && is_buffer(item.q) && is_buffer(item.kv) && is_buffer(item.out) &&
           (!backward || (is_buffer(item.d_out) && is_buffer(item.dq) && is_buffer(item.dkv))) &&
           is_list(item.q_tokens) && is_list(item.kv_tokens) &&
           are_heads(item.heads, plan_.scenario.attention.heads) && item.first_slice >= 0 &&
           item.num_slices >= 0 &&
           item.first_slice + item.num_slices <= static_cast<int64_t>(plan_.slices.size());
  }
  bool is_sound(const TransferItem& item, bool) const {
    return is_rank(item.src) && is_rank(item.dst) && is_buffer(item.from) && is_buffer(item.to) &&
           item.heads.begin >= 0 && item.heads.size() > 0 &&
           (item.from_rows == kAllRows || is_list(item.from_rows)) &&
           (item.to_rows == kAllRows || is_list(item.to_rows)) &&
           (item.tokens == kNoTokens || is_list(item.tokens));
  }
  bool is_sound(const ReorderItem& item, bool) const {
    return is_rank(item.rank) && is_buffer(item.from) && is_buffer(item.to) && is_list(item.order);
  }
  bool is_sound(const MergeItem& item, bool) const {
    return is_rank(item.rank) && is_buffer(item.into) && item.order >= 0 &&
           (item.partial == kNoBuffer || is_buffer(item.partial));
  }
  bool is_sound(const FinishItem& item, bool) const {
    return is_rank(item.rank) && is_buffer(item.buffer);
  }

 private:
  const Plan& plan_;
};

/// Checks that every item of one kind is in exactly one stage, of its own step, and has valid ids.
template <class Item>
std::optional<std::string> check_items(const IdJudge& judge, const Pass& pass, bool backward,
                                       StageKind kind, const std::vector<Item>& items) {
  int64_t next = 0;
  for (const Stage& stage : pass.stages) {
    if (stage.kind != kind) continue;
    if (stage.begin != next || stage.end < stage.begin ||
        stage.end > static_cast<int64_t>(items.size())) {
      return fmt::format("step {}: a {} stage holds items [{}, {}) where {} is due",
                         to_index(stage.step), to_name(kind), stage.begin, stage.end, next);
    }
    next = stage.end;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      if (items[i].step != stage.step) {
        return fmt::format("step {}: {} {} calls itself step {}", to_index(stage.step),
                           to_name(kind), i, to_index(items[i].step));
      }
      if (!judge.is_sound(items[i], backward)) {
        return fmt::format("step {}: {} {} has an invalid id", to_index(stage.step), to_name(kind),
                           i);
      }
    }
  }
  if (next == static_cast<int64_t>(items.size())) return std::nullopt;
  return fmt::format("{} {} is in no stage", to_name(kind), next);
}

std::optional<std::string> check_pass(const IdJudge& judge, const Pass& pass, bool backward) {
  int32_t step = 0;
  for (const Stage& stage : pass.stages) {
    if (to_index(stage.step) < step || to_index(stage.step) >= pass.num_steps)
      return fmt::format("step {} of {} comes after step {}", to_index(stage.step), pass.num_steps,
                         step);
    step = to_index(stage.step);
  }
  if (pass.num_steps != (pass.stages.empty() ? 0 : step + 1))
    return fmt::format("{} steps are announced, the last is step {}", pass.num_steps, step);
  if (auto text = check_items(judge, pass, backward, StageKind::transfer, pass.transfers))
    return text;
  if (auto text = check_items(judge, pass, backward, StageKind::reorder, pass.reorders))
    return text;
  if (auto text = check_items(judge, pass, backward, StageKind::compute, pass.computes))
    return text;
  if (auto text = check_items(judge, pass, backward, StageKind::merge, pass.merges)) return text;
  return check_items(judge, pass, backward, StageKind::finish, pass.finishes);
}

std::optional<std::string> check_lists(const Plan& plan) {
  for (size_t l = 0; l < plan.run_lists.size(); ++l) {
    const RunList& list = plan.run_lists[l];
    const int64_t pool = static_cast<int64_t>(plan.runs.size());
    if (list.first < 0 || list.count < 0 || list.count > pool - list.first)
      return fmt::format("run list {} lies outside the pool", l);
    int64_t rows = 0;
    for (const TokenRun& run : plan.list(RunListId{static_cast<int32_t>(l)})) {
      if (run.stride < 1 || run.begin < 0)
        return fmt::format("run list {} has a run that steps by {} from {}", l, run.stride,
                           run.begin);
      rows += run.count();
    }
    if (rows != list.rows)
      return fmt::format("run list {} declares {} rows and has {}", l, list.rows, rows);
  }
  return std::nullopt;
}

}  // namespace

CheckResult check_structure(const Plan& plan) {
  const IdJudge judge(plan);
  const bool backward = plan.scenario.numerics.backward;
  const size_t ranks = static_cast<size_t>(plan.scenario.parallel.cp_size);
  if (plan.layout.cp_size != plan.scenario.parallel.cp_size || plan.q_lists.size() != ranks ||
      plan.kv_lists.size() != ranks || plan.home.size() != ranks ||
      plan.layout.slots.sequences.size() != plan.scenario.batch.lengths.size()) {
    return broken("buffers", "the layout is of other ranks or sequences than the scenario");
  }
  if (auto text = check_lists(plan)) return broken("buffers", *text);
  for (size_t r = 0; r < ranks; ++r) {
    if (!judge.is_list(plan.q_lists[r]) || !judge.is_list(plan.kv_lists[r]) ||
        !judge.is_sound(plan.home[r], backward))
      return broken("buffers", fmt::format("rank {} has no list or no home buffer", r));
  }
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    if (!judge.is_sound(plan.buffers[b]))
      return broken("buffers", fmt::format("buffer {} names what does not exist", b));
  }
  if (auto text = check_pass(judge, plan.forward, false))
    return broken("buffers", "forward, " + *text);
  if (auto text = check_pass(judge, plan.backward, true))
    return broken("buffers", "backward, " + *text);
  if (!backward && !plan.backward.stages.empty())
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
  checks.push_back(check_coverage(plan));
  checks.push_back(check_movement(plan));
  checks.push_back(check_gradients(plan));
  checks.push_back(check_bytes(plan));
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
