#include "sim/run/grade/share_search.h"

#include "sim/run/grade/probe_parts.h"
#include "sim/run/run_inputs.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace cpscope {
namespace {

/// From this many hops on, and with 16 bits on the wire, the budgets of ranks cannot show the
/// smallest shares of a causal sequence (`cpscope power`).
constexpr int32_t kHopsThatHide = 32;
/// Threshold of a finding: more than half of a share.
constexpr double kFound = 0.5;

/// [token] Its owner; -1 for padding.
std::vector<int32_t> owners_of_valid(const Plan& plan, Side side) {
  std::vector<int32_t> owners = owners_of(plan, side);
  const std::vector<bool> valid = valid_ids(plan.layout.slots, side);
  for (size_t token = 0; token < owners.size(); ++token)
    if (!valid[token]) owners[token] = -1;
  return owners;
}

/// [rank] Its valid queries, ascending.
std::vector<std::vector<int64_t>> queries_of_ranks(const Plan& plan) {
  std::vector<std::vector<int64_t>> queries(static_cast<size_t>(plan.layout.cp_size));
  const std::vector<int32_t> owners = owners_of_valid(plan, Side::q);
  for (size_t token = 0; token < owners.size(); ++token) {
    if (owners[token] >= 0)
      queries[static_cast<size_t>(owners[token])].push_back(static_cast<int64_t>(token));
  }
  return queries;
}

/// One tensor's errors, projected on the share of one rank's queries.
class ErrorsOfKeys {
 public:
  /// Row i of `exact` is that of tokens[i]; `seen` holds every token.
  ErrorsOfKeys(const Tensor& seen, const Tensor& exact, const std::vector<int64_t>& tokens,
               const std::vector<int32_t>& owners, int32_t ranks)
      : width_(exact.shape[1] * exact.shape[2]) {
    errors_.reserve(tokens.size() * static_cast<size_t>(width_));
    squares_.assign(static_cast<size_t>(ranks), 0.0);
    counts_.assign(static_cast<size_t>(ranks), 0.0);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int32_t owner = owners[static_cast<size_t>(tokens[i])];
      owners_.push_back(owner);
      for (int64_t lane = 0; lane < width_; ++lane) {
        const double error =
            seen.values[static_cast<size_t>(tokens[i] * width_ + lane)] -
            exact.values[i * static_cast<size_t>(width_) + static_cast<size_t>(lane)];
        errors_.push_back(error);
        if (owner >= 0) squares_[static_cast<size_t>(owner)] += error * error;
      }
      if (owner >= 0) counts_[static_cast<size_t>(owner)] += static_cast<double>(width_);
    }
  }

  /// The worst group of keys in which the share of `query_rank`'s queries is found in the errors;
  /// nothing below what random errors reach by chance.
  std::optional<ShareError> find(const Tensor& share, int32_t query_rank) const {
    std::vector<double> along(squares_.size(), 0.0), lengths(squares_.size(), 0.0);
    for (size_t i = 0; i < owners_.size(); ++i) {
      if (owners_[i] < 0) continue;
      const auto owner = static_cast<size_t>(owners_[i]);
      for (size_t at = i * static_cast<size_t>(width_); at < (i + 1) * static_cast<size_t>(width_);
           ++at) {
        along[owner] += errors_[at] * share.values[at];
        lengths[owner] += share.values[at] * share.values[at];
      }
    }
    std::optional<ShareError> worst;
    for (size_t owner = 0; owner < along.size(); ++owner) {
      if (lengths[owner] == 0) continue;
      const double times = along[owner] / lengths[owner];
      const double stray = std::sqrt(squares_[owner] / counts_[owner] / lengths[owner]);
      if (!(std::abs(times) > std::max(kFound, kSigmas * stray))) continue;
      if (!worst || std::abs(times) > std::abs(worst->times))
        worst = ShareError{query_rank, static_cast<int32_t>(owner), times};
    }
    return worst;
  }

 private:
  int64_t width_;
  std::vector<double> errors_;            // [row][head][element]
  std::vector<int32_t> owners_;           // [row]
  std::vector<double> squares_, counts_;  // [rank] errors, squared and added up, and how many
};

}  // namespace

bool can_hide_shares(const Plan& plan) {
  const Numerics& numerics = plan.scenario.numerics;
  const bool is_narrow = numerics.dtype == Dtype::bf16 || numerics.dtype == Dtype::fp16;
  // Casts to 8 bits make errors that follow the shares.
  if (!numerics.backward || !is_narrow || numerics.fp8 || numerics.dkv_wire != WireFormat::dtype)
    return false;
  const Hops hops = count_hops(plan);
  return hops.rounds_running_sum && hops.shares >= kHopsThatHide;
}

std::optional<Error> search_shares(const Toolbox& toolbox, const Plan& plan,
                                   const RunInputs& inputs, const Answer& seen,
                                   const ShareSearch& search, Grade& grade) {
  if (!can_hide_shares(plan)) return std::nullopt;
  std::vector<int64_t> tokens;
  if (search.rows != nullptr) {
    tokens = search.rows->key_tokens;
  } else {
    tokens.resize(static_cast<size_t>(plan.layout.slots.kv_tokens));
    std::iota(tokens.begin(), tokens.end(), int64_t{0});
  }
  const std::vector<int32_t> key_owners = owners_of_valid(plan, Side::kv);
  struct Looked {
    TensorGrade* grade;
    ErrorsOfKeys errors;
    Tensor Answer::*member;
  };
  std::vector<Looked> looked;
  for (const auto& [name, member] :
       {std::pair<std::string_view, Tensor Answer::*>{"dk", &Answer::dk}, {"dv", &Answer::dv}}) {
    TensorGrade* tensor = grade.find(name);
    if (tensor == nullptr || !tensor->passed || !tensor->judged) continue;
    looked.push_back(
        {tensor,
         ErrorsOfKeys(seen.*member, search.exact.*member, tokens, key_owners, plan.layout.cp_size),
         member});
  }
  if (looked.empty()) return std::nullopt;
  const std::vector<std::vector<int64_t>> queries = queries_of_ranks(plan);
  JudgedRows pairs{{}, std::move(tokens)};
  for (int32_t rank = 0; rank < plan.layout.cp_size; ++rank) {
    pairs.query_tokens = queries[static_cast<size_t>(rank)];
    const Result<Answer> shares =
        toolbox.oracle.shares(plan.scenario, inputs, search.given, pairs, search.control);
    if (!shares) return shares.error();
    for (const Looked& one : looked) {
      const auto found = one.errors.find(shares.value().*one.member, rank);
      std::optional<ShareError>& worst = one.grade->share;
      if (found && (!worst || std::abs(found->times) > std::abs(worst->times))) worst = found;
    }
  }
  for (const Looked& one : looked)
    if (one.grade->share) one.grade->passed = false;
  grade.conclude();
  return std::nullopt;
}

}  // namespace cpscope
