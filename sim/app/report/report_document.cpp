#include "sim/app/report/report_document.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// A report while it is written.
struct Writer {
  const Findings& findings;
  const FigureMaker& draw;
  const ReportLimits& limits;
  ReportDocument document;
  size_t figure_bytes = 0;
  size_t figures_left_out = 0;
  size_t scenario_bytes = 0;

  template <class Block>
  void add(Block block) {
    document.blocks.emplace_back(std::move(block));
  }
};

ReportCell cell(std::string text, bool is_number = false) {
  return {std::move(text), "", "", is_number};
}

std::string anchor_of(size_t number) { return fmt::format("case-{}", number + 1); }

std::string title_of(const CaseFindings& one) {
  if (one.fault != nullptr || !one.plan) return one.name;
  const std::string& title = one.plan->plan().scenario.title;
  return title.empty() ? one.name : fmt::format("{} ({})", title, one.name);
}

void add_facts(Writer& writer, const CaseFindings& one) {
  ReportTable table{{"what", "value"}, {}};
  const auto add = [&](const char* name, std::string value) {
    if (!value.empty()) table.rows.push_back({cell(name), cell(std::move(value))});
  };
  add("scenario", one.path);
  if (one.plan) {
    const Plan& plan = one.plan->plan();
    const Scenario& scenario = plan.scenario;
    add("shape", fmt::format("{} tokens on {} ranks, {}, {}, {}, {}", plan.layout.slots.tokens,
                             plan.layout.cp_size, to_name(scenario.parallel.comm_type),
                             to_name(scenario.parallel.layout), describe_mask(scenario.attention),
                             dtype_name(scenario.numerics)));
    add("plan", to_hex(plan.hash));
  }
  add("executor", one.executor);
  add("machine", one.machine);
  add("cpscope", one.version);
  add("date", writer.findings.date);
  writer.add(std::move(table));
}

void add_quantities(Writer& writer, const CaseFindings& one) {
  const std::vector<JudgedQuantity> rows = list_quantities(one);
  if (rows.empty()) return;
  writer.add(ReportHeading{3, "What was judged", ""});
  ReportTable table{
      {"quantity", "verdict", "worst error", "budget", "worst place", "expected", "seen", "note"},
      {}};
  for (const JudgedQuantity& row : rows) {
    const std::string verdict(to_name(row.judgement));
    table.rows.push_back({cell(row.name),
                          {verdict, verdict, "", false},
                          cell(row.error, true),
                          cell(row.budget, true),
                          cell(row.place),
                          cell(row.expected, true),
                          cell(row.seen, true),
                          cell(row.note)});
  }
  writer.add(std::move(table));
  if (one.fault != nullptr) return;
  writer.add(ReportParagraph{
      "Errors of tensors are |seen - exact|2 / |exact|2 against a dense oracle in double "
      "precision; "
      "the budget is twice the error of a plain computation that rounds in the same places. Probes "
      "count rows and allow none to be wrong."});
}

/// dtype fp8: how much of the errors the format makes, and how much the implementation.
void add_parted_errors(Writer& writer, const CaseFindings& one) {
  ReportTable table{{"quantity", "by quantised inputs alone", "of the implementation"}, {}};
  for (const TensorGrade& tensor : one.grade.tensors) {
    if (!tensor.parted) continue;
    const std::string implementation = tensor.parted->knows_scales
                                           ? fmt::format("{:.3e}", tensor.parted->implementation)
                                           : std::string("unknown: other scales may be used");
    table.rows.push_back({cell(tensor.name),
                          cell(fmt::format("{:.3e}", tensor.parted->format), true),
                          cell(implementation, true)});
  }
  if (table.rows.empty()) return;
  writer.add(ReportHeading{3, "Errors of 8 bits", ""});
  writer.add(std::move(table));
  writer.add(ReportParagraph{
      "By quantised inputs alone: exact attention of the inputs as 8 bits hold them, against that "
      "of "
      "the inputs. Of the implementation: what was seen, against exact attention of the quantised "
      "inputs."});
}

void add_first_place(Writer& writer, const CaseFindings& one) {
  if (one.status != CaseStatus::fail && one.fault == nullptr) return;
  if (one.first) {
    writer.add(ReportHeading{3, "First wrong place", ""});
    writer.add(ReportVerdict{"fail", describe(*one.first)});
    if (!one.first->found_by.empty())
      writer.add(ReportParagraph{"Found " + one.first->found_by + "."});
  } else if (!one.not_located.empty()) {
    writer.add(ReportHeading{3, "First wrong place", ""});
    writer.add(ReportParagraph{"Not known: " + one.not_located + "."});
  }
}

void add_figures(Writer& writer, const CaseFindings& one, const std::string& id, bool is_small) {
  if (!writer.draw || !one.plan) return;
  std::string left_out;
  std::vector<Figure> figures = writer.draw({&one, id, is_small}, left_out);
  size_t dropped = 0;
  if (!is_small && !figures.empty()) {
    writer.add(ReportHeading{3, "Pictures", ""});
    writer.add(ReportParagraph{
        "Pictures count the steps of a pass from 1; sentences, commands and JSON count from 0."});
  }
  for (Figure& figure : figures) {
    const size_t bytes = figure.light.size() + figure.dark.size();
    if (writer.figure_bytes + bytes > writer.limits.figure_bytes) {
      ++dropped;
      continue;
    }
    writer.figure_bytes += bytes;
    writer.add(std::move(figure));
  }
  writer.figures_left_out += dropped;
  if (!left_out.empty()) writer.add(ReportParagraph{left_out});
}

void add_proof(Writer& writer, const CaseFindings& one) {
  ReportList list;
  if (one.fault != nullptr) {
    list.items.push_back({one.fault->plan_is_refuted ? "fail" : "pass", one.fault->plan_check});
  } else if (one.plan) {
    for (const CheckResult& check : one.plan->checks())
      list.items.push_back({check.ok ? "pass" : "fail", check.name + ": " + check.detail});
  }
  if (list.items.empty()) return;
  writer.add(ReportHeading{3, "The proof of the plan (plan_check), before anything ran", ""});
  writer.add(std::move(list));
}

void add_worst_rows(Writer& writer, const CaseFindings& one) {
  if (one.worst_rows.empty()) return;
  writer.add(ReportHeading{3, "Worst rows", ""});
  ReportTable table{{"tensor", "rank", "token", "head", "times its budget", "expected", "seen"},
                    {}};
  for (const WrongRow& row : one.worst_rows) {
    table.rows.push_back({cell(row.tensor), cell(fmt::format("{}", row.rank), true),
                          cell(fmt::format("{}", row.token), true),
                          cell(fmt::format("{}", row.head), true),
                          cell(fmt::format("{:.3g}", row.share), true),
                          cell(fmt::format("{:.9g}", row.expected), true),
                          cell(fmt::format("{:.9g}", row.seen), true)});
  }
  writer.add(std::move(table));
}

void add_scenario(Writer& writer, const CaseFindings& one) {
  if (one.text.empty()) return;
  writer.add(ReportHeading{3, "The scenario", ""});
  const size_t room = writer.limits.scenario_bytes - writer.scenario_bytes;
  if (one.text.size() > room) {
    writer.add(ReportParagraph{
        fmt::format("Left out, so that the report stays small: {} bytes of {}.", one.text.size(),
                    one.path.empty() ? "a text that no file holds" : one.path)});
    return;
  }
  writer.scenario_bytes += one.text.size();
  writer.add(ReportCode{one.text, "toml"});
}

void add_notes(Writer& writer, const char* title, const char* status,
               const std::vector<std::string>& notes) {
  if (notes.empty()) return;
  if (*title != '\0') writer.add(ReportHeading{3, title, ""});
  ReportList list;
  for (const std::string& note : notes) list.items.push_back({status, note});
  writer.add(std::move(list));
}

/// Everything about one case. `is_small`: one of many faults, told in few words.
void add_case(Writer& writer, const CaseFindings& one, const std::string& id, bool is_small) {
  if (!is_small) add_facts(writer, one);
  if (!one.replay.empty()) {
    writer.add(ReportHeading{3, "Run it again", ""});
    if (!one.path.empty() && !one.text.empty() && one.fault == nullptr && !is_small)
      writer.add(ReportParagraph{"With the scenario below as the file that the command names:"});
    writer.add(ReportCode{one.replay, "sh"});
  }
  add_quantities(writer, one);
  add_parted_errors(writer, one);
  if (one.status == CaseStatus::pass && one.fault == nullptr)
    writer.add(ReportParagraph{"No difference above budget."});
  add_first_place(writer, one);
  add_notes(writer, "", "", one.notes);
  add_notes(writer, "Not seen", "blind", one.blind);
  add_figures(writer, one, id, is_small);
  add_proof(writer, one);
  add_worst_rows(writer, one);
  add_scenario(writer, one);
}

/// Does a case get a section of its own?
bool has_section(const Findings& findings, const CaseFindings& one) {
  return findings.cases.size() == 1 || one.fault != nullptr || one.status == CaseStatus::fail ||
         one.status == CaseStatus::error;
}

/// The cases that get a section: what is wrong first, else in their order.
std::vector<size_t> choose_sections(const Findings& findings, const ReportLimits& limits) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < findings.cases.size(); ++i)
    if (has_section(findings, findings.cases[i])) chosen.push_back(i);
  std::stable_sort(chosen.begin(), chosen.end(), [&](size_t a, size_t b) {
    return (findings.cases[a].status == CaseStatus::fail) >
           (findings.cases[b].status == CaseStatus::fail);
  });
  const bool is_gallery = !findings.cases.empty() && findings.cases.front().fault != nullptr;
  if (!is_gallery && chosen.size() > limits.sections) chosen.resize(limits.sections);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

void add_index(Writer& writer, const std::vector<size_t>& sections) {
  const Findings& findings = writer.findings;
  ReportTable table{{"case", "executor", "verdict", "in one sentence"}, {}};
  const size_t shown = std::min(findings.cases.size(), writer.limits.index_rows);
  // Where not all are shown, those that pass are left out first.
  std::vector<size_t> order;
  for (const bool wants_pass : {false, true}) {
    for (size_t i = 0; i < findings.cases.size() && order.size() < shown; ++i)
      if ((findings.cases[i].status == CaseStatus::pass) == wants_pass) order.push_back(i);
  }
  std::sort(order.begin(), order.end());
  for (const size_t i : order) {
    const CaseFindings& one = findings.cases[i];
    const bool is_linked = std::binary_search(sections.begin(), sections.end(), i);
    const std::string verdict(to_name(one.status));
    table.rows.push_back({{one.name, "", is_linked ? anchor_of(i) : "", false},
                          cell(one.executor),
                          {verdict, verdict, "", false},
                          cell(describe_verdict(one))});
  }
  writer.add(ReportHeading{2, "Cases", ""});
  writer.add(std::move(table));
  if (shown < findings.cases.size())
    writer.add(
        ReportParagraph{fmt::format("{} of {} cases are listed; those left out pass or are "
                                    "beyond the limit of this list.",
                                    shown, findings.cases.size())});
}

std::string overall_status(const Findings& findings) {
  for (const CaseStatus status : {CaseStatus::error, CaseStatus::fail, CaseStatus::pass,
                                  CaseStatus::refused, CaseStatus::skipped})
    if (count_cases(findings, status) > 0) return std::string(to_name(status));
  return "pass";
}

}  // namespace

ReportDocument make_report(const Findings& findings, const FigureMaker& draw,
                           const ReportLimits& limits) {
  Writer writer{findings, draw, limits, {}};
  const bool is_single = findings.cases.size() == 1 && findings.cases.front().fault == nullptr;
  writer.document.title =
      is_single ? fmt::format("cpscope {}: {}", findings.command, title_of(findings.cases.front()))
                : "cpscope " + findings.command;
  writer.add(ReportHeading{1, writer.document.title, ""});
  writer.add(ReportVerdict{overall_status(findings), describe_verdict(findings)});
  const std::vector<size_t> sections = choose_sections(findings, limits);
  if (!is_single && !findings.cases.empty()) {
    if (!findings.date.empty())
      writer.add(ReportParagraph{
          fmt::format("cpscope {}, {}.", findings.cases.front().version, findings.date)});
    add_index(writer, sections);
  }
  for (const size_t i : sections) {
    const CaseFindings& one = findings.cases[i];
    if (!is_single) {
      writer.add(ReportHeading{2, title_of(one), anchor_of(i)});
      writer.add(ReportVerdict{std::string(to_name(one.status)), describe_verdict(one)});
    }
    add_case(writer, one, fmt::format("c{}-", i + 1), one.fault != nullptr);
  }
  size_t wrong = 0;
  for (const CaseFindings& one : findings.cases) wrong += has_section(findings, one) ? 1 : 0;
  if (wrong > sections.size())
    writer.add(ReportParagraph{fmt::format("{} more cases are not right; a report tells of {}.",
                                           wrong - sections.size(), limits.sections)});
  if (writer.figures_left_out > 0)
    writer.add(ReportParagraph{
        fmt::format("{} pictures are left out, so that the report stays below 2 MB; `cpscope "
                    "render` draws them.",
                    writer.figures_left_out)});
  return std::move(writer.document);
}

}  // namespace cpscope
