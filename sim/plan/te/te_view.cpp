#include "sim/plan/te/te_view.h"

#include "sim/plan/te/te_rules.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace cpscope {
namespace {

std::vector<int64_t> prefix_sums(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> sums{0};
  for (const int64_t length : lengths) sums.push_back(sums.back() + length);
  return sums;
}

std::vector<int64_t> divided(std::vector<int64_t> sums, int64_t by) {
  for (int64_t& sum : sums) sum /= by;
  return sums;
}

int64_t longest(const std::vector<int64_t>& slots) {
  return slots.empty() ? 0 : *std::max_element(slots.begin(), slots.end());
}

/// One side of the batch.
struct BatchSide {
  std::vector<int64_t> valid, slots;  // [sequence]
};

/// Valid tokens in chunk c of a slot of 2*ranks chunks.
int64_t valid_in_chunk(int64_t valid, int64_t slot, int64_t ranks, int64_t chunk) {
  const int64_t size = slot / (2 * ranks);
  return std::clamp<int64_t>(valid - chunk * size, 0, size);
}

/// Valid tokens of every sequence in a half, or both, of a rank.
std::vector<int64_t> valid_in_half(const BatchSide& side, int64_t ranks, int64_t rank,
                                   TeHalf half) {
  std::vector<int64_t> counts;
  for (size_t s = 0; s < side.valid.size(); ++s) {
    const int64_t first = valid_in_chunk(side.valid[s], side.slots[s], ranks, rank);
    const int64_t second =
        valid_in_chunk(side.valid[s], side.slots[s], ranks, 2 * ranks - 1 - rank);
    counts.push_back(half == TeHalf::first    ? first
                     : half == TeHalf::second ? second
                                              : first + second);
  }
  return counts;
}

/// Cells of one sequence's rectangle, under a causal mask that begins top-left.
int64_t count_cells(int64_t q, int64_t kv, bool is_causal) {
  if (!is_causal) return q * kv;
  const int64_t rows = std::min(q, kv);
  return rows * (rows + 1) / 2 + (q - rows) * kv;
}

int64_t count_cells(const TeLengths& lengths, bool is_causal) {
  int64_t cells = 0;
  for (size_t s = 0; s + 1 < lengths.cu_seqlens_q.size(); ++s)
    cells += count_cells(lengths.cu_seqlens_q[s + 1] - lengths.cu_seqlens_q[s],
                         lengths.cu_seqlens_kv[s + 1] - lengths.cu_seqlens_kv[s], is_causal);
  return cells;
}

/// Describes where divided lengths compute other cells than the exact lengths. Tiles begin at the
/// same cell, so two non-empty tiles are the same only if both lengths are.
std::string describe_floored(const TeLengths& exact, const TeLengths& floored) {
  int64_t sequences = 0;
  std::string first;
  for (size_t s = 0; s + 1 < exact.cu_seqlens_q.size(); ++s) {
    const auto length = [s](const std::vector<int64_t>& sums) { return sums[s + 1] - sums[s]; };
    const int64_t q = length(exact.cu_seqlens_q), kv = length(exact.cu_seqlens_kv),
                  floor_q = length(floored.cu_seqlens_q), floor_kv = length(floored.cu_seqlens_kv);
    const bool both_empty = q * kv == 0 && floor_q * floor_kv == 0;
    if (both_empty || (q == floor_q && kv == floor_kv)) continue;
    if (sequences++ == 0)
      first =
          fmt::format("sequence {}: {} of {} queries x {} of {} keys", s, floor_q, q, floor_kv, kv);
  }
  if (sequences == 0) return "";
  return sequences == 1 ? first : fmt::format("{} and {} more sequences", first, sequences - 1);
}

class Viewer {
 public:
  explicit Viewer(const Plan& plan) : plan_(plan) {
    const Attention& attention = plan.scenario.attention;
    for (const SequenceSlot& slot : plan.layout.slots.sequences) {
      q_.valid.push_back(slot.q_valid);
      q_.slots.push_back(slot.q_slot);
      kv_.valid.push_back(slot.kv_valid);
      kv_.slots.push_back(slot.kv_slot);
    }
    is_contiguous_ = plan.scenario.parallel.layout == LayoutKind::contiguous;
    // cu_seqlens_padded ends where the buffer does (validate_no_load_balance_thd_metadata), so the
    // last slot takes the tail.
    if (is_contiguous_ && !q_.slots.empty()) {
      q_.slots.back() += plan.layout.slots.tokens - prefix_sums(q_.slots).back();
      kv_.slots.back() += plan.layout.slots.kv_tokens - prefix_sums(kv_.slots).back();
    }
    is_thd_ = plan.scenario.batch.qkv_format == QkvFormat::thd;
    is_causal_ = is_te_causal(attention.mask_type);
    window_left_ = attention.window_left;
    window_right_ = is_causal_ ? 0 : attention.window_right;
  }

  TeView view() {
    view_.cu_seqlens_q = prefix_sums(q_.valid);
    view_.cu_seqlens_kv = prefix_sums(kv_.valid);
    view_.cu_seqlens_q_padded = prefix_sums(q_.slots);
    view_.cu_seqlens_kv_padded = prefix_sums(kv_.slots);
    view_.max_seqlen_q = longest(q_.slots);
    view_.max_seqlen_kv = longest(kv_.slots);
    view_.notes = te_notes(plan_);
    const Parallel& parallel = plan_.scenario.parallel;
    switch (parallel.comm_type) {
      case CommType::a2a:
        for (int32_t rank = 0; rank < parallel.cp_size; ++rank) add_whole(rank);
        break;
      case CommType::all_gather:
        for (int32_t rank = 0; rank < parallel.cp_size; ++rank) {
          if (is_contiguous_) {
            add_contiguous_chunk(rank);
            continue;
          }
          for (int32_t step = 0; step < 2; ++step) add_chunk(rank, step);
        }
        break;
      case CommType::a2a_p2p:
        add_rings(parallel.a2a_size);
        break;
      default:
        add_rings(1);
    }
    return std::move(view_);
  }

 private:
  std::string mask_name(bool is_causal) const {
    if (is_thd_) return is_causal ? "padding_causal" : "padding";
    return is_causal ? "causal" : "no_mask";
  }

  /// Every rank of a ring of cp_size / ranks_a_place places; ranks of one place hold other heads.
  void add_rings(int32_t ranks_a_place) {
    const int32_t cp_size = plan_.scenario.parallel.cp_size, places = cp_size / ranks_a_place;
    for (int32_t rank = 0; rank < cp_size; ++rank) {
      for (int32_t step = 0; step < places; ++step)
        add_ring_tile(rank, rank / ranks_a_place, step, places);
    }
  }

  void add_ring_tile(int32_t rank, int32_t place, int32_t step, int32_t places) {
    TeTile tile{.rank = rank, .step = step, .kv_rank = (place - step + places) % places};
    if (is_causal_) {
      tile.section = step == 0       ? TeSection::diagonal
                     : step <= place ? TeSection::lower_triangle
                                     : TeSection::upper_triangle;
    }
    if (tile.section == TeSection::lower_triangle) tile.kv_half = TeHalf::first;
    if (tile.section == TeSection::upper_triangle) tile.q_half = TeHalf::second;
    const bool is_diagonal = tile.section == TeSection::diagonal;
    tile.attn_mask_type = mask_name(is_diagonal);
    tile.window_right = is_diagonal ? 0 : -1;
    const int64_t q_parts = places * (tile.q_half == TeHalf::both ? 1 : 2),
                  kv_parts = places * (tile.kv_half == TeHalf::both ? 1 : 2);
    tile.max_seqlen_q = view_.max_seqlen_q / q_parts;
    tile.max_seqlen_kv = view_.max_seqlen_kv / kv_parts;
    tile.lengths.cu_seqlens_q = prefix_sums(valid_in_half(q_, places, place, tile.q_half));
    tile.lengths.cu_seqlens_kv =
        prefix_sums(valid_in_half(kv_, places, tile.kv_rank, tile.kv_half));
    tile.lengths.pairs = count_cells(tile.lengths, is_diagonal);
    if (is_thd_) {
      tile.cu_seqlens_q_padded = divided(view_.cu_seqlens_q_padded, q_parts);
      tile.cu_seqlens_kv_padded = divided(view_.cu_seqlens_kv_padded, kv_parts);
      TeLengths floored{divided(view_.cu_seqlens_q, q_parts),
                        divided(view_.cu_seqlens_kv, kv_parts)};
      floored.pairs = count_cells(floored, is_diagonal);
      tile.floored_difference = describe_floored(tile.lengths, floored);
      tile.floored = std::move(floored);
    }
    view_.tiles.push_back(std::move(tile));
  }

  /// a2a: one attention call over the whole sequences.
  void add_whole(int32_t rank) {
    TeTile tile{.rank = rank, .kv_rank = -1};
    tile.attn_mask_type = mask_name(is_causal_);
    tile.window_left = window_left_;
    tile.window_right = window_right_;
    tile.max_seqlen_q = view_.max_seqlen_q;
    tile.max_seqlen_kv = view_.max_seqlen_kv;
    tile.lengths.cu_seqlens_q = view_.cu_seqlens_q;
    tile.lengths.cu_seqlens_kv = view_.cu_seqlens_kv;
    if (is_thd_) {
      tile.cu_seqlens_q_padded = view_.cu_seqlens_q_padded;
      tile.cu_seqlens_kv_padded = view_.cu_seqlens_kv_padded;
    }
    for (size_t s = 0; s < q_.valid.size(); ++s) {
      // Bottom-right and top-left are the same here: causal masks require equal lengths.
      const int64_t shift = kv_.valid[s] - q_.valid[s];
      for (int64_t i = 0; i < q_.valid[s]; ++i)
        tile.lengths.pairs += keys_at(i + shift, window_left_, window_right_, kv_.valid[s]).count();
    }
    view_.tiles.push_back(std::move(tile));
  }

  /// Key positions [begin, end).
  struct Keys {
    int64_t begin = 0, end = 0;
    int64_t count() const { return std::max<int64_t>(0, end - begin); }
    bool operator==(const Keys& other) const {
      return count() == other.count() && (count() == 0 || begin == other.begin);
    }
  };

  /// Keys within a window around a diagonal position, of `length` keys.
  static Keys keys_at(int64_t diagonal, int64_t left, int64_t right, int64_t length) {
    return {left < 0 ? 0 : std::clamp<int64_t>(diagonal - left, 0, length),
            right < 0 ? length : std::clamp<int64_t>(diagonal + right + 1, 0, length)};
  }

  /// Keys that a chunk gets and the window applied to them, from one slot length.
  struct ChunkKeys {
    int64_t begin = 0, end = 0, left = -1, right = -1;
  };
  ChunkKeys chunk_keys(int64_t chunk, int64_t q_slot, int64_t kv_slot) const {
    const int64_t parts = 2 * int64_t{plan_.scenario.parallel.cp_size};
    const int64_t q_size = q_slot / parts, end = (chunk + 1) * (kv_slot / parts);
    ChunkKeys keys;
    keys.end = window_right_ < 0 ? kv_slot : std::min(kv_slot, end + window_right_);
    keys.right = window_right_ < 0 ? -1 : end + window_right_ - keys.end;
    keys.begin = window_left_ < 0 ? 0 : std::max<int64_t>(0, end - q_size - window_left_);
    keys.left = window_left_ < 0 ? -1 : window_left_ + keys.end - end;
    return keys;
  }

  /// all_gather: one of the two query chunks of a rank against all keys that it may see.
  void add_chunk(int32_t rank, int32_t step) {
    const int64_t ranks = plan_.scenario.parallel.cp_size, parts = 2 * ranks;
    const int64_t chunk = step == 0 ? rank : parts - 1 - rank;
    TeTile tile{.rank = rank, .step = step, .kv_rank = -1, .section = TeSection::chunk};
    tile.q_half = step == 0 ? TeHalf::first : TeHalf::second;
    tile.attn_mask_type = mask_name(is_causal_);
    tile.is_bottom_right = true;
    if (is_causal_) tile.attn_mask_type += "_bottom_right";
    const ChunkKeys used = chunk_keys(chunk, view_.max_seqlen_q, view_.max_seqlen_kv);
    tile.window_left = used.left;
    tile.window_right = used.right;
    tile.max_seqlen_q = view_.max_seqlen_q / parts;
    tile.max_seqlen_kv = used.end;
    std::vector<int64_t> kv_lengths;
    if (is_thd_) {
      const std::vector<int64_t> local = divided(view_.cu_seqlens_q_padded, ranks);
      tile.cu_seqlens_q_padded = local;
      // The second chunk begins after the first; the last boundary does not change.
      for (size_t s = 0; step == 1 && s < q_.slots.size(); ++s)
        tile.cu_seqlens_q_padded[s] += q_.slots[s] / parts;
      tile.cu_seqlens_kv_padded = view_.cu_seqlens_kv_padded;
      const bool is_cut = is_causal_ || window_left_ >= 0 || window_right_ >= 0;
      for (size_t s = 0; s < kv_.valid.size(); ++s) {
        const int64_t limit =
            (chunk + 1) * (kv_.slots[s] / parts) + std::max<int64_t>(0, window_right_);
        kv_lengths.push_back(is_cut ? std::min(kv_.valid[s], limit) : kv_.valid[s]);
      }
    } else {
      tile.kv_begin = used.begin;
      tile.kv_end = used.end;
      kv_lengths.assign(kv_.valid.size(), used.end - used.begin);
      tile.max_seqlen_kv = used.end - used.begin;
    }
    tile.lengths.cu_seqlens_q = prefix_sums(valid_in_half(q_, ranks, rank, tile.q_half));
    tile.lengths.cu_seqlens_kv = prefix_sums(kv_lengths);
    std::vector<int64_t> positions;
    for (const int64_t slot : q_.slots) positions.push_back(chunk * (slot / parts));
    compare_chunk(positions, tile);
    view_.tiles.push_back(std::move(tile));
  }

  /// all_gather of tokens in order (get_no_load_balance_thd_causal_metadata): the part of every
  /// sequence in the rank's chunk of the buffer, against the sequence's keys up to the chunk's end.
  void add_contiguous_chunk(int32_t rank) {
    const std::vector<int64_t>& begins = view_.cu_seqlens_q_padded;
    const int64_t size = begins.back() / plan_.scenario.parallel.cp_size, begin = rank * size,
                  end = begin + size;
    TeTile tile{.rank = rank, .kv_rank = -1, .section = TeSection::chunk};
    tile.attn_mask_type = mask_name(true) + "_bottom_right";
    tile.is_bottom_right = true;
    tile.window_right = 0;
    tile.max_seqlen_q = std::min(view_.max_seqlen_q, size);
    tile.max_seqlen_kv = view_.max_seqlen_kv;
    for (const int64_t boundary : begins)
      tile.cu_seqlens_q_padded.push_back(std::clamp(boundary, begin, end) - begin);
    tile.cu_seqlens_kv_padded = view_.cu_seqlens_kv_padded;
    std::vector<int64_t> positions, q_lengths, kv_lengths;
    for (size_t s = 0; s < q_.valid.size(); ++s) {
      const int64_t first = std::clamp(begins[s], begin, end),
                    last = std::clamp(begins[s] + q_.valid[s], begin, end);
      positions.push_back(first - begins[s]);
      q_lengths.push_back(last - first);
      kv_lengths.push_back(std::clamp<int64_t>(end - begins[s], 0, kv_.valid[s]));
    }
    tile.lengths.cu_seqlens_q = prefix_sums(q_lengths);
    tile.lengths.cu_seqlens_kv = prefix_sums(kv_lengths);
    compare_chunk(positions, tile);
    view_.tiles.push_back(std::move(tile));
  }

  /// Counts the tile's cells and finds rows that see other keys than the mask allows. `positions`:
  /// of the tile's first row of every sequence.
  void compare_chunk(const std::vector<int64_t>& positions, TeTile& tile) const {
    int64_t wrong_rows = 0;
    std::string first;
    for (size_t s = 0; s < q_.valid.size(); ++s) {
      const int64_t rows = tile.lengths.cu_seqlens_q[s + 1] - tile.lengths.cu_seqlens_q[s],
                    keys = tile.lengths.cu_seqlens_kv[s + 1] - tile.lengths.cu_seqlens_kv[s];
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t position = positions[s] + i;
        Keys seen = keys_at(i + keys - rows, tile.window_left, tile.window_right, keys);
        seen.begin += tile.kv_begin;
        seen.end += tile.kv_begin;
        tile.lengths.pairs += seen.count();
        const Keys meant = keys_at(position + kv_.valid[s] - q_.valid[s], window_left_,
                                   window_right_, kv_.valid[s]);
        if (seen == meant || wrong_rows++ > 0) continue;
        first =
            fmt::format("sequence {} position {} sees keys [{}, {}) where the mask says [{}, {})",
                        s, position, seen.begin, seen.end, meant.begin, meant.end);
      }
    }
    if (wrong_rows == 0) return;
    tile.shortcut_difference =
        fmt::format("the window is that of the longest slot: {} rows wrong, {}", wrong_rows, first);
  }

  const Plan& plan_;
  BatchSide q_, kv_;
  bool is_thd_ = true, is_causal_ = false, is_contiguous_ = false;
  int64_t window_left_ = -1, window_right_ = -1;
  TeView view_;
};

}  // namespace

std::string_view to_name(TeSection value) {
  constexpr std::array<std::string_view, 5> kNames{"diagonal", "lower-triangle", "upper-triangle",
                                                   "all", "chunk"};
  return kNames[static_cast<size_t>(value)];
}

std::string_view to_name(TeHalf value) {
  return value == TeHalf::both ? "both" : value == TeHalf::first ? "first" : "second";
}

Result<TeView> view_as_te(const Plan& plan) {
  if (auto error = refuse_as_te(plan)) return *error;
  // The number of calls of a ring grows with the square of the ranks, and each call lists all
  // sequences.
  constexpr int64_t kMostNumbers = int64_t{1} << 25;
  const int64_t ranks = plan.layout.cp_size;
  const int64_t steps = std::max(2, plan.forward.num_steps),
                numbers =
                    ranks * steps * static_cast<int64_t>(plan.layout.slots.sequences.size() + 1);
  if (numbers > kMostNumbers) {
    return make_refusal(
        fmt::format("TransformerEngine's lengths of {} ranks, {} steps and {} sequences would be "
                    "more than {} numbers",
                    ranks, steps, plan.layout.slots.sequences.size(), kMostNumbers),
        "use fewer ranks or sequences", {"parallel.cp_size"});
  }
  return Viewer(plan).view();
}

}  // namespace cpscope
