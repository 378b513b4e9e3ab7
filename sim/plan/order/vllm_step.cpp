#include "sim/plan/order/vllm_step.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

using Names = std::span<const std::string_view>;

constexpr int64_t kMostKeys = kMostListedTokens;
constexpr int64_t kMostBlocks = int64_t{1} << 31;  // vLLM numbers blocks in 32 bits

constexpr std::array<std::string_view, 2> kSlots = {"slot_mapping", ""};
constexpr std::array<std::string_view, 2> kTotals = {"seq_lens", "seq_lens_cpu"};
constexpr std::array<std::string_view, 3> kComputed = {"num_computed_tokens",
                                                       "num_computed_tokens_cpu", "context_lens"};
constexpr std::array<std::string_view, 1> kPositions = {"positions"};
constexpr std::array<std::string_view, 3> kTables = {"block_table", "block_tables",
                                                     "block_table_tensor"};
constexpr std::array<std::string_view, 1> kBlockSize = {"block_size"};
constexpr std::array<std::string_view, 2> kInterleave = {"cp_kv_cache_interleave_size",
                                                         "dcp_kv_cache_interleave_size"};
constexpr std::array<std::string_view, 2> kLocal = {"dcp_local_seq_lens", "dcp_local_seq_lens_cpu"};

/// One list of numbers; ranks that all say the same say it once.
Result<std::vector<int64_t>> read_once(const NamedLists& named) {
  const bool is_same = std::all_of(named.lists.begin(), named.lists.end(),
                                   [&](const auto& list) { return list == named.lists.front(); });
  if (named.lists.empty() || !is_same)
    return make_bad_input(fmt::format("{} must be one list, or the same on every rank: {} lists",
                                      named.name, named.lists.size()));
  return named.lists.front();
}

/// One number, 0 if it is not given.
Result<int64_t> read_number(const ImportRequest& request, Names names) {
  const NamedLists* named = find_lists(request, names);
  if (named == nullptr) return 0;
  const Result<std::vector<int64_t>> list = read_once(*named);
  if (!list) return list.error();
  if (list.value().size() != 1 || list.value()[0] < 1 || list.value()[0] > kMostKeys)
    return make_bad_input(
        fmt::format("{} must be one number from 1 to {}: {}", named->name, kMostKeys,
                    list.value().empty() ? "nothing" : fmt::to_string(list.value()[0])));
  return list.value()[0];
}

/// A number for each request; zeros behind the last request, which pad a captured graph, are left
/// out.
Result<std::vector<int64_t>> read_by_request(const NamedLists& named, size_t requests) {
  Result<std::vector<int64_t>> list = read_once(named);
  if (!list) return list;
  const auto padding =
      list.value().begin() + static_cast<int64_t>(std::min(requests, list.value().size()));
  const bool is_padded =
      std::all_of(padding, list.value().end(), [](int64_t value) { return value == 0; });
  if (list.value().size() < requests || !is_padded)
    return make_bad_input(fmt::format("{} has {} entries, the number of requests is {}", named.name,
                                      list.value().size(), requests));
  list.value().resize(requests);
  for (const int64_t value : list.value()) {
    if (value < 0 || value > kMostKeys)
      return make_bad_input(
          fmt::format("{} must hold numbers from 0 to {}: {}", named.name, kMostKeys, value));
  }
  return list;
}

/// What a list says of the tokens of each request that were computed before the step; -1: nothing.
using ComputedOf = std::vector<int64_t>;

Result<ComputedOf> computed_by_totals(const NamedLists& totals, const CacheStep& step) {
  Result<std::vector<int64_t>> list = read_by_request(totals, step.lengths.size());
  if (!list) return list;
  ComputedOf computed = std::move(list).value();
  for (size_t r = 0; r < computed.size(); ++r) {
    computed[r] -= step.lengths[r];
    if (computed[r] < 0)
      return make_bad_input(fmt::format("{} of request {} is below its new tokens: {}, {} new",
                                        totals.name, r, computed[r] + step.lengths[r],
                                        step.lengths[r]));
  }
  return computed;
}

Result<ComputedOf> computed_by_positions(const NamedLists& positions, const CacheStep& step) {
  const Result<std::vector<int64_t>> list = read_once(positions);
  if (!list) return list.error();
  // What is behind the last token pads a captured graph.
  if (std::ssize(list.value()) < step.num_new())
    return make_bad_input(fmt::format("{} has {} entries, the requests have {} new tokens",
                                      positions.name, list.value().size(), step.num_new()));
  ComputedOf computed(step.lengths.size(), -1);
  auto next = list.value().begin();
  for (size_t r = 0; r < step.lengths.size(); ++r) {
    for (int64_t i = 0; i < step.lengths[r]; ++i, ++next) {
      if (i == 0) computed[r] = *next;
      if (*next < 0 || *next > kMostKeys || *next != computed[r] + i)
        return make_bad_input(
            fmt::format("{} of request {} must count by 1 from 0 or more: entry {} is {}",
                        positions.name, r, i, *next));
    }
  }
  return computed;
}

/// Tokens of each request that were computed before the step, in which all lists must agree.
std::optional<Error> read_computed(const ImportRequest& request, CacheStep& step) {
  const NamedLists* first = nullptr;  // what the others are compared with
  const auto add = [&](const NamedLists* named,
                       const Result<ComputedOf>& said) -> std::optional<Error> {
    if (!said) return said.error();
    for (size_t r = 0; r < step.computed.size(); ++r) {
      const int64_t computed = said.value()[r];
      if (computed >= 0 && step.computed[r] >= 0 && computed != step.computed[r])
        return make_bad_input(
            fmt::format("{} and {} disagree at request {}: {} and {} tokens before the new ones",
                        first->name, named->name, r, step.computed[r], computed));
      if (step.computed[r] < 0) step.computed[r] = computed;
    }
    if (first == nullptr) first = named;
    return std::nullopt;
  };
  step.computed.assign(step.lengths.size(), -1);
  if (const NamedLists* totals = find_lists(request, kTotals)) {
    if (auto error = add(totals, computed_by_totals(*totals, step))) return error;
  }
  if (const NamedLists* before = find_lists(request, kComputed)) {
    if (auto error = add(before, read_by_request(*before, step.lengths.size()))) return error;
  }
  if (const NamedLists* positions = find_lists(request, kPositions)) {
    if (auto error = add(positions, computed_by_positions(*positions, step))) return error;
  }
  step.knows_computed = first != nullptr;
  for (int64_t& computed : step.computed) computed = std::max<int64_t>(computed, 0);
  return std::nullopt;
}

/// Block tables of the requests, which every rank has.
std::optional<Error> read_blocks(const ImportRequest& request, CacheStep& step) {
  const NamedLists* tables = find_lists(request, kTables);
  if (tables == nullptr) return std::nullopt;
  if (step.block_size == 0)
    return make_bad_input(fmt::format("{} needs the number of slots of a block", tables->name),
                          "give block_size, of one rank");
  const size_t requests = step.lengths.size(), rows = tables->lists.size();
  const bool has_copies = rows != requests && rows == requests * static_cast<size_t>(step.ranks);
  if (rows != requests && !has_copies)
    return make_bad_input(
        fmt::format("{} has {} rows, the number of requests is {}", tables->name, rows, requests),
        "give one row for each request");
  for (size_t row = requests; row < rows; ++row) {
    if (tables->lists[row] != tables->lists[row % requests])
      return make_bad_input(fmt::format("ranks 0 and {} have different block tables of request {}",
                                        row / requests, row % requests),
                            "vLLM gives a request the same blocks on every rank");
  }
  const int64_t width = step.block_size * step.ranks;  // positions of a block
  for (size_t r = 0; r < requests; ++r) {
    const int64_t needed = (step.total(r) + width - 1) / width;
    std::vector<int64_t> blocks = tables->lists[r];
    if (std::ssize(blocks) < needed)
      return make_bad_input(
          fmt::format("the block table of request {} has {} blocks; its {} tokens need {}", r,
                      blocks.size(), step.total(r), needed),
          fmt::format("a block holds {} positions, block_size = {} on each of {} ranks", width,
                      step.block_size, step.ranks));
    blocks.resize(static_cast<size_t>(needed));  // what is behind is not in use
    for (int64_t b = 0; b < needed; ++b) {
      const int64_t block = blocks[static_cast<size_t>(b)];
      if (block < 0 || block >= kMostBlocks)
        return make_bad_input(
            fmt::format("the block table of request {} holds no block at {}: {}", r, b, block));
    }
    step.blocks.push_back(std::move(blocks));
  }
  return std::nullopt;
}

/// How many requests the lists of a number or a row a request have; nothing without such lists.
std::optional<size_t> count_requests(const ImportRequest& request) {
  std::optional<size_t> count;
  const auto add = [&](size_t entries) { count = std::min(entries, count.value_or(entries)); };
  for (const Names names : {Names(kTotals), Names(kComputed)}) {
    const NamedLists* named = find_lists(request, names);
    if (named != nullptr && !named->lists.empty()) add(named->lists.front().size());
  }
  const NamedLists* tables = find_lists(request, kTables);
  if (tables != nullptr && !tables->lists.empty()) add(tables->lists.size());
  return count;
}

}  // namespace

Result<CacheStep> read_vllm_step(const ImportRequest& request, int64_t ranks,
                                 std::optional<std::vector<int64_t>> lengths) {
  CacheStep step;
  step.ranks = ranks;
  step.slots = find_lists(request, kSlots);
  if (step.slots != nullptr && std::ssize(step.slots->lists) != ranks)
    return make_bad_input(fmt::format("slot_mapping must be one list a rank: {} lists, {} ranks",
                                      step.slots->lists.size(), ranks));
  const size_t requests = count_requests(request).value_or(lengths ? lengths->size() : 1);
  if (!lengths && (step.slots == nullptr || requests != 1))
    return make_bad_input("the boundaries of the new tokens are missing", "give query_start_loc");
  if (lengths) {
    step.lengths = std::move(*lengths);
  } else {
    step.lengths = {std::ssize(step.slots->lists.front())};
  }
  // Requests without tokens at the end pad a captured graph where other lists do not have them.
  while (step.lengths.size() > requests && step.lengths.back() == 0) step.lengths.pop_back();
  if (step.num_new() == 0)
    return make_bad_input("there are no new tokens", "give a step in which a request has some");
  if (auto error = read_computed(request, step)) return *error;
  step.has_cached = std::any_of(step.computed.begin(), step.computed.end(),
                                [](int64_t count) { return count > 0; });
  int64_t keys = 0;
  for (size_t r = 0; r < step.lengths.size(); ++r) keys += step.total(r);
  if (keys > kMostKeys)
    return make_bad_input(
        fmt::format("more keys than an order file can list: {} keys, limit {}", keys, kMostKeys));
  const Result<int64_t> block_size = read_number(request, kBlockSize),
                        interleave = read_number(request, kInterleave);
  if (!block_size) return block_size.error();
  if (!interleave) return interleave.error();
  step.block_size = block_size.value();
  step.interleave = interleave.value();
  if (step.block_size > 0 && step.interleave > 0 && step.block_size % step.interleave != 0)
    return make_bad_input(fmt::format("the interleave does not divide block_size: {}, {}",
                                      step.interleave, step.block_size));
  if (auto error = read_blocks(request, step)) return *error;
  if (ranks == 1) step.interleave = 1;  // every interleave is the same
  if (step.slots == nullptr && step.blocks.empty())
    return make_bad_input("the slots are missing: slot_mapping",
                          "give one list a rank, or block_table and block_size");
  if (step.slots == nullptr && step.interleave == 0)
    return make_bad_input("without slot_mapping the interleave cannot be found",
                          "give cp_kv_cache_interleave_size; vLLM's default is 1");
  return step;
}

const NamedLists* find_local_lengths(const ImportRequest& request) {
  return find_lists(request, kLocal);
}

std::vector<std::string_view> names_of_vllm() {
  std::vector<std::string_view> all{"query_start_loc", "query_start_loc_cpu"};
  for (const Names names : std::initializer_list<Names>{kSlots, kTotals, kComputed, kPositions,
                                                        kTables, kBlockSize, kInterleave, kLocal})
    all.insert(all.end(), names.begin(), names.end());
  return all;
}

}  // namespace cpscope
