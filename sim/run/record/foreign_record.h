#pragma once

#include "sim/plan/plan.h"
#include "sim/run/record/row_axes.h"
#include "sim/run/record/run_record.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// The order of the rows of a tensor: by packed padded token id (contract, section 4), or the
/// ranks' local buffers one after another.
enum class RowOrder { packed, rank };

std::string_view to_name(RowOrder value);
std::optional<RowOrder> find_row_order(std::string_view name);

/// A tensor of the contract under the name that other software has for it.
struct TensorAlias {
  std::string name;    // of the contract: "out"
  std::string theirs;  // "attn_output"; its parts are "attn_output.rank0", ...
};

/// What the caller says about a record; other properties are looked up in its metadata ("order",
/// "format", "lse_layout").
struct ForeignChoices {
  std::optional<RowOrder> order = {};
  std::optional<RowFormat> format = {};
  std::optional<LseLayout> lse_layout = {};
  std::vector<TensorAlias> aliases = {};
};

/// The content of a file, or of one rank's part of it.
struct NamedRecord {
  std::string path;
  RunRecord record;
  std::vector<std::string> absent = {};  // names that were given without a tensor
  std::set<std::string> parts = {};      // tensors that are one rank's rows, as a DTensor says
  // Reads the values of a tensor of `record` that has a shape and no values yet: only one tensor at
  // a time then needs memory. Empty: all have their values.
  std::function<std::vector<double>(const Tensor&)> load = {};
};

/// Tensors that other software computed, with the contract's names and shapes, in packed padded
/// token order.
struct ForeignRecord {
  std::vector<Tensor> tensors;        // in the contract's order
  std::vector<std::string> readings;  // [tensor] "F32 [40, 4, 8] read as ..., in packed order"
  std::vector<std::string> ignored;   // tensors of other names
  std::vector<std::string> absent;    // names that the caller gave without a tensor
  RowOrder order = RowOrder::packed;
  std::string order_source;  // source of `order`: an option, the metadata, cpscope, the contract
  bool is_by_rank = false;   // every tensor came in parts, so that `order` was not needed
  std::string executor;      // from its metadata; may be empty

  const Tensor* find(std::string_view name) const;
  Tensor* find(std::string_view name);
};

/// Converts one record, or one for each rank, into the contract's form. A tensor may be whole
/// ("out") or in parts by rank ("out.rank0", ... of one file, or "out" of one file per rank): parts
/// are in rank order whatever was chosen. Where ranks own heads of all queries (q_owner), the part
/// of a tensor of queries is [tokens, heads of the rank, head_dim], of lse [tokens, heads of the
/// rank], of max_logit and sink [heads of the rank] or [heads]; q of "heads_replicated" has all
/// heads on every rank. The values of one tensor at a time are held twice. Errors (bad_input): an
/// unknown choice in the metadata, a part that is missing or of another shape, a shape that fits
/// nothing or several things.
Result<ForeignRecord> read_foreign(std::vector<NamedRecord> records, const Plan& plan,
                                   const ForeignChoices& choices);

/// Sorts files by rank: by metadata "rank" if all have it, else they keep their order. Refuses a
/// list whose file names have another order ("rank10" before "rank2", as a shell sorts).
std::optional<Error> sort_by_rank(std::vector<NamedRecord>& records);

/// Target of each rank-ordered row: the packed padded id of every row of all ranks' local buffers.
std::vector<int64_t> rank_order_ids(std::span<const std::vector<TokenRun>> runs_by_rank);

}  // namespace cpscope
