#include "sim/documents/te_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json tile_json(const TeTile& tile, bool is_thd) {
  Json json{{"rank", tile.rank},
            {"step", tile.step},
            {"kv_rank", tile.kv_rank < 0 ? Json(nullptr) : Json(tile.kv_rank)},
            {"section", to_name(tile.section)},
            {"q_half", to_name(tile.q_half)},
            {"kv_half", to_name(tile.kv_half)},
            {"attn_mask_type", tile.attn_mask_type},
            {"window_size", {tile.window_left, tile.window_right}},
            {"bottom_right", tile.is_bottom_right},
            {"max_seqlen_q", tile.max_seqlen_q},
            {"max_seqlen_kv", tile.max_seqlen_kv}};
  json["cu_seqlens_q"] = tile.lengths.cu_seqlens_q;
  json["cu_seqlens_kv"] = tile.lengths.cu_seqlens_kv;
  if (is_thd) {
    json["cu_seqlens_q_padded"] = tile.cu_seqlens_q_padded;
    json["cu_seqlens_kv_padded"] = tile.cu_seqlens_kv_padded;
  }
  if (tile.kv_end > 0) json["kv_range"] = {tile.kv_begin, tile.kv_end};
  json["pairs"] = tile.lengths.pairs;
  json["difference"] = or_null(tile.shortcut_difference);
  if (!tile.floored) return json;
  Json floored;
  floored["cu_seqlens_q"] = tile.floored->cu_seqlens_q;
  floored["cu_seqlens_kv"] = tile.floored->cu_seqlens_kv;
  floored["pairs"] = tile.floored->pairs;
  floored["difference"] = or_null(tile.floored_difference);
  json["without_pad_between_seqs"] = std::move(floored);
  return json;
}

/// "0 170 206", cut where sequences are many.
std::string show(const std::vector<int64_t>& sums) {
  constexpr size_t kShown = 9;
  if (sums.size() <= kShown) return fmt::format("{}", fmt::join(sums, " "));
  return fmt::format("{} ... {}", fmt::join(sums.begin(), sums.begin() + kShown - 1, " "),
                     sums.back());
}

}  // namespace

Json te_json(const TeView& view, const Plan& plan) {
  const bool is_thd = plan.scenario.batch.qkv_format == QkvFormat::thd;
  Json json{{"schema", 1},
            {"plan_hash", to_hex(plan.hash)},
            {"cp_size", plan.layout.cp_size},
            {"cp_comm_type", to_name(plan.scenario.parallel.comm_type)},
            {"qkv_format", to_name(plan.scenario.batch.qkv_format)},
            {"max_seqlen_q", view.max_seqlen_q},
            {"max_seqlen_kv", view.max_seqlen_kv}};
  json["cu_seqlens_q"] = view.cu_seqlens_q;
  json["cu_seqlens_kv"] = view.cu_seqlens_kv;
  json["cu_seqlens_q_padded"] = view.cu_seqlens_q_padded;
  json["cu_seqlens_kv_padded"] = view.cu_seqlens_kv_padded;
  json["notes"] = view.notes;
  json["tiles"] = Json::array();
  for (const TeTile& tile : view.tiles) json["tiles"].push_back(tile_json(tile, is_thd));
  return json;
}

void write_te_text(const TeView& view, const Plan& plan, std::ostream& out) {
  out << fmt::format("TransformerEngine, {} ranks, {}, {}: cu_seqlens_q {}, padded {}\n",
                     plan.layout.cp_size, to_name(plan.scenario.parallel.comm_type),
                     to_name(plan.scenario.batch.qkv_format), show(view.cu_seqlens_q),
                     show(view.cu_seqlens_q_padded));
  for (const std::string& note : view.notes) out << "note: " << note << '\n';
  out << "pairs a head are visible (query, key) pairs; plan --text counts one for each query "
         "head\n";
  out << fmt::format("{:>4} {:>4} {:>6} {:<14} {:<11} {:<28} {:>11} {:>12}  cu_seqlens_q | kv\n",
                     "rank", "step", "kv of", "section", "q, kv half", "mask and window",
                     "max q, kv", "pairs a head");
  for (const TeTile& tile : view.tiles) {
    out << fmt::format(
        "{:>4} {:>4} {:>6} {:<14} {:<11} {:<28} {:>11} {:>12}  {} | {}\n", tile.rank, tile.step,
        tile.kv_rank < 0 ? "all" : fmt::to_string(tile.kv_rank), to_name(tile.section),
        fmt::format("{}, {}", to_name(tile.q_half), to_name(tile.kv_half)),
        fmt::format("{} ({}, {})", tile.attn_mask_type, tile.window_left, tile.window_right),
        fmt::format("{}, {}", tile.max_seqlen_q, tile.max_seqlen_kv), tile.lengths.pairs,
        show(tile.lengths.cu_seqlens_q), show(tile.lengths.cu_seqlens_kv));
    if (!tile.shortcut_difference.empty())
      out << fmt::format("          differs: {}\n", tile.shortcut_difference);
    if (!tile.floored_difference.empty())
      out << fmt::format("          differs without pad_between_seqs: {}; cu_seqlens_q {} | {}\n",
                         tile.floored_difference, show(tile.floored->cu_seqlens_q),
                         show(tile.floored->cu_seqlens_kv));
  }
}

}  // namespace cpscope
