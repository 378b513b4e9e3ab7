#include "gui/app/code_places.h"

#include <algorithm>
#include <array>

namespace cpscope::gui {
namespace {

struct CodePlace {
  std::string_view title, place;
};

constexpr std::array kPlaces = {
    CodePlace{"What is split", "Megatron-LM, megatron/core/utils.py: get_batch_on_this_cp_rank"},
    CodePlace{"Why contiguous idles",
              "ring-flash-attention, ring_flash_attn/ring_flash_attn.py: "
              "ring_flash_attn_forward"},
    CodePlace{"Zigzag: two chunks a rank",
              "Megatron-LM, megatron/core/utils.py: get_batch_on_this_cp_rank; "
              "ring-flash-attention, ring_flash_attn/zigzag_ring_flash_attn.py"},
    CodePlace{"Striped: tokens assigned round-robin",
              "ring-flash-attention, ring_flash_attn/stripe_flash_attn.py"},
    CodePlace{"What moves",
              "TransformerEngine, transformer_engine/pytorch/attention/dot_product_attention/"
              "context_parallel.py: AttnFuncWithCPAndKVP2P, AttnFuncWithCPAndKVAllGather, "
              "AttnFuncWithCPAndQKVOA2A"},
    CodePlace{"The two reorders of all-to-all",
              "TransformerEngine, context_parallel.py: "
              "get_seq_chunk_ids_for_reordering_before_attn"},
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
