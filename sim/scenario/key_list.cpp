#include "sim/scenario/key_list.h"

#include "sim/scenario/scenario_names.h"
#include "sim/scenario/scenario_parts.h"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// What the parser's reader does not know of a key.
struct KeyNote {
  std::string_view table, key, fallback, meaning;
  std::string_view type = {};  // only where the parser reads the value itself
};

constexpr KeyNote kKeyNotes[] = {
    {"", "schema", "required", "version of the format"},
    {"", "title", "\"\"", "a line for pictures and reports"},
    {"", "question", "\"\"", "what the scenario shows"},
    {"attention", "heads", "required", "query heads"},
    {"attention", "kv_heads", "heads", "heads of keys and values; divides heads (GQA, MQA)"},
    {"attention", "head_dim", "required, or head_dim_qk and head_dim_v", "elements of a head"},
    {"attention", "head_dim_qk", "head_dim", "elements of a head of q and k (MLA)"},
    {"attention", "head_dim_v", "head_dim, or latent_dim", "elements of a head of v and out (MLA)"},
    {"attention", "attn_mask_type", "\"causal\"",
     "which keys a query sees; padding_ is a label, as padding is never seen; slices: those of "
     "`slices` or `mask`"},
    {"attention", "slices", "[]",
     "attn_mask_type slices: rectangles of visible pairs, ids count valid tokens through the "
     "batch; "
     "type is full, causal, inv_causal or bi_causal",
     "list of [q0, q1, k0, k1, type]"},
    {"attention", "mask", "none", "attn_mask_type slices: a mask by name or from a file", "table"},
    {"attention", "window_size", "[-1, -1]",
     "keys left and right of the diagonal that a query sees; -1 is unbounded"},
    {"attention", "chunk_size", "0",
     "a query sees only keys of its own chunk of this many tokens (Llama 4); 0 is off"},
    {"attention", "softmax_scale", "0.0", "multiplies q.k; 0 is 1/sqrt(head_dim_qk)"},
    {"attention", "softcap", "0.0", "logits s become softcap*tanh(s/softcap); 0 is off"},
    {"attention", "softmax_type", "\"vanilla\"",
     "off_by_one: a sink of logit 0; learnable: one sink logit a head"},
    {"attention", "rope_theta", "0.0",
     "base of the rotary embedding of q and k by position inside the sequence; 0 is off"},
    {"attention", "rope_q_position", "\"auto\"",
     "query i is rotated at i (start) or at i + keys - queries (end); auto: end under bottom_right "
     "masks"},
    {"attention", "alibi", "false",
     "logits get -m*|i + keys - queries - j| with the published slope m of each head"},
    {"attention", "bias", "\"none\"",
     "logits get a random bias after scale and cap, of shape [sequences or 1, heads or 1, queries, "
     "keys]; its gradient is dbias"},
    {"attention", "dropout", "0.0",
     "share of weights that are dropped, drawn from seed, sequence, head, query and key; 0 is off"},
    {"attention", "dropout_mode", "\"split_invariant\"",
     "framework: a draw of its own for every compute item, as frameworks do, so that the result "
     "depends on the schedule"},
    {"attention", "latent_dim", "0",
     "MLA's latent form: v is the first latent_dim elements of k, which RoPE does not turn; one "
     "tensor travels and one gradient comes home; kv_heads is 1; 0 is off"},
    {"attention", "latent_nope_dim", "0",
     "MLA whose latent rows are expanded where they are used: the elements of a head of k that its "
     "weights make of the latent_dim ones, before the rotated ones; other weights make v; a row of "
     "latent_dim + head_dim_qk - latent_nope_dim elements travels; 0: v is a part of k"},
    {"attention.mask", "name", "required, or file", "the mask"},
    {"attention.mask", "block", "required by block_causal, block_diffusion, block_top_k",
     "tokens of a block"},
    {"attention.mask", "parents", "required by prefix_tree",
     "parent of each segment, -1 for a root"},
    {"attention.mask", "lengths", "required by prefix_tree", "tokens of each segment"},
    {"attention.mask", "groups", "required by image_groups",
     "tokens that see each other, counted through the batch", "list of [begin, end]"},
    {"attention.mask", "count", "0", "global_tokens, top_k: tokens at the front of each sequence"},
    {"attention.mask", "causal", "true", "global_tokens: other rows see no key after them"},
    {"attention.mask", "window", "[-1, -1]",
     "global_tokens: window of the other rows; top_k: keys left of the row that it sees, [-1, -1] "
     "is none, not even its own"},
    {"attention.mask", "keys", "required by top_k",
     "keys of a row: the first `count`, the window, and others drawn among the earlier ones"},
    {"attention.mask", "blocks", "required by block_top_k",
     "earlier blocks that a block of queries sees, drawn; of its own block it sees keys up to the "
     "row"},
    {"attention.mask", "seed", "1", "top_k, block_top_k: of the draw"},
    {"attention.mask", "sequence", "all",
     "prefix_tree, file: the sequence that the mask is of; the others are causal"},
    {"attention.mask", "file", "none", "a .npy matrix or .json file, relative to the scenario"},
    {"batch", "qkv_format", "\"thd\"",
     "thd packs sequences; bshd and sbhd are rows of equal slots"},
    {"batch", "lengths", "required, or batch_size and seqlen, or generator",
     "valid tokens of each sequence"},
    {"batch", "kv_lengths", "lengths", "valid keys of each sequence (cross attention)"},
    {"batch", "slots", "lengths, padded", "tokens of each sequence with its padding"},
    {"batch", "kv_slots", "kv_lengths, padded", "the same for keys"},
    {"batch", "batch_size", "none", "bshd, sbhd: number of sequences, in place of lengths"},
    {"batch", "seqlen", "none",
     "bshd, sbhd: length of every sequence, or its slot where lengths are given"},
    {"batch", "kv_seqlen", "seqlen", "the same for keys"},
    {"batch", "generator", "none", "draws the lengths, in place of lengths", "table"},
    {"batch", "pad_between_seqs", "true",
     "pads slots to what the layout needs; false: sizes that do not fit are rejected"},
    {"batch", "pad_side", "\"right\"",
     "where the padding of a slot is: after its tokens, or before"},
    {"batch", "slot_multiple", "1",
     "slots that are not given are rounded up to a multiple of this"},
    {"batch", "positions_file", "none",
     "JSON of the rotary positions of valid tokens, {\"q\": [...], \"kv\": [...]}"},
    {"batch.generator", "name", "required", "the distribution"},
    {"batch.generator", "tokens", "required", "sum of the lengths"},
    {"batch.generator", "mu", "7.8", "lognormal: mean of ln(length)"},
    {"batch.generator", "sigma", "1.06", "lognormal: standard deviation of ln(length)"},
    {"batch.generator", "alpha", "2.2", "lognormal+pareto: exponent of the tail"},
    {"batch.generator", "tail_from", "16384", "lognormal+pareto: first length of the tail"},
    {"batch.generator", "tail_share", "0.01", "lognormal+pareto: probability of the tail"},
    {"batch.generator", "min", "1", "shortest sequence"},
    {"batch.generator", "max", "131072", "longest sequence"},
    {"batch.generator", "count", "0",
     "equal: number of sequences; 0: as many of length max as fit"},
    {"batch.generator", "seed", "1", "of the random lengths"},
    {"batch.generator", "file", "none", "csv: a file of lengths, relative to the scenario"},
    {"parallel", "cp_size", "required", "ranks of the context-parallel group"},
    {"parallel", "cp_comm_type", "\"p2p\"",
     "how keys and values, or heads, reach the rank that computes with them: ring, Ulysses, "
     "gathered whole, Ulysses in a ring, only to the ranks that need them; or how queries do: in a "
     "ring (pass_q, token_ring), to ranks that help (helper_ring), in tiles (mesh), gathered "
     "(gather_q); double_ring: keys and values in a ring inside each host and in rings of hosts; "
     "a2a+double_ring: the same over groups of ranks that exchange heads"},
    {"parallel", "layout", "\"dual_chunk\"", "which rank owns which token"},
    {"parallel", "a2a_size", "2",
     "a2a+p2p, a2a+double_ring: ranks of the inner a2a; divides cp_size"},
    {"parallel", "dispatch_chunk", "512", "lpt, lpt_local: tokens of a chunk"},
    {"parallel", "stripe", "1", "striped: consecutive tokens of a stripe"},
    {"parallel", "indices_file", "required by layout indices",
     "JSON of the token order, relative to the scenario"},
    {"parallel", "dispatch", "\"tokens\"",
     "group_cast: tokens are permuted once, or queries and outputs move in every layer"},
    {"parallel", "backward_kv", "\"refetch\"",
     "group_cast, all_gather: backward fetches keys and values again, or they were saved"},
    {"parallel", "partial_wire", "\"dtype\"",
     "where queries move: what the out of a partial result is sent in"},
    {"parallel", "mesh_q", "2", "mesh: query chunks of a rank's tile; divides cp_size"},
    {"parallel", "ring_window", "2",
     "double_ring: consecutive ranks of a window, which is a host; divides cp_size. "
     "a2a+double_ring: consecutive groups of a2a_size ranks; divides cp_size / a2a_size"},
    {"parallel", "ring_backward", "\"kv\"",
     "p2p, double_ring: in the backward keys and values travel, with dk and dv (kv); or queries, "
     "d_out and statistics do, with dq, and keys and values stay (q, BurstAttention)"},
    {"parallel", "combine", "\"all_to_all\"",
     "gather_q: partial results go to the owners of the queries, who merge them; or every rank "
     "gathers all lse, scales its results, and the owners add them in the dtype (reduce_scatter); "
     "or, "
     "where ranks own heads, pairs of ranks exchange and merge half of their heads, then a "
     "quarter, "
     "down to their own (tree)"},
    {"parallel", "q_owner", "\"rows\"",
     "gather_q: a rank owns rows of queries and results, with all heads; or some heads of all "
     "rows, "
     "as in a tensor-parallel group (heads); or the results of some heads, while every rank has "
     "all "
     "heads of the queries (heads_replicated); of an order (indices) the keys alone then count"},
    {"parallel", "heads_per_stage", "0",
     "a2a: query heads of a rank that are exchanged and computed at a time (UPipe); all_gather: KV "
     "heads that are gathered at a time; 0: all"},
    {"parallel", "kv_replicated", "0",
     "p2p, a2a, a2a+p2p, all_gather: as many of the first valid keys of each sequence are on every "
     "rank (text of joint attention, a shared prefix) and do not travel; their dk and dv are "
     "summed "
     "on the rank that owns them"},
    {"parallel", "cp_sizes", "[]",
     "p2p, a2a, all_gather; layouts dual_chunk, contiguous, striped: how many consecutive ranks "
     "share each sequence, in rounds of groups; one integer: the same for every sequence, in "
     "groups "
     "that are data-parallel replicas (Megatron's context_parallel_size); the next sequence goes "
     "to "
     "the group with the fewest tokens; hybrid: Megatron's scheduler; flexsp: powers of "
     "two with which the slowest group is fast, by FlexSP's published times; bytescale: as many as "
     "hold the sequence, any number; [] is all ranks",
     "list of integers from 1 to cp_size, one for each sequence, or one that divides cp_size, or "
     "hybrid, flexsp, bytescale"},
    {"parallel", "max_tokens_per_rank", "required by cp_sizes hybrid, flexsp, bytescale",
     "tokens that a rank may hold: of one sequence (hybrid, one integer), or of a round"},
    {"numerics", "dtype", "\"bf16\"",
     "of inputs and answers; fp8: these are bf16, and attention is computed in 8 bits"},
    {"numerics", "backward", "true", "computes gradients too"},
    {"numerics", "seed", "1", "of the inputs"},
    {"numerics", "dkv_wire", "\"dtype\"", "what dk and dv, and dq where queries move, are sent in"},
    {"numerics", "dkv_hops", "\"home\"",
     "p2p: the backward ring ends on the rank's own keys (home, TransformerEngine), or a last hop "
     "brings dk and dv home (ring, ring-flash-attention)"},
    {"numerics", "accumulate", "\"fp32\"",
     "what partial results are merged in; dtype, if 16 bits: in two phases, which keep the results "
     "of all steps (TransformerEngine before 2.20)"},
    {"numerics", "inputs", "\"normal\"",
     "peaked: queries and keys at positions that are equal modulo 61 have a direction in common, "
     "so "
     "that few keys hold a row's weight and an error of a merge is large"},
    {"fp8", "recipe", "\"current\"",
     "how scales are chosen (TransformerEngine): delayed: by the step before, which has the inputs "
     "of the seed before; current: by q, k and v together, over all ranks; mxfp8: one for each "
     "block of 32 elements, all in E4M3"},
    {"fp8", "format", "\"hybrid\"", "hybrid: E4M3 forward, E5M2 gradients; e4m3: everywhere"},
    {"fp8", "kv_wire", "\"fp8\"", "what K and V travel in; mxfp8: bf16"},
};

/// Scenarios in which the parser reads every key: all masks, all generators.
std::vector<ReadKey> read_all_keys() {
  constexpr std::string_view kText =
      "schema = 1\n[attention]\nheads = 1\nhead_dim = 8\nattn_mask_type = \"slices\"\n"
      "mask = {{ name = \"{}\" }}\n"
      "[batch]\ngenerator = {{ name = \"{}\", tokens = 8 }}\n[parallel]\ncp_size = 1\n";
  std::vector<ReadKey> all;
  for (const std::string_view mask : kMaskNames)
    for (const std::string_view generator : kGeneratorNames)
      log_keys(fmt::format(kText, mask, generator), all);
  return all;
}

template <class Keys>
void add_table(std::string_view table, const Keys& keys, const std::vector<ReadKey>& read,
               std::vector<ScenarioKey>& listed) {
  for (const std::string_view key : keys) {
    ScenarioKey made{std::string(table), std::string(key), {}, {}, {}, {}};
    const auto note =
        std::find_if(std::begin(kKeyNotes), std::end(kKeyNotes),
                     [&](const KeyNote& n) { return n.table == table && n.key == key; });
    if (note != std::end(kKeyNotes)) {
      made.type = note->type;
      made.fallback = note->fallback;
      made.meaning = note->meaning;
    }
    const auto asked = std::find_if(read.begin(), read.end(), [&](const ReadKey& one) {
      return one.table == table && one.key == key;
    });
    if (asked != read.end()) {
      made.type = asked->type;
      made.choices = asked->choices;
    }
    if (table == "attention.mask" && key == "name")
      made.choices.assign(kMaskNames.begin(), kMaskNames.end());
    if (table == "batch.generator" && key == "name")
      made.choices.assign(kGeneratorNames.begin(), kGeneratorNames.end());
    listed.push_back(std::move(made));
  }
}

}  // namespace

std::vector<ScenarioKey> list_scenario_keys() {
  const std::vector<ReadKey> read = read_all_keys();
  std::vector<ScenarioKey> listed;
  constexpr auto kTables =
      std::to_array<std::string_view>({"attention", "batch", "parallel", "numerics", "fp8"});
  std::vector<std::string_view> top;
  for (const std::string_view key : kTopKeys)
    if (std::find(kTables.begin(), kTables.end(), key) == kTables.end()) top.push_back(key);
  add_table("", top, read, listed);
  add_table("attention", kAttentionKeys, read, listed);
  add_table("attention.mask", kMaskKeys, read, listed);
  add_table("batch", kBatchKeys, read, listed);
  add_table("batch.generator", kGeneratorKeys, read, listed);
  add_table("parallel", kParallelKeys, read, listed);
  add_table("numerics", kNumericsKeys, read, listed);
  add_table("fp8", kFp8Keys, read, listed);
  return listed;
}

}  // namespace cpscope
