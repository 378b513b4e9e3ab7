#pragma once

// The keys that every row must see, and the owners of rows and keys.

#include "sim/plan/batch_slots.h"
#include "sim/plan/plan.h"
#include "sim/run/judge.h"
#include "sim/run/tensor.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope {

/// The packed padded keys that every query row must see; computed once from the mask witness.
struct Expectation {
  struct Interval {
    int64_t begin, end;
  };
  std::vector<std::vector<Interval>> keys;  // [query token] ascending, disjoint

  Expectation(const Plan& plan, const MaskWitness& witness);
  int64_t count(int64_t token) const;
  /// The n-th visible key of a row, 0 <= n < count.
  int64_t nth(int64_t token, int64_t n) const;
};

/// The rank that owns a packed padded id; -1 if no rank does. Where ranks own heads of all queries,
/// the one that owns the head.
int32_t owner_of(const Plan& plan, Side side, int64_t id, int32_t head = 0);
/// [packed padded id] The rank that owns it; -1 if no rank does. Where ranks own heads, the last
/// one for every query: only owners_of_heads tells them apart.
std::vector<int32_t> owners_of(const Plan& plan, Side side);
/// [query head] The rank that owns it of all queries. Empty for keys, and where ranks own tokens
/// with all heads.
std::vector<int32_t> owners_of_heads(const Layout& layout, Side side);
/// The step of a pass in which a rank computes with a key; -1 if there is none.
int32_t step_of(const Plan& plan, const Pass& pass, int32_t rank, int64_t key);

/// A tensor of zeros.
Tensor zero_tensor(const char* name, std::vector<int64_t> shape, Dtype dtype);

/// Inputs of the plan's shapes, all zero, of probed_attention (sim/run/grade/latent_probe.h); d_out
/// only where the plan has a backward pass.
RunInputs zero_inputs(const Plan& plan);

/// The tensor whose rows begin with those of v, as values_of.
inline Tensor& probed_values(RunInputs& inputs) {
  return inputs.v.shape.empty() ? inputs.k : inputs.v;
}

/// Two powers of two whose product times |scale| is at least `logit`, as equal as possible; the
/// first has the sign of the scale.
struct LogitFactors {
  double q = 1.0, k = 1.0;
};
LogitFactors factors_of_logit(double scale, double logit);

}  // namespace cpscope
