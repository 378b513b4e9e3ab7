#include "sim/app/cli/import_attention_mask.h"

#include "sim/app/cli/command.h"
#include "sim/documents/json_text.h"
#include "sim/run/record/integer_file.h"
#include "sim/scenario/attention_mask.h"

#include <algorithm>
#include <iostream>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

/// The rows of "attention_mask", or of the only lists.
Result<PaddedRows> load_attention_mask(const std::string& path) {
  const Result<std::vector<NamedLists>> lists = read_integer_file(path);
  if (!lists) return lists.error();
  const std::vector<NamedLists>& all = lists.value();
  const auto named = std::find_if(all.begin(), all.end(), [](const NamedLists& entry) {
    return entry.name == "attention_mask";
  });
  if (named == all.end() && all.size() != 1)
    return make_bad_input(fmt::format("no lists are called attention_mask: {} names", all.size()),
                          "store the mask alone, or by that name", path);
  Result<PaddedRows> rows = read_attention_mask((named == all.end() ? all.front() : *named).lists);
  if (rows) return rows;
  Error error = rows.error();
  for (Complaint& complaint : error.complaints) complaint.where = path;
  return error;
}

void write_batch_text(const std::string& path, const PaddedRows& rows, std::ostream& out) {
  const auto valid = std::reduce(rows.lengths.begin(), rows.lengths.end(), int64_t{0});
  const int64_t tokens = rows.seqlen * std::ssize(rows.lengths);
  out << fmt::format("{}: {} rows of {} tokens, {} valid", path, rows.lengths.size(), rows.seqlen,
                     valid);
  if (valid < tokens) out << fmt::format(", padded on the {}", to_name(rows.pad_side));
  out << fmt::format(
      "\nfor a scenario:\n  [batch]\n  qkv_format = \"bshd\"\n  lengths = [{}]\n"
      "  seqlen = {}\n",
      fmt::join(rows.lengths, ", "), rows.seqlen);
  if (rows.pad_side == PadSide::left) out << "  pad_side = \"left\"\n";
}

}  // namespace

int import_attention_mask(const std::string& path, bool as_json) {
  const Result<PaddedRows> rows = load_attention_mask(path);
  if (!rows) return report(rows.error());
  if (as_json) {
    const Json json{{"schema", 1},
                    {"lengths", rows.value().lengths},
                    {"seqlen", rows.value().seqlen},
                    {"pad_side", to_name(rows.value().pad_side)}};
    std::cout << print_json(json) << '\n';
  } else {
    write_batch_text(path, rows.value(), std::cout);
  }
  return 0;
}

}  // namespace cpscope
