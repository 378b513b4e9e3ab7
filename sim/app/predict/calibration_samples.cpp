#include "sim/app/predict/calibration_samples.h"

#include "sim/clock/clock.h"
#include "sim/plan/direction.h"
#include "sim/plan/planner/planner.h"
#include "sim/scenario/table_reader.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr std::array<std::string_view, 4> kFileKeys = {"schema", "note", "multiprocessors",
                                                       "samples"};
constexpr std::array<std::string_view, 13> kSampleKeys = {
    "head_dim", "head_dim_qk", "head_dim_v", "bits",   "heads",     "seqlen", "batch",
    "lengths",  "mask",        "window",     "tflops", "direction", "flops"};
constexpr int64_t kMaxSamples = 4096;
constexpr int64_t kMostTokens = int64_t{1} << 24;

/// Whose kernel: lanes of q and k, of v, bits of an element.
using KernelKey = std::tuple<int32_t, int32_t, int32_t>;

struct ForeignSample {
  KernelKey kernel;
  Direction direction = Direction::forward;
  ComputeSample sample;
};

/// One of two words; nothing after a complaint.
std::optional<bool> second_of(const TableReader& table, std::string_view key, const char* first,
                              const char* second) {
  const std::optional<std::string> word = table.text(key);
  if (!word) return std::nullopt;
  if (*word == first) return false;
  if (*word == second) return true;
  table.complain(key, fmt::format("must be \"{}\" or \"{}\": {}", first, second, show_text(*word)),
                 "choose one");
  return std::nullopt;
}

std::vector<int64_t> read_lengths(const TableReader& table) {
  if (table.has("lengths"))
    return table.integers("lengths", 1, kMostTokens, 1 << 20).value_or(std::vector<int64_t>());
  table.require("seqlen", "write the tokens of a sequence, or lengths = [...]");
  const int64_t batch = table.integer("batch", 1, 1 << 16).value_or(1);
  return std::vector<int64_t>(static_cast<size_t>(batch),
                              table.integer("seqlen", 1, kMostTokens).value_or(1));
}

Attention read_attention(const TableReader& table) {
  Attention attention;
  const auto lanes = [&](std::string_view key) {
    const std::string_view read = table.has(key) ? key : std::string_view("head_dim");
    table.require(read, "write head_dim");
    return static_cast<int32_t>(table.integer(read, 1, kMaxHeadDim).value_or(1));
  };
  attention.head_dim_qk = lanes("head_dim_qk");
  attention.head_dim_v = lanes("head_dim_v");
  table.require("heads", "write the query heads");
  attention.heads = static_cast<int32_t>(table.integer("heads", 1, kMaxHeads).value_or(1));
  attention.kv_heads = attention.heads;
  table.require("mask", "write \"causal\" or \"full\"");
  const bool is_causal = second_of(table, "mask", "full", "causal").value_or(false);
  attention.mask_type = is_causal ? MaskType::padding_causal : MaskType::padding;
  attention.window_left = table.integer("window", 0, kMostTokens).value_or(-1);
  return attention;
}

/// Floating-point operations of the pairs that are counted.
double count_flops(const Attention& attention, const std::vector<int64_t>& lengths,
                   Direction direction, bool is_half_square, double visible_triples) {
  const double each = flops_per_pair(attention, direction);
  if (!is_half_square) return each * visible_triples;
  double pairs = 0;
  for (const int64_t length : lengths)
    pairs += static_cast<double>(length) * static_cast<double>(length) / 2;
  return each * pairs * attention.heads;
}

std::string label_of(const Attention& attention, const std::vector<int64_t>& lengths) {
  const bool is_causal = attention.mask_type == MaskType::padding_causal;
  return fmt::format(
      "d{} {} x {} tokens, {} heads, {}{}", attention.head_dim_qk, lengths.size(), lengths.front(),
      attention.heads, is_causal ? "causal" : "full",
      attention.window_left >= 0 ? fmt::format(", window {}", attention.window_left) : "");
}

std::optional<ForeignSample> read_sample(TomlValue value, const std::string& name,
                                         Complaints& complaints) {
  const int64_t before = complaints.count();
  const std::optional<TableReader> opened = open_table(value, name, kSampleKeys, complaints);
  if (!opened) return std::nullopt;
  const TableReader& table = *opened;
  ForeignSample foreign;
  Scenario scenario;
  scenario.attention = read_attention(table);
  const std::vector<int64_t> lengths = read_lengths(table);
  table.require("direction", "write \"forward\" or \"backward\"");
  foreign.direction = second_of(table, "direction", "forward", "backward").value_or(false)
                          ? Direction::backward
                          : Direction::forward;
  const bool is_half_square = second_of(table, "flops", "visible", "half_square").value_or(false);
  table.require("tflops", "write the rate, in 1e12 operations a second");
  const double tflops = table.number("tflops").value_or(0.0);
  if (table.has("tflops") && tflops == 0.0)
    table.complain("tflops", "must be above 0: 0", "write the rate that was reached");
  const int64_t bits = table.integer("bits", 8, 32).value_or(16);
  if (bits != 8 && bits != 16 && bits != 32)
    table.complain("bits", fmt::format("must be 8, 16 or 32: {}", bits), "bf16 has 16");
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  if (tokens > kMostTokens)
    table.complain("seqlen", fmt::format("too many tokens in all: {}", tokens),
                   fmt::format("at most {}", kMostTokens));
  if (complaints.count() > before || lengths.empty()) return std::nullopt;
  scenario.batch.lengths = scenario.batch.kv_lengths = lengths;
  scenario.batch.slots = scenario.batch.kv_slots = lengths;
  scenario.parallel.cp_size = 1;
  scenario.parallel.layout = LayoutKind::contiguous;
  scenario.numerics.backward = false;
  const Result<Plan> plan = make_plan(scenario);
  if (!plan) {
    complaints.add_all(plan.error(), value.position());
    return std::nullopt;
  }
  const ComputeItem& item = plan.value().forward.computes.front();
  const std::span<const BandSlice> slices = plan.value().slices_of(item);
  const double flops = count_flops(scenario.attention, lengths, foreign.direction, is_half_square,
                                   static_cast<double>(item.visible_pairs));
  foreign.kernel = {scenario.attention.head_dim_qk, scenario.attention.head_dim_v,
                    static_cast<int32_t>(bits)};
  foreign.sample = {label_of(scenario.attention, lengths),
                    {slices.begin(), slices.end()},
                    plan.value().rows(item.q_tokens),
                    item.heads.size(),
                    flops / tflops * 1e-6};
  return foreign;
}

Result<FittedKernels> fit_all(const std::vector<ForeignSample>& samples, int32_t multiprocessors,
                              const std::string& path) {
  std::map<KernelKey, ByDirection<std::vector<ComputeSample>>> kernels;
  for (const ForeignSample& foreign : samples)
    kernels[foreign.kernel][foreign.direction].push_back(foreign.sample);
  FittedKernels fitted;
  for (const auto& [key, directions] : kernels) {
    KernelCost cost;
    std::tie(cost.head_dim_qk, cost.head_dim_v, cost.bits) = key;
    for (const Direction direction : kDirections) {
      const std::string name = fmt::format("kernels {}/{} of {} bits {}", cost.head_dim_qk,
                                           cost.head_dim_v, cost.bits, to_name(direction));
      Result<Fit<TileCost>> fit = fit_tiles(directions[direction], multiprocessors);
      if (!fit) {
        Error error = fit.error();
        for (Complaint& complaint : error.complaints) {
          complaint.what = fmt::format("{}: {}", name, complaint.what);
          if (complaint.where.empty()) complaint.where = path;
        }
        return error;
      }
      (direction == Direction::backward ? cost.backward : cost.forward) = fit.value().constants;
      fitted.fits.push_back({name, {}, std::move(fit).value().table});
    }
    fitted.kernels.push_back(cost);
  }
  return fitted;
}

}  // namespace

Result<FittedKernels> fit_samples(std::string_view text, const std::string& path) {
  const Result<TomlDocument> document = TomlDocument::parse(text, path);
  if (!document) return document.error();
  Complaints complaints(path);
  const TableReader root(document.value().root(), "", kFileKeys, complaints);
  root.complain_of_unknown();
  root.require("schema", "write schema = 1");
  root.integer("schema", 1, 1);
  root.require("multiprocessors", "write those of the GPU, 132 for an H200");
  const auto multiprocessors =
      static_cast<int32_t>(root.integer("multiprocessors", 1, 65536).value_or(1));
  root.require("samples", "write a table [[samples]]");
  const TomlValue list = root.find("samples");
  if (list.kind() != TomlKind::none &&
      (list.kind() != TomlKind::array || list.size() == 0 || list.size() > kMaxSamples))
    root.complain("samples", fmt::format("must be tables: {}", show_value_of(list)),
                  "write a table [[samples]]");
  std::vector<ForeignSample> samples;
  for (int64_t i = 0; i < std::min(list.size(), kMaxSamples); ++i) {
    if (auto sample = read_sample(list.item(i), fmt::format("samples[{}]", i), complaints))
      samples.push_back(*std::move(sample));
  }
  if (complaints.count() > 0) return complaints.to_error();
  return fit_all(samples, multiprocessors, path);
}

}  // namespace cpscope
