#include "sim/app/commands.h"
#include "sim/app/error_document.h"
#include "sim/base/machine_memory.h"
#include "sim/documents/json_text.h"
#include "sim/documents/te_text.h"
#include "sim/plan/plan_text.h"
#include "sim/plan/planner.h"
#include "sim/scenario/key_place.h"

#include <iostream>

#include <fmt/format.h>

namespace cpscope {

int report(const Error& error) {
  std::cerr << to_text(error) << '\n';
  note_error(error);
  return exit_code(error.kind);
}

int report(const Error& error, const LoadedScenario& loaded) {
  return report(locate_keys(error, loaded.text, loaded.path));
}

Result<LoadedScenario> load_with_warnings(const std::string& path) {
  Result<LoadedScenario> loaded = load_scenario(path);
  if (loaded) {
    for (const std::string& warning : loaded.value().warnings) std::cerr << warning << '\n';
  }
  return loaded;
}

namespace {

/// Why the document of a layout cannot be made here: it is held in memory, and then once more as
/// text.
std::optional<Error> lack_of_memory_for_document(const Layout& layout, bool full) {
  constexpr int64_t kBytesOfRun = 400, kBytesOfToken = 160;
  int64_t needed = 0;
  for (const auto* side : {&layout.q_runs, &layout.kv_runs})
    for (const auto& runs : *side) needed += kBytesOfRun * std::ssize(runs);
  if (full) needed += kBytesOfToken * (layout.slots.tokens + layout.slots.kv_tokens);
  if (needed <= machine_memory_bytes() / 10 * 9) return std::nullopt;
  return make_error(ErrorKind::unavailable,
                    fmt::format("the layout as one document needs {:.1f} GiB, this process may "
                                "have {:.1f} GiB",
                                gibibytes(needed), gibibytes(machine_memory_bytes())),
                    full ? "leave out --full, or use fewer tokens" : "use fewer tokens");
}

Result<CheckedPlan> load_and_plan(const std::string& path) {
  const Result<LoadedScenario> loaded = load_with_warnings(path);
  if (!loaded) return loaded.error();
  return plan_scenario(loaded.value());
}

void write_layout_text(const Plan& plan, std::ostream& out) {
  out << fmt::format("{} query tokens, {} key tokens, {} ranks, layout {}\n",
                     plan.layout.slots.tokens, plan.layout.slots.kv_tokens, plan.layout.cp_size,
                     to_name(plan.layout.kind));
  for (size_t s = 0; s < plan.layout.slots.sequences.size(); ++s) {
    const SequenceSlot& slot = plan.layout.slots.sequences[s];
    out << fmt::format("sequence {}: q ids [{}, {}), {} valid; kv ids [{}, {}), {} valid\n", s,
                       slot.q_begin, slot.q_begin + slot.q_slot, slot.q_valid, slot.kv_begin,
                       slot.kv_begin + slot.kv_slot, slot.kv_valid);
  }
  for (int32_t r = 0; r < plan.layout.cp_size; ++r) {
    out << fmt::format("rank {}: q {}", r, describe_runs(plan.layout.q_runs[r], 16));
    if (!plan.layout.same_kv) out << "; kv " << describe_runs(plan.layout.kv_runs[r], 16);
    out << '\n';
  }
}

void write_summary_text(const CheckedPlan& checked, const PlanSummary& summary, std::ostream& out) {
  out << fmt::format("plan {}: {} steps, {} visible (query, key, head) triples\n",
                     to_hex(checked.plan().hash), summary.steps, summary.visible_pairs);
  out << fmt::format("busiest rank {:.4f} x mean, critical path {:.4f} x ideal\n",
                     summary.rank_max_over_mean, summary.critical_path_over_ideal);
  out << fmt::format("KV bytes necessary {}, moved {}\n", summary.kv_bytes_necessary,
                     summary.kv_bytes_moved);
  for (size_t r = 0; r < summary.pairs_by_rank.size(); ++r) {
    out << fmt::format("rank {}: {} pairs, sends {} bytes forward, {} backward\n", r,
                       summary.pairs_by_rank[r], summary.forward_bytes[r],
                       summary.backward_bytes[r]);
  }
  for (const CheckResult& check : checked.checks())
    out << fmt::format("{} {}: {}\n", check.ok ? "proved" : "BROKEN", check.name, check.detail);
}

}  // namespace

int command_layout(const CommandOptions& options) {
  const Result<LoadedScenario> loaded = load_with_warnings(options.paths.front());
  if (!loaded) return report(loaded.error());
  if (auto error = refuse_by_rule(loaded.value().scenario)) return report(*error, loaded.value());
  Result<Layout> layout = make_layout(loaded.value().scenario);
  if (!layout) return report(layout.error(), loaded.value());
  Plan plan;
  plan.scenario = loaded.value().scenario;
  plan.layout = std::move(layout).value();
  if (options.json) {
    if (const auto error = lack_of_memory_for_document(plan.layout, options.full))
      return report(*error);
    std::cout << print_json(layout_json(plan, options.full)) << '\n';
  } else {
    write_layout_text(plan, std::cout);
  }
  return 0;
}

namespace {

int command_plan_as_te(const CommandOptions& options) {
  const Result<LoadedScenario> loaded = load_with_warnings(options.paths.front());
  if (!loaded) return report(loaded.error());
  const Result<CheckedPlan> plan = plan_scenario(loaded.value());
  if (!plan) return report(plan.error());
  const Result<TeView> view = view_as_te(plan.value().plan());
  if (!view) return report(view.error(), loaded.value());
  if (options.json) {
    std::cout << print_json(te_json(view.value(), plan.value().plan())) << '\n';
  } else {
    write_te_text(view.value(), plan.value().plan(), std::cout);
  }
  return 0;
}

}  // namespace

int command_plan(const CommandOptions& options) {
  if (options.te) return command_plan_as_te(options);
  const Result<CheckedPlan> plan = load_and_plan(options.paths.front());
  if (!plan) return report(plan.error());
  const PlanSummary summary = summarise(plan.value().plan());
  if (options.json && options.summary) {
    std::cout << print_json(summary_json(plan.value(), summary)) << '\n';
  } else if (options.json) {
    write_plan_json(plan.value(), summary, std::cout);
  } else if (options.summary && !options.text) {
    write_summary_text(plan.value(), summary, std::cout);
  } else {
    write_plan_text(plan.value(), options.max_lines, std::cout);
  }
  return 0;
}

}  // namespace cpscope
