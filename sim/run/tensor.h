#pragma once

#include "sim/scenario/scenario.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cpscope {

/// A dense row-major tensor of doubles with a name. Values of narrower types are held exactly;
/// `dtype` is the type stored in the file.
struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  Dtype dtype = Dtype::fp64;
  std::vector<double> values;

  int64_t size() const {
    int64_t n = 1;
    for (const int64_t extent : shape) n *= extent;
    return n;
  }
};

/// A tensor filled with `value`.
inline Tensor make_filled_tensor(std::string name, std::vector<int64_t> shape, Dtype dtype,
                                 double value) {
  Tensor tensor{std::move(name), std::move(shape), dtype, {}};
  tensor.values.assign(static_cast<size_t>(tensor.size()), value);
  return tensor;
}

}  // namespace cpscope
