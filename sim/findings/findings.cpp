#include "sim/findings/findings.h"

#include "sim/base/version.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>

#include <fmt/format.h>
#include <sys/utsname.h>

namespace cpscope {
namespace {

std::string describe_token_run(const TokenRun& run) {
  if (run.stride == 1) return fmt::format("[{}, {})", run.begin, run.end);
  return fmt::format("every {}th of [{}, {})", run.stride, run.begin, run.end);
}

/// The ids of all rows of a list, from the first to the last.
TokenRun hull_of(std::span<const TokenRun> list) {
  if (list.empty()) return {};
  TokenRun hull{list.front().begin, list.front().end, 1};
  for (const TokenRun& run : list) {
    hull.begin = std::min(hull.begin, run.begin);
    hull.end = std::max(hull.end, run.last() + 1);
  }
  return hull;
}

/// Rows [begin, end) of a list, run by run: the ids, and the row of the first.
struct RowRun {
  TokenRun ids;
  int64_t row = 0;
};
std::vector<RowRun> rows_of(std::span<const TokenRun> list, int64_t begin, int64_t end) {
  std::vector<RowRun> rows;
  int64_t row = begin;
  for (const TokenRun& run : slice_rows(list, begin, end)) {
    rows.push_back({run, row});
    row += run.count();
  }
  return rows;
}

/// Most rectangles of one item; orders of single tokens would make millions.
constexpr size_t kMostTiles = 64;

bool holds(const TokenRun& run, int64_t token) {
  return token >= run.begin && token < run.end && (token - run.begin) % run.stride == 0;
}

std::string print_value(double value) { return fmt::format("{:.9g}", value); }

std::string describe_machine() {
  utsname system{};
  return uname(&system) == 0 ? fmt::format("{} {}", system.sysname, system.machine) : "";
}

JudgedQuantity quantity_of(const TensorGrade& tensor) {
  JudgedQuantity row;
  row.name = tensor.name;
  if (!tensor.judged && !tensor.has_failed()) {
    row.judgement = Judgement::blind;
    row.note = "not judged: " + tensor.why_not;
    return row;
  }
  row.judgement = tensor.passed ? Judgement::pass : Judgement::fail;
  row.error = fmt::format("{:.3e}", tensor.rel_l2);
  row.budget = fmt::format("{:.3e}", tensor.budget);
  row.place = fmt::format("rank {}, token {}, head {}", tensor.worst.rank, tensor.worst.token,
                          tensor.worst.head);
  row.expected = print_value(tensor.worst.expected);
  row.seen = print_value(tensor.worst.seen);
  if (!tensor.passed) row.note = describe_failure(tensor);
  if (tensor.passed && tensor.allows_zeros) row.note = "zeros would be within the budget too";
  if (tensor.judged_rows < tensor.rows)
    row.note += fmt::format("{}{} of {} rows judged", row.note.empty() ? "" : "; ",
                            tensor.judged_rows, tensor.rows);
  return row;
}

JudgedQuantity quantity_of(const ProbeTally& tally) {
  JudgedQuantity row;
  row.name = "probe " + tally.probe;
  row.error = fmt::format("{} of {} rows", tally.wrong, tally.rows);
  row.budget = "0";
  if (!tally.why_not.empty() || tally.rows == 0) {
    row.judgement = Judgement::blind;
    row.note = tally.why_not.empty() ? "nothing to ask here" : tally.why_not;
    return row;
  }
  row.judgement = tally.wrong > 0 ? Judgement::fail : Judgement::pass;
  if (!tally.first) return row;
  const ProbeFinding& first = *tally.first;
  row.place = fmt::format("rank {}, {}token {}, head {}", first.rank,
                          first.step < 0 ? "" : fmt::format("step {}, ", first.step), first.token,
                          first.head);
  row.expected = print_value(first.expected);
  row.seen = print_value(first.seen);
  row.note = first.text;
  return row;
}

JudgedQuantity quantity_of(const Alarm& alarm) {
  JudgedQuantity row{.name = "detector " + std::string(to_name(alarm.detector)),
                     .judgement = Judgement::fail,
                     .note = alarm.text};
  const auto add = [&](const char* word, int64_t value) {
    if (value < 0) return;
    row.place += fmt::format("{}{} {}", row.place.empty() ? "" : ", ", word, value);
  };
  add("rank", alarm.rank);
  add("step", alarm.step);
  add("token", alarm.token);
  add("head", alarm.head);
  return row;
}

/// The failed tensor that is furthest over its budget.
const TensorGrade* find_worst(const Grade& grade) {
  const TensorGrade* worst = nullptr;
  const auto excess = [](const TensorGrade& tensor) {
    const bool is_broken = tensor.nan + tensor.infinite + tensor.not_empty > 0;
    const double share = is_broken ? HUGE_VAL : tensor.rel_l2 / tensor.budget;
    return std::max(std::isnan(share) ? 0.0 : share, tensor.worst_row_excess);
  };
  for (const TensorGrade& tensor : grade.tensors) {
    if (tensor.has_failed() && (worst == nullptr || excess(tensor) > excess(*worst)))
      worst = &tensor;
  }
  return worst;
}

}  // namespace

std::string describe(const WrongTile& tile) {
  return fmt::format("queries {} x keys {}", describe_token_run(tile.q),
                     describe_token_run(tile.k));
}

std::string describe_tiles(const std::vector<WrongTile>& tiles) {
  constexpr size_t kMost = 3;
  std::string text;
  for (size_t i = 0; i < std::min(tiles.size(), kMost); ++i) {
    const bool shares_queries = i > 0 && tiles[i].q == tiles[i - 1].q;
    if (i > 0) text += " and ";
    text += shares_queries ? describe_token_run(tiles[i].k) : describe(tiles[i]);
  }
  if (tiles.size() > kMost) text += fmt::format(" and {} more tiles", tiles.size() - kMost);
  return text;
}

std::string describe(const WrongPlace& place) {
  std::string text = describe(place.site);
  if (!place.tiles.empty()) text += ": " + describe_tiles(place.tiles);
  if (place.token >= 0) {
    text += fmt::format(", {}{} {}", place.array.empty() ? "" : place.array + " of ",
                        place.is_key ? "key token" : "token", place.token);
    if (place.head >= 0) text += fmt::format(", head {}", place.head);
  }
  if (place.expected && place.seen)
    text += fmt::format(": expected {:.9g}, seen {:.9g}", *place.expected, *place.seen);
  return text;
}

std::vector<WrongTile> tiles_of(const Plan& plan, const FaultSite& site, int64_t token,
                                bool is_key) {
  std::vector<WrongTile> tiles;
  const Pass& pass = plan.pass(site.item.direction);
  if (site.is_load || site.item.kind != StageKind::compute ||
      site.item.index >= static_cast<int64_t>(pass.computes.size()))
    return tiles;
  const ComputeItem& item = pass.computes[static_cast<size_t>(site.item.index)];
  const auto q = plan.list(item.q_tokens), k = plan.list(item.kv_tokens);
  const WrongTile whole{hull_of(q), hull_of(k)};
  for (const BandSlice& slice : plan.slices_of(item)) {
    // One slice may lie over several runs, which are no neighbours among the tokens.
    for (const RowRun& rows : rows_of(q, slice.q0, slice.q1)) {
      if (token >= 0 && !is_key && !holds(rows.ids, token)) continue;
      for (const RowRun& columns : rows_of(k, slice.k0, slice.k1)) {
        if (token >= 0 && is_key && !holds(columns.ids, token)) continue;
        if (count_pairs_in_tile(slice, rows.row, rows.row + rows.ids.count(), columns.row,
                                columns.row + columns.ids.count()) == 0)
          continue;
        tiles.push_back({rows.ids, columns.ids});
        if (tiles.size() > kMostTiles) return {whole};
      }
    }
  }
  if (tiles.empty()) tiles.push_back(whole);
  return tiles;
}

CaseFindings make_findings(const std::string& path, const std::string& text, CaseOutcome outcome) {
  CaseFindings findings;
  findings.name = findings.path = path;
  findings.text = text;
  findings.status = outcome.status;
  findings.reason = std::move(outcome.reason);
  findings.executor = std::move(outcome.executor);
  findings.machine = describe_machine();
  if (!outcome.output.kernels.empty()) findings.machine += ", kernels " + outcome.output.kernels;
  findings.version = program_version();
  findings.seconds = outcome.plan_seconds + outcome.run_seconds + outcome.judge_seconds;
  findings.plan = std::move(outcome.plan);
  findings.grade = std::move(outcome.grade);
  findings.judged = std::move(outcome.judged);
  if (const std::string coverage = describe_coverage(findings.grade); !coverage.empty())
    findings.blind.push_back(coverage + "; the other rows were only looked through");
  for (const std::string& why : findings.grade.blind) findings.blind.push_back(why);
  for (const Cause& cause : findings.grade.causes) findings.notes.push_back(describe(cause));
  for (const std::string& common : findings.grade.common) findings.notes.push_back(common);
  return findings;
}

std::vector<JudgedQuantity> list_quantities(const CaseFindings& findings) {
  std::vector<JudgedQuantity> rows;
  for (const TensorGrade& tensor : findings.grade.tensors) rows.push_back(quantity_of(tensor));
  if (findings.probe)
    for (const ProbeTally& tally : findings.probe->tallies) rows.push_back(quantity_of(tally));
  if (findings.fault != nullptr)
    for (const Alarm& alarm : findings.fault->alarms) rows.push_back(quantity_of(alarm));
  return rows;
}

std::string describe_verdict(const CaseFindings& findings) {
  const std::string on = findings.executor.empty() ? "" : " on executor " + findings.executor;
  if (findings.status == CaseStatus::fail && findings.grade.judgement() == Judgement::blind &&
      !findings.grade.tensors.empty())
    return fmt::format("Says nothing{}: {}", on, describe_blindness(findings.grade));
  if (findings.status == CaseStatus::pass) {
    if (findings.fault != nullptr) return "Caught where it was planted: " + findings.reason;
    return fmt::format("Passes{}: no difference above budget", on);
  }
  if (findings.status != CaseStatus::fail)
    return fmt::format("{}{}: {}", findings.status == CaseStatus::error ? "Not run" : "Not judged",
                       on, findings.reason);
  std::string text = fmt::format("Fails{}", on);
  if (const TensorGrade* worst = find_worst(findings.grade)) {
    text += fmt::format(": {} is wrong ({})", worst->name, quantity_of(*worst).note);
  } else if (!findings.reason.empty()) {
    text += ": " + findings.reason;
  }
  if (findings.first) text += "; first wrong at " + describe(findings.first->site);
  if (findings.first && !findings.first->tiles.empty())
    text += ", " + describe_tiles(findings.first->tiles);
  return text;
}

int64_t count_cases(const Findings& findings, CaseStatus status) {
  return std::count_if(findings.cases.begin(), findings.cases.end(),
                       [&](const CaseFindings& one) { return one.status == status; });
}

std::string describe_verdict(const Findings& findings) {
  if (!findings.summary.empty()) return findings.summary;
  if (findings.cases.size() == 1) return describe_verdict(findings.cases.front());
  std::string text =
      fmt::format("{} of {} pass", count_cases(findings, CaseStatus::pass), findings.cases.size());
  for (const CaseStatus status :
       {CaseStatus::fail, CaseStatus::error, CaseStatus::refused, CaseStatus::skipped}) {
    const int64_t count = count_cases(findings, status);
    constexpr std::string_view kWords[] = {"", "fail", "are refused by rule", "are skipped",
                                           "are errors"};
    if (count > 0) text += fmt::format(", {} {}", count, kWords[static_cast<size_t>(status)]);
  }
  return text;
}

std::string quote_word(const std::string& text) {
  const bool is_plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_./:=+-,").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (is_plain) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string today() {
  std::time_t now = std::time(nullptr);
  if (const char* epoch = std::getenv("SOURCE_DATE_EPOCH")) {
    char* end = nullptr;
    const long long seconds = std::strtoll(epoch, &end, 10);
    if (end != epoch && *end == '\0') now = static_cast<std::time_t>(seconds);
  }
  std::tm day{};
  if (gmtime_r(&now, &day) == nullptr) return "";
  return fmt::format("{:04}-{:02}-{:02}", day.tm_year + 1900, day.tm_mon + 1, day.tm_mday);
}

}  // namespace cpscope
