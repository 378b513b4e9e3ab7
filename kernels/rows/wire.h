#pragma once

namespace cpscope::kernels {

/// Way in which rows are sent from one device to another.
enum class Wire {
  nccl,   // grouped sends and receives
  copies  // copy engines write the other device's memory; all devices belong to this process
};

}  // namespace cpscope::kernels
