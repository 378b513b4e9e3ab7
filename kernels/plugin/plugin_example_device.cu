/* A plugin whose tensors lie in device memory: naive attention, a thread for each row and head, in
 * double precision. For reading, not for speed.
 *
 *     nvcc -O2 -shared -Xcompiler -fPIC -arch=native -I. -o device.so
 * kernels/plugin/plugin_example_device.cu
 *     ./cpscope run scenarios/zigzag.toml --executor plugin:./device.so
 */
#include "kernels/plugin.h"

#include <cstdio>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

constexpr int kMostLanes = 256;
constexpr int kThreads = 128;

/* The call with what it keeps in host memory copied to the device. */
struct DeviceCall {
  cpscope_call call;
  const cpscope_slice* slices;
  const int32_t* kv_head_of;
};

__device__ double load(const void* data, int32_t dtype, int64_t index) {
  switch (dtype) {
    case CPSCOPE_BF16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[index]);
    case CPSCOPE_FP16:
      return __half2float(static_cast<const __half*>(data)[index]);
    case CPSCOPE_FP32:
      return static_cast<const float*>(data)[index];
    default:
      return static_cast<const double*>(data)[index];
  }
}

__device__ void store(const cpscope_call& call, const cpscope_tensor& tensor, int64_t index,
                      double value) {
  if (call.result_dtype == CPSCOPE_FP64)
    static_cast<double*>(tensor.data)[index] = value;
  else
    static_cast<float*>(tensor.data)[index] = static_cast<float>(value);
}

__device__ int64_t place(const cpscope_tensor& tensor, int64_t row, int64_t head) {
  return row * tensor.row_stride + head * tensor.head_stride;
}

__device__ bool is_visible(const DeviceCall& device, int64_t q, int64_t k) {
  for (int64_t s = 0; s < device.call.num_slices; ++s) {
    const cpscope_slice slice = device.slices[s];
    const int64_t diagonal = (k - slice.k0) - (q - slice.q0);
    if (q >= slice.q0 && q < slice.q1 && k >= slice.k0 && k < slice.k1 && diagonal >= slice.lo &&
        diagonal <= slice.hi)
      return true;
  }
  return false;
}

/* The logit of a cell; `slope` is its derivative by scale * q.k. */
__device__ double logit_of(const cpscope_call& call, int64_t q, int64_t head, int64_t k,
                           int64_t kv_head, double& slope) {
  double sum = 0;
  for (int32_t lane = 0; lane < call.dim_qk; ++lane)
    sum += load(call.q.data, call.dtype, place(call.q, q, head) + lane) *
           load(call.k.data, call.dtype, place(call.k, k, kv_head) + lane);
  sum *= call.scale;
  slope = 1;
  if (call.softcap <= 0) return sum;
  const double bent = tanh(sum / call.softcap);
  slope = 1 - bent * bent;
  return call.softcap * bent;
}

__device__ double product(const cpscope_call& call, const cpscope_tensor& a, int64_t a_at,
                          const cpscope_tensor& b, int64_t b_at) {
  double sum = 0;
  for (int32_t lane = 0; lane < call.dim_v; ++lane)
    sum += load(a.data, call.dtype, a_at + lane) * load(b.data, call.dtype, b_at + lane);
  return sum;
}

/* A row and head of the queries: softmax with a running maximum. */
__global__ void forward(DeviceCall device) {
  const cpscope_call& call = device.call;
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= call.q_rows * call.heads) return;
  const int64_t q = index / call.heads, head = index % call.heads;
  const int64_t kv_head = device.kv_head_of[head];
  double most = -INFINITY, weight = 0, slope, row[kMostLanes] = {};
  for (int64_t k = 0; k < call.kv_rows; ++k) {
    if (!is_visible(device, q, k)) continue;
    const double logit = logit_of(call, q, head, k, kv_head, slope);
    const double shrink = logit > most ? exp(most - logit) : 1,
                 part = logit > most ? 1 : exp(logit - most);
    most = fmax(most, logit);
    weight = weight * shrink + part;
    for (int32_t lane = 0; lane < call.dim_v; ++lane)
      row[lane] = row[lane] * shrink +
                  part * load(call.v.data, call.dtype, place(call.v, k, kv_head) + lane);
  }
  for (int32_t lane = 0; lane < call.dim_v; ++lane)
    store(call, call.out, place(call.out, q, head) + lane, weight > 0 ? row[lane] / weight : 0.0);
  store(call, call.lse, place(call.lse, q, head), weight > 0 ? most + log(weight) : -INFINITY);
}

/* d(logit before scale) of one visible cell, and its weight. */
__device__ double cell_gradient(const cpscope_call& call, int64_t q, int64_t head, int64_t k,
                                int64_t kv_head, double lse, double delta, double& weight) {
  double slope;
  weight = exp(logit_of(call, q, head, k, kv_head, slope) - lse);
  const double d_weight =
      product(call, call.d_out, place(call.d_out, q, head), call.v, place(call.v, k, kv_head));
  return weight * (d_weight - delta) * slope * call.scale;
}

__device__ double lse_of(const cpscope_call& call, int64_t q, int64_t head) {
  return load(call.lse.data, call.result_dtype, place(call.lse, q, head));
}

__device__ double delta_of(const cpscope_call& call, int64_t q, int64_t head) {
  return product(call, call.d_out, place(call.d_out, q, head), call.out, place(call.out, q, head));
}

__global__ void backward_queries(DeviceCall device) {
  const cpscope_call& call = device.call;
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= call.q_rows * call.heads) return;
  const int64_t q = index / call.heads, head = index % call.heads;
  const int64_t kv_head = device.kv_head_of[head];
  const double lse = lse_of(call, q, head);
  double dq[kMostLanes] = {}, weight;
  if (lse != -INFINITY) {
    const double delta = delta_of(call, q, head);
    for (int64_t k = 0; k < call.kv_rows; ++k) {
      if (!is_visible(device, q, k)) continue;
      const double d_logit = cell_gradient(call, q, head, k, kv_head, lse, delta, weight);
      for (int32_t lane = 0; lane < call.dim_qk; ++lane)
        dq[lane] += d_logit * load(call.k.data, call.dtype, place(call.k, k, kv_head) + lane);
    }
  }
  for (int32_t lane = 0; lane < call.dim_qk; ++lane)
    store(call, call.dq, place(call.dq, q, head) + lane, dq[lane]);
}

__global__ void backward_keys(DeviceCall device) {
  const cpscope_call& call = device.call;
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= call.kv_rows * call.kv_heads) return;
  const int64_t k = index / call.kv_heads, kv_head = index % call.kv_heads;
  double dk[kMostLanes] = {}, dv[kMostLanes] = {}, weight;
  for (int64_t q = 0; q < call.q_rows; ++q) {
    if (!is_visible(device, q, k)) continue;
    for (int64_t head = 0; head < call.heads; ++head) {
      const double lse = lse_of(call, q, head);
      if (device.kv_head_of[head] != kv_head || lse == -INFINITY) continue;
      const double d_logit =
          cell_gradient(call, q, head, k, kv_head, lse, delta_of(call, q, head), weight);
      for (int32_t lane = 0; lane < call.dim_v; ++lane)
        dv[lane] += weight * load(call.d_out.data, call.dtype, place(call.d_out, q, head) + lane);
      for (int32_t lane = 0; lane < call.dim_qk; ++lane)
        dk[lane] += d_logit * load(call.q.data, call.dtype, place(call.q, q, head) + lane);
    }
  }
  for (int32_t lane = 0; lane < call.dim_qk; ++lane)
    store(call, call.dk, place(call.dk, k, kv_head) + lane, dk[lane]);
  for (int32_t lane = 0; lane < call.dim_v; ++lane)
    store(call, call.dv, place(call.dv, k, kv_head) + lane, dv[lane]);
}

unsigned blocks(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

cudaError_t launch(const DeviceCall& device, cudaStream_t stream) {
  const cpscope_call& call = device.call;
  if (call.is_backward) {
    backward_queries<<<blocks(call.q_rows * call.heads), kThreads, 0, stream>>>(device);
    backward_keys<<<blocks(call.kv_rows * call.kv_heads), kThreads, 0, stream>>>(device);
  } else {
    forward<<<blocks(call.q_rows * call.heads), kThreads, 0, stream>>>(device);
  }
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? cudaStreamSynchronize(stream) : status;
}

int32_t attend(const cpscope_call* call, char* message, size_t message_size) {
  if (call->dim_qk > kMostLanes || call->dim_v > kMostLanes) {
    snprintf(message, message_size, "more than %d lanes", kMostLanes);
    return CPSCOPE_UNSUPPORTED;
  }
  const auto stream = static_cast<cudaStream_t>(call->stream);
  const size_t slice_bytes = sizeof(cpscope_slice) * static_cast<size_t>(call->num_slices),
               head_bytes = sizeof(int32_t) * static_cast<size_t>(call->heads);
  char* memory = nullptr;
  cudaError_t status = cudaMalloc(&memory, slice_bytes + head_bytes);
  if (status == cudaSuccess)
    status = cudaMemcpyAsync(memory, call->slices, slice_bytes, cudaMemcpyHostToDevice, stream);
  if (status == cudaSuccess)
    status = cudaMemcpyAsync(memory + slice_bytes, call->kv_head_of, head_bytes,
                             cudaMemcpyHostToDevice, stream);
  if (status == cudaSuccess)
    status = launch({*call, reinterpret_cast<const cpscope_slice*>(memory),
                     reinterpret_cast<const int32_t*>(memory + slice_bytes)},
                    stream);
  cudaFree(memory);
  if (status == cudaSuccess) return CPSCOPE_OK;
  snprintf(message, message_size, "%s", cudaGetErrorString(status));
  return 2;
}

const cpscope_plugin kPlugin = {CPSCOPE_PLUGIN_ABI, CPSCOPE_DEVICE, "naive attention on a device",
                                attend};

}  // namespace

extern "C" const cpscope_plugin* cpscope_open_plugin(void) { return &kPlugin; }
