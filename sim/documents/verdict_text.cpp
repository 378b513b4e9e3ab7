#include "sim/documents/verdict_text.h"

#include "sim/documents/grade_text.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

std::string describe_input(const InputNote& note) {
  if (note.different == 0) return fmt::format("{} is the scenario's", note.name);
  const std::string place = note.token < 0
                                ? fmt::format("head {}", note.head)
                                : fmt::format("token {}, head {}", note.token, note.head);
  return fmt::format("{} is the record's own ({} of {} values differ, first at {})", note.name,
                     note.different, note.values, place);
}

Json probe_finding_json(const ProbeFinding& finding) {
  return {{"rank", finding.rank},
          {"step", finding.step},
          {"token", finding.token},
          {"head", finding.head},
          {"expected", finite_or_null(finding.expected)},
          {"seen", finite_or_null(finding.seen)},
          {"probe", finding.probe},
          {"text", finding.text}};
}

}  // namespace

std::string describe_unjudged(const ForeignGrade& graded) {
  std::string text;
  if (!graded.grade.blind.empty()) text += ": " + describe_blindness(graded.grade);
  if (const std::string coverage = describe_coverage(graded.grade); !coverage.empty())
    text += "; " + coverage;
  if (!graded.missing.empty())
    text += fmt::format("; not judged, because the record has none: {}",
                        fmt::join(graded.missing, ", "));
  return text;
}

std::string describe_inputs(const ForeignGrade& graded) {
  if (graded.inputs.empty()) return "inputs: the record holds none; judged against the scenario's";
  std::vector<std::string> notes;
  for (const InputNote& note : graded.inputs) notes.push_back(describe_input(note));
  return fmt::format("inputs: {}; judged against {}", fmt::join(notes, ", "),
                     graded.uses_own_inputs ? "the record's" : "them");
}

void write_foreign_grade(const ForeignRecord& record, const ForeignGrade& graded, const Plan& plan,
                         std::ostream& out) {
  out << fmt::format("{} of foreign tensors{}, plan {}{}\n", describe_judgement(graded.grade),
                     record.executor.empty() ? "" : fmt::format(" (executor {})", record.executor),
                     to_hex(plan.hash), describe_unjudged(graded));
  write_grade_table(graded.grade, out);
  if (record.is_by_rank) {
    out << "rows of each part in the order of its rank's local buffer\n";
  } else {
    out << fmt::format("rows in {} order: {}\n", to_name(record.order), record.order_source);
  }
  for (size_t t = 0; t < record.tensors.size(); ++t)
    out << fmt::format("read {:<9} {}\n", record.tensors[t].name, record.readings[t]);
  out << describe_inputs(graded) << '\n';
  const auto list = [&](const char* what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    constexpr size_t kShown = 12;
    const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, names.size()));
    out << fmt::format("{}: {}", what, fmt::join(names.begin(), end, ", "));
    if (names.size() > kShown) out << fmt::format(" and {} more", names.size() - kShown);
    out << '\n';
  };
  list("not in the record, not graded", graded.missing);
  list("not requested by the scenario, not graded", graded.unasked);
  list("ignored", record.ignored);
}

Json foreign_json(const ForeignRecord& record, const ForeignGrade& graded, const Plan& plan) {
  Json json = grade_json(graded.grade, record.executor, plan.hash);
  json["order"] = to_name(record.order);
  json["order_source"] = record.order_source;
  json["graded"] = Json::array();
  for (const TensorGrade& tensor : graded.grade.tensors)
    if (tensor.judged) json["graded"].push_back(tensor.name);
  json["missing"] = graded.missing;
  json["unasked"] = graded.unasked;
  json["unjudged"] = Json::array();
  for (const TensorGrade& tensor : graded.grade.tensors)
    if (!tensor.judged) json["unjudged"].push_back(tensor.name);
  json["ignored"] = record.ignored;
  json["read"] = Json::object();
  for (size_t t = 0; t < record.tensors.size(); ++t)
    json["read"][record.tensors[t].name] = record.readings[t];
  json["inputs"] = Json::array();
  for (const InputNote& note : graded.inputs) {
    json["inputs"].push_back({{"name", note.name},
                              {"values", note.values},
                              {"different", note.different},
                              {"token", note.token},
                              {"head", note.head}});
  }
  json["truth"] = graded.uses_own_inputs ? "record" : "scenario";
  json["hints"] = graded.hints;
  const bool is_sample = !graded.judged.is_empty();
  json["judged"] = {{"whole", !is_sample},
                    {"query_rows", graded.judged.query_tokens.size()},
                    {"key_rows", graded.judged.key_tokens.size()}};
  return json;
}

void write_probe_text(const ProbeReport& report, const std::string& executor, std::ostream& out) {
  out << fmt::format(
      "{}: {} rows probed in {} passes on executor {}; {} with a wrong count, {} with wrong keys\n",
      report.passed() ? "PASS" : "FAIL", report.rows, report.passes, executor,
      report.wrong_count_rows, report.wrong_key_rows);
  for (const ProbeTally& tally : report.tallies) {
    out << fmt::format("  {:<9} {:>8} rows probed, {} wrong{}\n", tally.probe, tally.rows,
                       tally.wrong,
                       !tally.why_not.empty() ? " (" + tally.why_not + ")"
                       : tally.rows == 0      ? std::string(" (nothing to ask here)")
                                              : std::string());
    if (tally.first) out << "            first: " << tally.first->text << '\n';
  }
  if (!report.left_out.empty())
    out << fmt::format("not probed: {}; run judges it\n", fmt::join(report.left_out, ", "));
}

Json probe_json(const ProbeReport& report, const std::string& executor) {
  Json json{{"schema", 1},
            {"rows", report.rows},
            {"wrong_count_rows", report.wrong_count_rows},
            {"wrong_key_rows", report.wrong_key_rows}};
  json["first"] = nullptr;
  if (report.first) json["first"] = probe_finding_json(*report.first);
  json["passes"] = report.passes;
  json["passed"] = report.passed();
  json["probes"] = Json::array();
  for (const ProbeTally& tally : report.tallies) {
    Json probe{{"probe", tally.probe}, {"rows", tally.rows}, {"wrong_rows", tally.wrong}};
    probe["first"] = tally.first ? probe_finding_json(*tally.first) : Json(nullptr);
    if (!tally.why_not.empty()) probe["why_not"] = tally.why_not;
    json["probes"].push_back(probe);
  }
  json["left_out"] = report.left_out;
  json["executor"] = executor;
  return json;
}

Json order_json(const OrderImport& order, OrderSource source) {
  Json json{{"schema", 1},
            {"from", to_name(source)},
            {"cp_size", order.cp_size},
            {"tokens", order.tokens()}};
  json["lengths"] = order.lengths;
  json["slots"] = order.slots;
  json["kv_lengths"] = order.kv_lengths;
  json["kv_slots"] = order.kv_slots;
  json["same_layout"] = order.same_layout.empty() ? Json(nullptr) : Json(order.same_layout);
  if (source == OrderSource::vllm) json["interleaves"] = Json::array();
  for (const auto& [first, last] : order.interleaves)
    json["interleaves"].push_back({first, last < 0 ? Json(nullptr) : Json(last)});
  json["notes"] = order.notes;
  json["differences"] = order.differences;
  json["ignored"] = order.ignored;
  json["ranks"] = order.ranks;
  if (!order.kv_ranks.empty()) json["kv_ranks"] = order.kv_ranks;
  return json;
}

}  // namespace cpscope
