#include "sim/app/matrix/matrix_cells.h"

#include "sim/base/check.h"

#include <algorithm>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr CommRecipe kComms[] = {
    {"p2p", CommType::p2p},
    {"p2p, dKV P hops", CommType::p2p, DkvHops::ring},
    {"a2a", CommType::a2a},
    {"all_gather", CommType::all_gather},
    {"a2a+p2p", CommType::a2a_p2p},
    {"group_cast", CommType::group_cast},
    {"group_cast, Q moves", CommType::group_cast, DkvHops::home, Dispatch::queries},
    {"pass_q", CommType::pass_q},
    {"token_ring", CommType::token_ring},
    {"helper_ring", CommType::helper_ring},
    {"mesh", CommType::mesh},
    {"gather_q", CommType::gather_q},
    {"p2p, Q moves back", CommType::p2p, DkvHops::home, Dispatch::tokens, RingBackward::q},
    {"double_ring", CommType::double_ring},
    {"double_ring, Q moves back", CommType::double_ring, DkvHops::home, Dispatch::tokens,
     RingBackward::q},
    {"a2a+double_ring", CommType::a2a_double_ring},
    {"gather_q, scaled", CommType::gather_q, DkvHops::home, Dispatch::tokens, RingBackward::kv,
     Combine::reduce_scatter},
    {"gather_q, owners of heads", CommType::gather_q, DkvHops::home, Dispatch::tokens,
     RingBackward::kv, Combine::all_to_all, QOwner::heads},
    {"gather_q, all heads, tree", CommType::gather_q, DkvHops::home, Dispatch::tokens,
     RingBackward::kv, Combine::tree, QOwner::heads_replicated},
};

constexpr std::string_view kRoundsFeature = "a CP size for each sequence";

constexpr LayoutRecipe kLayouts[] = {
    {"contiguous", LayoutKind::contiguous},
    {"dual_chunk", LayoutKind::dual_chunk},
    {"dual_chunk_packed", LayoutKind::dual_chunk_packed},
    {"striped", LayoutKind::striped},
    {"striped, stripe 2", LayoutKind::striped, 2},
    {"lpt", LayoutKind::lpt},
    {"lpt_local", LayoutKind::lpt_local},
    {"indices", LayoutKind::indices},
};

// Windows and chunks are wide enough for a full tile of 8 x 8 rows when every fourth token is on a
// rank, and narrower than the longest sequence, so that they cut something. A chunk ends inside a
// tile.
constexpr int64_t kWindow = 72;
constexpr int64_t kRightWindow = 12;
constexpr int64_t kChunk = 68;
constexpr int64_t kChunkOfWindow = 72;
constexpr int64_t kWindowInChunk = 64;

constexpr MaskRecipe kMasks[] = {
    {"no_mask", "full", MaskType::no_mask},
    {"padding", "full", MaskType::padding},
    {"causal", "causal", MaskType::causal},
    {"padding_causal", "causal", MaskType::padding_causal},
    {"causal_bottom_right", "causal", MaskType::causal_bottom_right},
    {"padding_causal_bottom_right", "causal", MaskType::padding_causal_bottom_right},
    {"prefix-LM", "slices", MaskType::slices, -1, -1, 0, false, SlicePattern::prefix_lm},
    {"shared question", "slices", MaskType::slices, -1, -1, 0, false,
     SlicePattern::shared_question},
    {"slanted slices", "slices", MaskType::slices, -1, -1, 0, false, SlicePattern::slanted},
    {"causal, window", "sliding window", MaskType::causal, kWindow},
    {"causal, window both", "sliding window", MaskType::causal, kWindow, kRightWindow},
    {"no_mask, window", "sliding window", MaskType::no_mask, kWindow},
    {"no_mask, window both", "sliding window", MaskType::no_mask, kWindow, kRightWindow},
    {"causal, chunk", "chunked", MaskType::causal, -1, -1, kChunk},
    {"no_mask, chunk", "chunked", MaskType::no_mask, -1, -1, kChunk},
    {"causal, window, chunk", "chunked", MaskType::causal, kWindowInChunk, -1, kChunkOfWindow},
    {"no_mask, window both, chunk", "chunked", MaskType::no_mask, kWindowInChunk, kRightWindow,
     kChunkOfWindow},
    {"prefix-LM, window", "sliding window", MaskType::slices, kWindow, -1, 0, false,
     SlicePattern::prefix_lm},
    {"cross no_mask", "cross attention", MaskType::no_mask, -1, -1, 0, true},
    {"cross causal", "cross attention", MaskType::causal, -1, -1, 0, true},
    {"cross bottom_right", "cross attention", MaskType::causal_bottom_right, -1, -1, 0, true},
    {"cross bottom_right, window", "cross attention", MaskType::causal_bottom_right, kWindow, -1, 0,
     true},
    {"cross no_mask, window both", "cross attention", MaskType::no_mask, kWindow, kRightWindow, 0,
     true},
};

constexpr QkvFormat kFormats[] = {QkvFormat::thd, QkvFormat::bshd, QkvFormat::sbhd};

void set_dtype(Scenario& scenario, Dtype dtype) { scenario.numerics.dtype = dtype; }

/// With 32 elements a head, one block of MXFP8.
void set_fp8(Scenario& scenario, Fp8Recipe recipe) {
  set_dtype(scenario, Dtype::bf16);
  scenario.numerics.fp8 = Fp8{.recipe = recipe};
  scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 32;
}

/// An empty sequence in the middle; under cross attention also queries without a key and keys
/// without a query.
void empty_a_sequence(Scenario& scenario) {
  Batch& batch = scenario.batch;
  const bool is_thd = batch.qkv_format == QkvFormat::thd;
  const auto insert_empty = [&](std::vector<int64_t>& lengths, std::vector<int64_t>& slots) {
    lengths.insert(lengths.begin() + 1, 0);
    slots.insert(slots.begin() + 1, is_thd ? 0 : slots.front());
  };
  const bool is_cross = !batch.self_attention;
  insert_empty(batch.lengths, batch.slots);
  insert_empty(batch.kv_lengths, batch.kv_slots);
  if (is_cross) std::swap(batch.kv_lengths[1], batch.kv_lengths[2]);
  if (is_cross) std::swap(batch.kv_slots[1], batch.kv_slots[2]);
}

constexpr FeatureRecipe kFeatures[] = {
    {"plain (fp64)", [](Scenario&) {}},
    {"GQA, 2 KV heads", [](Scenario& s) { s.attention.kv_heads = 2; }},
    {"MQA", [](Scenario& s) { s.attention.kv_heads = 1; }},
    {"MLA, dqk 12, dv 6",
     [](Scenario& s) {
       s.attention.head_dim_qk = 12;
       s.attention.head_dim_v = 6;
     }},
    {"latent MLA, dqk 12, dv 8",
     [](Scenario& s) {
       s.attention.kv_heads = 1;
       s.attention.head_dim_qk = 12;
       s.attention.head_dim_v = s.attention.latent_dim = 8;
       s.attention.rope_theta = 100.0;
     },
     [](Attention& a) { a.rope_theta = 0.0; }},
    {"latent MLA expanded, dqk 12, dv 6",
     [](Scenario& s) {
       s.attention.kv_heads = 1;
       s.attention.head_dim_qk = 12;
       s.attention.head_dim_v = 6;
       s.attention.latent_dim = 16;
       s.attention.latent_nope_dim = 8;
       s.attention.rope_theta = 100.0;
     },
     [](Attention& a) { a.rope_theta = 0.0; }},
    {"softcap", [](Scenario& s) { s.attention.softcap = 1.5; },
     [](Attention& a) { a.softcap = 0.0; }},
    {"sink off_by_one", [](Scenario& s) { s.attention.softmax_type = SoftmaxType::off_by_one; },
     [](Attention& a) { a.softmax_type = SoftmaxType::vanilla; }},
    {"sink learnable", [](Scenario& s) { s.attention.softmax_type = SoftmaxType::learnable; },
     [](Attention& a) { a.softmax_type = SoftmaxType::vanilla; }},
    {"softmax_scale", [](Scenario& s) { s.attention.softmax_scale = 0.7; },
     [](Attention& a) { a.softmax_scale = 0.0; }},
    {"RoPE", [](Scenario& s) { s.attention.rope_theta = 100.0; },
     [](Attention& a) { a.rope_theta = 0.0; }},
    {"ALiBi", [](Scenario& s) { s.attention.alibi = true; }, [](Attention& a) { a.alibi = false; }},
    {"bias 1hss", [](Scenario& s) { s.attention.bias = BiasShape::one_h; },
     [](Attention& a) { a.bias = BiasShape::none; }},
    {"bias b1ss", [](Scenario& s) { s.attention.bias = BiasShape::b_one; },
     [](Attention& a) { a.bias = BiasShape::none; }},
    {"dropout", [](Scenario& s) { s.attention.dropout = 0.25; },
     [](Attention& a) { a.dropout = 0.0; }},
    {"bf16", [](Scenario& s) { set_dtype(s, Dtype::bf16); }},
    {"fp16", [](Scenario& s) { set_dtype(s, Dtype::fp16); }},
    {"fp32", [](Scenario& s) { set_dtype(s, Dtype::fp32); }},
    {"bf16, dKV wire fp32",
     [](Scenario& s) {
       set_dtype(s, Dtype::bf16);
       s.numerics.dkv_wire = WireFormat::fp32;
     }},
    {"bf16, accumulate bf16",
     [](Scenario& s) {
       set_dtype(s, Dtype::bf16);
       s.numerics.accumulate = Accumulate::dtype;
     }},
    {"fp8 current", [](Scenario& s) { set_fp8(s, Fp8Recipe::current); }},
    {"fp8 delayed", [](Scenario& s) { set_fp8(s, Fp8Recipe::delayed); }},
    {"mxfp8", [](Scenario& s) { set_fp8(s, Fp8Recipe::mxfp8); }},
    {"fp8 with ALiBi, bias, dropout",
     [](Scenario& s) {
       set_fp8(s, Fp8Recipe::delayed);
       s.attention.alibi = true;
       s.attention.bias = BiasShape::one_h;
       s.attention.dropout = 0.25;
     },
     [](Attention& a) { a.dropout = 0.0; }},
    {"fp8, latent MLA",
     [](Scenario& s) {
       set_fp8(s, Fp8Recipe::current);
       s.attention.kv_heads = 1;
       s.attention.head_dim_qk = 40;
       s.attention.latent_dim = 32;
     }},
    {"empty sequence", empty_a_sequence},
    {"backward KV saved", [](Scenario& s) { s.parallel.backward_kv = BackwardKv::saved; }},
    {"bf16, partial wire fp32",
     [](Scenario& s) {
       set_dtype(s, Dtype::bf16);
       s.parallel.partial_wire = WireFormat::fp32;
     }},
    {"forward only", [](Scenario& s) { s.numerics.backward = false; }},
    {"3 heads on 4 ranks",
     [](Scenario& s) {
       s.attention.heads = 3;
       s.attention.kv_heads = 3;
     }},
    {"6 heads, 3 KV heads, 4 ranks",
     [](Scenario& s) {
       s.attention.heads = 6;
       s.attention.kv_heads = 3;
     }},
    {"heads in stages",
     [](Scenario& s) {
       s.attention.heads = 8;
       s.attention.kv_heads = 2;
       s.parallel.heads_per_stage = 1;
     }},
    {"22 keys on every rank", [](Scenario& s) { s.parallel.kv_replicated = 22; }},
    {"no padding, sizes unfit", [](Scenario& s) { s.batch.pad_between_seqs = false; }},
    {"padding on the left", [](Scenario& s) { s.batch.pad_side = PadSide::left; }},
    {kRoundsFeature,
     [](Scenario& s) {
       s.parallel.group_rule = GroupRule::given;
       for (size_t i = 0; i < s.batch.lengths.size(); ++i)
         s.parallel.cp_sizes.push_back(i % 3 == 2 ? s.parallel.cp_size
                                                  : 1 + static_cast<int64_t>(i) % 2);
     }},
};

template <class Recipe>
const Recipe* find_recipe(std::span<const Recipe> recipes, std::string_view name) {
  const auto found = std::find_if(recipes.begin(), recipes.end(),
                                  [&](const Recipe& recipe) { return recipe.name == name; });
  CPSCOPE_CHECK(found != recipes.end(), "the matrix has no such recipe", name, "");
  return &*found;
}

void add_plain_cells(std::vector<MatrixCell>& cells) {
  for (const CommRecipe& comm : kComms) {
    for (const LayoutRecipe& layout : kLayouts) {
      for (const MaskRecipe& mask : kMasks) {
        for (const QkvFormat format : kFormats) {
          for (const PaddingChoice padding : {PaddingChoice::padded, PaddingChoice::exact})
            cells.push_back({&comm, &layout, &mask, format, padding, &kFeatures[0]});
        }
      }
    }
  }
}

void add_feature_cells(std::vector<MatrixCell>& cells) {
  constexpr std::string_view kChosenLayouts[] = {"dual_chunk", "striped", "lpt"};
  constexpr std::string_view kChosenMasks[] = {"no_mask", "causal", "causal, window",
                                               "cross bottom_right"};
  for (const FeatureRecipe& feature : std::span(kFeatures).subspan(1)) {
    if (feature.name == kRoundsFeature) continue;
    for (const CommRecipe& comm : kComms) {
      for (const std::string_view layout : kChosenLayouts) {
        for (const std::string_view mask : kChosenMasks) {
          for (const QkvFormat format : kFormats)
            cells.push_back({&comm, find_layout(layout), find_mask(mask), format,
                             PaddingChoice::padded, &feature});
        }
      }
    }
  }
}

bool may_work_in_rounds(const CommRecipe& comm) {
  return cpscope::may_work_in_rounds(comm.type) && comm.ring_backward == RingBackward::kv;
}

/// Every schedule and layout that can be planned in rounds, with every mask.
void add_round_cells(std::vector<MatrixCell>& cells) {
  const FeatureRecipe* const feature =
      find_recipe(std::span<const FeatureRecipe>(kFeatures), kRoundsFeature);
  for (const CommRecipe& comm : kComms) {
    for (const LayoutRecipe& layout : kLayouts) {
      if (!may_work_in_rounds(comm) || !cpscope::may_work_in_rounds(layout.kind)) continue;
      for (const MaskRecipe& mask : kMasks)
        cells.push_back({&comm, &layout, &mask, QkvFormat::thd, PaddingChoice::padded, feature});
    }
  }
}

/// Every communication type with a layout at causal, thd.
void add_layout_cells(const LayoutRecipe& layout, std::vector<MatrixCell>& cells) {
  for (const CommRecipe& comm : kComms)
    cells.push_back({&comm, &layout, find_mask("causal"), QkvFormat::thd, PaddingChoice::padded,
                     &kFeatures[0]});
}

}  // namespace

std::span<const CommRecipe> comm_recipes() { return kComms; }
std::span<const LayoutRecipe> layout_recipes() { return kLayouts; }
std::span<const MaskRecipe> mask_recipes() { return kMasks; }
std::span<const FeatureRecipe> feature_recipes() { return kFeatures; }
std::span<const QkvFormat> matrix_formats() { return kFormats; }

std::string_view to_name(PaddingChoice value) {
  return value == PaddingChoice::padded ? "padded" : "exact";
}

const LayoutRecipe* find_layout(std::string_view name) {
  return find_recipe(layout_recipes(), name);
}
const MaskRecipe* find_mask(std::string_view name) { return find_recipe(mask_recipes(), name); }
const FeatureRecipe* find_feature(std::string_view name) {
  return find_recipe(feature_recipes(), name);
}

std::vector<MatrixCell> full_matrix() {
  std::vector<MatrixCell> cells;
  add_plain_cells(cells);
  add_feature_cells(cells);
  add_round_cells(cells);
  return cells;
}

std::vector<MatrixCell> fast_matrix() {
  std::vector<MatrixCell> cells;
  for (const CommRecipe& comm : kComms) {
    for (const MaskRecipe& mask : kMasks) {
      for (const QkvFormat format : kFormats)
        cells.push_back({&comm, find_layout("dual_chunk"), &mask, format, PaddingChoice::padded,
                         &kFeatures[0]});
    }
  }
  for (const LayoutRecipe& layout : kLayouts) {
    // The first sweep has been there.
    if (layout.kind != LayoutKind::dual_chunk) add_layout_cells(layout, cells);
  }
  for (const FeatureRecipe& feature : std::span(kFeatures).subspan(1)) {
    for (const CommRecipe& comm : kComms) {
      if (feature.name == kRoundsFeature && !may_work_in_rounds(comm)) continue;
      cells.push_back({&comm, find_layout("dual_chunk"), find_mask("causal"), QkvFormat::thd,
                       PaddingChoice::padded, &feature});
    }
  }
  return cells;
}

std::string describe(const MatrixCell& cell) {
  return fmt::format("{} / {} / {} / {} / {} / {}", cell.comm->name, cell.layout->name,
                     cell.mask->name, to_name(cell.format), to_name(cell.padding),
                     cell.feature->name);
}

}  // namespace cpscope
