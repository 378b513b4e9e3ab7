#include "sim/app/matrix/matrix_peers.h"
#include "sim/app/matrix/matrix_table.h"

#include <algorithm>

#include <fmt/format.h>

namespace cpscope {
namespace {

const MatrixTable* find_table(const MatrixReport& report, std::string_view name) {
  const auto found = std::find_if(report.tables.begin(), report.tables.end(),
                                  [&](const MatrixTable& table) { return table.name == name; });
  return found == report.tables.end() ? nullptr : &*found;
}

/// Counts at a row and column; of the whole row when `column` is empty.
MatrixCounts counts_at(const MatrixTable& table, std::string_view row, std::string_view column) {
  MatrixCounts sum;
  for (const auto& [name, counts] : table.rows) {
    for (size_t i = 0; name == row && i < counts.size(); ++i) {
      if (!column.empty() && table.columns[i] != column) continue;
      sum.pass += counts[i].pass;
      sum.refused += counts[i].refused;
      sum.blind += counts[i].blind;
      sum.fail += counts[i].fail;
    }
  }
  return sum;
}

std::string line(const std::vector<std::string>& cells) {
  std::string text = "|";
  for (const std::string& cell : cells) text += " " + cell + " |";
  return text + "\n";
}

std::string rule(size_t columns) {
  std::string text = "|";
  for (size_t i = 0; i < columns; ++i) text += " --- |";
  return text + "\n";
}

std::string own_table(const MatrixTable& table) {
  std::vector<std::string> head{table.name};
  head.insert(head.end(), table.columns.begin(), table.columns.end());
  std::string text = line(head) + rule(head.size());
  for (const auto& [name, counts] : table.rows) {
    std::vector<std::string> cells{name};
    for (const MatrixCounts& cell : counts) cells.push_back(counts_text(cell));
    text += line(cells);
  }
  return text + "\n";
}

template <class Offers>
void add_offers(const Offers& offers, std::vector<std::string>& cells) {
  for (const std::string_view offer : offers)
    cells.push_back(offer.empty() ? "-" : std::string(offer));
}

std::string comparison(const MatrixReport& report) {
  const MatrixTable* own = find_table(report, "mask group");
  std::vector<std::string> head{"communication", "masks", "cpscope"};
  head.insert(head.end(), kPeerNames.begin(), kPeerNames.end());
  std::string text = line(head) + rule(head.size());
  for (const PeerRow& row : peer_rows()) {
    const std::string comm(to_name(row.comm));
    std::vector<std::string> cells{comm, std::string(row.mask_group),
                                   counts_text(counts_at(*own, row.mask_group, comm))};
    add_offers(row.offers, cells);
    text += line(cells);
  }
  return text + "\n";
}

std::string topics(const MatrixReport& report) {
  const MatrixTable* own = find_table(report, "feature");
  std::vector<std::string> head{"besides", "cpscope"};
  head.insert(head.end(), kPeerNames.begin(), kPeerNames.end());
  std::string text = line(head) + rule(head.size());
  for (const PeerTopic& topic : peer_topics()) {
    const std::string counts = topic.feature.empty()
                                   ? std::string(topic.ours)
                                   : counts_text(counts_at(*own, topic.feature, topic.comm));
    std::vector<std::string> cells{std::string(topic.topic), counts};
    add_offers(topic.offers, cells);
    text += line(cells);
  }
  return text + "\n";
}

}  // namespace

std::string matrix_markdown(const MatrixReport& report) {
  std::string text = fmt::format(
      "{} cells: {} were planned, proved, executed and graded and pass, {} are rejected with a "
      "reason, {} are blind, {} fail. A cell passes only if its scenario has full and partial "
      "tiles, padding where it is requested and, on every rank, keys of other ranks to see (or the "
      "reason why not is given), and if a fault planted in it fails. Entries are passed/run over "
      "layouts, formats and paddings.\n\n",
      report.total.all(), report.total.pass, report.total.refused, report.total.blind,
      report.total.fail);
  text += comparison(report);
  text += "`-`: the system does not have this communication type. `?`: no statement was found.\n\n";
  text += topics(report);
  for (const char* name : {"mask", "layout", "format and padding", "feature"}) {
    if (const MatrixTable* table = find_table(report, name)) text += own_table(*table);
  }
  text += "Rejected with a reason:\n\n| cells | reason | first |\n| --- | --- | --- |\n";
  for (const MatrixRemark& entry : report.refusals)
    text += fmt::format("| {} | {} | {} |\n", entry.count, entry.text, entry.example);
  text +=
      "\nPassed, although not every rank or tile could show something:\n\n| cells | why | first "
      "|\n| --- | --- | --- |\n";
  for (const MatrixRemark& entry : report.notes)
    text += fmt::format("| {} | {} | {} |\n", entry.count, entry.text, entry.example);
  return text;
}

}  // namespace cpscope
