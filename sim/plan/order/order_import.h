#pragma once

#include "sim/base/result.h"
#include "sim/plan/order/kv_interleave.h"
#include "sim/scenario/order_file.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// Whole numbers under one name, as frameworks write them: one list, or one for each rank or
/// sequence. The name is empty for files without names.
struct NamedLists {
  std::string name;
  std::vector<std::vector<int64_t>> lists;
};

/// The framework whose token order is imported.
enum class OrderSource { te, torch, ring_flash_attention, usp, magi, megatron, vllm };

std::string_view to_name(OrderSource value);
std::optional<OrderSource> find_order_source(std::string_view name);

struct ImportRequest {
  OrderSource source = OrderSource::te;
  std::string layout;          // ring_flash_attention, usp: its name in that framework
  int64_t cp_size = 0;         // 0: taken from the lists
  int64_t ulysses_degree = 1;  // usp: ranks that split the heads; cp_size / this is the ring
  int64_t tokens = 0;          // of a single sequence; 0: taken from the lists or boundaries
  std::vector<int64_t> cu_seqlens = {};  // padded boundaries of the sequences; may be empty
  std::vector<NamedLists> given = {};    // what the files hold
};

/// The first list of one of these names; null if there is none.
template <class Names = std::initializer_list<std::string_view>>
const NamedLists* find_lists(const ImportRequest& request, const Names& names) {
  for (const std::string_view name : names) {
    for (const NamedLists& lists : request.given) {
      if (lists.name == name) return &lists;
    }
  }
  return nullptr;
}

/// A token order that is a partition of the packed padded ids.
struct OrderImport {
  int32_t cp_size = 1;
  std::vector<std::vector<int64_t>> ranks;     // [rank][local row] packed padded id
  std::vector<std::vector<int64_t>> kv_ranks;  // the same for KV; empty when KV equals the queries
  std::vector<int64_t> lengths, slots;         // [sequence] of the queries; empty: unknown
  std::vector<int64_t> kv_lengths, kv_slots;   // empty when KV equals the queries
  std::vector<std::string> notes;              // which checks were made
  std::vector<std::string> differences;        // where lists differ from their source's formula
  std::vector<std::string> ignored;            // names of lists that the source does not have
  std::string same_layout;                     // a cpscope layout with the same order; may be empty
  std::vector<InterleaveRange> interleaves;    // vllm: those that explain all keys

  int64_t tokens() const;
};

/// Makes the order from what the sources give:
/// te: "cu_seqlens" (valid boundaries), "cu_seqlens_padded" (slots) and "indices", one list per
/// rank, as thd_get_partitioned_indices returns them; without indices they are computed. For KV the
/// same with "_kv". Source: local row u of rank r in a sequence of local begin o is token (u-o) +
/// o*P + C*(r if u-o < C, else 2P-2-r), C = slot/2P (TransformerEngine,
/// thd_get_partitioned_indices).
/// megatron: the same from the fields of PackedSeqParams; max_seqlen_q and max_seqlen_kv below the
/// longest sequence are a difference.
/// torch: "rearrange", or its inverse "restore" (PyTorch's load balancers): balanced[i] =
/// original[rearrange[i]], then cut contiguously; one list per sequence when they are batched.
/// ring_flash_attention: ring, zigzag, stripe (each sequence by itself, varlen or batched), llama3
/// (the packed buffer).
/// magi: "position_ids", or lists without a name: what get_position_ids returns on each rank
/// (MagiAttention). Padding behind the last token repeats its id (DispatchMeta.position_ids
/// clamps): those rows are numbered anew, as the last sequence's padding. Boundaries are of the
/// tokens. All but magi: "position_ids" of the packed batch, in place of boundaries: a document
/// begins where they do not continue by 1. With boundaries they are compared only. usp: basic,
/// zigzag, strip (yunchang, EXTRACT_FUNC_DICT; rank = ring index * ulysses degree + ulysses index).
/// vllm: a step of vLLM under decode context parallelism (vllm_import.h). "query_start_loc", the
/// boundaries of the new tokens; "slot_mapping", one list a rank: the slot of each new token in the
/// rank's cache, -1 for tokens of other ranks; "block_table", a row a request, and "block_size";
/// "seq_lens", "num_computed_tokens" or "positions", for tokens that are cached before;
/// "cp_kv_cache_interleave_size", else found; "dcp_local_seq_lens", one list a rank. Rows of a rank
/// are by slot. With cached tokens, KV is that of all tokens.
/// Errors (bad_input) name what is missing, boundaries that decrease or exceed their slots, sizes
/// that do not divide, and ids that are lost or repeated.
Result<OrderImport> import_order(const ImportRequest& request);

/// What an order must fit to replace the layout of a scenario over the same slots. Errors: as
/// make_layout.
Result<OrderDemand> demand_of_order(const Scenario& scenario);

/// Reads an order by `read` for a scenario with this demand. One that does not fit may, as an
/// indices_file, be over the slots as they were given, without the padding that the layout adds.
Result<ImportedOrder> read_fitting_order(
    const Scenario& scenario, const OrderDemand& demand,
    const std::function<Result<ImportedOrder>(const OrderDemand&)>& read);

/// Replaces a scenario's layout by an order that read_fitting_order returns, over the same slots.
/// `path` is what the scenario then calls its indices_file. Errors: as make_layout, and bad_input
/// for ids behind the last slot, unless the batch is thd and padded on the right.
std::optional<Error> use_order(ImportedOrder order, const std::string& path, Scenario& scenario);

/// The text of an order file (scenario key indices_file).
std::string print_order_file(const OrderImport& order);

}  // namespace cpscope
