#pragma once

#include "sim/documents/json_text.h"
#include "sim/run/grade/first_item.h"
#include "sim/run/grade/record_diff.h"
#include "sim/run/record/run_record.h"

#include <array>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace cpscope {

/// Two records, what was found between them and by which rule.
struct RecordComparison {
  RunRecord a, b;
  bool same_scenario = false;
  DiffRule rule;
  std::vector<TensorDiff> diffs;
  std::optional<FirstItem> first;  // the first item that diverges

  bool is_equal() const;
};

/// Compares two records. `paths` name them in errors; the first anchors relative file names of the
/// scenario. Errors: bad_input if the rule is earned and the records hold nothing that earns it.
Result<RecordComparison> compare_records(RunRecord a, RunRecord b, const DiffRule& rule,
                                         const std::array<std::string, 2>& paths);

/// The document of `diff --json`, and its text.
Json diff_json(const RecordComparison& compared);
void write_diff_text(const RecordComparison& compared, std::ostream& out);

}  // namespace cpscope
