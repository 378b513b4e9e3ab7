#include "sim/app/matrix/matrix_table.h"

#include "sim/scenario/scenario_file.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

namespace cpscope {
namespace {

using NameOf = std::function<std::string(const MatrixCell&)>;
using Belongs = std::function<bool(const MatrixCell&)>;

bool is_plain(const MatrixCell& cell) { return cell.feature == feature_recipes().data(); }

/// Rows in the order in which the cells first name them, columns likewise.
MatrixTable tabulate(std::string name, const std::vector<CellResult>& results,
                     const Belongs& belongs, const NameOf& row_of, const NameOf& column_of) {
  MatrixTable table;
  table.name = std::move(name);
  for (const CellResult& result : results) {
    const std::string column = column_of(result.cell);
    if (std::find(table.columns.begin(), table.columns.end(), column) == table.columns.end())
      table.columns.push_back(column);
  }
  for (const CellResult& result : results) {
    if (!belongs(result.cell)) continue;
    const std::string row_name = row_of(result.cell), column = column_of(result.cell);
    auto row = std::find_if(table.rows.begin(), table.rows.end(),
                            [&](const auto& entry) { return entry.first == row_name; });
    if (row == table.rows.end())
      row = table.rows.insert(row, {row_name, std::vector<MatrixCounts>(table.columns.size())});
    const auto at = std::find(table.columns.begin(), table.columns.end(), column);
    row->second[static_cast<size_t>(at - table.columns.begin())].add(result.status);
  }
  return table;
}

void remark(std::vector<MatrixRemark>& remarks, const std::string& text, const MatrixCell& cell) {
  const auto found = std::find_if(remarks.begin(), remarks.end(),
                                  [&](const MatrixRemark& entry) { return entry.text == text; });
  if (found != remarks.end()) {
    ++found->count;
  } else {
    remarks.push_back({text, 1, describe(cell)});
  }
}

std::string table_text(const MatrixTable& table) {
  size_t name_width = table.name.size(), width = 0;
  for (const std::string& column : table.columns) width = std::max(width, column.size());
  for (const auto& [name, counts] : table.rows) {
    name_width = std::max(name_width, name.size());
    for (const MatrixCounts& cell : counts) width = std::max(width, counts_text(cell).size());
  }
  std::string text = fmt::format("{:<{}}", table.name, name_width);
  for (const std::string& column : table.columns) text += fmt::format("  {:>{}}", column, width);
  text += '\n';
  for (const auto& [name, counts] : table.rows) {
    text += fmt::format("{:<{}}", name, name_width);
    for (const MatrixCounts& cell : counts)
      text += fmt::format("  {:>{}}", counts_text(cell), width);
    text += '\n';
  }
  return text + '\n';
}

std::string remarks_text(const std::string& title, const std::vector<MatrixRemark>& remarks) {
  if (remarks.empty()) return "";
  std::string text = title + '\n';
  for (const MatrixRemark& entry : remarks)
    text += fmt::format("{:>6}  {} (first: {})\n", entry.count, entry.text, entry.example);
  return text + '\n';
}

Json counts_json(const MatrixCounts& counts) {
  return {{"pass", counts.pass},
          {"refused", counts.refused},
          {"blind", counts.blind},
          {"fail", counts.fail}};
}

Json table_json(const MatrixTable& table) {
  Json rows = Json::object();
  for (const auto& [name, counts] : table.rows) {
    for (size_t column = 0; column < counts.size(); ++column)
      rows[name][table.columns[column]] = counts_json(counts[column]);
  }
  return rows;
}

Json remarks_json(const std::vector<MatrixRemark>& remarks, const char* key) {
  Json list = Json::array();
  for (const MatrixRemark& entry : remarks)
    list.push_back({{key, entry.text}, {"count", entry.count}, {"example", entry.example}});
  return list;
}

Json failure_json(const CellResult& result) {
  return {{"cell", describe(result.cell)},
          {"status", to_name(result.status)},
          {"reason", result.reason},
          {"fault", result.fault},
          {"scenario", print_scenario(make_cell_scenario(result.cell))}};
}

std::string format_and_padding(const MatrixCell& cell) {
  return fmt::format("{}, {}", to_name(cell.format), to_name(cell.padding));
}

}  // namespace

void MatrixCounts::add(CellStatus status) {
  switch (status) {
    case CellStatus::pass:
      ++pass;
      break;
    case CellStatus::refused:
      ++refused;
      break;
    case CellStatus::blind:
      ++blind;
      break;
    case CellStatus::fail:
      ++fail;
      break;
  }
}

std::string counts_text(const MatrixCounts& counts) {
  if (counts.all() == 0) return "-";
  if (counts.run() == 0) return fmt::format("refused {}", counts.refused);
  if (counts.refused == 0) return fmt::format("{}/{}", counts.pass, counts.run());
  return fmt::format("{}/{} refused {}", counts.pass, counts.run(), counts.refused);
}

MatrixReport summarise_matrix(const std::vector<CellResult>& results) {
  MatrixReport report;
  for (const CellResult& result : results) {
    report.total.add(result.status);
    if (result.status == CellStatus::refused) remark(report.refusals, result.reason, result.cell);
    for (const std::string& note : result.notes) remark(report.notes, note, result.cell);
    if (result.status == CellStatus::fail || result.status == CellStatus::blind)
      report.failures.push_back(result);
    if (!result.has_fault) continue;
    MatrixFaults& faults = report.faults[std::string(to_name(result.fault_kind))];
    ++faults.planted;
    faults.caught += result.is_caught ? 1 : 0;
    ++faults.by_proof[result.plan_check];
  }
  const NameOf comm = [](const MatrixCell& cell) { return std::string(cell.comm->name); };
  const NameOf comm_type = [](const MatrixCell& cell) {
    return std::string(to_name(cell.comm->type));
  };
  const NameOf mask = [](const MatrixCell& cell) { return std::string(cell.mask->name); };
  const NameOf group = [](const MatrixCell& cell) { return std::string(cell.mask->group); };
  const NameOf layout = [](const MatrixCell& cell) { return std::string(cell.layout->name); };
  const NameOf feature = [](const MatrixCell& cell) { return std::string(cell.feature->name); };
  report.tables.push_back(tabulate("mask", results, is_plain, mask, comm));
  report.tables.push_back(tabulate("layout", results, is_plain, layout, comm));
  report.tables.push_back(
      tabulate("format and padding", results, is_plain, format_and_padding, comm));
  report.tables.push_back(tabulate(
      "feature", results, [](const MatrixCell&) { return true; }, feature, comm));
  report.tables.push_back(tabulate("mask group", results, is_plain, group, comm_type));
  return report;
}

std::string matrix_text(const MatrixReport& report) {
  std::string text = "passed/run; the rest is rejected with a reason\n\n";
  for (const MatrixTable& table : report.tables) text += table_text(table);
  text += remarks_text("refused", report.refusals);
  text += remarks_text("passed, although", report.notes);
  text += "planted faults\n";
  for (const auto& [kind, faults] : report.faults) {
    text += fmt::format("{:>6}  {}: {} caught by the judge", faults.planted, kind, faults.caught);
    for (const auto& [proof, count] : faults.by_proof)
      text += proof.empty() ? fmt::format(", {} break no proof", count)
                            : fmt::format(", {} break the proof of {}", count, proof);
    text += '\n';
  }
  text += '\n';
  for (const CellResult& result : report.failures) {
    text += fmt::format("{}: {}: {}{}{}\n", to_name(result.status), describe(result.cell),
                        result.reason, result.fault.empty() ? "" : ": ", result.fault);
  }
  return text + fmt::format("{} cells: {} pass, {} refused, {} blind, {} fail\n",
                            report.total.all(), report.total.pass, report.total.refused,
                            report.total.blind, report.total.fail);
}

Json matrix_json(const MatrixReport& report) {
  Json json{{"schema", 1},
            {"passed", report.total.fail == 0 && report.total.blind == 0 && report.total.pass > 0},
            {"cells", report.total.all()},
            {"pass", report.total.pass},
            {"refused", report.total.refused},
            {"blind", report.total.blind},
            {"fail", report.total.fail}};
  json["tables"] = Json::object();
  for (const MatrixTable& table : report.tables) json["tables"][table.name] = table_json(table);
  json["refusals"] = remarks_json(report.refusals, "reason");
  json["notes"] = remarks_json(report.notes, "note");
  json["faults"] = Json::array();
  for (const auto& [kind, faults] : report.faults) {
    Json proofs = Json::object();
    for (const auto& [proof, count] : faults.by_proof)
      proofs[proof.empty() ? "none" : proof] = count;
    json["faults"].push_back({{"kind", kind},
                              {"planted", faults.planted},
                              {"caught", faults.caught},
                              {"plan_check", proofs}});
  }
  json["failures"] = Json::array();
  for (const CellResult& result : report.failures) json["failures"].push_back(failure_json(result));
  return json;
}

}  // namespace cpscope
