#include "sim/run/dtype.h"

namespace cpscope {

namespace {

template <class Value>
void round_span(Dtype dtype, std::span<Value> values) {
  // One loop per dtype: the compiler sees the constant and moves the switch out of the loop.
  switch (dtype) {
    case Dtype::bf16:
      for (Value& value : values) value = round_to(Dtype::bf16, value);
      return;
    case Dtype::fp16:
      for (Value& value : values) value = round_to(Dtype::fp16, value);
      return;
    case Dtype::fp32:
      for (Value& value : values) value = round_to(Dtype::fp32, value);
      return;
    case Dtype::fp64:
      return;
  }
}

}  // namespace

double unit_roundoff(Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16:
      return 0x1p-8;
    case Dtype::fp16:
      return 0x1p-11;
    case Dtype::fp32:
      return 0x1p-24;
    case Dtype::fp64:
      break;
  }
  return 0x1p-53;
}

void round_values(Dtype dtype, std::span<double> values) { round_span(dtype, values); }
void round_values(Dtype dtype, std::span<float> values) { round_span(dtype, values); }

}  // namespace cpscope
