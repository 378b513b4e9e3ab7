#include "sim/app/cli/commands.h"
#include "sim/documents/verdict_text.h"
#include "sim/findings/progress_bar.h"
#include "sim/findings/run_document.h"
#include "sim/findings/study.h"
#include "sim/plan/order/order_import.h"
#include "sim/run/grade/foreign_grade.h"
#include "sim/run/record/foreign_file.h"

#include <iostream>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

struct GradeArguments {
  std::string scenario_path;
  std::vector<std::string> records;  // one file, or one for each rank
  std::string order;                 // packed | rank; empty: as the record says
  std::string order_path;            // an order file instead of the scenario's layout
  std::string format;                // thd | bshd | sbhd | bhsd; empty: by shape
  std::string lse_layout;            // tokens_heads | heads_tokens; empty: by shape
  std::vector<std::string> names;    // NAME=THEIRS
  std::vector<std::string> budgets;
  int64_t sample_rows = 0;
  OutputFiles files;
  bool json = false, ignore_padding = false;
};

/// What the words of the command line mean; they were checked there.
ForeignChoices choices_of(const GradeArguments& options) {
  ForeignChoices choices{find_row_order(options.order), find_row_format(options.format),
                         find_lse_layout(options.lse_layout)};
  for (const std::string& pair : options.names) {
    const size_t sign = pair.find('=');
    choices.aliases.push_back({pair.substr(0, sign), pair.substr(sign + 1)});
  }
  return choices;
}

/// Replaces the scenario's layout by an imported order over the same slots.
std::optional<Error> use_order_file(const std::string& path, Scenario& scenario) {
  const Result<OrderDemand> demand = demand_of_order(scenario);
  if (!demand) return demand.error();
  Result<ImportedOrder> order =
      read_fitting_order(scenario, demand.value(),
                         [&](const OrderDemand& fitting) { return load_order(path, fitting); });
  std::optional<Error> error;
  if (order) {
    error = use_order(std::move(order).value(), path, scenario);
  } else {
    error = order.error();
  }
  if (!error) return std::nullopt;
  for (Complaint& complaint : error->complaints) {
    if (complaint.where.empty()) complaint.where = path;
  }
  return error;
}

/// The command that does the same again.
std::string make_grade_replay(const GradeArguments& options) {
  std::string replay = "cpscope grade " + quote_word(options.scenario_path);
  for (const std::string& path : options.records) replay += " " + quote_word(path);
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) replay += fmt::format(" {} {}", name, quote_word(value));
  };
  add("--order", options.order);
  add("--order-file", options.order_path);
  add("--format", options.format);
  add("--lse-layout", options.lse_layout);
  for (const std::string& pair : options.names) add("--map", pair);
  if (options.ignore_padding) replay += " --ignore-padding";
  if (options.sample_rows > 0) replay += fmt::format(" --sample {}", options.sample_rows);
  for (const std::string& budget : options.budgets) replay += " --budget " + quote_word(budget);
  return replay;
}

/// What text, JSON and report tell of a record.
CaseFindings make_grade_findings(const GradeArguments& options, const LoadedScenario& loaded,
                                 const CheckedPlan& plan, const ForeignRecord& record,
                                 const ForeignGrade& graded) {
  CaseOutcome outcome;
  outcome.status = graded.grade.passed ? CaseStatus::pass : CaseStatus::fail;
  outcome.reason = describe_first_failure(graded.grade);
  outcome.plan = plan;
  outcome.grade = graded.grade;
  outcome.judged = graded.judged;
  outcome.executor = record.executor;
  CaseFindings findings = make_findings(options.scenario_path, loaded.text, std::move(outcome));
  findings.machine.clear();  // nobody knows where the record was made
  findings.replay = make_grade_replay(options);
  findings.notes.push_back(describe_inputs(graded));
  findings.notes.push_back(fmt::format("rows of the record are in {} order ({})",
                                       to_name(record.order), record.order_source));
  const auto list = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty())
      findings.blind.push_back(fmt::format("{}: {}", what, fmt::join(names, ", ")));
  };
  list("the scenario asks for it and the record lacks it, so it was not judged", graded.missing);
  list("not requested by the scenario, so not judged", graded.unasked);
  list("of a name that the contract does not know, so ignored", record.ignored);
  if (options.ignore_padding) findings.blind.emplace_back("padding rows were not judged");
  if (graded.grade.passed) return findings;
  findings.worst_rows = list_worst_rows(plan.plan(), graded.seen, graded.exact, graded.grade);
  findings.not_located =
      "a record of answers does not show which item wrote them, only which rows "
      "are wrong";
  return findings;
}

int command_grade(const GradeArguments& options, const Tools& tools) {
  if (const auto error = check_output_files(options.files)) return report(*error);
  Result<LoadedScenario> loaded = load_with_warnings(options.scenario_path);
  if (!loaded) return report(loaded.error());
  if (!options.order_path.empty() && loaded.value().plan)
    return report(make_bad_input("--order-file changes the layout, and a plan document has its own",
                                 "leave it out, or give a scenario file", options.scenario_path));
  if (!options.order_path.empty()) {
    if (auto error = use_order_file(options.order_path, loaded.value().scenario))
      return report(*error);
  }
  const Result<CheckedPlan> checked = plan_scenario(loaded.value());
  if (!checked) return report(checked.error());
  if (const auto error = grade_obstacle(checked.value())) return report(*error);
  const Plan& plan = checked.value().plan();
  Result<std::vector<NamedRecord>> records = read_foreign_files(options.records);
  if (!records) return report(records.error());
  Result<ForeignRecord> record =
      read_foreign(std::move(records).value(), plan, choices_of(options));
  if (!record) return report(record.error());
  const auto grade_with_bar = [&] {
    ProgressBar bar(true);
    bar.announce(estimate_judge(plan.scenario, summarise(plan), options.sample_rows));
    return grade_foreign(tools.toolbox, plan, record.value(),
                         {.ignores_padding = options.ignore_padding,
                          .sample_rows = options.sample_rows,
                          .keeps_exact = true,
                          .budgets = parse_budgets(options.budgets),
                          .control = {.share = bar.share("judge")}});
  };
  Result<ForeignGrade> graded = grade_with_bar();
  if (!graded) {
    Error error = graded.error();
    for (Complaint& complaint : error.complaints) {
      if (error.kind == ErrorKind::bad_input) complaint.where = options.records.front();
    }
    return report(error);
  }
  const bool has_passed = graded.value().grade.passed;
  Findings all{.command = "grade", .date = today()};
  all.cases.push_back(make_grade_findings(options, loaded.value(), checked.value(), record.value(),
                                          graded.value()));
  if (options.json) {
    Json json = foreign_json(record.value(), graded.value(), plan);
    add_findings(all.cases.front(), json);
    std::cout << print_json(json) << '\n';
  } else {
    write_foreign_grade(record.value(), graded.value(), plan, std::cout);
  }
  CaseFindings& findings = all.cases.front();
  findings.seen = std::move(graded.value().seen);
  findings.exact = std::move(graded.value().exact);
  if (const auto error = write_output_files(all, options.files, tools, options.json))
    return report(*error);
  return has_passed ? 0 : 1;
}

}  // namespace

Command add_grade(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<GradeArguments>();
  CLI::App* grade =
      app.add_subcommand("grade", "grades tensors that other software computed, with the oracle");
  add_scenario_file(grade, options->scenario_path);
  grade
      ->add_option(
          "RECORD", options->records,
          ".safetensors, .pt (torch.save of tensors in dicts and lists), .npz or .npy with "
          "out, lse, max_logit, dq, dk, dv, d_sink, dbias or some of them: one file, or one for "
          "each rank in rank order; parts of one file are called out.rank0, out.rank1, ...; "
          "a .pt file may hold a list with one dict for each rank. Where ranks own heads of all "
          "queries (q_owner), a rank has [tokens, its heads, head_dim] of out and q, and "
          "[tokens, its heads] of lse")
      ->required();
  add_json(grade, options->json);
  grade
      ->add_option("--map", options->names,
                   "NAME=THEIRS, as out=attn_output: the record's name for a tensor; may be given "
                   "for several")
      ->check(CLI::Validator(
          [](std::string& text) {
            const size_t sign = text.find('=');
            const bool is_pair = sign != std::string::npos && sign > 0 && sign + 1 < text.size();
            return is_pair ? std::string() : "a name is NAME=THEIRS, as out=attn_output: " + text;
          },
          ""))
      ->expected(1)
      ->take_all();
  grade
      ->add_option("--order", options->order,
                   "how rows follow each other: packed (padded token order) or rank (the ranks' "
                   "local buffers one after another); default: the record's metadata \"order\", "
                   "else packed; parts by rank are always in rank order")
      ->check(CLI::IsMember({"packed", "rank"}));
  grade
      ->add_option("--order-file", options->order_path,
                   "the ranks' local buffers by this order file (as indices_file of a scenario) "
                   "instead of the scenario's layout")
      ->check(kNotEmpty);
  grade
      ->add_option("--format", options->format,
                   "dimensions of the tensors: thd, bshd, sbhd or bhsd (default: metadata "
                   "\"format\", else what the shape allows)")
      ->check(CLI::IsMember({"thd", "bshd", "sbhd", "bhsd"}));
  grade
      ->add_option("--lse-layout", options->lse_layout,
                   "tokens_heads or heads_tokens, as FlashAttention's varlen calls have it "
                   "(default: metadata \"lse_layout\", else what the shape allows)")
      ->check(CLI::IsMember({"tokens_heads", "heads_tokens"}));
  grade->add_flag("--ignore-padding", options->ignore_padding,
                  "do not grade padding rows: some back ends leave them undefined");
  add_sample(grade, options->sample_rows);
  add_budgets(grade, options->budgets);
  add_output_files(grade, options->files);
  grade->footer(
      "Inputs q, k, v, d_out, sink and bias of the record that differ from the scenario's are what "
      "the\n"
      "oracle then answers.\n"
      "Example: cpscope grade scenarios/zigzag.toml mine.safetensors --order rank\n"
      "         cpscope grade scenarios/zigzag.toml rank*.pt --map out=attn_output");
  return {grade, [options, tools] { return command_grade(*options, tools); }};
}

}  // namespace cpscope
