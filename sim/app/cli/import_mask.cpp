#include "sim/app/cli/import_mask.h"

#include "sim/app/cli/command.h"
#include "sim/documents/json_text.h"
#include "sim/scenario/mask_file.h"
#include "sim/scenario/toml_document.h"

#include <algorithm>
#include <iostream>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// One sequence that has the whole mask. Keys that no query sees may lie behind those of the file.
Batch batch_of_mask(const MaskRows& mask) {
  Batch batch;
  batch.lengths = {mask.rows * mask.row_tile};
  const int64_t keys = mask.columns * mask.column_tile;
  batch.kv_lengths = {mask.has_all_columns ? keys : std::max(keys, batch.lengths[0])};
  return batch;
}

Json mask_json(const Batch& batch, const MaskCut& cut) {
  Json json{{"schema", 1},
            {"queries", batch.lengths[0]},
            {"keys", batch.kv_lengths[0]},
            {"visible_pairs", cut.pairs}};
  json["slices"] = Json::array();
  for (const MaskSlice& slice : cut.slices)
    json["slices"].push_back({slice.q0, slice.q1, slice.k0, slice.k1, to_name(slice.type)});
  return json;
}

void write_mask_text(const std::string& path, const Batch& batch, const MaskCut& cut,
                     std::ostream& out) {
  constexpr size_t kShown = 64;
  out << fmt::format("{}: {} queries x {} keys, {} visible pairs, {} slices\n", path,
                     batch.lengths[0], batch.kv_lengths[0], cut.pairs, cut.slices.size());
  out << "for a scenario:\n  [attention]\n  attn_mask_type = \"slices\"\n";
  if (cut.slices.size() > kShown) {
    out << fmt::format("  mask = {{ file = {} }}\n", print_toml_text(path));
    return;
  }
  out << "  slices = [\n";
  for (const MaskSlice& slice : cut.slices)
    out << fmt::format("    [{}, {}, {}, {}, \"{}\"],\n", slice.q0, slice.q1, slice.k0, slice.k1,
                       to_name(slice.type));
  out << "  ]\n";
}

}  // namespace

int import_mask(const std::string& path, bool as_json) {
  const Result<MaskRows> mask = load_mask_rows(path);
  if (!mask) return report(mask.error());
  const Batch batch = batch_of_mask(mask.value());
  const Result<MaskCut> cut = cut_mask(mask.value(), batch, -1);
  if (!cut) return report(cut.error());
  if (as_json) {
    std::cout << print_json(mask_json(batch, cut.value())) << '\n';
  } else {
    write_mask_text(path, batch, cut.value(), std::cout);
  }
  return 0;
}

}  // namespace cpscope
