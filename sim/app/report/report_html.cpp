#include "sim/app/report/report_file.h"
#include "sim/base/markup.h"

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr const char* kReportStyle = R"(
:root{color-scheme:light dark;--page:#fafaf7;--panel:#ffffff;--text:#1b1f24;--faint:#57606a;--line:#d8dee4;
--pass:#0b6e4f;--fail:#a3243b;--other:#7a5c00;--pass-bg:#e3f2ec;--fail-bg:#fbe6ea;--other-bg:#f7efd9;--code:#f0f0ec}
@media (prefers-color-scheme:dark){:root{--page:#16181d;--panel:#1d2026;--text:#e6e8eb;--faint:#9aa4b0;--line:#363c45;
--pass:#7fd6b3;--fail:#ff9a7a;--other:#e6c860;--pass-bg:#17342b;--fail-bg:#45231a;--other-bg:#38300f;--code:#22262d}}
*{box-sizing:border-box}
body{font:15px/1.55 Inter,system-ui,"Helvetica Neue",Arial,sans-serif;max-width:1120px;margin:0 auto;padding:28px 20px 60px;
color:var(--text);background:var(--page)}
h1{font-size:1.55em;line-height:1.25;margin:0 0 .5em;overflow-wrap:anywhere}
h2{font-size:1.25em;margin:2.4em 0 .5em;padding-top:1em;border-top:2px solid var(--line);overflow-wrap:anywhere}
h3{font-size:1.02em;margin:1.8em 0 .5em}
p{margin:.5em 0;max-width:56em}p.faint{color:var(--faint);font-size:13px}
a{color:inherit}
.verdict{border-left:5px solid;border-radius:4px;padding:.6em .9em;margin:.6em 0;overflow-wrap:anywhere}
.verdict b{margin-right:.6em}
.verdict.pass{border-color:var(--pass);background:var(--pass-bg)}
.verdict.fail,.verdict.error{border-color:var(--fail);background:var(--fail-bg)}
.verdict.refused,.verdict.skipped,.verdict.blind{border-color:var(--other);background:var(--other-bg)}
b.pass,td.pass{color:var(--pass)}b.fail,b.error,td.fail,td.error{color:var(--fail)}
b.refused,b.skipped,b.blind,td.refused,td.skipped,td.blind{color:var(--other)}
td.pass,td.fail,td.error,td.refused,td.skipped,td.blind{font-weight:600}
.wide{overflow-x:auto;margin:.5em 0}
table{border-collapse:collapse;font-size:13px;background:var(--panel);border:1px solid var(--line)}
td,th{padding:5px 10px;text-align:left;vertical-align:top;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
th{color:var(--faint);font-weight:600;white-space:nowrap}
td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;overflow-wrap:normal}
ul{margin:.4em 0;padding-left:1.2em}li{margin:.2em 0;overflow-wrap:anywhere}li b{margin-right:.5em}
pre{background:var(--code);border:1px solid var(--line);border-radius:4px;padding:10px 12px;overflow-x:auto;
font:13px/1.45 "JetBrains Mono","DejaVu Sans Mono",ui-monospace,monospace}
figure{margin:1.4em 0;padding:0}figure svg{display:block;width:100%;height:auto;border:1px solid var(--line);border-radius:6px}
figure.small svg{max-width:620px}
figcaption{color:var(--faint);font-size:13.5px;margin:.5em 0 0;max-width:66em}figcaption b{color:var(--text);margin-right:.4em}
.in-dark{display:none}
@media (prefers-color-scheme:dark){.in-light{display:none}.in-dark{display:block}}
@media print{.in-light{display:block}.in-dark{display:none}body{max-width:none}figure,tr{break-inside:avoid}}
)";

struct HtmlPrinter {
  std::string html;

  void operator()(const ReportHeading& block) {
    const std::string id =
        block.anchor.empty() ? "" : fmt::format(" id=\"{}\"", escape_markup(block.anchor));
    html += fmt::format("<h{0}{1}>{2}</h{0}>\n", block.level, id, escape_markup(block.text));
  }
  void operator()(const ReportVerdict& block) {
    html += fmt::format("<p class=\"verdict {0}\"><b class=\"{0}\">{0}</b>{1}</p>\n", block.status,
                        escape_markup(block.text));
  }
  void operator()(const ReportParagraph& block) {
    html += "<p>" + escape_markup(block.text) + "</p>\n";
  }
  void operator()(const ReportTable& block) {
    html += "<div class=\"wide\"><table>\n<tr>";
    for (const std::string& column : block.columns)
      html += "<th>" + escape_markup(column) + "</th>";
    html += "</tr>\n";
    for (const auto& row : block.rows) {
      html += "<tr>";
      for (const ReportCell& cell : row) {
        const std::string kind = cell.is_number ? "n" : cell.status;
        html += kind.empty() ? "<td>" : fmt::format("<td class=\"{}\">", kind);
        const std::string text = escape_markup(cell.text);
        html += cell.link.empty()
                    ? text
                    : fmt::format("<a href=\"#{}\">{}</a>", escape_markup(cell.link), text);
        html += "</td>";
      }
      html += "</tr>\n";
    }
    html += "</table></div>\n";
  }
  void operator()(const ReportList& block) {
    html += "<ul>\n";
    for (const ReportItem& item : block.items) {
      html += "<li>";
      if (!item.status.empty()) html += fmt::format("<b class=\"{0}\">{0}</b>", item.status);
      html += escape_markup(item.text) + "</li>\n";
    }
    html += "</ul>\n";
  }
  void operator()(const ReportCode& block) {
    html += "<pre><code>" + escape_markup(block.text) + "</code></pre>\n";
  }
  void operator()(const Figure& block) {
    const std::string pictures = block.dark.empty() ? block.light
                                                    : fmt::format(
                                                          "<div class=\"in-light\">{}</div>\n<div "
                                                          "class=\"in-dark\">{}</div>\n",
                                                          block.light, block.dark);
    html += fmt::format("<figure class=\"{}{}\">{}<figcaption><b>{}.</b>{}</figcaption></figure>\n",
                        escape_markup(block.name), block.dark.empty() ? " small" : "", pictures,
                        escape_markup(block.title), escape_markup(block.caption));
  }
};

}  // namespace

std::string print_html(const ReportDocument& document) {
  HtmlPrinter printer;
  for (const ReportBlock& block : document.blocks) std::visit(printer, block);
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>" +
         escape_markup(document.title) + "</title>\n<style>" + kReportStyle +
         "</style>\n</head>\n<body>\n" + printer.html + "</body>\n</html>\n";
}

}  // namespace cpscope
