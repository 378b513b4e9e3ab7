#pragma once

#include "sim/clock/cluster.h"
#include "sim/plan/plan.h"
#include "sim/run/judge.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope {

/// What `cpscope calibrate` has executors carry out. Titles are the labels of the samples.

/// Heads that share a kernel.
struct KernelClass {
  int32_t head_dim_qk = 0, head_dim_v = 0;
  Dtype dtype = Dtype::bf16;
  bool is_fp8 = false;     // with one scale a tensor
  bool is_latent = false;  // V is a part of K

  int32_t bits() const { return is_fp8 ? 8 : static_cast<int32_t>(8 * element_bytes(dtype)); }
  bool is_of(const KernelCost& cost) const {
    return head_dim_qk == cost.head_dim_qk && head_dim_v == cost.head_dim_v &&
           bits() == cost.bits && is_latent == cost.is_latent;
  }
};

/// 64, 128, 192/128 and 256 lanes of bf16, 576/512 of latent attention, 64, 128 and 256 of fp8, and
/// 128 of fp32.
std::vector<KernelClass> kernel_classes();

/// "128", "fp8 128", "latent 576", "fp32 128".
std::string name_of(const KernelClass& kernel);

/// One GPU, one compute each way: full, causal, window, packed documents, short ones; 1/32 to twice
/// `max_tokens` (at least 128) tokens.
std::vector<Scenario> kernel_scenarios(const KernelClass& kernel, int64_t max_tokens);

/// Two ranks, the first of which does all the work, so that one GPU can play both and nothing runs
/// beside its merges.
Scenario merge_scenario(int64_t rows);

/// Ranks that hand `bytes` of keys and values on and compute next to nothing.
Scenario wire_scenario(CommType comm_type, int32_t ranks, int64_t bytes);

/// A ring whose steps all compute the same, the last one alone.
Scenario ring_scenario(int32_t ranks, int64_t rows);

/// So few rows that only launches count.
Scenario host_scenario(CommType comm_type, int32_t ranks);

/// Inputs that look like noise and cost little to make.
RunInputs make_filler_inputs(const Plan& plan);

}  // namespace cpscope
