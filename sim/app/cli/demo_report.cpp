#include "sim/app/cli/demo_report.h"

#include "sim/base/markup.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <string_view>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr const char* kDemoStyle = R"(<style>
:root{color-scheme:light dark;--page:#fff;--text:#1b1f24;--faint:#57606a;--line:#d8dee4;--work:#0072b2;--pass:#0b6e4f;--fail:#b3261e;--other:#7a5c00}
@media (prefers-color-scheme:dark){:root{--page:#16181d;--text:#e6e8eb;--faint:#9aa4b0;--line:#363c45;--work:#56b4e9;--pass:#5fc9a0;--fail:#ff8f85;--other:#e3c25e}}
body{font:15px/1.5 Inter,system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:var(--text);background:var(--page);overflow-wrap:anywhere}
h1{font-size:1.6em;margin-bottom:.2em}h2{font-size:1.15em;margin-top:2.2em;border-top:1px solid var(--line);padding-top:1em}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;overflow-wrap:normal}
td,th{padding:3px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
td:first-child,th:first-child{text-align:left}td.l,th.l{text-align:left;white-space:normal;min-width:16em}
a{color:var(--work)}.pass{color:var(--pass)}.fail,.error{color:var(--fail);font-weight:600}.refused,.skipped{color:var(--other)}
.q{color:var(--faint);font-style:italic}code{font:13px 'JetBrains Mono',ui-monospace,monospace}
svg{color:var(--faint)}svg .cell{stroke:var(--line)}svg .work{fill:var(--work)}
svg,img{display:block;margin:.6em 0;max-width:100%}img{height:auto}</style>)";

std::string name_of(const VerifyRow& row) {
  return std::filesystem::path(row.path).stem().string();
}

/// Pairs by step and rank as bars: one row of bars a step, bar height by share of the busiest. Idle
/// ranks leave a hole.
std::string balance_svg(const PlanSummary& summary) {
  constexpr size_t kMostRanks = 64, kMostSteps = 16;
  const size_t ranks = summary.pairs_by_rank.size(), steps = summary.pairs_by_step_rank.size();
  if (ranks == 0 || ranks > kMostRanks || steps == 0) return "";
  int64_t busiest = 1;
  for (const auto& step : summary.pairs_by_step_rank)
    busiest = std::max(busiest, *std::max_element(step.begin(), step.end()));
  const size_t shown = std::min(steps, kMostSteps);
  const double cell = std::min(40.0, 900.0 / static_cast<double>(ranks)), height = 26;
  std::string svg = fmt::format(
      "<svg role=\"img\" aria-label=\"pairs by step and rank\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\">",
      cell * static_cast<double>(ranks) + 70, (height + 4) * static_cast<double>(shown));
  // Steps count from 1 where people read, as in the picture above.
  for (size_t step = 0; step < shown; ++step) {
    const double top = (height + 4) * static_cast<double>(step);
    svg += fmt::format(
        "<text x=\"0\" y=\"{:.0f}\" font-size=\"11\" fill=\"currentColor\">step {}</text>",
        top + 18, step + 1);
    for (size_t rank = 0; rank < ranks; ++rank) {
      const double share = static_cast<double>(summary.pairs_by_step_rank[step][rank]) /
                           static_cast<double>(busiest);
      const double x = 60 + cell * static_cast<double>(rank);
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"none\" "
          "class=\"cell\"/>",
          x, top, cell - 2, height);
      if (share > 0) {
        svg += fmt::format(
            "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
            "class=\"work\"><title>step {}, rank {}: {} pairs</title></rect>",
            x, top + height * (1 - share), cell - 2, height * share, step + 1, rank,
            summary.pairs_by_step_rank[step][rank]);
      }
    }
  }
  return svg + "</svg>";
}

std::string megabytes(int64_t bytes) {
  return fmt::format("{:.3f}", static_cast<double>(bytes) / 1e6);
}

std::string tensor_table(const Grade& grade) {
  if (grade.tensors.empty()) return "";
  std::string html =
      "<div class=\"wide\"><table><tr><th>tensor</th><th>rel_l2</th><th>budget</th><th>worst "
      "row</th><th>max_abs</th><th>NaN</th><th class=\"l\">worst place</th></tr>";
  for (const TensorGrade& t : grade.tensors) {
    html += fmt::format(
        "<tr><td "
        "class=\"{}\">{}</td><td>{:.2e}</td><td>{:.2e}</td><td>{:.2e}</td><td>{:.2e}</td><td>{}</"
        "td><td class=\"l\">rank {}, token {}, head {}: "
        "expected {:.6g}, seen {:.6g}</td></tr>",
        t.passed ? "pass" : "fail", t.name, t.rel_l2, t.budget, t.worst_row_rel_l2, t.max_abs,
        t.nan, t.worst.rank, t.worst.token, t.worst.head, t.worst.expected, t.worst.seen);
  }
  return html + "</table></div>";
}

/// What did not pass stands first: an error, a wrong answer, then what was not carried out.
std::vector<const VerifyRow*> order_rows(const std::vector<VerifyRow>& rows) {
  std::vector<const VerifyRow*> ordered;
  for (const VerifyRow& row : rows) ordered.push_back(&row);
  const auto rank_of = [](const VerifyRow* row) {
    const std::string_view status = to_name(row->outcome.status);
    return status == "error" ? 0 : status == "fail" ? 1 : status == "pass" ? 3 : 2;
  };
  std::stable_sort(ordered.begin(), ordered.end(),
                   [&](const VerifyRow* a, const VerifyRow* b) { return rank_of(a) < rank_of(b); });
  return ordered;
}

std::string section(const VerifyRow& row, const std::map<std::string, std::string>& pictures,
                    const std::string& window) {
  const CaseOutcome& outcome = row.outcome;
  std::string html =
      fmt::format("<h2 id=\"{0}\">{1} <code>{0}</code></h2>", escape_markup(name_of(row)),
                  escape_markup(row.loaded.scenario.title));
  if (!row.loaded.scenario.question.empty())
    html += fmt::format("<p class=\"q\">{}</p>", escape_markup(row.loaded.scenario.question));
  html += fmt::format("<p class=\"{}\">{} on executor {}{}</p>", to_name(outcome.status),
                      to_name(outcome.status), escape_markup(outcome.executor),
                      outcome.reason.empty() ? "" : ": " + escape_markup(outcome.reason));
  if (!window.empty())
    html += fmt::format("<p><a href=\"{}#{}\">Open it in the window</a></p>", escape_markup(window),
                        escape_markup(name_of(row)));
  if (!outcome.plan) return html;
  const PlanSummary& summary = outcome.summary;
  html += fmt::format(
      "<p>{} visible (query, key, head) triples in {} steps; busiest rank {:.3f} × mean, critical "
      "path {:.3f} × ideal; KV moved {} MB of which "
      "{} MB necessary; all ranks send {} MB forward, {} MB backward.</p>",
      summary.visible_pairs, summary.steps, summary.rank_max_over_mean,
      summary.critical_path_over_ideal, megabytes(summary.kv_bytes_moved),
      megabytes(summary.kv_bytes_necessary),
      megabytes(
          std::accumulate(summary.forward_bytes.begin(), summary.forward_bytes.end(), int64_t{0})),
      megabytes(std::accumulate(summary.backward_bytes.begin(), summary.backward_bytes.end(),
                                int64_t{0})));
  const auto picture = pictures.find(row.path);
  if (picture != pictures.end()) {
    html += fmt::format(
        "<a href=\"{0}\"><img src=\"{0}\" loading=\"lazy\" alt=\"layout, mask, traffic, timeline, "
        "numbers and balance of {1}\"></a>",
        escape_markup(picture->second), escape_markup(name_of(row)));
  }
  html += balance_svg(summary) + "<ul>";
  for (const CheckResult& check : outcome.plan->checks()) {
    html += fmt::format("<li class=\"{}\">{}: {}</li>", check.ok ? "pass" : "fail", check.name,
                        escape_markup(check.detail));
  }
  return html + "</ul>" + tensor_table(outcome.grade);
}

}  // namespace

std::string demo_report(const std::vector<VerifyRow>& rows,
                        const std::map<std::string, std::string>& pictures,
                        const std::string& window) {
  std::string html =
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\"><title>cpscope report</title>" +
      std::string(kDemoStyle) +
      "</head><body><h1>cpscope report</h1><p>Every scenario: planned, the plan proved, executed "
      "rank by rank with NaN in all padding, compared with "
      "an independent dense oracle in double precision.</p>"
      "<div "
      "class=\"wide\"><table><tr><th>scenario</th><th>executor</th><th>comm</th><th>layout</"
      "th><th>mask</"
      "th><th>ranks</th><th>tokens</th><th>status</th><th>worst rel_l2</th>"
      "<th>critical path</th></tr>";
  const std::vector<const VerifyRow*> ordered = order_rows(rows);
  for (const VerifyRow* shown : ordered) {
    const VerifyRow& row = *shown;
    const Scenario& scenario = row.loaded.scenario;
    double worst = 0;
    for (const TensorGrade& tensor : row.outcome.grade.tensors)
      worst = std::max(worst, tensor.rel_l2);
    html += fmt::format(
        "<tr><td><a "
        "href=\"#{0}\">{0}</a></td><td>{1}</td><td>{2}</td><td>{3}</td><td>{4}</td><td>{5}</"
        "td><td>{6}</td><td class=\"{7}\">{7}</td><td>{8}</td>"
        "<td>{9}</td></tr>",
        escape_markup(name_of(row)), escape_markup(row.outcome.executor),
        to_name(scenario.parallel.comm_type), to_name(scenario.parallel.layout),
        describe_mask(scenario.attention), scenario.parallel.cp_size,
        row.outcome.plan ? row.outcome.plan->plan().layout.slots.tokens : 0,
        to_name(row.outcome.status),
        row.outcome.grade.tensors.empty() ? "" : fmt::format("{:.2e}", worst),
        row.outcome.plan ? fmt::format("{:.3f}", row.outcome.summary.critical_path_over_ideal)
                         : "");
  }
  html += "</table></div>";
  for (const VerifyRow* row : ordered) html += section(*row, pictures, window);
  return html + "</body></html>\n";
}

}  // namespace cpscope
