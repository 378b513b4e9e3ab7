#include "tests/program/foreign_case.h"

#include "sim/run/grade/case.h"
#include "tests/program/walker_toolbox.h"

#include <memory>
#include <utility>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

Side side_of(const std::string& name) {
  return name == "k" || name == "v" || name == "dk" || name == "dv" ? Side::kv : Side::q;
}

/// Rows `ids` of a tensor of tokens.
Tensor take_rows(const Tensor& tensor, const std::vector<int64_t>& ids) {
  Tensor taken{tensor.name, tensor.shape, tensor.dtype, {}};
  taken.shape[0] = static_cast<int64_t>(ids.size());
  const int64_t width = tensor.size() / tensor.shape[0];
  for (const int64_t id : ids)
    taken.values.insert(taken.values.end(), tensor.values.begin() + id * width,
                        tensor.values.begin() + (id + 1) * width);
  return taken;
}

/// Heads [begin, end) of a tensor [tokens, heads, ...].
Tensor take_heads(const Tensor& tensor, HeadRange heads) {
  Tensor taken{tensor.name, tensor.shape, tensor.dtype, {}};
  taken.shape[1] = heads.size();
  const int64_t row = tensor.size() / tensor.shape[0], head = row / tensor.shape[1];
  for (int64_t token = 0; token < tensor.shape[0]; ++token)
    taken.values.insert(taken.values.end(),
                        tensor.values.begin() + token * row + heads.begin * head,
                        tensor.values.begin() + token * row + heads.end * head);
  return taken;
}

}  // namespace

ForeignCase::ForeignCase(const std::string& text) {
  Toolbox toolbox = make_walker_toolbox();
  const Result<LoadedScenario> loaded = parse_scenario(text, "foreign.toml");
  EXPECT_TRUE(loaded.ok()) << to_text(loaded.error());
  CaseOutcome outcome = run_case(toolbox, loaded.value(), {});
  EXPECT_EQ(outcome.status, CaseStatus::pass) << outcome.reason;
  record_ = make_record(outcome, text);
  record_.plan_hash.clear();
  record_.budgets.clear();
  plan_ = outcome.plan;
}

RunRecord ForeignCase::in_rank_order() const {
  RunRecord record = record_;
  const Layout& layout = plan().layout;
  for (Tensor& tensor : record.tensors) {
    if (tensor.shape.size() < 2 || tensor.shape.size() == 4) continue;  // a bias is by positions
    tensor = take_rows(tensor, rank_order_ids(layout.runs(side_of(tensor.name)).values()));
  }
  return record;
}

RunRecord ForeignCase::of_rank(int32_t rank) const {
  RunRecord record = record_;
  const Layout& layout = plan().layout;
  for (Tensor& tensor : record.tensors) {
    if (tensor.shape.size() < 2 || tensor.shape.size() == 4) continue;  // a bias is by positions
    const Side side = side_of(tensor.name);
    const bool has_all_heads =
        tensor.name == "q" && plan().scenario.parallel.q_owner == QOwner::heads_replicated;
    tensor = take_rows(tensor, expand(layout.runs(side)[RankId{rank}]));
    if (side == Side::q && layout.q_heads.size() > 0 && !has_all_heads)
      tensor = take_heads(tensor, layout.q_heads[RankId{rank}]);
  }
  return record;
}

Result<ForeignGrade> ForeignCase::grade(const RunRecord& record, const ForeignChoices& choices,
                                        const ForeignGradeOptions& options) const {
  return grade_files({{"foreign.safetensors", record}}, choices, options);
}

Result<ForeignGrade> ForeignCase::grade_files(std::vector<NamedRecord> records,
                                              const ForeignChoices& choices,
                                              const ForeignGradeOptions& options) const {
  if (auto error = sort_by_rank(records)) return *error;
  Result<ForeignRecord> foreign = read_foreign(std::move(records), plan(), choices);
  if (!foreign) return foreign.error();
  return grade_foreign(make_walker_toolbox(), plan(), foreign.value(), options);
}

Tensor& tensor_of(RunRecord& record, const std::string& name) {
  for (Tensor& tensor : record.tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return record.tensors.front();
}

const TensorGrade& grade_of(const ForeignGrade& graded, const std::string& name) {
  for (const TensorGrade& tensor : graded.grade.tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no grade of " << name;
  return graded.grade.tensors.front();
}

std::string hints_of(const ForeignGrade& graded) {
  std::string text;
  for (const std::string& hint : graded.hints) text += hint + '\n';
  return text;
}

}  // namespace cpscope::tests
