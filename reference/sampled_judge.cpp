#include "reference/sampled_judge.h"

#include "reference/sampled_oracle.h"

#include <algorithm>

namespace cpscope::reference {
namespace {

const Tensor& tensor_of(const RunInputs& inputs, InputTensor which) {
  switch (which) {
    case InputTensor::q:
      return inputs.q;
    case InputTensor::k:
      return inputs.k;
    case InputTensor::v:
      return inputs.v;
    default:
      return inputs.d_out;
  }
}

}  // namespace

Result<Answer> judge_rows(const Scenario& scenario, const RunInputs& inputs,
                          const std::vector<int64_t>& query_tokens,
                          const std::vector<int64_t>& key_tokens, const RunControl& control) {
  SampledInputs sampled;
  sampled.slots = inputs.slots;
  sampled.sink = inputs.sink;
  sampled.read_row = [&inputs](InputTensor which, int64_t token, int32_t head,
                               std::span<double> row) {
    const Tensor& tensor = tensor_of(inputs, which);
    const double* source =
        tensor.values.data() + (token * tensor.shape[1] + head) * tensor.shape[2];
    std::copy_n(source, row.size(), row.begin());
  };
  return sampled_rows(scenario, sampled, {query_tokens, key_tokens, 4096}, control);
}

}  // namespace cpscope::reference
