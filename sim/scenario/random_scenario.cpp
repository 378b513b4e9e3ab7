#include "sim/scenario/random_scenario.h"

#include "sim/scenario/scenario_parts.h"
#include "sim/scenario/slice_overlap.h"

#include <algorithm>
#include <numeric>

namespace cpscope {
namespace {

/// SplitMix64 (Steele et al. 2014): the same numbers everywhere.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 0x1234567) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  /// Uniform in [low, high].
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return between(1, 100) <= percent; }
  template <class T>
  T pick(std::initializer_list<T> options) {
    return *(options.begin() + between(0, static_cast<int64_t>(options.size()) - 1));
  }

 private:
  uint64_t state_;
};

void roll_attention(Dice& dice, Attention& attention) {
  attention.kv_heads = dice.pick({1, 2, 3});
  attention.heads = attention.kv_heads * dice.pick({1, 2, 4});
  attention.head_dim_qk = dice.pick({4, 8, 10});
  attention.head_dim_v = dice.chance(30) ? dice.pick({4, 6}) : attention.head_dim_qk;
  attention.mask_type =
      dice.pick({MaskType::no_mask, MaskType::causal, MaskType::causal,
                 MaskType::causal_bottom_right, MaskType::padding, MaskType::padding_causal,
                 MaskType::padding_causal_bottom_right, MaskType::slices});
  if (dice.chance(30)) attention.window_left = dice.between(0, 12);
  if (dice.chance(20)) attention.window_right = dice.between(0, 8);
  if (dice.chance(20)) attention.chunk_size = dice.between(1, 12);
  if (dice.chance(20)) attention.softcap = 1.5;
  if (dice.chance(15)) attention.softmax_scale = 0.7;
  attention.softmax_type = dice.pick({SoftmaxType::vanilla, SoftmaxType::vanilla,
                                      SoftmaxType::off_by_one, SoftmaxType::learnable});
  if (dice.chance(20)) attention.rope_theta = 100.0;
}

void roll_batch(Dice& dice, const RandomSpace& space, Batch& batch) {
  batch.qkv_format = dice.pick({QkvFormat::thd, QkvFormat::thd, QkvFormat::bshd, QkvFormat::sbhd});
  const int64_t sequences = dice.between(1, 4);
  for (int64_t s = 0; s < sequences; ++s)
    batch.lengths.push_back(dice.chance(15) ? dice.between(0, 1)
                                            : dice.between(1, space.max_length));
  batch.kv_lengths = batch.lengths;
  const bool cross = dice.chance(25);
  if (cross) {
    for (int64_t& length : batch.kv_lengths)
      length = dice.chance(15) ? 0 : dice.between(1, space.max_length);
  }
  const auto make_slots = [&](const std::vector<int64_t>& lengths) {
    std::vector<int64_t> slots = lengths;
    if (batch.qkv_format == QkvFormat::thd) {
      for (int64_t& slot : slots) slot += dice.chance(30) ? dice.between(0, 5) : 0;
    } else {
      std::fill(slots.begin(), slots.end(),
                *std::max_element(lengths.begin(), lengths.end()) + dice.between(0, 2));
    }
    return slots;
  };
  batch.slots = make_slots(batch.lengths);
  batch.kv_slots = cross ? make_slots(batch.kv_lengths) : batch.slots;
  batch.self_attention = batch.lengths == batch.kv_lengths && batch.slots == batch.kv_slots;
}

/// Slices on a grid of disjoint rectangles, so that no two slices overlap.
void roll_slices(Dice& dice, const Batch& batch, Attention& attention) {
  if (attention.mask_type != MaskType::slices) return;
  const int64_t q = std::accumulate(batch.lengths.begin(), batch.lengths.end(), int64_t{0});
  const int64_t kv = std::accumulate(batch.kv_lengths.begin(), batch.kv_lengths.end(), int64_t{0});
  std::vector<int64_t> rows{0, q}, columns{0, kv};
  for (int i = 0; i < 3; ++i) {
    rows.push_back(dice.between(0, q));
    columns.push_back(dice.between(0, kv));
  }
  std::sort(rows.begin(), rows.end());
  std::sort(columns.begin(), columns.end());
  for (size_t i = 0; i + 1 < rows.size(); ++i) {
    for (size_t j = 0; j + 1 < columns.size(); ++j) {
      if (dice.chance(40)) continue;
      attention.slices.push_back({rows[i], rows[i + 1], columns[j], columns[j + 1],
                                  dice.pick({SliceType::full, SliceType::causal,
                                             SliceType::inv_causal, SliceType::bi_causal})});
    }
  }
}

void roll_parallel(Dice& dice, const RandomSpace& space, Parallel& parallel,
                   const Attention& attention) {
  parallel.cp_size = static_cast<int32_t>(dice.between(1, space.max_ranks));
  parallel.comm_type = dice.pick({CommType::p2p, CommType::a2a, CommType::all_gather,
                                  CommType::a2a_p2p, CommType::group_cast});
  parallel.layout =
      dice.pick({LayoutKind::contiguous, LayoutKind::dual_chunk, LayoutKind::dual_chunk_packed,
                 LayoutKind::striped, LayoutKind::lpt});
  parallel.dispatch_chunk = dice.between(1, 6);
  parallel.stripe = dice.between(1, 3);
  parallel.dispatch = dice.pick({Dispatch::tokens, Dispatch::queries});
  parallel.backward_kv = dice.pick({BackwardKv::refetch, BackwardKv::saved});
  // Most draws should be possible: adapt the rank count to the number of heads.
  if (parallel.comm_type == CommType::a2a) {
    parallel.cp_size = std::min(parallel.cp_size, attention.heads);
  }
  if (parallel.comm_type == CommType::a2a_p2p) {
    parallel.a2a_size = std::min(dice.pick({1, 2, 3}), attention.heads);
    parallel.cp_size = parallel.a2a_size * dice.pick({1, 2, 3});
  }
}

/// A random assignment of ids to ranks, in runs of random length, forwards or backwards.
std::vector<std::vector<int64_t>> roll_assignment(Dice& dice, int64_t tokens, int32_t ranks) {
  std::vector<std::vector<int64_t>> blocks;
  for (int64_t begin = 0; begin < tokens;) {
    const int64_t end = std::min(tokens, begin + dice.between(1, 9));
    std::vector<int64_t> block;
    for (int64_t id = begin; id < end; ++id) block.push_back(id);
    if (dice.chance(20)) std::reverse(block.begin(), block.end());
    blocks.push_back(block);
    begin = end;
  }
  for (size_t i = blocks.size(); i > 1; --i)
    std::swap(blocks[i - 1],
              blocks[static_cast<size_t>(dice.between(0, static_cast<int64_t>(i) - 1))]);
  std::vector<std::vector<int64_t>> assigned(static_cast<size_t>(ranks));
  for (const auto& block : blocks) {
    auto& rank = assigned[static_cast<size_t>(dice.between(0, ranks - 1))];
    rank.insert(rank.end(), block.begin(), block.end());
  }
  return assigned;
}

void roll_imported_order(Dice& dice, const Batch& batch, Parallel& parallel) {
  parallel.layout = LayoutKind::indices;
  parallel.indices_file = "order.json";
  const int64_t tokens = std::accumulate(batch.slots.begin(), batch.slots.end(), int64_t{0});
  const int64_t kv_tokens =
      std::accumulate(batch.kv_slots.begin(), batch.kv_slots.end(), int64_t{0});
  parallel.imported.ranks = roll_assignment(dice, tokens, parallel.cp_size);
  parallel.imported.kv_ranks = batch.self_attention
                                   ? parallel.imported.ranks
                                   : roll_assignment(dice, kv_tokens, parallel.cp_size);
}

/// Moves a drawn scenario towards the corners of the space. Uses random numbers of its own, so that
/// scenarios of other spaces do not change.
void widen(Dice& dice, bool any_dtype, Scenario& scenario) {
  Attention& attention = scenario.attention;
  if (dice.chance(25)) {
    attention.kv_heads = static_cast<int32_t>(dice.between(1, 6));
    attention.heads = attention.kv_heads * static_cast<int32_t>(dice.between(1, 4));
  }
  if (dice.chance(25)) attention.head_dim_qk = dice.pick({1, 2, 7, 16, 33, 64});
  if (dice.chance(25)) attention.head_dim_v = dice.pick({1, 3, 8, 17, 40});
  if (dice.chance(10)) attention.window_left = dice.between(0, 120);
  if (dice.chance(10)) attention.window_right = dice.between(0, 120);
  if (dice.chance(10)) attention.chunk_size = dice.between(1, 150);
  if (dice.chance(5)) attention.window_left = attention.window_right = 0;
  // Logits of several hundred: one key takes all the weight, and exp of a logit overflows. In
  // narrower dtypes rounding decides a near tie between two such keys, which no budget explains;
  // and gradients of flat rows are subnormal in fp16.
  if (dice.chance(12))
    attention.softmax_scale = any_dtype ? dice.pick({0.05, 2.0}) : dice.pick({1e-3, 30.0, 300.0});
  if (dice.chance(8)) attention.softcap = dice.pick({0.25, 30.0});
  if (dice.chance(8)) attention.rope_theta = dice.pick({2.0, 10000.0});
  if (attention.head_dim_qk % 2 != 0) attention.rope_theta = 0.0;  // elements rotate in pairs
  Batch& batch = scenario.batch;
  if (attention.mask_type == MaskType::slices) {
    // Rectangles may overlap if their types leave no cell visible to both.
    if (attention.slices.size() > 1 && dice.chance(60)) {
      std::vector<MaskSlice> slices = attention.slices;
      MaskSlice& slice = slices.front();
      slice.q1 = std::min(slice.q1 + dice.between(1, 4), slices.back().q1);
      slice.k1 = std::min(slice.k1 + dice.between(1, 4), slices.back().k1);
      const bool is_allowed = slice.q0 <= slice.q1 && slice.k0 <= slice.k1 &&
                              find_slice_overlaps(slices, 1).overlaps.empty();
      if (is_allowed) attention.slices = slices;
    }
    return;
  }
  if (dice.chance(4)) std::fill(batch.lengths.begin(), batch.lengths.end(), 0);
  if (dice.chance(4)) std::fill(batch.kv_lengths.begin(), batch.kv_lengths.end(), 0);
  if (batch.qkv_format == QkvFormat::thd && dice.chance(6)) {
    batch.slots.back() += dice.between(10, 60);
    if (batch.self_attention) batch.kv_slots = batch.slots;
  }
  batch.self_attention = batch.lengths == batch.kv_lengths && batch.slots == batch.kv_slots;
}

/// Draws of its own, so that what else a seed gives does not depend on them.
void roll_rotation_and_slots(uint64_t seed, Scenario& scenario) {
  Dice dice(seed ^ 0x5eedab1e);
  if (scenario.attention.rope_theta > 0)
    scenario.attention.rope_q_position =
        dice.pick({RopeQPosition::automatic, RopeQPosition::start, RopeQPosition::end});
  Batch& batch = scenario.batch;
  if (batch.slots != batch.lengths || batch.kv_slots != batch.kv_lengths || !dice.chance(25))
    return;
  batch.slot_multiple = dice.pick({2, 6, 16});
  batch.slots = find_default_slots(batch, batch.lengths);
  batch.kv_slots = find_default_slots(batch, batch.kv_lengths);
}

/// Draws of its own, for the same reason.
void roll_stages(uint64_t seed, const RandomSpace& space, Parallel& parallel) {
  Dice dice(seed ^ 0x57a6e5);
  if (has_head_stages(parallel.comm_type) && dice.chance(40))
    parallel.heads_per_stage = static_cast<int32_t>(dice.between(1, 3));
  if (space.has_rare && may_replicate_keys(parallel.comm_type) &&
      parallel.ring_backward == RingBackward::kv && dice.chance(50))
    parallel.kv_replicated = dice.between(1, 9);
}

/// Draws of its own, for the same reason.
void roll_rounds(uint64_t seed, const Batch& batch, Parallel& parallel) {
  Dice dice(seed ^ 0xc0517e5);
  if (!may_work_in_rounds(parallel.comm_type) || !may_work_in_rounds(parallel.layout) ||
      parallel.ring_backward == RingBackward::q || batch.qkv_format != QkvFormat::thd ||
      !dice.chance(30))
    return;
  parallel.kv_replicated = 0;
  parallel.group_rule = GroupRule::given;
  for (size_t s = 0; s < batch.lengths.size(); ++s)
    parallel.cp_sizes.push_back(dice.between(1, parallel.cp_size));
  if (!dice.chance(40)) return;
  parallel.cp_sizes.clear();
  parallel.group_rule =
      dice.pick({GroupRule::fixed, GroupRule::hybrid, GroupRule::flexsp, GroupRule::bytescale});
  if (parallel.group_rule == GroupRule::fixed) {
    do {
      parallel.cp_sizes = {dice.between(1, parallel.cp_size)};
    } while (parallel.cp_size % parallel.cp_sizes.front() != 0);
    return;
  }
  int64_t longest = 1;
  for (const int64_t length : batch.lengths) longest = std::max(longest, length);
  parallel.max_tokens_per_rank =
      dice.between((longest + parallel.cp_size - 1) / parallel.cp_size, longest);
}

void roll_moving_queries(uint64_t seed, const RandomSpace& space, int32_t heads,
                         Parallel& parallel) {
  Dice dice(seed ^ 0x9a55e5);
  parallel.comm_type = dice.pick({CommType::pass_q, CommType::token_ring, CommType::helper_ring,
                                  CommType::mesh, CommType::gather_q, CommType::double_ring,
                                  CommType::a2a_double_ring, CommType::p2p});
  parallel.ring_backward = parallel.comm_type == CommType::p2p
                               ? RingBackward::q
                               : dice.pick({RingBackward::kv, RingBackward::q});
  parallel.ring_window = dice.pick({1, 2, 3, 4, parallel.cp_size});
  int32_t positions = parallel.cp_size;
  if (parallel.comm_type == CommType::a2a_double_ring) {
    parallel.a2a_size = dice.pick({1, 2, 3});
    while (parallel.a2a_size > heads || parallel.cp_size % parallel.a2a_size != 0)
      --parallel.a2a_size;
    positions /= parallel.a2a_size;
  }
  while (positions % parallel.ring_window != 0) --parallel.ring_window;
  parallel.partial_wire = dice.pick({WireFormat::dtype, WireFormat::fp32});
  parallel.mesh_q = dice.pick({1, 2, 3, parallel.cp_size});
  while (parallel.cp_size % parallel.mesh_q != 0) --parallel.mesh_q;
  if (space.has_rare) parallel.combine = dice.pick({Combine::all_to_all, Combine::reduce_scatter});
}

/// Ranks that own heads. Draws of its own, for the same reason.
void roll_owned_heads(uint64_t seed, Scenario& scenario) {
  Dice dice(seed ^ 0x0ead5);
  Parallel& parallel = scenario.parallel;
  if (parallel.comm_type != CommType::gather_q || !dice.chance(50)) return;
  parallel.q_owner = dice.pick({QOwner::heads, QOwner::heads_replicated});
  parallel.combine = dice.pick({Combine::all_to_all, Combine::reduce_scatter, Combine::tree});
  scenario.numerics.backward = false;
  if (parallel.layout == LayoutKind::lpt || parallel.layout == LayoutKind::lpt_local)
    parallel.layout = dice.pick({LayoutKind::contiguous, LayoutKind::dual_chunk,
                                 LayoutKind::dual_chunk_packed, LayoutKind::striped});
  parallel.cp_size = std::min(parallel.cp_size, scenario.attention.heads);
  if (parallel.combine == Combine::tree)
    while ((parallel.cp_size & (parallel.cp_size - 1)) != 0) --parallel.cp_size;
  parallel.mesh_q = parallel.ring_window = parallel.a2a_size = 1;  // must divide the ranks
  // The order is one of the keys, on fewer ranks.
  if (parallel.layout == LayoutKind::indices) roll_imported_order(dice, scenario.batch, parallel);
}

/// Latent rows of keys and values. Draws of its own, for the same reason.
void roll_latent(uint64_t seed, bool may_expand, Attention& attention) {
  Dice dice(seed ^ 0x1a7e47);
  if (!dice.chance(15)) return;
  attention.kv_heads = 1;
  attention.latent_dim = attention.head_dim_v = dice.pick({1, 4, 6, 8, 17});
  const int32_t rotated = dice.pick({0, 2, 4, 7, 10});
  attention.head_dim_qk = attention.latent_dim + rotated;
  if (dice.chance(40) && may_expand) {
    attention.latent_nope_dim = dice.pick({1, 3, 6, 16});
    attention.head_dim_qk = attention.latent_nope_dim + rotated;
    attention.head_dim_v = dice.pick({1, 4, 7, 16});
  }
  if (rotated == 0 || rotated % 2 != 0) attention.rope_theta = 0.0;
}

/// Draws of its own, for the same reason.
void roll_score_terms(uint64_t seed, Attention& attention) {
  Dice dice(seed ^ 0xa11b1a5);
  if (!dice.chance(15)) return;
  attention.alibi = dice.chance(50);
  if (dice.chance(50))
    attention.bias =
        dice.pick({BiasShape::one_h, BiasShape::one_one, BiasShape::b_one, BiasShape::b_h});
  if (dice.chance(50)) attention.dropout = dice.pick({0.1, 0.5, 0.9});
}

/// Draws of its own, for the same reason.
void roll_dropout_mode(uint64_t seed, Attention& attention) {
  if (attention.dropout > 0 && Dice(seed ^ 0xd20b5).chance(25))
    attention.dropout_mode = DropoutMode::framework;
}

/// Draws of its own, for the same reason.
void roll_pad_side(uint64_t seed, Batch& batch) {
  if (Dice(seed ^ 0x1ef75a9d).chance(25)) batch.pad_side = PadSide::left;
}

/// Draws of its own, for the same reason.
void roll_inputs(uint64_t seed, Numerics& numerics) {
  if (Dice(seed ^ 0x9ea4ed).chance(10)) numerics.inputs = InputKind::peaked;
}

/// Draws of its own, for the same reason.
void roll_fp8(uint64_t seed, Scenario& scenario) {
  Dice dice(seed ^ 0xf8f8);
  Fp8 fp8;
  fp8.recipe = dice.pick({Fp8Recipe::current, Fp8Recipe::delayed, Fp8Recipe::mxfp8});
  fp8.format = dice.pick({Fp8Format::hybrid, Fp8Format::e4m3});
  fp8.kv_wire = fp8.recipe == Fp8Recipe::mxfp8 ? Fp8KvWire::bf16
                                               : dice.pick({Fp8KvWire::fp8, Fp8KvWire::bf16});
  scenario.numerics.dtype = Dtype::bf16;
  scenario.numerics.fp8 = fp8;
  // With larger logits the rounding of one element of q decides which key takes all the weight.
  if (scenario.attention.softmax_scale > 1) scenario.attention.softmax_scale = 0;
}

}  // namespace

Parallel random_parallel(uint64_t seed, const RandomSpace& space, const Attention& attention) {
  Dice dice(seed);
  Parallel parallel;
  roll_parallel(dice, space, parallel, attention);
  return parallel;
}

Scenario random_scenario(uint64_t seed, const RandomSpace& space) {
  Dice dice(seed);
  Scenario scenario;
  roll_attention(dice, scenario.attention);
  roll_batch(dice, space, scenario.batch);
  roll_slices(dice, scenario.batch, scenario.attention);
  if (space.is_wide) widen(dice, space.any_dtype, scenario);
  roll_parallel(dice, space, scenario.parallel, scenario.attention);
  scenario.batch.pad_between_seqs = scenario.parallel.layout != LayoutKind::lpt || dice.chance(50);
  roll_rotation_and_slots(seed, scenario);
  roll_pad_side(seed, scenario.batch);
  roll_score_terms(seed, scenario.attention);
  roll_dropout_mode(seed, scenario.attention);
  Numerics& numerics = scenario.numerics;
  numerics.dtype =
      space.any_dtype ? dice.pick({Dtype::bf16, Dtype::fp16, Dtype::fp32}) : Dtype::fp64;
  numerics.backward = dice.chance(85);
  numerics.seed = seed;
  numerics.dkv_wire = dice.pick({WireFormat::dtype, WireFormat::fp32});
  numerics.dkv_hops = dice.pick({DkvHops::home, DkvHops::ring});
  numerics.accumulate = dice.pick({Accumulate::fp32, Accumulate::fp32, Accumulate::dtype});
  if (dice.chance(12)) roll_imported_order(dice, scenario.batch, scenario.parallel);
  if (space.is_wide && scenario.parallel.layout == LayoutKind::lpt && dice.chance(40))
    scenario.parallel.layout = LayoutKind::lpt_local;
  if (space.moves_queries)
    roll_moving_queries(seed, space, scenario.attention.heads, scenario.parallel);
  roll_stages(seed, space, scenario.parallel);
  if (space.has_rare) roll_rounds(seed, scenario.batch, scenario.parallel);
  if (space.has_rare) roll_owned_heads(seed, scenario);
  if (space.has_rare) roll_latent(seed, !space.has_fp8, scenario.attention);
  if (space.has_fp8) {
    roll_fp8(seed, scenario);
  } else if (space.has_rare) {
    roll_inputs(seed, numerics);
  }
  return scenario;
}

}  // namespace cpscope
