#include "sim/run/grade/wrong_row_table.h"

#include "sim/run/grade/tensor_grader.h"
#include "sim/run/grade/token_places.h"

#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

namespace cpscope {
namespace {

struct NamedAnswer {
  const char* name;
  Tensor Answer::*member;
  Side side;
};
constexpr NamedAnswer kAnswersOfTokens[] = {{"out", &Answer::out, Side::q},
                                            {"lse", &Answer::lse, Side::q},
                                            {"dq", &Answer::dq, Side::q},
                                            {"dk", &Answer::dk, Side::kv},
                                            {"dv", &Answer::dv, Side::kv}};

/// The tokens of the rows of `exact`: those of a sample, or all.
std::vector<int64_t> find_judged_tokens(const Plan& plan, const JudgedRows& judged, Side side) {
  if (!judged.is_empty()) return side == Side::q ? judged.query_tokens : judged.key_tokens;
  std::vector<int64_t> all(static_cast<size_t>(plan.layout.slots.tokens_of(side)));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

WrongRowTable list_wrong_rows(const Plan& plan, const ForeignGrade& graded) {
  WrongRowTable table;
  std::optional<TokenPlaces> places[2];  // of queries, of keys
  for (const TensorGrade& tensor : graded.grade.tensors) {
    if (!tensor.has_failed()) continue;
    for (const NamedAnswer& answer : kAnswersOfTokens) {
      if (tensor.name != answer.name) continue;
      const Tensor &seen = graded.seen.*answer.member, &exact = graded.exact.*answer.member;
      const std::vector<int64_t> tokens = find_judged_tokens(plan, graded.judged, answer.side);
      const size_t heads = exact.shape.size() > 1 ? static_cast<size_t>(exact.shape[1]) : 0;
      const size_t lanes = exact.shape.size() > 2 ? static_cast<size_t>(exact.shape[2]) : 1;
      if (seen.shape.size() != exact.shape.size() ||
          tensor.row_budgets.size() != tokens.size() * heads)
        continue;
      std::optional<TokenPlaces>& found = places[answer.side == Side::kv ? 1 : 0];
      if (!found) found = places_of(plan.layout, answer.side);
      for (size_t row = 0; row < tensor.row_budgets.size(); ++row) {
        const auto token = static_cast<size_t>(tokens[row / heads]);
        const double error = row_distance(
            std::span(seen.values).subspan((token * heads + row % heads) * lanes, lanes),
            std::span(exact.values).subspan(row * lanes, lanes));
        if (error <= static_cast<double>(tensor.row_budgets[row])) continue;
        if (table.names.empty() || table.names.back() != tensor.name)
          table.names.push_back(tensor.name);
        table.tensor.push_back(std::ssize(table.names) - 1);
        table.rank.push_back(
            found->rank_of(tokens[row / heads], static_cast<int64_t>(row % heads)));
        table.token.push_back(tokens[row / heads]);
        table.sequence.push_back(found->sequence[token]);
        table.position.push_back(found->sequence[token] < 0 ? -1 : found->position[token]);
        table.head.push_back(static_cast<int64_t>(row % heads));
        table.error.push_back(error);
        table.budget.push_back(static_cast<double>(tensor.row_budgets[row]));
      }
    }
  }
  return table;
}

}  // namespace cpscope
