#include "sim/documents/diff_text.h"

#include "sim/run/record/item_tensors.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Why the two cannot be compared by what they have earned; nothing when they can.
std::optional<Error> earned_obstacle(const RecordComparison& compared,
                                     const std::array<std::string, 2>& paths) {
  if (!compared.same_scenario) {
    return make_error(ErrorKind::bad_input,
                      "the two records answer different scenarios: no tolerance is earned between "
                      "them",
                      "use --tolerance, or record both runs of one file");
  }
  for (const auto& [record, path] :
       {std::pair(&compared.a, &paths[0]), std::pair(&compared.b, &paths[1])}) {
    if (record->budgets.empty())
      return make_error(ErrorKind::bad_input, "the record holds no budgets",
                        "record the run again with this version, or use --tolerance", *path);
    for (const TensorBudget& budget : record->budgets) {
      if (std::isfinite(budget.rel_l2) && budget.rel_l2 > 1)
        return make_error(
            ErrorKind::bad_input,
            fmt::format("the record's budget lets {} be off by more than itself: {:.3g}",
                        budget.name, budget.rel_l2),
            "record the run again, or use --tolerance", *path);
    }
  }
  return std::nullopt;
}

Json tensor_diff_json(const TensorDiff& diff, const DiffRule& rule) {
  Json entry{{"name", diff.name},
             {"equal", is_within(diff, rule)},
             {"shape_mismatch", diff.shape_mismatch},
             {"different", diff.count_different}};
  entry["l2"] = finite_or_null(diff.l2);
  entry["allowed_l2"] = diff.earned ? finite_or_null(diff.earned->allowed_l2) : Json(nullptr);
  entry["row_excess"] = diff.earned ? finite_or_null(diff.earned->row_excess) : Json(nullptr);
  entry["max_abs"] = finite_or_null(diff.max_abs);
  entry["rel_l2"] = finite_or_null(diff.rel_l2);
  entry["worst_row_rel_l2"] = finite_or_null(diff.worst_row_rel_l2);
  entry["worst"] = {{"token", diff.worst_row},
                    {"head", diff.worst_head},
                    {"lane", diff.worst_lane},
                    {"left", finite_or_null(diff.left)},
                    {"right", finite_or_null(diff.right)}};
  entry["nan"] = {diff.nan_left, diff.nan_right};
  return entry;
}

/// The same for an item, whose rows are those of a rank's buffer.
Json item_diff_json(const TensorDiff& diff, const DiffRule& rule) {
  Json entry = tensor_diff_json(diff, rule);
  entry["worst"] = {{"row", diff.worst_row},
                    {"buffer_head", diff.worst_head},
                    {"lane", diff.worst_lane},
                    {"left", finite_or_null(diff.left)},
                    {"right", finite_or_null(diff.right)}};
  return entry;
}

Json first_item_json(const FirstItem& first, const DiffRule& rule) {
  Json json = item_diff_json(first.diff, rule);
  json["pass"] = to_name(first.name.item.direction);
  json["kind"] = to_name(first.name.item.kind);
  json["item"] = first.name.item.index;
  json["rank"] = to_index(first.name.rank);
  json["step"] = to_index(first.name.step);
  json["array"] = first.name.array;
  json["worst"]["token"] = nullptr;
  json["worst"]["head"] = nullptr;
  if (first.place) {
    if (first.place->token >= 0) json["worst"]["token"] = first.place->token;
    json["worst"]["head"] = first.place->head;
  }
  return json;
}

void write_tensor_diff(const TensorDiff& diff, const DiffRule& rule, std::ostream& out) {
  if (diff.is_equal()) {
    out << fmt::format("{:<10} equal\n", diff.name);
  } else if (!diff.shape_mismatch.empty()) {
    out << fmt::format("{:<10} {}\n", diff.name, diff.shape_mismatch);
  } else {
    out << fmt::format(
        "{:<10} {} values differ, max_abs {:.3g}, rel_l2 {:.3g}; worst at token {}, head {}: "
        "{:.9g} vs {:.9g}{}\n",
        diff.name, diff.count_different, diff.max_abs, diff.rel_l2, diff.worst_row, diff.worst_head,
        diff.left, diff.right, describe_earned(diff, rule));
  }
}

}  // namespace

bool RecordComparison::is_equal() const {
  return std::all_of(diffs.begin(), diffs.end(),
                     [&](const TensorDiff& diff) { return is_within(diff, rule); });
}

Result<RecordComparison> compare_records(RunRecord a, RunRecord b, const DiffRule& rule,
                                         const std::array<std::string, 2>& paths) {
  RecordComparison compared{std::move(a), std::move(b), false, rule, {}, {}};
  compared.same_scenario = compared.a.scenario_text == compared.b.scenario_text;
  if (rule.is_earned) {
    if (auto error = earned_obstacle(compared, paths)) return *error;
    compared.diffs = diff_runs(compared.a, compared.b);
  } else {
    compared.diffs = diff_records(compared.a, compared.b);
  }
  compared.first = find_first_item(compared.a, compared.b, compared.diffs, rule, paths[0]);
  return compared;
}

Json diff_json(const RecordComparison& compared) {
  Json json{{"schema", 1},
            {"same_scenario", compared.same_scenario},
            {"rule", compared.rule.is_earned ? "earned" : "rel_l2"},
            {"tolerance", finite_or_null(compared.rule.rel_l2)},
            {"tensors", Json::array()},
            {"items", Json::array()}};
  for (const TensorDiff& diff : compared.diffs) {
    const bool is_item = parse_item_name(diff.name).has_value();
    json[is_item ? "items" : "tensors"].push_back(is_item ? item_diff_json(diff, compared.rule)
                                                          : tensor_diff_json(diff, compared.rule));
  }
  json["first_item"] =
      compared.first ? first_item_json(*compared.first, compared.rule) : Json(nullptr);
  json["equal"] = compared.is_equal();
  return json;
}

void write_diff_text(const RecordComparison& compared, std::ostream& out) {
  int64_t arrays = 0, within = 0;
  for (const TensorDiff& diff : compared.diffs) {
    if (parse_item_name(diff.name)) {
      ++arrays;
      within += is_within(diff, compared.rule) ? 1 : 0;
    } else {
      write_tensor_diff(diff, compared.rule, out);
    }
  }
  const bool of_a = holds_items(compared.a), of_b = holds_items(compared.b);
  if (of_a != of_b) {
    out << fmt::format("only the {} record holds the results of items\n", of_a ? "left" : "right");
  } else if (arrays > 0) {
    out << fmt::format(
        "items      {} arrays, {} {}\n", arrays, within,
        compared.rule.is_earned || compared.rule.rel_l2 > 0 ? "within the tolerance" : "equal");
  }
  if (compared.first) out << describe_first_item(*compared.first, compared.rule) << '\n';
  if (!compared.same_scenario) out << "the two records answer different scenarios\n";
}

}  // namespace cpscope
