#pragma once

// The parts of parse_scenario, one per table or topic; scenario_parse.cpp combines them.

#include "sim/scenario/scenario.h"
#include "sim/scenario/table_reader.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

inline constexpr std::array<std::string_view, 7> kTopKeys = {
    "schema", "title", "question", "attention", "batch", "parallel", "numerics"};
inline constexpr std::array<std::string_view, 13> kAttentionKeys = {
    "heads",          "kv_heads",     "head_dim",    "head_dim_qk", "head_dim_v",
    "attn_mask_type", "slices",       "window_size", "chunk_size",  "softmax_scale",
    "softcap",        "softmax_type", "rope_theta"};
inline constexpr std::array<std::string_view, 10> kBatchKeys = {
    "qkv_format", "lengths", "kv_lengths", "slots",     "kv_slots",
    "batch_size", "seqlen",  "kv_seqlen",  "generator", "pad_between_seqs"};
inline constexpr std::array<std::string_view, 9> kParallelKeys = {
    "cp_size", "cp_comm_type", "layout",   "a2a_size",   "dispatch_chunk",
    "stripe",  "indices_file", "dispatch", "backward_kv"};
inline constexpr std::array<std::string_view, 6> kNumericsKeys = {
    "dtype", "backward", "seed", "dkv_wire", "dkv_hops", "accumulate"};
inline constexpr std::array<std::string_view, 12> kGeneratorKeys = {
    "name",       "tokens", "mu",  "sigma", "alpha", "tail_from",
    "tail_share", "min",    "max", "count", "seed",  "file"};

/// The readers of all tables of one file.
struct ScenarioTables {
  TableReader top, attention, batch, generator, parallel, numerics;
};

/// Slots of sequences without a given slot: the lengths, or for bshd and sbhd the longest length.
std::vector<int64_t> find_default_slots(QkvFormat format, const std::vector<int64_t>& lengths);

/// Reads [attention] except the slices.
void read_attention(const TableReader& table, Attention& attention);

/// Reads [batch] and its generator, and fills lengths and slots. `base_dir` anchors file names. The
/// batch is filled only if its tables have no error.
void read_batch(const ScenarioTables& tables, const std::string& base_dir, Batch& batch);

/// Reads the type-checked slices. With a batch they are checked against it and each other, and
/// stored. Without one (nullptr: another mask type, or a wrong batch) only their form is checked.
void read_slices(const TableReader& table, const Batch* batch, Attention& attention);

/// Complains about every key that no table knows. Keys of features that cpscope knows but does not
/// support are rejected with an error that names the feature.
void check_unknown_keys(const ScenarioTables& tables);

/// One sentence for each key that was given but that the chosen types do not use.
std::vector<std::string> list_unused_keys(const ScenarioTables& tables, const Scenario& scenario);

}  // namespace cpscope
