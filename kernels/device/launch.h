#pragma once

#include "kernels/device/device.h"

#ifdef CPSCOPE_EMULATED
#include "kernels/emulator/cta.h"
#else
#include <cuda_runtime.h>
#endif

#include <cstdint>

namespace cpscope::kernels {

/// CTAs of a launch. per_sm: how many share a multiprocessor, as the kernel's launch bounds say.
/// together: they wait for each other, so none starts before all fit the device at once, whatever
/// else runs on it. begins_early: the kernel calls wait_for_kernel_before(), so that its CTAs may
/// start while the kernel before it in the stream still runs.
struct Grid {
  int32_t x = 1;
  int32_t y = 1;
  int32_t z = 1;
  int32_t per_sm = 1;
  bool together = false;
  bool begins_early = false;

  Grid(int32_t x_ctas, int32_t y_ctas = 1, int32_t z_ctas = 1) : x(x_ctas), y(y_ctas), z(z_ctas) {}
};

#ifdef CPSCOPE_EMULATED

/// Runs all CTAs of the kernel during the call, one after another.
template <class Params>
void launch_kernel(void (*kernel)(Params), Grid grid, int32_t threads, int32_t shared_bytes,
                   Stream /*stream*/, const Params& params) {
  emulator::run_grid(
      {grid.x, grid.y, grid.z}, threads, shared_bytes, [&] { kernel(params); }, grid.per_sm);
}

/// CTAs of the kernel that run at the same time on the whole device.
template <class Params>
int32_t resident_ctas(void (* /*kernel*/)(Params), int32_t /*threads*/, int32_t /*shared_bytes*/) {
  return 2;
}

#else

/// Throws a DeviceError with the call, the name of the error and its meaning if the status is an
/// error.
void throw_if_failed(cudaError_t status, const char* call);

/// Finds a driver function, in the version of the CUDA release that introduced it, at run time: the
/// program links no driver library. Throws if the driver lacks it.
void* find_driver_function(const char* name, unsigned version);

/// Allows the kernel this much dynamic shared memory on the current device.
template <class Params>
void allow_shared_bytes(void (*kernel)(Params), int32_t shared_bytes) {
  constexpr int32_t kAlwaysAllowed = 48 * 1024;
  if (shared_bytes <= kAlwaysAllowed) return;
  throw_if_failed(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
                  "cudaFuncSetAttribute(MaxDynamicSharedMemorySize)");
}

/// Enqueues a kernel whose shared memory is allowed; throws DeviceError if the launch fails.
void enqueue_kernel(const void* kernel, const Grid& grid, int32_t threads, int32_t shared_bytes,
                    Stream stream, void** arguments);

/// The same.
template <class Params>
void launch_kernel(void (*kernel)(Params), Grid grid, int32_t threads, int32_t shared_bytes,
                   Stream stream, const Params& params) {
  allow_shared_bytes(kernel, shared_bytes);
  void* arguments[] = {const_cast<Params*>(&params)};
  enqueue_kernel(reinterpret_cast<const void*>(kernel), grid, threads, shared_bytes, stream,
                 arguments);
}

/// CTAs of the kernel that run at the same time on the whole device: the grid of a kernel that
/// fetches its work with a counter.
template <class Params>
int32_t resident_ctas(void (*kernel)(Params), int32_t threads, int32_t shared_bytes) {
  allow_shared_bytes(kernel, shared_bytes);
  int device = 0, num_sms = 0, per_sm = 0;
  throw_if_failed(cudaGetDevice(&device), "cudaGetDevice");
  throw_if_failed(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device),
                  "cudaDeviceGetAttribute(MultiProcessorCount)");
  throw_if_failed(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, reinterpret_cast<const void*>(kernel),
                                                    threads, static_cast<size_t>(shared_bytes)),
      "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  return num_sms * (per_sm < 1 ? 1 : per_sm);
}

#endif

}  // namespace cpscope::kernels
