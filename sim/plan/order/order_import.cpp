#include "sim/plan/order/order_import.h"

#include "sim/plan/batch_slots.h"
#include "sim/plan/layout.h"
#include "sim/plan/order/order_formulas.h"
#include "sim/plan/order/vllm_import.h"
#include "sim/plan/order/vllm_step.h"
#include "sim/scenario/position_ids.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

Error bad(std::string what, std::string hint = "") {
  return make_error(ErrorKind::bad_input, std::move(what), std::move(hint));
}

/// Lengths of the sequences between boundaries.
Result<std::vector<int64_t>> lengths_of(const std::vector<int64_t>& boundaries,
                                        std::string_view name) {
  if (boundaries.size() < 2 || boundaries.front() != 0)
    return bad(
        fmt::format("{} must begin with 0 and have a boundary more than sequences: {} "
                    "entries, first {}",
                    name, boundaries.size(), boundaries.empty() ? 0 : boundaries.front()));
  std::vector<int64_t> lengths;
  for (size_t s = 0; s + 1 < boundaries.size(); ++s) {
    if (boundaries[s + 1] < boundaries[s])
      return bad(fmt::format("{} decreases at sequence {}: {} after {}", name, s, boundaries[s + 1],
                             boundaries[s]));
    lengths.push_back(boundaries[s + 1] - boundaries[s]);
  }
  if (boundaries.back() > kMostListedTokens)
    return bad(fmt::format("{} has more tokens than an order file can list: {} tokens, limit {}",
                           name, boundaries.back(), kMostListedTokens));
  return lengths;
}

/// The one list of a name; none, an empty one or several are errors.
Result<std::vector<int64_t>> single_list(const NamedLists& lists) {
  const bool is_empty = std::all_of(lists.lists.begin(), lists.lists.end(),
                                    [](const std::vector<int64_t>& list) { return list.empty(); });
  if (is_empty)
    return bad(lists.name + " is empty",
               "it begins with 0 and has one number more than there are sequences");
  if (lists.lists.size() != 1)
    return bad(fmt::format("{} must be one list: {} lists", lists.name, lists.lists.size()));
  return lists.lists.front();
}

/// The positions of the tokens of the packed batch. Those of MagiAttention are another thing.
const NamedLists* find_position_ids(const ImportRequest& request) {
  return request.source == OrderSource::magi ? nullptr : find_lists(request, {"position_ids"});
}

/// Lengths of the documents by the positions of their tokens. Several lists are rows of a batch,
/// and a document ends with its row.
Result<std::vector<int64_t>> lengths_of_documents(const NamedLists& positions) {
  std::vector<int64_t> lengths;
  int64_t tokens = 0;
  for (const std::vector<int64_t>& row : positions.lists) {
    tokens += static_cast<int64_t>(row.size());
    for (const int64_t position : row) {
      if (position < 0)
        return bad(fmt::format("position_ids holds a negative position: {}", position));
    }
    const std::vector<int64_t> documents = split_positions(row);
    lengths.insert(lengths.end(), documents.begin(), documents.end());
  }
  if (lengths.empty())
    return bad("position_ids is empty", "give the position of every token in its document");
  if (tokens > kMostListedTokens)
    return bad(
        fmt::format("position_ids has more tokens than an order file can list: {} tokens, "
                    "limit {}",
                    tokens, kMostListedTokens));
  return lengths;
}

/// Slots of the sequences and their valid lengths.
struct Boundaries {
  std::vector<int64_t> lengths, slots;
  bool are_known = false;
  int64_t tokens = 0;
};

Result<Boundaries> find_boundaries(const ImportRequest& request, Side side) {
  const bool is_kv = side == Side::kv;
  const NamedLists* valid = is_kv ? find_lists(request, {"cu_seqlens_kv"})
                                  : find_lists(request, {"cu_seqlens", "cu_seqlens_q"});
  if (request.source == OrderSource::vllm && !is_kv && valid == nullptr)
    valid = find_lists(request, {"query_start_loc", "query_start_loc_cpu"});
  const NamedLists* padded =
      is_kv ? find_lists(request, {"cu_seqlens_kv_padded"})
            : find_lists(request, {"cu_seqlens_padded", "cu_seqlens_q_padded"});
  const NamedLists* positions = is_kv ? nullptr : find_position_ids(request);
  Boundaries found;
  if (padded != nullptr || valid != nullptr) {
    const NamedLists& slots = padded != nullptr ? *padded : *valid;
    const Result<std::vector<int64_t>> list = single_list(slots);
    if (!list) return list.error();
    Result<std::vector<int64_t>> lengths = lengths_of(list.value(), slots.name);
    if (!lengths) return lengths.error();
    found.slots = std::move(lengths).value();
  } else if (!is_kv && !request.cu_seqlens.empty()) {
    Result<std::vector<int64_t>> lengths = lengths_of(request.cu_seqlens, "--cu-seqlens");
    if (!lengths) return lengths.error();
    found.slots = std::move(lengths).value();
  } else if (positions != nullptr) {
    Result<std::vector<int64_t>> lengths = lengths_of_documents(*positions);
    if (!lengths) return lengths.error();
    found.slots = std::move(lengths).value();
  } else if (!is_kv && request.tokens > 0) {
    found.slots = {request.tokens};
  } else {
    return found;
  }
  found.are_known = true;
  found.lengths = found.slots;
  for (const int64_t slot : found.slots) found.tokens += slot;
  if (valid == nullptr || padded == nullptr) return found;
  const Result<std::vector<int64_t>> list = single_list(*valid);
  if (!list) return list.error();
  Result<std::vector<int64_t>> lengths = lengths_of(list.value(), valid->name);
  if (!lengths) return lengths.error();
  found.lengths = std::move(lengths).value();
  if (found.lengths.size() != found.slots.size())
    return bad(fmt::format("{} and {} count different sequences: {} and {}", valid->name,
                           padded->name, found.lengths.size(), found.slots.size()));
  for (size_t s = 0; s < found.slots.size(); ++s) {
    if (found.lengths[s] > found.slots[s])
      return bad(fmt::format("sequence {} is longer than its slot: {} valid tokens, {} padded", s,
                             found.lengths[s], found.slots[s]));
  }
  return found;
}

/// "slot of sequence 1 is not divisible by 8: 12".
std::optional<Error> check_multiple(const std::vector<int64_t>& slots, int64_t multiple,
                                    std::string_view why) {
  for (size_t s = 0; s < slots.size(); ++s) {
    if (slots[s] % multiple != 0)
      return bad(
          fmt::format("the slot of sequence {} is not divisible by {}, which {} requires: {}", s,
                      multiple, why, slots[s]),
          "pad the sequences first");
  }
  return std::nullopt;
}

Result<int64_t> find_cp_size(const ImportRequest& request, int64_t lists) {
  if (request.cp_size > kMaxRanks || lists > kMaxRanks)
    return bad(fmt::format("more ranks than {}: {}", kMaxRanks, std::max(request.cp_size, lists)));
  if (lists > 0 && request.cp_size > 0 && lists != request.cp_size)
    return bad(fmt::format("the number of lists must equal the number of ranks: {} lists, {} ranks",
                           lists, request.cp_size));
  if (request.cp_size < 0) return bad(fmt::format("cp_size is negative: {}", request.cp_size));
  const int64_t ranks = lists > 0 ? lists : request.cp_size;
  if (ranks <= 0) return bad("the number of ranks is missing", "give --cp-size");
  return ranks;
}

/// The first place where two orders differ; empty if they are the same.
std::string first_order_difference(const RankLists& seen, const RankLists& expected,
                                   std::string_view formula) {
  for (size_t r = 0; r < expected.size(); ++r) {
    for (size_t row = 0; row < std::max(seen[r].size(), expected[r].size()); ++row) {
      const auto at = [&](const RankLists& lists) {
        return row < lists[r].size() ? fmt::to_string(lists[r][row]) : std::string("nothing");
      };
      if (at(seen) != at(expected))
        return fmt::format("rank {}, local row {}: the list says {}, {} gives {}", r, row, at(seen),
                           formula, at(expected));
    }
  }
  return "";
}

/// One side of a TransformerEngine batch: its given lists, checked against the formula, or the
/// formula's lists.
Result<RankLists> import_te_side(const ImportRequest& request, const Boundaries& boundaries,
                                 Side side, OrderImport& order) {
  constexpr std::string_view kFormula = "thd_get_partitioned_indices";
  const std::string prefix = side == Side::kv ? "kv: " : "";
  const NamedLists* given =
      side == Side::kv ? find_lists(request, {"indices_kv"}) : find_lists(request, {"indices", ""});
  if (given == nullptr) {
    const int64_t ranks = order.cp_size;
    if (!boundaries.are_known)
      return bad("neither lists nor boundaries are given",
                 "give indices (a list a rank), cu_seqlens_padded, or both");
    if (auto error = check_multiple(boundaries.slots, 2 * ranks, "TransformerEngine"))
      return *error;
    order.notes.push_back(prefix + "the lists are computed as " + std::string(kFormula) + " does");
    return te_partition(boundaries.slots, ranks);
  }
  if (static_cast<int64_t>(given->lists.size()) != order.cp_size)
    return bad(fmt::format("{} must have one list per rank: {} lists, {} ranks", given->name,
                           given->lists.size(), order.cp_size));
  if (!boundaries.are_known) {
    order.notes.push_back(prefix + "without cu_seqlens_padded the lists are not checked");
    return given->lists;
  }
  if (check_multiple(boundaries.slots, 2 * order.cp_size, "")) {
    order.differences.push_back(
        prefix + fmt::format("TransformerEngine requires slots that are multiples of {}",
                             2 * order.cp_size));
    return given->lists;
  }
  const std::string difference =
      first_order_difference(given->lists, te_partition(boundaries.slots, order.cp_size), kFormula);
  if (difference.empty()) {
    order.notes.push_back(prefix + "the lists are those of " + std::string(kFormula));
  } else {
    order.differences.push_back(prefix + difference);
  }
  return given->lists;
}

void take_boundaries(const Boundaries& boundaries, std::vector<int64_t>& lengths,
                     std::vector<int64_t>& slots) {
  lengths = boundaries.lengths;
  slots = boundaries.slots;
}

std::optional<Error> check_partition(const RankLists& ranks, const Boundaries& boundaries,
                                     std::string_view side) {
  int64_t listed = 0;
  for (const auto& list : ranks) listed += static_cast<int64_t>(list.size());
  const int64_t tokens = boundaries.are_known ? boundaries.tokens : listed;
  BatchPlaces places;
  if (boundaries.are_known) places = {boundaries.lengths, boundaries.slots};
  if (auto fault = describe_partition_fault(ranks, tokens, places))
    return bad(fmt::format("the {} lists are not a partition of tokens 0 to {}: {}", side,
                           tokens - 1, *fault),
               "every packed padded token, padding included, has one owner");
  return std::nullopt;
}

Result<OrderImport> import_te(const ImportRequest& request) {
  const NamedLists* lists = find_lists(request, {"indices", ""});
  const Result<int64_t> ranks =
      find_cp_size(request, lists == nullptr ? 0 : static_cast<int64_t>(lists->lists.size()));
  if (!ranks) return ranks.error();
  OrderImport order;
  order.cp_size = static_cast<int32_t>(ranks.value());
  const Result<Boundaries> q = find_boundaries(request, Side::q),
                           kv = find_boundaries(request, Side::kv);
  if (!q) return q.error();
  if (!kv) return kv.error();
  Result<RankLists> q_lists = import_te_side(request, q.value(), Side::q, order);
  if (!q_lists) return q_lists.error();
  order.ranks = std::move(q_lists).value();
  if (auto error = check_partition(order.ranks, q.value(), "query")) return *error;
  take_boundaries(q.value(), order.lengths, order.slots);
  if (!kv.value().are_known && find_lists(request, {"indices_kv"}) == nullptr) return order;
  Result<RankLists> kv_lists = import_te_side(request, kv.value(), Side::kv, order);
  if (!kv_lists) return kv_lists.error();
  if (auto error = check_partition(kv_lists.value(), kv.value(), "kv")) return *error;
  const bool is_same = kv_lists.value() == order.ranks && kv.value().lengths == q.value().lengths &&
                       kv.value().slots == q.value().slots;
  if (is_same) return order;
  order.kv_ranks = std::move(kv_lists).value();
  take_boundaries(kv.value(), order.kv_lengths, order.kv_slots);
  return order;
}

/// rearrange of one sequence, from rearrange itself or from its inverse.
Result<std::vector<int64_t>> find_rearrange(const std::vector<int64_t>& list, bool is_inverse) {
  const auto size = static_cast<int64_t>(list.size());
  if (auto fault = describe_partition_fault({list}, size))
    return bad(fmt::format("the indices are not a permutation of 0 to {}: {}", size - 1, *fault));
  if (!is_inverse) return list;
  std::vector<int64_t> rearrange(list.size());
  for (int64_t i = 0; i < size; ++i) rearrange[list[i]] = i;
  return rearrange;
}

/// Megatron's PackedSeqParams is a TransformerEngine batch with the sizes that its kernels are
/// told.
Result<OrderImport> import_megatron(const ImportRequest& request) {
  Result<OrderImport> made = import_te(request);
  if (!made) return made;
  OrderImport& order = made.value();
  const auto check = [&](std::string_view name, const std::vector<int64_t>& lengths) {
    const NamedLists* told = find_lists(request, {name});
    if (told == nullptr || lengths.empty() || told->lists.empty() || told->lists[0].empty()) return;
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    if (told->lists[0][0] < longest)
      order.differences.push_back(fmt::format("{} is below the longest sequence: {}, {} tokens",
                                              name, told->lists[0][0], longest));
  };
  check("max_seqlen_q", order.lengths);
  check("max_seqlen_kv", order.kv_lengths.empty() ? order.lengths : order.kv_lengths);
  return made;
}

Result<OrderImport> import_torch(const ImportRequest& request) {
  const NamedLists* lists = find_lists(request, {"rearrange", ""});
  const NamedLists* restore = find_lists(request, {"restore"});
  const bool is_inverse = lists == nullptr;
  if (is_inverse) lists = restore;
  if (lists == nullptr || lists->lists.empty())
    return bad("the indices are missing: rearrange", "give rearrange, or its inverse restore");
  const Result<int64_t> ranks = find_cp_size(request, 0);
  if (!ranks) return ranks.error();
  OrderImport order;
  order.cp_size = static_cast<int32_t>(ranks.value());
  order.ranks.resize(static_cast<size_t>(ranks.value()));
  int64_t begin = 0;
  for (const std::vector<int64_t>& list : lists->lists) {
    const auto size = static_cast<int64_t>(list.size());
    const Result<std::vector<int64_t>> rearrange = find_rearrange(list, is_inverse);
    if (!rearrange) return rearrange.error();
    if (size % ranks.value() != 0)
      return bad(fmt::format("the indices do not divide by the ranks: {} indices, {} ranks", size,
                             ranks.value()));
    const int64_t part = size / ranks.value();
    for (int64_t i = 0; i < size; ++i)
      order.ranks[i / part].push_back(begin + rearrange.value()[i]);
    order.slots.push_back(size);
    begin += size;
  }
  order.lengths = order.slots;
  if (!is_inverse && restore != nullptr) {
    if (restore->lists.size() != lists->lists.size())
      return bad("rearrange and restore have different numbers of sequences");
    for (size_t s = 0; s < lists->lists.size(); ++s) {
      const Result<std::vector<int64_t>> again = find_rearrange(restore->lists[s], true);
      if (!again) return again.error();
      if (again.value() != lists->lists[s])
        order.differences.push_back(
            fmt::format("restore is not the inverse of rearrange in sequence {}", s));
    }
    if (order.differences.empty()) order.notes.push_back("restore is the inverse of rearrange");
  }
  Result<Boundaries> boundaries = find_boundaries(request, Side::q);
  if (!boundaries) return boundaries.error();
  if (!boundaries.value().are_known) return order;
  if (boundaries.value().tokens != begin)
    return bad(fmt::format("boundaries and indices have different numbers of tokens: {} and {}",
                           boundaries.value().tokens, begin));
  take_boundaries(boundaries.value(), order.lengths, order.slots);
  return order;
}

Result<OrderImport> import_named(const ImportRequest& request) {
  const Result<int64_t> ranks = find_cp_size(request, 0);
  if (!ranks) return ranks.error();
  const Result<Boundaries> boundaries = find_boundaries(request, Side::q);
  if (!boundaries) return boundaries.error();
  if (!boundaries.value().are_known)
    return bad("the batch is missing", "give --tokens or --cu-seqlens");
  const bool is_usp = request.source == OrderSource::usp;
  if (is_usp && (request.ulysses_degree < 1 || ranks.value() % request.ulysses_degree != 0))
    return bad(fmt::format("the ranks do not divide by the ulysses degree: {} ranks, degree {}",
                           ranks.value(), request.ulysses_degree));
  const std::optional<NamedFormula> formula =
      find_formula(is_usp, request.layout, ranks.value(), request.ulysses_degree);
  if (!formula)
    return bad(fmt::format("{} has no layout of this name: {}", to_name(request.source),
                           request.layout.empty() ? "none given" : request.layout),
               is_usp ? "basic, zigzag or strip" : "ring, zigzag, stripe or llama3");
  std::vector<int64_t> units = boundaries.value().slots;
  if (formula->is_packed) units = {boundaries.value().tokens};
  if (auto error = check_multiple(units, formula->multiple,
                                  fmt::format("{} {}", to_name(request.source), request.layout)))
    return *error;
  OrderImport order;
  order.cp_size = static_cast<int32_t>(ranks.value());
  order.ranks = formula->assign(units);
  take_boundaries(boundaries.value(), order.lengths, order.slots);
  return order;
}

/// Gives every row that repeats the last token's id an id of its own. The token itself is where its
/// predecessor is the row before; without that, the first such row. Returns the number of rows that
/// are padding.
int64_t number_padding(RankLists& ranks, int64_t last) {
  int64_t* token = nullptr;
  std::vector<int64_t*> rows;  // all that hold the last id, in order
  for (std::vector<int64_t>& list : ranks) {
    for (size_t row = 0; row < list.size(); ++row) {
      if (list[row] != last) continue;
      rows.push_back(&list[row]);
      if (row > 0 && list[row - 1] == last - 1) token = &list[row];
    }
  }
  if (rows.empty()) return 0;
  if (token == nullptr) token = rows.front();
  int64_t next = last;
  // Rows behind the token, in the same chunk, come first.
  const auto first = std::find(rows.begin(), rows.end(), token);
  for (auto row = first; row != rows.end(); ++row) **row = next++;
  for (auto row = rows.begin(); row != first; ++row) **row = next++;
  return next - last - 1;
}

Result<OrderImport> import_magi(const ImportRequest& request) {
  const NamedLists* lists = find_lists(request, {"position_ids", ""});
  if (lists == nullptr || lists->lists.empty())
    return bad("the position ids are missing", "give what get_position_ids returns on each rank");
  const Result<int64_t> ranks = find_cp_size(request, static_cast<int64_t>(lists->lists.size()));
  if (!ranks) return ranks.error();
  OrderImport order;
  order.cp_size = static_cast<int32_t>(ranks.value());
  order.ranks = lists->lists;
  int64_t last = -1;
  for (const std::vector<int64_t>& list : order.ranks) {
    for (const int64_t id : list) last = std::max(last, id);
  }
  const int64_t padding = number_padding(order.ranks, last);
  Result<Boundaries> boundaries = find_boundaries(request, Side::q);
  if (!boundaries) return boundaries.error();
  if (!boundaries.value().are_known) boundaries.value() = {{last + 1}, {last + 1}, true, last + 1};
  if (boundaries.value().tokens != last + 1 || boundaries.value().slots.empty())
    return bad(
        fmt::format("boundaries and position ids have different numbers of tokens: {} and {}",
                    boundaries.value().tokens, last + 1));
  boundaries.value().slots.back() += padding;
  boundaries.value().tokens += padding;
  if (auto error = check_partition(order.ranks, boundaries.value(), "query")) return *error;
  take_boundaries(boundaries.value(), order.lengths, order.slots);
  order.notes.push_back(
      fmt::format("{} rows repeat the id of the last token, {}: they are padding", padding, last));
  return order;
}

/// The lists of a step of vLLM that all ranks have, once.
ImportRequest without_copies(const ImportRequest& request) {
  ImportRequest once = request;
  for (NamedLists& named : once.given) {
    const bool is_of_batch = named.name.starts_with("cu_seqlens") ||
                             named.name.starts_with("query_start_loc") ||
                             named.name == "position_ids";
    const bool is_same = std::all_of(named.lists.begin(), named.lists.end(),
                                     [&](const auto& list) { return list == named.lists.front(); });
    if (is_of_batch && is_same && !named.lists.empty()) named.lists.resize(1);
  }
  return once;
}

Result<OrderImport> import_vllm(const ImportRequest& given) {
  const ImportRequest request = without_copies(given);
  const NamedLists* lists = find_lists(request, {"slot_mapping", ""});
  const Result<int64_t> ranks =
      find_cp_size(request, lists == nullptr ? 0 : std::ssize(lists->lists));
  if (!ranks) return ranks.error();
  const Result<Boundaries> boundaries = find_boundaries(request, Side::q);
  if (!boundaries) return boundaries.error();
  if (!boundaries.value().are_known) return import_vllm(request, ranks.value(), std::nullopt);
  return import_vllm(request, ranks.value(), boundaries.value().lengths);
}

/// The first of cpscope's layouts that assigns the tokens as the order does.
std::string find_same_layout(const OrderImport& order) {
  if (order.slots.empty() || !order.kv_ranks.empty()) return "";
  Scenario scenario;
  scenario.attention.heads = scenario.attention.kv_heads = 1;
  scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 1;
  scenario.batch.lengths = scenario.batch.kv_lengths = order.lengths;
  scenario.batch.slots = scenario.batch.kv_slots = order.slots;
  scenario.batch.pad_between_seqs = false;
  scenario.parallel.cp_size = order.cp_size;
  for (const LayoutKind kind : {LayoutKind::dual_chunk, LayoutKind::dual_chunk_packed,
                                LayoutKind::contiguous, LayoutKind::striped}) {
    scenario.parallel.layout = kind;
    const Result<Layout> layout = make_layout(scenario);
    if (!layout || layout.value().slots.tokens != order.tokens()) continue;
    bool is_same = true;
    for (const RankId rank : layout.value().q_runs.ids())
      is_same = is_same && expand(layout.value().q_runs[rank]) == order.ranks[to_index(rank)];
    if (is_same) return std::string(to_name(kind));
  }
  return "";
}

/// Names of lists that the source has no use for, in the order of the files.
std::vector<std::string> find_ignored(const ImportRequest& request) {
  std::vector<std::string_view> known = {"cp_size",           "position_ids",
                                         "cu_seqlens",        "cu_seqlens_q",
                                         "cu_seqlens_padded", "cu_seqlens_q_padded"};
  const auto add = [&](std::initializer_list<std::string_view> names) {
    known.insert(known.end(), names);
  };
  if (request.source == OrderSource::te)
    add({"", "indices", "indices_kv", "cu_seqlens_kv", "cu_seqlens_kv_padded"});
  if (request.source == OrderSource::megatron)
    add({"cu_seqlens_kv", "cu_seqlens_kv_padded", "max_seqlen_q", "max_seqlen_kv",
         "local_cp_size"});
  if (request.source == OrderSource::torch) add({"", "rearrange", "restore"});
  if (request.source == OrderSource::magi) add({""});
  if (request.source == OrderSource::vllm) {
    const std::vector<std::string_view> names = names_of_vllm();
    known.insert(known.end(), names.begin(), names.end());
  }
  std::vector<std::string> ignored;
  for (const NamedLists& lists : request.given) {
    if (std::find(known.begin(), known.end(), lists.name) != known.end()) continue;
    ignored.push_back(lists.name.empty() ? "lists without a name" : lists.name);
  }
  return ignored;
}

/// What position_ids said of the sequences, or would have said next to boundaries.
void note_positions(const ImportRequest& request, OrderImport& order) {
  const NamedLists* positions = find_position_ids(request);
  if (positions == nullptr) return;
  const Result<std::vector<int64_t>> read = lengths_of_documents(*positions);
  if (!read) return;
  const std::vector<int64_t>& documents = read.value();
  const bool has_boundaries =
      !request.cu_seqlens.empty() ||
      find_lists(request, {"cu_seqlens", "cu_seqlens_q", "cu_seqlens_padded",
                           "cu_seqlens_q_padded"}) != nullptr;
  if (has_boundaries) {
    order.notes.push_back(
        documents == order.slots
            ? "position_ids restart where the sequences begin"
            : fmt::format("position_ids restart elsewhere, and the boundaries are used: {} "
                          "documents, {} sequences",
                          documents.size(), order.slots.size()));
    return;
  }
  order.notes.push_back(
      fmt::format("the sequences are the {} documents of position_ids", documents.size()));
  const auto single = std::find_if(documents.rbegin(), documents.rend(),
                                   [](int64_t length) { return length != 1; });
  const auto singles = single - documents.rbegin();
  if (singles > 1)
    order.notes.push_back(
        fmt::format("the last {} documents have one token each: they may be padding", singles));
}

}  // namespace

Result<OrderImport> import_order(const ImportRequest& request) {
  const std::vector<std::string> ignored = find_ignored(request);
  if (request.source != OrderSource::usp && request.ulysses_degree != 1)
    return bad(fmt::format("{} has no ulysses degree: {}", to_name(request.source),
                           request.ulysses_degree),
               "leave it out, or import from usp");
  Result<OrderImport> order = request.source == OrderSource::te         ? import_te(request)
                              : request.source == OrderSource::torch    ? import_torch(request)
                              : request.source == OrderSource::magi     ? import_magi(request)
                              : request.source == OrderSource::megatron ? import_megatron(request)
                              : request.source == OrderSource::vllm     ? import_vllm(request)
                                                                        : import_named(request);
  if (order && order.value().tokens() == 0) order = bad("there are no tokens", "give some");
  if (!order) {
    Error error = order.error();
    std::string& hint = error.complaints.front().hint;
    if (!ignored.empty())
      hint += fmt::format("{}ignored: {}", hint.empty() ? "" : "; ", fmt::join(ignored, ", "));
    return error;
  }
  order.value().ignored = ignored;
  order.value().same_layout = find_same_layout(order.value());
  note_positions(request, order.value());
  return order;
}

}  // namespace cpscope
