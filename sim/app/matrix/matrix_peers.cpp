#include "sim/app/matrix/matrix_peers.h"

namespace cpscope {
namespace {

// Read in the systems' sources: PyTorch's experimental context parallel, MagiAttention 1.1.1,
// ring-flash-attention (2025-08-04), USP = long-context-attention (2026-05-21), and
// TransformerEngine 2.20.2, pytorch/attention/dot_product_attention:
// - context_parallel.py, attn_forward_func_with_cp: windows with all_gather and a2a only;
//   sinks with a2a and the fused back end only; layout contiguous is NO_LOAD_BALANCE: thd,
//   all_gather, causal, no window, self attention, no FP8, padding between sequences with the fused
//   back end only.
// - context_parallel.py, validate_no_load_balance_thd_metadata: total % P.
// - context_parallel.py, AttnFuncWithCPAndQKVOA2A.forward: heads % P and kv_heads % P.
// - context_parallel.py, AttnFuncWithCPAndKVAllGather.forward: FlashAttention 2 gets the lengths of
//   one chunk a sequence as offsets (in order, without padding between sequences, they are the
//   offsets); fused_attn_fwd gets no bottom_right_diagonal; one window for all slots.
// - utils.py, get_attention_backend: under context parallelism no bottom-right mask, no causal mask
//   of unequal lengths, no arbitrary mask; padding between sequences without FlashAttention 2;
//   FlashAttention 4 with p2p, a2a and all_gather; softcap in FlashAttention 2 only.
// - backends.py, FlashAttention.forward and FusedAttention.forward: no padding mask in bshd, sbhd.
constexpr PeerRow kRows[] = {
    {CommType::p2p,
     "full",
     {"yes; padding masks in thd only", "yes, without load balancing", "", "yes",
      "yes (Ulysses degree 1), no varlen"}},
    {CommType::p2p,
     "causal",
     {"yes; bottom-right refused", "yes (SDPA ring)", "", "yes",
      "yes (Ulysses degree 1), no varlen"}},
    {CommType::p2p,
     "slices",
     {"no: no back end has it under CP", "no: the ring takes no mask", "", "no", "no"}},
    {CommType::p2p,
     "sliding window",
     {"no: refused", "no: the ring takes no mask", "", "no: not in the ring paths", "no"}},
    {CommType::p2p,
     "chunked",
     {"no (PR #1887 closed unmerged)", "no: the ring takes no mask", "", "no", "no"}},
    {CommType::p2p,
     "cross attention",
     {"without causal only", "no: lengths must agree", "", "?", "?"}},

    {CommType::a2a,
     "full",
     {"yes; padding masks in thd only", "", "", "", "yes (ring degree 1), no varlen"}},
    {CommType::a2a,
     "causal",
     {"yes; bottom-right refused", "", "", "", "yes (ring degree 1), no varlen"}},
    {CommType::a2a, "slices", {"no: no back end has it under CP", "", "", "", "no"}},
    {CommType::a2a, "sliding window", {"yes", "", "", "", "no"}},
    {CommType::a2a, "chunked", {"no", "", "", "", "no"}},
    {CommType::a2a, "cross attention", {"without causal only", "", "", "", "?"}},

    {CommType::all_gather,
     "full",
     {"yes; FA2 with thd reads wrong rows", "yes (FlexAttention, length % 128P)", "",
      "yes (llama3)", ""}},
    {CommType::all_gather,
     "causal",
     {"yes, thd contiguous too; FA2 with thd dual_chunk reads wrong rows; bottom-right refused",
      "yes (FlexAttention, length % 128P)", "", "yes (llama3)", ""}},
    {CommType::all_gather,
     "slices",
     {"no: no back end has it under CP", "yes (any mask_mod)", "", "no", ""}},
    {CommType::all_gather,
     "sliding window",
     {"causal yes; a right window is wrong on some back ends", "yes (any mask_mod)", "",
      "causal only (llama3); others wrong without a word", ""}},
    {CommType::all_gather, "chunked", {"no", "yes (any mask_mod)", "", "no", ""}},
    {CommType::all_gather, "cross attention", {"without causal only, no window", "?", "", "?", ""}},

    {CommType::a2a_p2p, "full", {"yes; padding masks in thd only", "", "", "", "yes, no varlen"}},
    {CommType::a2a_p2p, "causal", {"yes; bottom-right refused", "", "", "", "yes, no varlen"}},
    {CommType::a2a_p2p, "slices", {"no: no back end has it under CP", "", "", "", "no"}},
    {CommType::a2a_p2p, "sliding window", {"no: refused", "", "", "", "no"}},
    {CommType::a2a_p2p, "chunked", {"no", "", "", "", "no"}},
    {CommType::a2a_p2p, "cross attention", {"without causal only", "", "", "", "?"}},

    {CommType::group_cast, "full", {"", "open (torchtitan PR #2543, queries move)", "yes", "", ""}},
    {CommType::group_cast,
     "causal",
     {"", "open (torchtitan PR #2543, queries move)", "yes", "", ""}},
    {CommType::group_cast, "slices", {"", "?", "yes (all four slice types)", "", ""}},
    {CommType::group_cast, "sliding window", {"", "?", "yes, as slices", "", ""}},
    {CommType::group_cast, "chunked", {"", "?", "yes, as slices", "", ""}},
    {CommType::group_cast, "cross attention", {"", "?", "no: self attention only", "", ""}},
    // Published by others: Meta's pass-Q, TokenRing, DistFlashAttention, Mesh-Attention, the
    // context parallelism of decoders, and LoongTrain's double ring and 2-D
    // attention.
    {CommType::pass_q, "full", {}},
    {CommType::pass_q, "causal", {}},
    {CommType::pass_q, "slices", {}},
    {CommType::pass_q, "sliding window", {}},
    {CommType::pass_q, "chunked", {}},
    {CommType::pass_q, "cross attention", {}},
    {CommType::token_ring, "full", {}},
    {CommType::token_ring, "causal", {}},
    {CommType::token_ring, "slices", {}},
    {CommType::token_ring, "sliding window", {}},
    {CommType::token_ring, "chunked", {}},
    {CommType::token_ring, "cross attention", {}},
    {CommType::helper_ring, "full", {}},
    {CommType::helper_ring, "causal", {}},
    {CommType::helper_ring, "slices", {}},
    {CommType::helper_ring, "sliding window", {}},
    {CommType::helper_ring, "chunked", {}},
    {CommType::helper_ring, "cross attention", {}},
    {CommType::mesh, "full", {}},
    {CommType::mesh, "causal", {}},
    {CommType::mesh, "slices", {}},
    {CommType::mesh, "sliding window", {}},
    {CommType::mesh, "chunked", {}},
    {CommType::mesh, "cross attention", {}},
    {CommType::gather_q, "full", {}},
    {CommType::gather_q, "causal", {}},
    {CommType::gather_q, "slices", {}},
    {CommType::gather_q, "sliding window", {}},
    {CommType::gather_q, "chunked", {}},
    {CommType::gather_q, "cross attention", {}},
    {CommType::double_ring, "full", {}},
    {CommType::double_ring, "causal", {}},
    {CommType::double_ring, "slices", {}},
    {CommType::double_ring, "sliding window", {}},
    {CommType::double_ring, "chunked", {}},
    {CommType::double_ring, "cross attention", {}},
    {CommType::a2a_double_ring, "full", {}},
    {CommType::a2a_double_ring, "causal", {}},
    {CommType::a2a_double_ring, "slices", {}},
    {CommType::a2a_double_ring, "sliding window", {}},
    {CommType::a2a_double_ring, "chunked", {}},
    {CommType::a2a_double_ring, "cross attention", {}},
};

constexpr PeerTopic kTopics[] = {
    {"sizes that a layout needs",
     "",
     "",
     "any; with pad_between_seqs = false the multiple, by name",
     {"each slot % 2P; contiguous: total % P", "length % 2P, each document % 2P",
      "none: pads the end, or a shorter chunk", "each length % 2P (zigzag), total % P (llama3)",
      "length % 2 ring-degree ulysses-degree"}},
    {"padding between sequences",
     "",
     "",
     "yes, every layout and format",
     {"thd: fused, FA3, FA4; contiguous: fused only", "?", "no: at the end only", "?",
      "no varlen"}},
    {"padding on the left",
     "padding on the left",
     "",
     "",
     {"no: slots begin with their tokens", "?", "?", "?", "no varlen"}},
    {"a2a with more ranks than KV heads",
     "GQA, 2 KV heads",
     "a2a",
     "",
     {"refused: kv_heads % P", "no a2a", "no a2a", "no a2a", "fails: an invalid shape (0.6.4)"}},
    {"a2a with heads that the ranks do not divide",
     "6 heads, 3 KV heads, 4 ranks",
     "a2a",
     "",
     {"refused: heads % P", "no a2a", "no a2a", "no a2a", "?"}},
    {"dqk != dv", "MLA, dqk 12, dv 6", "", "", {"yes", "?", "no", "?", "?"}},
    {"softcap",
     "softcap",
     "",
     "",
     {"FA2 only; not all_gather of thd in dual_chunk", "?", "yes", "no in the ring paths", "?"}},
    {"sink", "sink learnable", "", "", {"a2a with the fused back end only", "?", "yes", "?", "?"}},
    {"ALiBi", "ALiBi", "", "", {"no", "?", "no", "no in the ring paths", "?"}},
    {"bias",
     "bias 1hss",
     "",
     "",
     {"post_scale with p2p, not thd", "no: attn_bias refused", "no", "?", "?"}},
    {"dropout",
     "dropout",
     "",
     "",
     {"yes; other weights in each schedule", "?", "no", "no in the ring paths", "?"}},
    {"fp32", "fp32", "", "", {"no: 16 and 8 bits", "?", "yes (SDPA back end)", "?", "?"}},
    {"FP8, delayed scaling",
     "fp8 delayed",
     "",
     "",
     {"a2a; p2p and a2a+p2p return wrong gradients; all_gather and current scaling refused on "
      "Hopper",
      "?", "?", "?", "?"}},
    {"FP8, current scaling", "fp8 current", "", "", {"refused on Hopper", "?", "?", "?", "?"}},
    {"MXFP8", "mxfp8", "", "", {"not in thd", "?", "?", "?", "?"}},
};

}  // namespace

std::span<const PeerRow> peer_rows() { return kRows; }
std::span<const PeerTopic> peer_topics() { return kTopics; }

}  // namespace cpscope
