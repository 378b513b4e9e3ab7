#include "gui/app/code_places.h"

#include <algorithm>
#include <array>

namespace cpscope::gui {
namespace {

struct CodePlace {
  std::string_view title, place;
};

// As of TransformerEngine d0067d0, Megatron-LM d98e8a6, ring-flash-attention 8996282.
constexpr std::array kPlaces = {
    CodePlace{"What is split", "Megatron-LM, megatron/core/utils.py: get_batch_on_this_cp_rank"},
    CodePlace{"Why contiguous idles",
              "ring-flash-attention, ring_flash_attn/ring_flash_attn.py: "
              "ring_flash_attn_forward"},
    CodePlace{"Zigzag: two chunks a rank",
              "Megatron-LM, megatron/core/utils.py: get_batch_on_this_cp_rank; "
              "ring-flash-attention, ring_flash_attn/zigzag_ring_flash_attn.py: "
              "zigzag_ring_flash_attn_forward"},
    CodePlace{"Striped: tokens assigned round-robin",
              "ring-flash-attention, ring_flash_attn/stripe_flash_attn.py: "
              "stripe_flash_attn_forward"},
    CodePlace{"What moves",
              "TransformerEngine, transformer_engine/pytorch/attention/dot_product_attention/"
              "context_parallel.py: AttnFuncWithCPAndKVP2P, AttnFuncWithCPAndKVAllGather, "
              "AttnFuncWithCPAndQKVOA2A; MagiAttention, "
              "magi_attention/comm/primitive/grpcoll: group cast and group reduce"},
    CodePlace{"The two reorders of all-to-all",
              "TransformerEngine, context_parallel.py: flash_attn_a2a_communicate, "
              "get_seq_chunk_ids_for_reordering_before_attn, "
              "get_seq_chunk_ids_for_reordering_after_attn"},
    CodePlace{"Merging partial results",
              "TransformerEngine, context_parallel.py: flash_attn_fwd_out_correction, "
              "flash_attn_fwd_softmax_lse_correction; ring-flash-attention, "
              "ring_flash_attn/utils.py: update_out_and_lse"},
    CodePlace{"A CP size for each document",
              "Megatron-LM, megatron/core/pipeline_parallel/hybrid_cp_schedule.py: "
              "BalancedCPScheduler"},
    CodePlace{"Transfers behind compute",
              "TransformerEngine, context_parallel.py: flash_attn_p2p_communicate; "
              "ring-flash-attention, ring_flash_attn/utils.py: RingComm"},
    CodePlace{"Packed documents",
              "ring-flash-attention, ring_flash_attn/zigzag_ring_flash_attn_varlen.py and "
              "llama3_flash_attn_varlen.py"},
    CodePlace{"The way back",
              "TransformerEngine, context_parallel.py: AttnFuncWithCPAndKVP2P.backward; "
              "ring-flash-attention, ring_flash_attn/ring_flash_attn.py: "
              "ring_flash_attn_backward"}};

}  // namespace

std::string_view code_place(std::string_view lesson_title) {
  const auto* found = std::find_if(kPlaces.begin(), kPlaces.end(), [&](const CodePlace& place) {
    return place.title == lesson_title;
  });
  return found == kPlaces.end() ? std::string_view() : found->place;
}

}  // namespace cpscope::gui
