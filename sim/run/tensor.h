#pragma once

#include "sim/scenario/scenario.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope {

/// A dense row-major tensor of doubles with a name. Values of narrower types are held exactly;
/// `dtype` is what the file stores.
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

}  // namespace cpscope
