#include "sim/scenario/sparse_rows.h"

#include "sim/scenario/mask_file.h"
#include "sim/scenario/mask_slices.h"
#include "sim/scenario/portable_random.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// `count` different numbers below `total`, ascending, every set equally likely; a function of
/// (seed, stream). Source: Floyd's sample without replacement (Bentley & Floyd 1987).
std::set<int64_t> draw_sample(uint64_t seed, int64_t stream, int64_t total, int64_t count) {
  std::set<int64_t> sample;
  for (int64_t last = total - count; last < total; ++last) {
    const uint64_t bits =
        draw_bits(seed, static_cast<uint64_t>(stream), static_cast<uint64_t>(last));
    const auto number = static_cast<int64_t>(bits % static_cast<uint64_t>(last + 1));
    if (!sample.insert(number).second) sample.insert(last);
  }
  return sample;
}

void add_run(int64_t begin, int64_t end, std::vector<MaskRun>& runs) {
  if (begin >= end) return;
  if (!runs.empty() && runs.back().end == begin)
    runs.back().end = end;
  else
    runs.push_back({begin, end});
}

/// The rows of one mask over a batch.
class SparseRows {
 public:
  SparseRows(const MaskGenerator& mask, const Batch& batch)
      : mask_(mask), sequences_(find_valid_tokens(batch)) {}

  /// The keys of a row, valid tokens counted through the batch.
  void read(int64_t row, std::vector<MaskRun>& runs) const {
    const auto sequence =
        std::upper_bound(sequences_.begin(), sequences_.end(), row,
                         [](int64_t token, const ValidTokens& later) { return token < later.q; }) -
        1;
    const uint64_t seed =
        draw_bits(mask_.seed, static_cast<uint64_t>(sequence - sequences_.begin()), 0);
    runs.clear();
    if (mask_.name == "top_k")
      add_top_k(seed, row - sequence->q, sequence->k, runs);
    else
      add_blocks(seed, row - sequence->q, sequence->k, runs);
  }

  /// At most so many numbers are drawn for all rows.
  double count_draws() const {
    double draws = 0;
    for (const ValidTokens& sequence : sequences_) {
      const auto rows = static_cast<double>(sequence.queries);
      const int64_t of_row =
          mask_.name == "top_k"
              ? mask_.keys
              : std::min(mask_.blocks, sequence.queries / std::max<int64_t>(1, mask_.block));
      // A row that sees all keys before it draws nothing.
      if (mask_.name == "top_k" && mask_.keys >= sequence.queries) continue;
      draws += rows * static_cast<double>(of_row);
    }
    return draws;
  }

 private:
  void add_top_k(uint64_t seed, int64_t position, int64_t first, std::vector<MaskRun>& runs) const {
    const int64_t end = position + 1;
    const int64_t near =
        mask_.window_left < 0 ? end : std::max<int64_t>(0, end - 1 - mask_.window_left);
    const int64_t sinks = std::min(mask_.count, near);
    const int64_t others = near - sinks,
                  drawn = std::clamp<int64_t>(mask_.keys - sinks - (end - near), 0, others);
    add_run(first, first + sinks, runs);
    if (drawn == others) {
      add_run(first + sinks, first + near, runs);
    } else {
      for (const int64_t key : draw_sample(seed, position, others, drawn))
        add_run(first + sinks + key, first + sinks + key + 1, runs);
    }
    add_run(first + near, first + end, runs);
  }

  void add_blocks(uint64_t seed, int64_t position, int64_t first,
                  std::vector<MaskRun>& runs) const {
    const int64_t block = position / mask_.block, drawn = std::min(mask_.blocks, block);
    for (const int64_t other : draw_sample(seed, block, block, drawn))
      add_run(first + other * mask_.block, first + (other + 1) * mask_.block, runs);
    add_run(first + block * mask_.block, first + position + 1, runs);
  }

  const MaskGenerator& mask_;
  const std::vector<ValidTokens> sequences_;  // [sequence]
};

}  // namespace

Result<std::vector<MaskSlice>> draw_sparse_slices(const MaskGenerator& generator,
                                                  const Batch& batch) {
  const SparseRows rows(generator, batch);
  if (rows.count_draws() > static_cast<double>(kMostDraws))
    return make_bad_input(fmt::format("{} draws more keys than the limit of {}: {:.0f}",
                                      generator.name, kMostDraws, rows.count_draws()),
                          "use fewer tokens, or fewer keys of a row");
  const std::vector<ValidTokens> sequences = find_valid_tokens(batch);
  MaskRows mask;
  if (!sequences.empty()) {
    mask.rows = sequences.back().q + sequences.back().queries;
    mask.columns = sequences.back().k + sequences.back().keys;
  }
  mask.read = [&rows](int64_t row, std::vector<MaskRun>& runs) { rows.read(row, runs); };
  Result<MaskCut> cut = cut_mask(mask, batch, -1);
  if (!cut) return cut.error();
  return std::move(cut.value().slices);
}

}  // namespace cpscope
