#include "sim/plan/cp_rounds.h"

#include <functional>
#include <queue>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

std::vector<CpRound> place_in_order(const std::vector<int64_t>& sizes, int32_t ranks) {
  std::vector<CpRound> rounds;
  int32_t next = ranks;  // the first free rank of the round
  for (size_t s = 0; s < sizes.size(); ++s) {
    const auto size = static_cast<int32_t>(sizes[s]);
    if (next + size > ranks) {
      rounds.emplace_back();
      next = 0;
    }
    rounds.back().groups.push_back({next, size, {static_cast<int64_t>(s)}});
    next += size;
  }
  return rounds;
}

std::optional<Error> refuse_rounds(const Scenario& scenario) {
  const Parallel& parallel = scenario.parallel;
  const LayoutKind layout = parallel.layout;
  if (!may_work_in_rounds(layout)) {
    return make_refusal(
        fmt::format("cp_sizes requires a layout that cuts each sequence alone, which {} does not",
                    to_name(layout)),
        "use dual_chunk, contiguous or striped", {"parallel.cp_sizes", "parallel.layout"});
  }
  if (scenario.batch.qkv_format != QkvFormat::thd) {
    return make_refusal(
        fmt::format("cp_sizes requires qkv_format thd: in {} all sequences have equal slots",
                    to_name(scenario.batch.qkv_format)),
        "use qkv_format = \"thd\"", {"parallel.cp_sizes", "batch.qkv_format"});
  }
  return std::nullopt;
}

}  // namespace

Result<std::vector<CpRound>> make_rounds(const Scenario& scenario) {
  const Parallel& parallel = scenario.parallel;
  if (has_rounds(parallel)) {
    if (auto error = refuse_rounds(scenario)) return *error;
  }
  switch (parallel.group_rule) {
    case GroupRule::all_ranks:
      break;
    case GroupRule::given:
      return place_in_order(parallel.cp_sizes, parallel.cp_size);
    case GroupRule::fixed:
      return share_among_groups(scenario.batch.lengths, parallel.cp_sizes.front(),
                                parallel.max_tokens_per_rank, parallel.cp_size);
    case GroupRule::hybrid:
      return schedule_hybrid(scenario.batch.lengths, parallel.max_tokens_per_rank,
                             parallel.cp_size);
    case GroupRule::flexsp:
      return schedule_flexsp(scenario.batch.lengths, parallel.max_tokens_per_rank,
                             parallel.cp_size);
    case GroupRule::bytescale:
      return schedule_bytescale(scenario.batch.lengths, parallel.max_tokens_per_rank,
                                parallel.cp_size);
  }
  return std::vector<CpRound>{};
}

Result<std::vector<CpRound>> share_among_groups(std::span<const int64_t> lengths, int64_t size,
                                                int64_t max_tokens_per_rank, int32_t ranks) {
  if (ranks % size != 0)
    return make_refusal(
        fmt::format("one CP size for all sequences must divide cp_size: {} does not divide {}",
                    size, ranks),
        "give a divisor of cp_size, or a list with a size for each sequence",
        {"parallel.cp_sizes", "parallel.cp_size"});
  using Filled = std::pair<int64_t, int32_t>;  // tokens of a group, its number
  std::priority_queue<Filled, std::vector<Filled>, std::greater<>> least;
  std::vector<CpGroup> groups;
  for (int32_t first = 0; first < ranks; first += static_cast<int32_t>(size)) {
    least.emplace(0, static_cast<int32_t>(groups.size()));
    groups.push_back({first, static_cast<int32_t>(size), {}});
  }
  for (size_t s = 0; s < lengths.size(); ++s) {
    if (max_tokens_per_rank > 0 && lengths[s] > max_tokens_per_rank * size)
      return make_refusal(
          fmt::format("sequence {} of {} tokens does not fit on {} rank{} of {} tokens{}", s,
                      lengths[s], size, size == 1 ? "" : "s", max_tokens_per_rank,
                      size == 1 ? "" : " each"),
          "use larger groups, or leave max_tokens_per_rank out",
          {"parallel.cp_sizes", "parallel.max_tokens_per_rank"});
    const auto [tokens, group] = least.top();
    least.pop();
    groups[static_cast<size_t>(group)].sequences.push_back(static_cast<int64_t>(s));
    least.emplace(tokens + lengths[s], group);
  }
  std::erase_if(groups, [](const CpGroup& group) { return group.sequences.empty(); });
  if (groups.empty()) return std::vector<CpRound>{};
  return std::vector{CpRound{std::move(groups)}};
}

std::vector<int32_t> round_of_sequences(std::span<const CpRound> rounds, size_t sequences) {
  std::vector<int32_t> round_of(sequences, 0);
  for (size_t r = 0; r < rounds.size(); ++r) {
    for (const CpGroup& group : rounds[r].groups) {
      for (const int64_t s : group.sequences)
        round_of[static_cast<size_t>(s)] = static_cast<int32_t>(r);
    }
  }
  return round_of;
}

}  // namespace cpscope
