#pragma once

#include "sim/scenario/scenario.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// A way to communicate, with the switch that makes two schedules of one type.
struct CommRecipe {
  std::string_view name;
  CommType type;
  DkvHops dkv_hops = DkvHops::home;
  Dispatch dispatch = Dispatch::tokens;
  RingBackward ring_backward = RingBackward::kv;
  Combine combine = Combine::all_to_all;
  QOwner q_owner = QOwner::rows;
};

struct LayoutRecipe {
  std::string_view name;
  LayoutKind kind;
  int64_t stripe = 1;
};

/// How each sequence of a slice mask is cut.
enum class SlicePattern { none, prefix_lm, shared_question, slanted };

/// A mask, and the column of the published table that it counts in.
struct MaskRecipe {
  std::string_view name;
  std::string_view group;
  MaskType type;
  int64_t window_left = -1;
  int64_t window_right = -1;
  int64_t chunk_size = 0;
  bool is_cross = false;  // queries and keys of different lengths
  SlicePattern slices = SlicePattern::none;
};

enum class PaddingChoice {
  padded,  // lengths that are no multiple of anything, with slots of their own
  exact    // sizes that fit every layout as they are, pad_between_seqs = false
};

/// One feature beside plain fp64 attention. `switch_off` makes the plan of somebody who forgot it;
/// null where forgetting it changes no more than the rounding, or is no matter of the mask.
struct FeatureRecipe {
  std::string_view name;
  void (*switch_on)(Scenario&) = nullptr;
  void (*switch_off)(Attention&) = nullptr;
};

/// One cell of the support matrix. The pointers are into the tables below.
struct MatrixCell {
  const CommRecipe* comm = nullptr;
  const LayoutRecipe* layout = nullptr;
  const MaskRecipe* mask = nullptr;
  QkvFormat format = QkvFormat::thd;
  PaddingChoice padding = PaddingChoice::padded;
  const FeatureRecipe* feature = nullptr;

  friend bool operator==(const MatrixCell&, const MatrixCell&) = default;
};

std::span<const CommRecipe> comm_recipes();
std::span<const LayoutRecipe> layout_recipes();
std::span<const MaskRecipe> mask_recipes();
std::span<const FeatureRecipe> feature_recipes();  // the first is `plain`
std::span<const QkvFormat> matrix_formats();
std::string_view to_name(PaddingChoice value);

/// The recipe of that name; our bug when there is none.
const LayoutRecipe* find_layout(std::string_view name);
const MaskRecipe* find_mask(std::string_view name);
const FeatureRecipe* find_feature(std::string_view name);

/// Every communication type x layout x mask x format x padding with the plain feature; every other
/// feature with every communication type and format on a choice of layouts and masks; and what is
/// rejected with a reason.
std::vector<MatrixCell> full_matrix();

/// A part that runs in seconds: every communication type x mask x format at one layout, every
/// layout and every feature x communication type at causal.
std::vector<MatrixCell> fast_matrix();

/// The small batch of a cell: four ranks, about 160 tokens, at least two sequences.
Scenario make_cell_scenario(const MatrixCell& cell);

/// "p2p / dual_chunk / causal / thd / padded / plain (fp64)".
std::string describe(const MatrixCell& cell);

}  // namespace cpscope
