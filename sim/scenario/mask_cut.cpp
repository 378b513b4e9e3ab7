#include "sim/scenario/mask_file.h"
#include "sim/scenario/mask_slices.h"
#include "sim/scenario/scenario_names.h"

#include <algorithm>
#include <optional>
#include <span>
#include <tuple>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// A slice that the next row may continue.
struct OpenSlice {
  MaskSlice slice;                     // of the rows so far; k1 is that of the last one
  MaskRun last;                        // of the last row
  std::optional<SliceType> direction;  // known from the second row on
};

std::optional<SliceType> direction_of(const MaskRun& above, const MaskRun& below) {
  const int64_t begin_step = below.begin - above.begin, end_step = below.end - above.end;
  if (begin_step == 0 && end_step == 0) return SliceType::full;
  if (begin_step == 0 && end_step == 1) return SliceType::causal;
  if (begin_step == 1 && end_step == 0) return SliceType::inv_causal;
  if (begin_step == 1 && end_step == 1) return SliceType::bi_causal;
  return std::nullopt;
}

/// Joins the runs of rows that follow one another into slices. Slices above the limit are counted
/// only.
class RowMerger {
 public:
  /// Adds rows [begin, end), which see the same; ids count through the batch. Rows ascend.
  void add_rows(int64_t begin, int64_t end, std::span<const MaskRun> runs);
  void add_slices(const std::vector<MaskSlice>& slices);
  /// No further rows follow.
  void finish();
  int64_t count() const { return count_; }  // known once finished
  MaskCut take() { return std::move(cut_); }

 private:
  void close(const OpenSlice& open) {
    if (++count_ <= kMaxFileSlices) cut_.slices.push_back(open.slice);
  }
  void close_all() {
    for (const OpenSlice& open : open_) close(open);
    open_.clear();
  }
  /// True if the rows continue the slice.
  static bool goes_on(const OpenSlice& open, int64_t begin, int64_t end, const MaskRun& run);

  std::vector<OpenSlice> open_;  // ascending
  MaskCut cut_;
  int64_t count_ = 0;
};

bool RowMerger::goes_on(const OpenSlice& open, int64_t begin, int64_t end, const MaskRun& run) {
  if (open.slice.q1 != begin) return false;
  const std::optional<SliceType> direction = direction_of(open.last, run);
  if (!direction || (open.direction && *open.direction != *direction)) return false;
  return *direction == SliceType::full || end - begin == 1;
}

void RowMerger::add_rows(int64_t begin, int64_t end, std::span<const MaskRun> runs) {
  std::vector<OpenSlice> going_on;
  going_on.reserve(runs.size());
  auto old = open_.begin();
  for (const MaskRun& run : runs) {
    cut_.pairs += (end - begin) * (run.end - run.begin);
    // Runs of a row lie apart, so that one old run at most begins here or one key before.
    for (; old != open_.end() && old->last.begin + 1 < run.begin; ++old) close(*old);
    if (old != open_.end() && goes_on(*old, begin, end, run)) {
      OpenSlice next = *old++;
      next.direction = direction_of(next.last, run);
      next.slice.type = *next.direction;
      next.slice.q1 = end;
      next.slice.k1 = run.end;
      next.last = run;
      going_on.push_back(next);
      continue;
    }
    OpenSlice fresh{{begin, end, run.begin, run.end}, run, std::nullopt};
    if (end - begin > 1) fresh.direction = SliceType::full;
    going_on.push_back(fresh);
  }
  for (; old != open_.end(); ++old) close(*old);
  open_ = std::move(going_on);
}

void RowMerger::add_slices(const std::vector<MaskSlice>& slices) {
  close_all();
  for (const MaskSlice& slice : slices) {
    close({slice, {}, std::nullopt});
    const int64_t rows = slice.q1 - slice.q0, columns = slice.k1 - slice.k0;
    // A causal slice lacks a corner of its rectangle.
    const int64_t corner = slice.type == SliceType::causal ? rows * (rows - 1) / 2 : 0;
    cut_.pairs += rows * columns - corner;
  }
}

void RowMerger::finish() {
  close_all();
  std::sort(cut_.slices.begin(), cut_.slices.end(), [](const MaskSlice& a, const MaskSlice& b) {
    return std::tuple(a.q0, a.k0) < std::tuple(b.q0, b.k0);
  });
}

/// The runs of a row of tiles as keys, cut at the number of keys, moved by `k`.
void expand_runs(const MaskRows& mask, int64_t keys, int64_t k, std::vector<MaskRun>& runs) {
  for (MaskRun& run : runs) {
    run.begin = k + run.begin * mask.column_tile;
    run.end = k + std::min(run.end * mask.column_tile, keys);
  }
}

/// Adds the mask of a sequence alone.
void add_sequence_rows(const MaskRows& mask, const ValidTokens& sequence, RowMerger& merger) {
  std::vector<MaskRun> runs;
  for (int64_t row = 0; row < mask.rows; ++row) {
    mask.read(row, runs);
    expand_runs(mask, sequence.keys, sequence.k, runs);
    const int64_t begin = row * mask.row_tile;
    const int64_t end = std::min(begin + mask.row_tile, sequence.queries);
    merger.add_rows(sequence.q + begin, sequence.q + end, runs);
  }
}

/// Adds the mask of the whole batch; says which query sees a key of another sequence.
std::optional<std::string> add_batch_rows(const MaskRows& mask,
                                          const std::vector<ValidTokens>& sequences, int64_t keys,
                                          RowMerger& merger) {
  std::vector<MaskRun> runs;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const ValidTokens& sequence = sequences[s];
    for (int64_t q = sequence.q; q < sequence.q + sequence.queries;) {
      const int64_t row = q / mask.row_tile;
      mask.read(row, runs);
      expand_runs(mask, keys, 0, runs);
      for (const MaskRun& run : runs) {
        const int64_t k_end = sequence.k + sequence.keys;
        if (run.begin >= sequence.k && run.end <= k_end) continue;
        const int64_t key = run.begin < sequence.k ? run.begin : std::max(run.begin, k_end);
        return fmt::format(
            "the mask lets query {} of sequence {} see a key of another sequence: "
            "key {}",
            q, s, key);
      }
      const int64_t end = std::min((row + 1) * mask.row_tile, sequence.q + sequence.queries);
      merger.add_rows(q, end, runs);
      q = end;
    }
  }
  return std::nullopt;
}

Error bad_fit(const MaskRows& mask, const Batch& batch, int64_t sequence) {
  const std::vector<ValidTokens> sequences = find_valid_tokens(batch);
  const ValidTokens& last = sequences.back();
  const ValidTokens& one =
      sequence < 0 ? sequences.front() : sequences[static_cast<size_t>(sequence)];
  const std::string tiles =
      mask.row_tile == 1 && mask.column_tile == 1
          ? ""
          : fmt::format(" of {} x {} tokens", mask.row_tile, mask.column_tile);
  return make_bad_input(
      fmt::format("the mask has {} rows and {}{} columns{}: the batch has {} queries and {} keys, "
                  "sequence {} has {} and {}",
                  mask.rows, mask.has_all_columns ? "" : "at least ", mask.columns, tiles,
                  last.q + last.queries, last.k + last.keys, std::max<int64_t>(0, sequence),
                  one.queries, one.keys),
      "give a mask of the valid tokens of the batch, or of a sequence");
}

}  // namespace

Result<MaskCut> cut_mask(const MaskRows& mask, const Batch& batch, int64_t sequence) {
  const std::vector<ValidTokens> sequences = find_valid_tokens(batch);
  if (sequences.empty()) return MaskCut{};
  const int64_t queries = sequences.back().q + sequences.back().queries;
  const int64_t keys = sequences.back().k + sequences.back().keys;
  const auto fits = [&](const ValidTokens& one) { return mask.fits(one.queries, one.keys); };
  RowMerger merger;
  if (sequence >= 0) {
    if (!fits(sequences[static_cast<size_t>(sequence)])) return bad_fit(mask, batch, sequence);
    for (size_t s = 0; s < sequences.size(); ++s) {
      if (static_cast<int64_t>(s) == sequence) {
        add_sequence_rows(mask, sequences[s], merger);
      } else {
        std::vector<MaskSlice> causal;
        add_causal_slices(sequences[s], causal);
        merger.add_slices(causal);
      }
    }
  } else if (mask.fits(queries, keys)) {
    if (auto fault = add_batch_rows(mask, sequences, keys, merger))
      return make_bad_input(*fault, "attention never crosses a sequence: clear that cell");
  } else if (std::all_of(sequences.begin(), sequences.end(), fits)) {
    for (const ValidTokens& one : sequences) add_sequence_rows(mask, one, merger);
  } else {
    return bad_fit(mask, batch, sequence);
  }
  merger.finish();
  if (merger.count() > kMaxFileSlices)
    return make_bad_input(fmt::format("the mask makes more slices than the limit of {}: {}",
                                      kMaxFileSlices, merger.count()),
                          "give fewer scattered keys, or fewer rows");
  return merger.take();
}

}  // namespace cpscope
