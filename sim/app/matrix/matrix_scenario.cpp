#include "sim/app/matrix/matrix_cells.h"

#include <numeric>

namespace cpscope {
namespace {

constexpr int32_t kRanks = 4;
constexpr int64_t kImportedBlock = 8;

/// Lengths and slots of one side of a batch.
struct Sizes {
  std::vector<int64_t> lengths, slots;
};

/// No length fits a multiple; slots have rows of their own after some sequences, and the packed
/// whole fits nothing either. The first sequence is long enough for full tiles on every layout.
Sizes padded_sizes(bool is_thd, bool is_key_of_cross) {
  if (is_thd && is_key_of_cross) return {{96, 30, 26}, {97, 33, 26}};
  if (is_thd) return {{93, 37, 21}, {96, 37, 24}};
  if (is_key_of_cross) return {{96, 45}, {100, 100}};
  return {{93, 58}, {95, 95}};
}

/// Multiples of 8 = 2 ranks, the queries' sum a multiple of 32.
Sizes exact_sizes(bool is_thd, bool is_key_of_cross) {
  if (is_thd && is_key_of_cross) return {{96, 24, 40}, {96, 24, 40}};
  if (is_thd) return {{96, 40, 24}, {96, 40, 24}};
  if (is_key_of_cross) return {{88, 88}, {88, 88}};
  return {{80, 80}, {80, 80}};
}

Batch make_batch(const MatrixCell& cell) {
  const bool is_thd = cell.format == QkvFormat::thd;
  const auto sizes = [&](bool is_key_of_cross) {
    return cell.padding == PaddingChoice::padded ? padded_sizes(is_thd, is_key_of_cross)
                                                 : exact_sizes(is_thd, is_key_of_cross);
  };
  const Sizes q = sizes(false), kv = sizes(cell.mask->is_cross);
  Batch batch;
  batch.qkv_format = cell.format;
  batch.lengths = q.lengths;
  batch.slots = q.slots;
  batch.kv_lengths = kv.lengths;
  batch.kv_slots = kv.slots;
  batch.self_attention = !cell.mask->is_cross;
  batch.pad_between_seqs = cell.padding == PaddingChoice::padded;
  return batch;
}

/// The slices of one sequence of valid tokens [begin, end).
void add_slices(SlicePattern pattern, int64_t begin, int64_t end, std::vector<MaskSlice>& slices) {
  const int64_t fifth = begin + (end - begin) / 5, third = begin + (end - begin) / 3,
                middle = begin + (end - begin) / 2;
  switch (pattern) {
    case SlicePattern::none:
      return;
    case SlicePattern::prefix_lm:
      slices.push_back({begin, third, begin, third, SliceType::full});
      slices.push_back({third, end, begin, end, SliceType::causal});
      return;
    case SlicePattern::shared_question:
      slices.push_back({begin, middle, begin, middle, SliceType::causal});
      for (const auto& [from, to] : {std::pair{middle, middle + (end - middle) / 2},
                                     std::pair{middle + (end - middle) / 2, end}}) {
        slices.push_back({from, to, begin, middle, SliceType::full});
        slices.push_back({from, to, from, to, SliceType::causal});
      }
      return;
    case SlicePattern::slanted:
      slices.push_back({begin, fifth, begin, end, SliceType::bi_causal});
      slices.push_back({fifth, end, fifth, end, SliceType::inv_causal});
      return;
  }
}

/// Blocks of tokens assigned in an order that no layout of ours has, later blocks first; ranks hold
/// unequal numbers of rows.
std::vector<std::vector<int64_t>> assign_blocks(int64_t tokens) {
  std::vector<std::vector<int64_t>> ranks(kRanks);
  const int64_t blocks = (tokens + kImportedBlock - 1) / kImportedBlock;
  for (int64_t block = blocks - 1; block >= 0; --block) {
    std::vector<int64_t>& rank = ranks[static_cast<size_t>((3 * block + block / 4) % kRanks)];
    for (int64_t id = block * kImportedBlock; id < std::min(tokens, (block + 1) * kImportedBlock);
         ++id)
      rank.push_back(id);
  }
  return ranks;
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

}  // namespace

Scenario make_cell_scenario(const MatrixCell& cell) {
  Scenario scenario;
  scenario.title = "Support matrix: " + describe(cell);
  Attention& attention = scenario.attention;
  attention.heads = kRanks;
  attention.kv_heads = kRanks;
  attention.head_dim_qk = 8;
  attention.head_dim_v = 8;
  attention.mask_type = cell.mask->type;
  attention.window_left = cell.mask->window_left;
  attention.window_right = cell.mask->window_right;
  attention.chunk_size = cell.mask->chunk_size;
  scenario.batch = make_batch(cell);
  Parallel& parallel = scenario.parallel;
  parallel.cp_size = kRanks;
  parallel.comm_type = cell.comm->type;
  parallel.dispatch = cell.comm->dispatch;
  parallel.ring_backward = cell.comm->ring_backward;
  parallel.combine = cell.comm->combine;
  parallel.q_owner = cell.comm->q_owner;
  parallel.layout = cell.layout->kind;
  parallel.stripe = cell.layout->stripe;
  parallel.dispatch_chunk = 8;
  scenario.numerics.dtype = Dtype::fp64;
  scenario.numerics.dkv_hops = cell.comm->dkv_hops;
  // A decoder's schedule has no backward.
  scenario.numerics.backward = !owns_heads(parallel);
  cell.feature->switch_on(scenario);

  // Slices and imported orders name tokens, so they follow once the sizes are final.
  int64_t begin = 0;
  for (const int64_t length : scenario.batch.lengths) {
    add_slices(cell.mask->slices, begin, begin + length, attention.slices);
    begin += length;
  }
  if (parallel.layout == LayoutKind::indices) {
    parallel.imported.ranks = assign_blocks(sum(scenario.batch.slots));
    parallel.imported.kv_ranks = assign_blocks(sum(scenario.batch.kv_slots));
  }
  return scenario;
}

}  // namespace cpscope
