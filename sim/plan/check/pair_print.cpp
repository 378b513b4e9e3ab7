#include "sim/plan/check/pair_print.h"

#include "sim/base/parallel.h"
#include "sim/plan/check/check_rows.h"
#include "sim/plan/visible_interval.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr int64_t kMostTokensToSearch = int64_t{1} << 24;

constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;

uint64_t reduce(uint64_t value) { return value >= kPrime ? value - kPrime : value; }
uint64_t add(uint64_t a, uint64_t b) { return reduce(a + b); }
uint64_t subtract(uint64_t a, uint64_t b) { return reduce(a + kPrime - b); }

uint64_t multiply(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return reduce((static_cast<uint64_t>(product) & kPrime) + static_cast<uint64_t>(product >> 61));
}

uint64_t raise(uint64_t base, uint64_t exponent) {
  uint64_t power = 1;
  for (; exponent != 0; exponent >>= 1, base = multiply(base, base))
    if (exponent & 1) power = multiply(power, base);
  return power;
}

uint64_t invert(uint64_t value) { return raise(value, kPrime - 2); }

/// Exponents are token ids, and ends of strided runs.
int64_t exponent_limit(const Plan& plan) {
  return 2 * std::max(plan.layout.slots.tokens, plan.layout.slots.kv_tokens) + 2;
}

/// Numbers without a pattern, the same in every run with one plan. They depend on the plan, so that
/// nobody can write a wrong one that fits them.
uint64_t draw(const Plan& plan, uint64_t number) {
  uint64_t x = (number + 1) * 0x9E3779B97F4A7C15ULL ^ plan.hash;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return (x ^ (x >> 31)) % (kPrime - 2) + 2;
}

}  // namespace

PowerTable::PowerTable(uint64_t base, int64_t limit) {
  while ((int64_t{1} << (2 * half_bits_)) < limit) ++half_bits_;
  const auto fill = [&](uint64_t step, std::vector<uint64_t>& powers) {
    powers.resize(size_t{1} << half_bits_);
    powers[0] = 1;
    for (size_t i = 1; i < powers.size(); ++i) powers[i] = multiply(powers[i - 1], step);
  };
  fill(base, low_);
  fill(multiply(low_.back(), base), high_);
}

uint64_t PowerTable::power(int64_t exponent) const {
  const auto bits = static_cast<uint64_t>(exponent);
  return multiply(low_[bits & (low_.size() - 1)], high_[bits >> half_bits_]);
}

void PowerTable::prepare_stride(int64_t stride) {
  const auto [found, is_new] = inverses_.try_emplace(stride, 0);
  if (is_new) found->second = invert(subtract(power(stride), 1));
}

uint64_t PowerTable::divide_by_step(uint64_t value, int64_t stride) const {
  return multiply(value, inverses_.at(stride));
}

uint64_t PowerTable::sum(int64_t stride, int64_t begin, int64_t end) const {
  if (begin >= end) return 0;
  return divide_by_step(subtract(power(stride * end), power(stride * begin)), stride);
}

PairPrint::PairPrint(const Plan& plan)
    : plan_(plan),
      x_(draw(plan, 1), exponent_limit(plan)),
      y_(draw(plan, 2), exponent_limit(plan)),
      xy_(multiply(draw(plan, 1), draw(plan, 2)), exponent_limit(plan)),
      heads_{0} {
  for (int32_t head = 0; head < plan.scenario.attention.heads; ++head)
    heads_.push_back(add(heads_.back(), draw(plan, 3 + static_cast<uint64_t>(head))));
  for (PowerTable* table : {&x_, &y_, &xy_}) {
    table->prepare_stride(1);
  }
  IdVector<RunListId, bool> is_prepared(plan.run_lists.size());
  for (const Pass* pass : {&plan.forward, &plan.backward}) {
    for (const ComputeItem& item : pass->computes) {
      if (item.num_slices == 0) continue;
      slice_sums_.try_emplace(SharedSlices(item), 0);
      for (const RunListId list : {item.q_tokens, item.kv_tokens}) {
        if (!is_prepared[list]) prepare_strides(list);
        is_prepared[list] = true;
      }
    }
  }
  sum_slices();
}

void PairPrint::prepare_strides(RunListId list) {
  int64_t last = 1;
  for (const TokenRun& run : plan_.list(list)) {
    // Runs of rows may have strides that no batch of so few tokens has.
    if (run.stride == last || run.stride == 1 || run.count() <= 1) continue;
    last = run.stride;
    for (PowerTable* table : {&x_, &y_, &xy_}) table->prepare_stride(last);
  }
}

uint64_t PairPrint::sum_run(const PowerTable& powers, const TokenRun& run, int64_t count) const {
  if (count == 0) return 0;
  if (count == 1) return powers.power(run.begin);
  return multiply(powers.power(run.begin), powers.sum(run.stride, 0, count));
}

size_t PairPrint::ListSums::run_of(int64_t row) const {
  const auto [from, to] = index.near(row, first_row.size() - 1);
  const auto begin = first_row.begin();
  return static_cast<size_t>(std::upper_bound(begin + static_cast<int64_t>(from),
                                              begin + static_cast<int64_t>(to) + 1, row) -
                             begin) -
         1;
}

std::unique_ptr<PairPrint::ListSums> PairPrint::list_sums(const PowerTable& powers,
                                                          RunListId list) const {
  auto sums = std::make_unique<ListSums>(ListSums{list, {0}, {0}, {}});
  sums->first_row.reserve(plan_.list(list).size() + 1);
  sums->before.reserve(plan_.list(list).size() + 1);
  // The sum of a run is the power of its first id times that of its shape, which stripes share.
  int64_t stride = 1, count = 1;
  uint64_t shape = 1;
  for (const TokenRun& run : plan_.list(list)) {
    if (run.stride != stride || run.count() != count) {
      stride = run.stride, count = run.count();
      shape = count == 1 ? 1 : powers.sum(stride, 0, count);
    }
    sums->first_row.push_back(sums->first_row.back() + count);
    sums->before.push_back(add(sums->before.back(), multiply(powers.power(run.begin), shape)));
  }
  sums->index.make(plan_.list(list).size(), sums->first_row.back(),
                   [&](size_t run) { return sums->first_row[run + 1]; });
  return sums;
}

uint64_t PairPrint::sum_rows(const PowerTable& powers, const ListSums& sums, int64_t begin,
                             int64_t end) const {
  const auto before = [&](int64_t row) {
    const size_t run = sums.run_of(row);
    return add(sums.before[run],
               sum_run(powers, plan_.list(sums.list)[run], row - sums.first_row[run]));
  };
  return subtract(before(end), before(begin));
}

std::pair<int64_t, int64_t> PairPrint::row_of(const ListSums& sums, int64_t row) const {
  const size_t run = sums.run_of(row);
  const TokenRun& all = plan_.list(sums.list)[run];
  return {all.at(row - sums.first_row[run]), all.stride};
}

uint64_t PairPrint::sum_band(ItemSums& item, const BandSlice& band) const {
  if (is_full(band)) {
    return multiply(sum_rows(y_, item.q, band.q0, band.q1), sum_rows(x_, item.k, band.k0, band.k1));
  }
  if (band.q1 - band.q0 == 1 || band.k1 - band.k0 == 1) {
    uint64_t sum = 0;
    for (int64_t row = band.q0; row < band.q1; ++row) {
      const ColumnRange seen = columns_of_row(band, row);
      if (seen.begin >= seen.end) continue;
      sum = add(sum, multiply(sum_rows(y_, item.q, row, row + 1),
                              sum_rows(x_, item.k, seen.begin, seen.end)));
    }
    return sum;
  }
  // Its rows and its columns lie in one run each: check_bands has proved it for slanted bands.
  const auto [query, stride] = row_of(item.q, band.q0);
  const int64_t key = row_of(item.k, band.k0).first;
  const Slant slant{band.q1 - band.q0, band.k1 - band.k0, band.lo, band.hi, stride};
  if (slant != item.slant) {
    item.slant = slant;
    item.slanted = sum_slant(slant);
  }
  return multiply(multiply(y_.power(query), x_.power(key)), item.slanted);
}

/// Row i sees columns [max(0, i + lo), min(columns, i + hi + 1)). The sum over the columns of a row
/// is a difference of two powers of x, so the sum over the rows is one of four geometric series.
uint64_t PairPrint::sum_slant(const Slant& slant) const {
  const auto [rows, columns, lo, hi, stride] = slant;
  const int64_t from = std::max<int64_t>(0, -hi);
  const int64_t to = std::min<int64_t>(rows, columns - lo);
  const int64_t full_end =
      std::clamp(columns - hi - 1, from, to);            // rows from here end at the edge
  const int64_t full_begin = std::clamp(-lo, from, to);  // rows up to here begin at the edge
  const uint64_t ends =
      add(multiply(x_.power(stride * std::min(columns, hi + 1 + from)),
                   // y^i x^(i - from), from `from` on
                   multiply(y_.power(stride * from), xy_.sum(stride, 0, full_end - from))),
          multiply(x_.power(stride * columns), y_.sum(stride, full_end, to)));
  const uint64_t begins =
      add(y_.sum(stride, from, full_begin),
          multiply(x_.power(stride * std::max<int64_t>(0, full_begin + lo)),
                   multiply(y_.power(stride * full_begin), xy_.sum(stride, 0, to - full_begin))));
  return x_.divide_by_step(subtract(ends, begins), stride);
}

void PairPrint::sum_slices() {
  ListCache<ListSums> q_sums(plan_.run_lists.size(),
                             [&](RunListId list) { return list_sums(y_, list); });
  ListCache<ListSums> k_sums(plan_.run_lists.size(),
                             [&](RunListId list) { return list_sums(x_, list); });
  std::vector<std::pair<const SharedSlices, uint64_t>*> all;
  for (auto& entry : slice_sums_) {
    all.push_back(&entry);
    q_sums.add_use(entry.first.q_tokens);
    k_sums.add_use(entry.first.kv_tokens);
  }
  q_sums.make_kept();
  k_sums.make_kept();
  const int64_t blocks = std::min<int64_t>(std::ssize(all), 64);
  for_each_index(blocks, [&](int64_t block) {
    for (auto i = static_cast<size_t>(block); i < all.size(); i += static_cast<size_t>(blocks)) {
      const SharedSlices& shared = all[i]->first;
      std::unique_ptr<ListSums> own_q, own_k;
      ItemSums item{q_sums.of(shared.q_tokens, own_q), k_sums.of(shared.kv_tokens, own_k), {}, 0};
      uint64_t sum = 0;
      for (int64_t slice = 0; slice < shared.num_slices; ++slice)
        sum = add(sum, sum_band(item, plan_.slices[shared.first_slice + slice]));
      all[i]->second = sum;
    }
  });
}

uint64_t PairPrint::of_items(Direction direction) const {
  uint64_t total = 0;
  for (const ComputeItem& item : plan_.pass(direction).computes) {
    if (item.num_slices == 0) continue;
    const uint64_t sum = slice_sums_.at(SharedSlices(item));
    total = add(total, multiply(sum, subtract(heads_[item.heads.end], heads_[item.heads.begin])));
  }
  return total;
}

uint64_t PairPrint::of_mask() const {
  const std::vector<VisibleBlock> blocks = visible_blocks(plan_);
  std::vector<uint64_t> sums(blocks.size(), 0);
  for_each_index(std::ssize(blocks), [&](int64_t b) {
    const VisibleBlock& block = blocks[b];
    const SequenceSlot& slot = plan_.layout.slots.sequences[block.sequence];
    uint64_t sum = 0;
    for (int64_t i = block.begin; i < block.end; ++i) {
      const ColumnRange keys = visible_keys(plan_, block, i);
      if (keys.begin >= keys.end) continue;
      sum = add(sum, multiply(y_.power(slot.q_valid_begin() + i),
                              subtract(x_.power(slot.kv_valid_begin() + keys.end),
                                       x_.power(slot.kv_valid_begin() + keys.begin))));
    }
    sums[b] = sum;
  });
  uint64_t total = 0;
  for (const uint64_t sum : sums) total = add(total, sum);
  return multiply(x_.divide_by_step(total, 1), heads_.back());
}

/// Where a pair with a head could have been computed, in words.
std::string PairPrint::chance_of(Direction direction, std::pair<int64_t, int32_t> cell,
                                 int64_t query) const {
  const auto has = [&](RunListId list, int64_t token) {
    const auto runs = plan_.list(list);
    return std::any_of(runs.begin(), runs.end(), [&](const TokenRun& run) {
      return token >= run.begin && token < run.end && (token - run.begin) % run.stride == 0;
    });
  };
  for (const ComputeItem& item : plan_.pass(direction).computes) {
    if (has(item.q_tokens, query) && has(item.kv_tokens, cell.first) &&
        item.heads.begin <= cell.second && item.heads.end > cell.second)
      return fmt::format("; rank {} holds both in step {}", to_index(item.rank),
                         to_index(item.step));
  }
  return "; no compute item holds both";
}

std::optional<PairDifference> PairPrint::find_difference(Direction direction) const {
  const BatchSlots& slots = plan_.layout.slots;
  if (slots.tokens > kMostTokensToSearch) return std::nullopt;
  const std::vector<ComputeItem>& computes = plan_.pass(direction).computes;
  constexpr int64_t kMostRows = int64_t{1} << 30, kMostCells = int64_t{1} << 24;
  int64_t rows = 0;
  for (const ComputeItem& item : computes) {
    for (const BandSlice& band : plan_.slices_of(item)) rows += band.q1 - band.q0;
    if (rows > kMostRows) return std::nullopt;
  }
  std::map<RunListId, RowReader> q_readers, k_readers;
  const auto reader = [&](auto& readers, RunListId list, Side side) -> const RowReader& {
    return readers.try_emplace(list, plan_, list, side).first->second;
  };
  std::vector<uint64_t> open(static_cast<size_t>(slots.tokens), 0);  // [query token]
  for (const VisibleBlock& block : visible_blocks(plan_)) {
    const SequenceSlot& slot = slots.sequences[block.sequence];
    for (int64_t i = block.begin; i < block.end; ++i) {
      const ColumnRange keys = visible_keys(plan_, block, i);
      if (keys.begin >= keys.end) continue;
      const uint64_t sum =
          sum_run(x_, {slot.kv_valid_begin() + keys.begin, slot.kv_valid_begin() + keys.end, 1},
                  keys.end - keys.begin);
      uint64_t& row = open[slot.q_valid_begin() + i];
      row = add(row, multiply(sum, heads_.back()));
    }
  }
  std::map<RunListId, std::unique_ptr<ListSums>> k_sums;
  for (const ComputeItem& item : computes) {
    if (item.num_slices == 0) continue;
    std::unique_ptr<ListSums>& keys = k_sums[item.kv_tokens];
    if (!keys) keys = list_sums(x_, item.kv_tokens);
    for (const BandSlice& band : plan_.slices_of(item)) {
      for (int64_t row = band.q0; row < band.q1; ++row) {
        const ColumnRange seen = columns_of_row(band, row);
        if (seen.begin >= seen.end) continue;
        const uint64_t sum = sum_rows(x_, *keys, seen.begin, seen.end);
        uint64_t& left = open[reader(q_readers, item.q_tokens, Side::q).place(row).token];
        left = subtract(left,
                        multiply(sum, subtract(heads_[item.heads.end], heads_[item.heads.begin])));
      }
    }
  }
  const auto wrong = std::find_if(open.begin(), open.end(), [](uint64_t sum) { return sum != 0; });
  if (wrong == open.end()) return std::nullopt;
  const int64_t token = wrong - open.begin();
  // Of this query: how often each key is computed with each head, and by which item first.
  struct Seen {
    int64_t times = 0;
    const ComputeItem* first = nullptr;
    const ComputeItem* last = nullptr;
  };
  std::map<std::pair<int64_t, int32_t>, Seen> seen;  // key token, head
  int64_t cells = 0;
  for (const VisibleBlock& block : visible_blocks(plan_)) {
    const SequenceSlot& slot = slots.sequences[block.sequence];
    if (token < slot.q_valid_begin() + block.begin || token >= slot.q_valid_begin() + block.end)
      continue;
    const ColumnRange keys = visible_keys(plan_, block, token - slot.q_valid_begin());
    cells += (keys.end - keys.begin) * plan_.scenario.attention.heads;
    if (cells > kMostCells) return std::nullopt;
    for (int64_t key = keys.begin; key < keys.end; ++key) {
      for (int32_t head = 0; head < plan_.scenario.attention.heads; ++head)
        --seen[{slot.kv_valid_begin() + key, head}].times;
    }
  }
  for (const ComputeItem& item : computes) {
    for (const BandSlice& band : plan_.slices_of(item)) {
      for (int64_t row = band.q0; row < band.q1; ++row) {
        if (reader(q_readers, item.q_tokens, Side::q).place(row).token != token) continue;
        const ColumnRange columns = columns_of_row(band, row);
        cells += (columns.end - columns.begin) * item.heads.size();
        if (cells > kMostCells) return std::nullopt;
        for (int64_t column = columns.begin; column < columns.end; ++column) {
          const int64_t key = reader(k_readers, item.kv_tokens, Side::kv).place(column).token;
          for (int32_t head = item.heads.begin; head < item.heads.end; ++head) {
            Seen& cell = seen[{key, head}];
            ++cell.times;
            if (cell.first == nullptr) cell.first = &item;
            cell.last = &item;
          }
        }
      }
    }
  }
  for (const auto& [cell, found] : seen) {
    if (found.times != 0)
      return PairDifference{token, cell.first, cell.second, found.first, found.last};
  }
  return std::nullopt;
}

std::string PairPrint::first_difference(Direction direction) const {
  if (plan_.layout.slots.tokens > kMostTokensToSearch)
    return "the batch is too long to name the first pair";
  const auto found = find_difference(direction);
  if (!found) return "no single query differs, or the items have too many pairs to name the first";
  const std::string pair = fmt::format("query token {} and key token {} with head {}", found->query,
                                       found->key, found->head);
  if (found->first == nullptr)
    return pair + " are never computed" +
           chance_of(direction, {found->key, found->head}, found->query);
  return fmt::format("{} are computed by rank {} in step {} and by rank {} in step {}", pair,
                     to_index(found->first->rank), to_index(found->first->step),
                     to_index(found->last->rank), to_index(found->last->step));
}

}  // namespace cpscope
