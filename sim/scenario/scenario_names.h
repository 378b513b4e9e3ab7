#pragma once

#include "sim/scenario/scenario.h"

#include <array>
#include <cstdint>
#include <string_view>

namespace cpscope {

// Every enumerator in the order of the contract, so that readers, printers and menus agree.
inline constexpr std::array kMaskTypes = {
    MaskType::no_mask, MaskType::causal,         MaskType::causal_bottom_right,
    MaskType::padding, MaskType::padding_causal, MaskType::padding_causal_bottom_right,
    MaskType::slices};
inline constexpr std::array kSliceTypes = {SliceType::full, SliceType::causal,
                                           SliceType::inv_causal, SliceType::bi_causal};
inline constexpr std::array kSoftmaxTypes = {SoftmaxType::vanilla, SoftmaxType::off_by_one,
                                             SoftmaxType::learnable};
inline constexpr std::array kBiasShapes = {BiasShape::none, BiasShape::one_h, BiasShape::one_one,
                                           BiasShape::b_one, BiasShape::b_h};
inline constexpr std::array kDropoutModes = {DropoutMode::split_invariant, DropoutMode::framework};
inline constexpr std::array kQkvFormats = {QkvFormat::bshd, QkvFormat::sbhd, QkvFormat::thd};
inline constexpr std::array kPadSides = {PadSide::right, PadSide::left};
// Those that a planner makes: custom is none of them.
inline constexpr std::array kCommTypes = {
    CommType::p2p,        CommType::a2a,      CommType::all_gather,  CommType::a2a_p2p,
    CommType::group_cast, CommType::pass_q,   CommType::token_ring,  CommType::helper_ring,
    CommType::mesh,       CommType::gather_q, CommType::double_ring, CommType::a2a_double_ring};
inline constexpr std::array kLayoutKinds = {
    LayoutKind::contiguous, LayoutKind::dual_chunk, LayoutKind::dual_chunk_packed,
    LayoutKind::striped,    LayoutKind::lpt,        LayoutKind::lpt_local,
    LayoutKind::indices};
inline constexpr std::array kRopeQPositions = {RopeQPosition::automatic, RopeQPosition::start,
                                               RopeQPosition::end};
inline constexpr std::array kDispatches = {Dispatch::tokens, Dispatch::queries};
inline constexpr std::array kBackwardKvs = {BackwardKv::refetch, BackwardKv::saved};
inline constexpr std::array kDtypes = {Dtype::bf16, Dtype::fp16, Dtype::fp32, Dtype::fp64};
inline constexpr std::array kFp8Recipes = {Fp8Recipe::delayed, Fp8Recipe::current,
                                           Fp8Recipe::mxfp8};
inline constexpr std::array kFp8Formats = {Fp8Format::hybrid, Fp8Format::e4m3};
inline constexpr std::array kFp8KvWires = {Fp8KvWire::fp8, Fp8KvWire::bf16};
inline constexpr std::array kWireFormats = {WireFormat::dtype, WireFormat::fp32};
inline constexpr std::array kDkvHops = {DkvHops::home, DkvHops::ring};
inline constexpr std::array kInputKinds = {InputKind::normal, InputKind::peaked};
inline constexpr std::array kRingBackwards = {RingBackward::kv, RingBackward::q};
inline constexpr std::array kCombines = {Combine::all_to_all, Combine::reduce_scatter,
                                         Combine::tree};
inline constexpr std::array kQOwners = {QOwner::rows, QOwner::heads, QOwner::heads_replicated};
/// Those that a file names.
inline constexpr std::array kGroupRules = {GroupRule::hybrid, GroupRule::flexsp,
                                           GroupRule::bytescale};
inline constexpr std::array kAccumulates = {Accumulate::fp32, Accumulate::dtype};

/// Names of Generator::name.
inline constexpr std::array<std::string_view, 10> kGeneratorNames = {
    "equal", "uniform", "lognormal", "lognormal+pareto", "wlb", "prolong", "wiki",
    "byted", "magi",    "csv"};

/// Names of MaskGenerator::name.
inline constexpr std::array<std::string_view, 7> kMaskNames = {
    "block_causal",    "prefix_tree", "image_groups", "global_tokens",
    "block_diffusion", "top_k",       "block_top_k"};

/// More sequences than this are refused before lists are allocated.
inline constexpr int64_t kMaxSequences = 4'194'304;
/// More mask slices than this are refused, to keep the overlap check fast.
inline constexpr int64_t kMaxSlices = 100'000;
/// The same for slices of rows in a mask file or drawn ones, which share no cell and need no such
/// check.
inline constexpr int64_t kMaxFileSlices = int64_t{1} << 23;
/// More segments of a prefix tree than this are refused: each one looks at all its ancestors.
inline constexpr int64_t kMaxSegments = 16'384;

}  // namespace cpscope
