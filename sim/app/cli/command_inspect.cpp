#include "sim/app/cli/commands.h"
#include "sim/base/machine_memory.h"
#include "sim/documents/json_text.h"
#include "sim/documents/te_text.h"
#include "sim/findings/error_document.h"
#include "sim/plan/check/plan_text.h"
#include "sim/plan/document/plan_document.h"
#include "sim/plan/local_keys.h"
#include "sim/plan/planner/planner.h"
#include "sim/plan/scale_reductions.h"
#include "sim/scenario/key_place.h"

#include <iostream>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {

namespace {

struct LayoutArguments {
  std::string scenario_path;
  bool json = false, full = false, has_local_keys = false;
  int64_t decode_steps = 0;
};

struct PlanArguments {
  std::string scenario_path;
  int64_t max_lines = 0;  // of text; 0: all
  bool json = false, summary = false, text = false, te = false, full = false;
};

/// Why the document of a layout cannot be made here: it is held in memory, and then once more as
/// text.
std::optional<Error> lack_of_memory_for_document(const Layout& layout, bool full) {
  constexpr int64_t kBytesOfRun = 400, kBytesOfToken = 160;
  int64_t needed = 0;
  for (const Side side : {Side::q, Side::kv})
    for (const auto& runs : layout.runs(side)) needed += kBytesOfRun * std::ssize(runs);
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

/// "[0, 1) [3, 5), 1 of 3 is padding": what a rank owns.
std::string describe_owned(const Layout& layout, Side side, RankId rank) {
  const std::vector<TokenRun>& runs = layout.runs(side)[rank];
  std::string text = describe_runs(runs, 16);
  const int64_t padding = count_padding(layout, side, rank);
  if (padding > 0)
    text +=
        fmt::format(", {} of {} {} padding", padding, count_ids(runs), padding == 1 ? "is" : "are");
  return text;
}

/// "ids [0, 16), 11 valid from 5 on"; the last words only if padding comes before them.
std::string describe_slot(const SlotSide& slot) {
  std::string text = fmt::format("ids [{}, {}), {} valid", slot.begin, slot.end(), slot.valid);
  if (slot.front > 0 && slot.valid > 0) text += fmt::format(" from {} on", slot.valid_begin());
  return text;
}

void write_layout_text(const Plan& plan, std::ostream& out) {
  out << fmt::format("{} query tokens, {} key tokens, {} ranks, layout {}, mask {}\n",
                     plan.layout.slots.tokens, plan.layout.slots.kv_tokens, plan.layout.cp_size,
                     to_name(plan.layout.kind), describe_mask(plan.scenario.attention));
  for (size_t s = 0; s < plan.layout.slots.sequences.size(); ++s) {
    const SequenceSlot& slot = plan.layout.slots.sequences[s];
    out << fmt::format("sequence {}: q {}; kv {}\n", s, describe_slot(slot.side(Side::q)),
                       describe_slot(slot.side(Side::kv)));
  }
  for (size_t k = 0; k < plan.layout.rounds.size(); ++k)
    out << describe_round(plan.layout, k) << '\n';
  for (const RankId rank : plan.layout.q_runs.ids()) {
    out << fmt::format("rank {}: q {}", to_index(rank), describe_owned(plan.layout, Side::q, rank));
    if (plan.layout.q_heads.has(rank))
      out << fmt::format(", heads [{}, {})", plan.layout.q_heads[rank].begin,
                         plan.layout.q_heads[rank].end);
    if (!plan.layout.same_kv) out << "; kv " << describe_owned(plan.layout, Side::kv, rank);
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
  const Scenario& scenario = checked.plan().scenario;
  for (const ScaleReduction& one : scale_reductions(scenario))
    out << "scale: " << describe(one, scenario) << '\n';
  for (const CheckResult& check : checked.checks())
    out << fmt::format("{} {}: {}\n", check.ok ? "proved" : "BROKEN", check.name, check.detail);
}

Json counts_json(const std::vector<LocalKeys>& counts) {
  Json json = Json::array();
  for (const LocalKeys& one : counts)
    json.push_back({{"sequence", one.sequence}, {"query", one.query}, {"keys", one.keys}});
  return json;
}

Json appended_json(const std::vector<AppendedKey>& appended) {
  Json json = Json::array();
  for (const AppendedKey& one : appended)
    json.push_back({{"step", one.step},
                    {"sequence", one.sequence},
                    {"position", one.position},
                    {"rank", one.rank},
                    {"row", one.row},
                    {"keys", one.keys}});
  return json;
}

void write_counts_text(const std::vector<LocalKeys>& counts, std::ostream& out) {
  for (const LocalKeys& one : counts)
    out << fmt::format("sequence {}, query {}: keys that it sees on each rank: {}\n", one.sequence,
                       one.query, fmt::join(one.keys, ", "));
}

void write_appended_text(const std::vector<AppendedKey>& appended, std::ostream& out) {
  for (const AppendedKey& one : appended)
    out << fmt::format(
        "step {}: rank {} appends token {} of sequence {} as its key {}; keys of each "
        "rank: {}\n",
        one.step, one.rank, one.position, one.sequence, one.row, fmt::join(one.keys, ", "));
}

int command_layout(const LayoutArguments& options, const Tools&) {
  const Result<LoadedScenario> loaded = load_with_warnings(options.scenario_path);
  if (!loaded) return report(loaded.error());
  Plan plan;
  plan.scenario = loaded.value().scenario;
  if (loaded.value().plan) {
    plan.layout = loaded.value().plan->plan().layout;
  } else {
    if (auto error = refuse_by_rule(plan.scenario)) return report(*error, loaded.value());
    Result<Layout> layout = make_layout(plan.scenario);
    if (!layout) return report(layout.error(), loaded.value());
    plan.layout = std::move(layout).value();
  }
  Result<std::vector<LocalKeys>> counts = std::vector<LocalKeys>{};
  if (options.has_local_keys) counts = count_local_keys(plan.scenario, plan.layout);
  if (!counts) return report(counts.error(), loaded.value());
  Result<std::vector<AppendedKey>> appended = std::vector<AppendedKey>{};
  if (options.decode_steps > 0)
    appended = grow_cache(plan.scenario, plan.layout, options.decode_steps);
  if (!appended) return report(appended.error(), loaded.value());
  if (options.json) {
    if (const auto error = lack_of_memory_for_document(plan.layout, options.full))
      return report(*error);
    Json json = layout_json(plan, options.full);
    if (options.has_local_keys) json["local_keys"] = counts_json(counts.value());
    if (options.decode_steps > 0) json["decode_steps"] = appended_json(appended.value());
    std::cout << print_json(json) << '\n';
  } else {
    write_layout_text(plan, std::cout);
    write_counts_text(counts.value(), std::cout);
    write_appended_text(appended.value(), std::cout);
  }
  return 0;
}

}  // namespace

Command add_layout(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<LayoutArguments>();
  CLI::App* layout = app.add_subcommand("layout", "who owns which token");
  add_scenario_file(layout, options->scenario_path);
  add_json(layout, options->json);
  layout->add_flag(
      "--full", options->full,
      "also write out every local slot: token, sequence, position, and the a2a gather indices");
  layout->add_flag("--local-keys", options->has_local_keys,
                   "how many keys of each rank every query sees: local lengths of a decoder, one "
                   "for each draft; a key counts on the rank that owns it, its copies on others "
                   "(kv_replicated) do not");
  layout
      ->add_option(
          "--decode-steps", options->decode_steps,
          "the next N tokens of every sequence: which rank appends them to its cache; keys "
          "are counted as by --local-keys")
      ->check(CLI::Range(int64_t{1}, kMaxLocalKeys));
  layout->footer("Example: cpscope layout scenarios/thd_padding_p2p.toml --json --full");
  return {layout, [options, tools] { return command_layout(*options, tools); }};
}

namespace {

int command_plan_as_te(const PlanArguments& options) {
  const Result<LoadedScenario> loaded = load_with_warnings(options.scenario_path);
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

int command_plan(const PlanArguments& options, const Tools&) {
  if (options.te) return command_plan_as_te(options);
  const Result<CheckedPlan> plan = load_and_plan(options.scenario_path);
  if (!plan) return report(plan.error());
  if (options.full) {
    write_plan_document(plan.value().plan(), std::cout);
    return 0;
  }
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

}  // namespace

Command add_plan(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<PlanArguments>();
  CLI::App* plan = app.add_subcommand(
      "plan", "every step: compute slices, transfers, merges, reorders; proved before it is shown");
  add_scenario_file(plan, options->scenario_path);
  add_json(plan, options->json);
  plan->add_flag("--summary", options->summary, "figures only: pairs, balance, bytes, checks");
  plan->add_flag("--full", options->full,
                 "with --json: the whole plan as a document, which `check`, and every command that "
                 "takes a FILE of a scenario, reads (sim/plan/PLAN.md)")
      ->needs("--json")
      ->excludes("--summary");
  plan->add_flag("--text", options->text,
                 "a readable dump (the default without --json or --summary)");
  plan->add_option("--lines", options->max_lines, "at most this many lines of text, 0 = all")
      ->check(whole_number());
  plan->add_flag("--te", options->te,
                 "what TransformerEngine would pass to its kernels for this plan, rank by rank and "
                 "step by step: section, halves, cu_seqlens, max_seqlen, mask; and where its "
                 "shortcuts compute something else")
      ->excludes("--summary")
      ->excludes("--text")
      ->excludes("--full");
  plan->footer(
      "Example: cpscope plan scenarios/zigzag.toml --text\n"
      "         cpscope plan scenarios/zigzag.toml --json --full > zigzag.json\n"
      "         cpscope plan scenarios/thd_padding_p2p.toml --te");
  return {plan, [options, tools] { return command_plan(*options, tools); }};
}

}  // namespace cpscope
