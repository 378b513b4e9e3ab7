#pragma once

namespace cpscope::kernels {

/// How rows get from one device to another.
enum class Wire {
  nccl,   // grouped sends and receives
  copies  // copy engines write the other device's memory; all devices are of this process
};

}  // namespace cpscope::kernels
