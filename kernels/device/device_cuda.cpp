#include "kernels/device/device.h"
#include "kernels/device/launch.h"

#include <cstdlib>
#include <string>

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

std::string describe_status(cudaError_t status, const char* call) {
  return fmt::format("{} failed: {} ({})", call, cudaGetErrorString(status),
                     cudaGetErrorName(status));
}

cudaStream_t to_cuda(Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t to_cuda(Event event) { return reinterpret_cast<cudaEvent_t>(event); }

void copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, Stream stream,
          const char* call) {
  if (bytes == 0) return;
  throw_if_failed(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, to_cuda(stream)),
                  call);
}

/// Ignores a status without throwing, for the calls that release a resource. The device keeps the
/// error, and the next call that may throw reports it.
void forget_status(cudaError_t /*status*/) noexcept {}

}  // namespace

void throw_if_failed(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  // An error that does not break the device would otherwise be reported again by the next launch.
  forget_status(cudaGetLastError());
  throw DeviceError(describe_status(status, call));
}

void enqueue_kernel(const void* kernel, const Grid& grid, int32_t threads, int32_t shared_bytes,
                    Stream stream, void** arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<uint32_t>(grid.x), static_cast<uint32_t>(grid.y),
                        static_cast<uint32_t>(grid.z));
  config.blockDim = dim3(static_cast<uint32_t>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = reinterpret_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attribute{};
  config.attrs = &attribute;
  if (grid.together) {
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    config.numAttrs = 1;
  } else if (grid.begins_early) {
    // Code for earlier GPUs does not wait (wait_for_kernel_before).
    cudaFuncAttributes code;
    throw_if_failed(cudaFuncGetAttributes(&code, kernel), "cudaFuncGetAttributes");
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.numAttrs = code.ptxVersion >= 90 ? 1 : 0;
  }
  throw_if_failed(cudaLaunchKernelExC(&config, kernel, arguments), "cudaLaunchKernelExC");
}

void* find_driver_function(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  throw_if_failed(
      cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found),
      "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess || function == nullptr)
    throw DeviceError(fmt::format("The NVIDIA driver is too old: it has no {}", name));
  return function;
}

Result<int> count_devices() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return count;
  forget_status(cudaGetLastError());
  if (status == cudaSuccess || status == cudaErrorNoDevice)
    return make_error(ErrorKind::unavailable, "This machine shows no CUDA device",
                      "run where nvidia-smi lists one, or check CUDA_VISIBLE_DEVICES");
  if (status == cudaErrorInsufficientDriver)
    return make_error(
        ErrorKind::unavailable,
        "This machine has no NVIDIA driver, or one too old for this program",
        fmt::format("the program needs a driver for CUDA {} or later", CUDART_VERSION / 1000));
  return make_error(ErrorKind::unavailable, "The CUDA devices of this machine cannot be used: " +
                                                describe_status(status, "cudaGetDeviceCount"));
}

DeviceInfo describe_device(int device) {
  int previous = 0;
  throw_if_failed(cudaGetDevice(&previous), "cudaGetDevice");
  cudaDeviceProp properties;
  throw_if_failed(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  select_device(device);
  size_t free = 0, total = 0;
  const cudaError_t status = cudaMemGetInfo(&free, &total);
  select_device(previous);
  throw_if_failed(status, "cudaMemGetInfo");
  return {.name = properties.name,
          .total_bytes = static_cast<int64_t>(total),
          .free_bytes = static_cast<int64_t>(free),
          .num_sms = properties.multiProcessorCount,
          .compute_capability = 10 * properties.major + properties.minor};
}

void select_device(int device) { throw_if_failed(cudaSetDevice(device), "cudaSetDevice"); }

void* allocate_bytes(int64_t bytes) {
  void* memory = nullptr;
  throw_if_failed(cudaMalloc(&memory, static_cast<size_t>(bytes)), "cudaMalloc");
  return memory;
}

void free_bytes(void* memory) noexcept { forget_status(cudaFree(memory)); }

void* allocate_host_bytes(int64_t bytes) {
  void* memory = nullptr;
  throw_if_failed(cudaMallocHost(&memory, static_cast<size_t>(bytes)), "cudaMallocHost");
  return memory;
}

void free_host_bytes(void* memory) noexcept { forget_status(cudaFreeHost(memory)); }

void copy_to_device(void* to, const void* from, int64_t bytes, Stream stream) {
  copy(to, from, bytes, cudaMemcpyHostToDevice, stream, "cudaMemcpyAsync (to the device)");
}

void copy_to_host(void* to, const void* from, int64_t bytes, Stream stream) {
  copy(to, from, bytes, cudaMemcpyDeviceToHost, stream, "cudaMemcpyAsync (to the host)");
}

void copy_on_device(void* to, const void* from, int64_t bytes, Stream stream) {
  copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream, "cudaMemcpyAsync (on the device)");
}

void copy_byte_rows(const ByteRows& rows, Stream stream) {
  if (rows.row_bytes == 0 || rows.num_rows == 0) return;
  if (rows.num_blocks == 1 && rows.from_pitch == rows.row_bytes && rows.to_pitch == rows.row_bytes)
    return copy(rows.to, rows.from, rows.row_bytes * rows.num_rows, cudaMemcpyDeviceToDevice,
                stream, "cudaMemcpyAsync (between devices)");
  const auto pointer = [&](const void* data, int64_t pitch, int64_t block_rows) {
    return make_cudaPitchedPtr(const_cast<void*>(data), static_cast<size_t>(pitch),
                               static_cast<size_t>(rows.row_bytes),
                               static_cast<size_t>(block_rows));
  };
  cudaMemcpy3DParms parameters{};
  parameters.srcPtr = pointer(rows.from, rows.from_pitch, rows.from_block_rows);
  parameters.dstPtr = pointer(rows.to, rows.to_pitch, rows.to_block_rows);
  parameters.extent =
      make_cudaExtent(static_cast<size_t>(rows.row_bytes), static_cast<size_t>(rows.num_rows),
                      static_cast<size_t>(rows.num_blocks));
  parameters.kind = cudaMemcpyDeviceToDevice;
  throw_if_failed(cudaMemcpy3DAsync(&parameters, to_cuda(stream)),
                  "cudaMemcpy3DAsync (between devices)");
}

bool works_at_once() {
  // With this variable set, a launch returns only after its kernel has ended.
  const char* blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
  return blocking != nullptr && *blocking == '1';
}

bool reach_device(int peer) {
  int device = 0, is_reachable = 0;
  throw_if_failed(cudaGetDevice(&device), "cudaGetDevice");
  if (device == peer) return true;
  throw_if_failed(cudaDeviceCanAccessPeer(&is_reachable, device, peer), "cudaDeviceCanAccessPeer");
  if (is_reachable == 0) return false;
  const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled) {
    forget_status(cudaGetLastError());
    return true;
  }
  throw_if_failed(status, "cudaDeviceEnablePeerAccess");
  return true;
}

void fill_bytes(void* memory, uint8_t value, int64_t bytes, Stream stream) {
  if (bytes == 0) return;
  throw_if_failed(cudaMemsetAsync(memory, value, static_cast<size_t>(bytes), to_cuda(stream)),
                  "cudaMemsetAsync");
}

Stream make_stream(Urgency urgency) {
  int least = 0, greatest = 0;
  throw_if_failed(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                  "cudaDeviceGetStreamPriorityRange");
  // Smaller numbers mean higher priority.
  const int priority = urgency == Urgency::late    ? least
                       : urgency == Urgency::usual ? std::max(greatest, least - 1)
                                                   : greatest;
  cudaStream_t stream = nullptr;
  throw_if_failed(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority),
                  "cudaStreamCreateWithPriority");
  return reinterpret_cast<Stream>(stream);
}

void destroy_stream(Stream stream) noexcept { forget_status(cudaStreamDestroy(to_cuda(stream))); }

void wait_for_stream(Stream stream) {
  throw_if_failed(cudaStreamSynchronize(to_cuda(stream)), "cudaStreamSynchronize");
}

bool is_stream_done(Stream stream) {
  const cudaError_t status = cudaStreamQuery(to_cuda(stream));
  if (status == cudaErrorNotReady) return false;
  throw_if_failed(status, "cudaStreamQuery");
  return true;
}

Event make_event(bool measures_time) {
  cudaEvent_t event = nullptr;
  throw_if_failed(
      cudaEventCreateWithFlags(&event, measures_time ? cudaEventDefault : cudaEventDisableTiming),
      "cudaEventCreateWithFlags");
  return reinterpret_cast<Event>(event);
}

void destroy_event(Event event) noexcept { forget_status(cudaEventDestroy(to_cuda(event))); }

void record_event(Event event, Stream stream) {
  throw_if_failed(cudaEventRecord(to_cuda(event), to_cuda(stream)), "cudaEventRecord");
}

bool is_event_done(Event event) {
  const cudaError_t status = cudaEventQuery(to_cuda(event));
  if (status == cudaErrorNotReady) return false;
  throw_if_failed(status, "cudaEventQuery");
  return true;
}

void wait_for_event(Stream stream, Event event) {
  throw_if_failed(cudaStreamWaitEvent(to_cuda(stream), to_cuda(event), 0), "cudaStreamWaitEvent");
}

void wait_for_flag(Stream stream, const int32_t* flag, int32_t value) {
  static const auto kWait = reinterpret_cast<PFN_cuStreamWaitValue32_v11070>(
      find_driver_function("cuStreamWaitValue32", 11070));
  const CUresult result = kWait(to_cuda(stream), reinterpret_cast<CUdeviceptr>(flag),
                                static_cast<cuuint32_t>(value), CU_STREAM_WAIT_VALUE_EQ);
  if (result != CUDA_SUCCESS)
    throw DeviceError(
        fmt::format("cuStreamWaitValue32 failed with code {}", static_cast<int>(result)));
}

double milliseconds_between(Event first, Event last) {
  float milliseconds = 0.0f;
  throw_if_failed(cudaEventElapsedTime(&milliseconds, to_cuda(first), to_cuda(last)),
                  "cudaEventElapsedTime");
  return milliseconds;
}

void check_launch(const char* what) { throw_if_failed(cudaGetLastError(), what); }

}  // namespace cpscope::kernels
