#pragma once

// The parts of parse_scenario, one per table or topic; scenario_parse.cpp combines them.

#include "sim/scenario/scenario.h"
#include "sim/scenario/scenario_file.h"
#include "sim/scenario/table_reader.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

inline constexpr auto kTopKeys = std::to_array<std::string_view>(
    {"schema", "title", "question", "attention", "batch", "parallel", "numerics", "fp8"});
inline constexpr auto kAttentionKeys = std::to_array<std::string_view>(
    {"heads",          "kv_heads", "head_dim",     "head_dim_qk",  "head_dim_v",
     "attn_mask_type", "slices",   "mask",         "window_size",  "chunk_size",
     "softmax_scale",  "softcap",  "softmax_type", "rope_theta",   "rope_q_position",
     "alibi",          "bias",     "dropout",      "dropout_mode", "latent_dim",
     "latent_nope_dim"});
inline constexpr auto kMaskKeys = std::to_array<std::string_view>(
    {"name", "block", "parents", "lengths", "groups", "count", "causal", "window", "keys", "blocks",
     "seed", "sequence", "file"});
inline constexpr auto kBatchKeys = std::to_array<std::string_view>(
    {"qkv_format", "lengths", "kv_lengths", "slots", "kv_slots", "batch_size", "seqlen",
     "kv_seqlen", "generator", "pad_between_seqs", "pad_side", "slot_multiple", "positions_file"});
inline constexpr auto kParallelKeys = std::to_array<std::string_view>(
    {"cp_size", "cp_comm_type", "layout", "a2a_size", "dispatch_chunk", "stripe", "indices_file",
     "dispatch", "backward_kv", "partial_wire", "mesh_q", "ring_window", "ring_backward", "combine",
     "q_owner", "heads_per_stage", "kv_replicated", "cp_sizes", "max_tokens_per_rank"});
inline constexpr auto kNumericsKeys = std::to_array<std::string_view>(
    {"dtype", "backward", "seed", "dkv_wire", "dkv_hops", "accumulate", "inputs"});
inline constexpr auto kFp8Keys = std::to_array<std::string_view>({"recipe", "format", "kv_wire"});
inline constexpr auto kGeneratorKeys =
    std::to_array<std::string_view>({"name", "tokens", "mu", "sigma", "alpha", "tail_from",
                                     "tail_share", "min", "max", "count", "seed", "file"});

/// The readers of all tables of one file.
struct ScenarioTables {
  TableReader top, attention, mask, batch, generator, parallel, numerics, fp8;
  ScenarioOrigin origin = ScenarioOrigin::file;

  bool is_plan_document() const { return origin == ScenarioOrigin::plan_document; }
};

/// Parses the text and adds every key that the parser has asked for; errors of the text are
/// ignored.
void log_keys(std::string_view text, std::vector<ReadKey>& log);

/// Slots of sequences without a given slot: the lengths, or for bshd and sbhd the longest length.
std::vector<int64_t> find_default_slots(const Batch& batch, const std::vector<int64_t>& lengths);
/// True if [batch] gives slots, as slots or as seqlen beside lengths: slot_multiple is then unused.
bool has_given_slots(const TableReader& batch);

/// Reads [attention] except the slices and the mask that makes them.
void read_attention(const TableReader& table, Attention& attention);

/// Reads [batch] and its generator, and fills lengths and slots. `base_dir` anchors file names. The
/// batch is filled only if its tables have no error.
void read_batch(const ScenarioTables& tables, const std::string& base_dir, Batch& batch);

/// Reads the type-checked slices. With a batch they are checked against it and each other, and
/// stored. Without one (nullptr: another mask type, or a wrong batch) only their form is checked.
void read_slices(const ScenarioTables& tables, const Batch* batch, Attention& attention);

/// Reads the mask by name or from a file, in place of slices. With a batch it is checked against
/// it, and stored with the slices that it makes. Without one (nullptr) only its form is checked.
void read_mask(const ScenarioTables& tables, const std::string& base_dir, const Batch* batch,
               Attention& attention);

/// Complains about every key that no table knows. Keys of features that cpscope knows but does not
/// support are rejected with an error that names the feature.
void check_unknown_keys(const ScenarioTables& tables);

/// One sentence for each key that was given but that the chosen types do not use.
std::vector<std::string> list_unused_keys(const ScenarioTables& tables, const Scenario& scenario);

}  // namespace cpscope
