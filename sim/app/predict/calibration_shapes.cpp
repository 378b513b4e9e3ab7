#include "sim/app/predict/calibration_shapes.h"

#include "sim/base/parallel.h"
#include "sim/run/fp8_history.h"
#include "sim/run/inputs.h"
#include "sim/scenario/portable_random.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

Scenario make_scenario(std::string title, const KernelClass& kernel, int32_t heads,
                       std::vector<int64_t> lengths, MaskType mask) {
  Scenario scenario;
  scenario.title = std::move(title);
  scenario.attention.heads = scenario.attention.kv_heads = heads;
  scenario.attention.head_dim_qk = kernel.head_dim_qk;
  scenario.attention.head_dim_v = kernel.head_dim_v;
  scenario.attention.mask_type = mask;
  scenario.batch.lengths = scenario.batch.kv_lengths = lengths;
  scenario.batch.slots = scenario.batch.kv_slots = std::move(lengths);
  scenario.parallel.cp_size = 1;
  scenario.parallel.layout = LayoutKind::contiguous;
  scenario.numerics.dtype = kernel.dtype;
  if (kernel.is_fp8) scenario.numerics.fp8 = Fp8{};
  if (kernel.is_latent) {
    scenario.attention.kv_heads = 1;
    scenario.attention.latent_dim = kernel.head_dim_v;
  }
  return scenario;
}

/// Lengths between `least` and `most`, short ones more often, that sum to `tokens`.
std::vector<int64_t> draw_documents(int64_t tokens, int64_t least, int64_t most, uint64_t stream) {
  std::vector<int64_t> lengths;
  for (int64_t left = tokens; left > 0;) {
    const double u = draw_unit(1, stream, lengths.size());
    const auto drawn = least + static_cast<int64_t>(static_cast<double>(most - least) * u * u);
    lengths.push_back(std::min(left, std::max<int64_t>(1, drawn)));
    left -= lengths.back();
  }
  return lengths;
}

constexpr KernelClass kWireClass{128, 128, Dtype::bf16};

}  // namespace

std::vector<KernelClass> kernel_classes() {
  return {{64, 64, Dtype::bf16},
          {128, 128, Dtype::bf16},
          {192, 128, Dtype::bf16},
          {256, 256, Dtype::bf16},
          {.head_dim_qk = 576, .head_dim_v = 512, .is_latent = true},
          {.head_dim_qk = 64, .head_dim_v = 64, .is_fp8 = true},
          {.head_dim_qk = 128, .head_dim_v = 128, .is_fp8 = true},
          {.head_dim_qk = 256, .head_dim_v = 256, .is_fp8 = true},
          {128, 128, Dtype::fp32}};
}

std::string name_of(const KernelClass& kernel) {
  const char* kind = kernel.dtype == Dtype::fp32 ? "fp32 "
                     : kernel.is_fp8             ? "fp8 "
                     : kernel.is_latent          ? "latent "
                                                 : "";
  return fmt::format("{}{}", kind, kernel.head_dim_qk);
}

std::vector<Scenario> kernel_scenarios(const KernelClass& kernel, int64_t max_tokens) {
  std::vector<Scenario> scenarios;
  std::string lanes = name_of(kernel);
  lanes.insert(lanes.rfind(' ') + 1, "d");
  if (kernel.head_dim_v != kernel.head_dim_qk) lanes += fmt::format("/{}", kernel.head_dim_v);
  const auto add = [&](const char* what, int32_t heads, std::vector<int64_t> lengths,
                       MaskType mask) -> Scenario& {
    int64_t tokens = 0;
    for (const int64_t length : lengths) tokens += length;
    return scenarios.emplace_back(make_scenario(fmt::format("{} s{} {}", lanes, tokens, what),
                                                kernel, heads, std::move(lengths), mask));
  };
  const int64_t all = max_tokens;
  for (const MaskType mask : {MaskType::no_mask, MaskType::causal}) {
    const char* what = mask == MaskType::causal ? "causal" : "full";
    add(what, 4, {all}, mask);
    add(what, 16, {all / 4}, mask);
    add(what, 32, {all / 16}, mask);
    add(what, 16, {all / 32}, mask);
  }
  add("causal", 2, {2 * all}, MaskType::causal);
  Scenario& window = add("window", 4, {all}, MaskType::causal);
  window.attention.window_left = all / 16;
  const std::vector<int64_t> documents = draw_documents(all, all / 128, all / 2, 1);
  const std::vector<int64_t> short_documents = draw_documents(all, 16, 256, 2);
  add("documents", 4, documents, MaskType::padding_causal);
  add("full documents", 4, documents, MaskType::padding);
  add("short documents", 4, short_documents, MaskType::padding_causal);
  return scenarios;
}

Scenario merge_scenario(int64_t rows) {
  Scenario scenario = make_scenario(fmt::format("merges of {} rows", rows), kWireClass, 8,
                                    {2 * rows}, MaskType::slices);
  scenario.attention.slices = {{0, rows, 0, 2 * rows, SliceType::full}};
  scenario.parallel.cp_size = 2;
  return scenario;
}

Scenario wire_scenario(CommType comm_type, int32_t ranks, int64_t bytes) {
  constexpr int32_t kHeads = 8;
  const int64_t row_bytes = int64_t{kHeads} * (kWireClass.head_dim_qk + kWireClass.head_dim_v) *
                            element_bytes(kWireClass.dtype);
  const int64_t keys = ranks * std::max<int64_t>(1, bytes / row_bytes);
  // A query a rank; each sees one key at the end.
  Scenario scenario = make_scenario(fmt::format("{} of {} KiB", to_name(comm_type), bytes / 1024),
                                    kWireClass, kHeads, {ranks}, MaskType::no_mask);
  scenario.attention.window_left = scenario.attention.window_right = 0;
  scenario.batch.kv_lengths = scenario.batch.kv_slots = {keys};
  scenario.batch.self_attention = keys == ranks;
  scenario.parallel.cp_size = ranks;
  scenario.parallel.comm_type = comm_type;
  scenario.numerics.backward = false;
  return scenario;
}

Scenario ring_scenario(int32_t ranks, int64_t rows) {
  Scenario scenario = make_scenario(fmt::format("ring of {} rows", rows), kWireClass, 16,
                                    {ranks * rows}, MaskType::no_mask);
  scenario.parallel.cp_size = ranks;
  scenario.numerics.backward = false;
  return scenario;
}

Scenario host_scenario(CommType comm_type, int32_t ranks) {
  constexpr int64_t kRows = 64;
  Scenario scenario = make_scenario(fmt::format("small {} over {}", to_name(comm_type), ranks),
                                    kWireClass, ranks, {ranks * kRows}, MaskType::no_mask);
  scenario.parallel.cp_size = ranks;
  scenario.parallel.comm_type = comm_type;
  return scenario;
}

RunInputs make_filler_inputs(const Plan& plan) {
  const Scenario& scenario = plan.scenario;
  const Attention& attention = scenario.attention;
  // Rows are taken from one long row, from different places on.
  constexpr int32_t kPool = 1 << 16;
  std::vector<double> pool(kPool);
  fill_input_row(scenario.numerics, InputTensor::q, {0, 0, true}, 0, pool.data(), kPool);
  const auto fill = [&](uint64_t which, const char* name, int64_t tokens, int32_t heads,
                        int32_t lanes) {
    Tensor tensor{name, {tokens, heads, lanes}, scenario.numerics.dtype, {}};
    tensor.values.resize(static_cast<size_t>(tensor.size()));
    for_each_index(tokens, [&](int64_t token) {
      for (int32_t head = 0; head < heads; ++head) {
        const int64_t row = token * heads + head;
        const auto begin = static_cast<int64_t>(draw_bits(1, which, static_cast<uint64_t>(row)) %
                                                static_cast<uint64_t>(kPool - lanes));
        std::copy_n(pool.data() + begin, lanes, tensor.values.data() + row * lanes);
      }
    });
    return tensor;
  };
  RunInputs inputs;
  inputs.slots = plan.layout.slots;
  inputs.q = fill(1, "q", inputs.slots.tokens, attention.heads, attention.head_dim_qk);
  inputs.k = fill(2, "k", inputs.slots.kv_tokens, attention.kv_heads, attention.head_dim_qk);
  if (!attention.has_v_in_k())
    inputs.v = fill(3, "v", inputs.slots.kv_tokens, attention.kv_heads, attention.head_dim_v);
  if (scenario.numerics.backward)
    inputs.d_out = fill(4, "d_out", inputs.slots.tokens, attention.heads, attention.head_dim_v);
  inputs.fp8 = history_of_record(scenario, inputs);
  return inputs;
}

}  // namespace cpscope
