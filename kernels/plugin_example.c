/* A whole plugin: naive attention on the CPU, for every dtype, mask and head count.
 *
 *     cc -std=c99 -O2 -shared -fPIC -I. -o naive.so kernels/plugin_example.c -lm
 *     ./cpscope run scenarios/zigzag.toml --executor plugin:./naive.so
 */
#include "kernels/plugin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One element of any dtype. */
static double load(const void* data, int32_t dtype, int64_t index) {
  uint16_t half;
  uint32_t bits;
  float value;
  switch (dtype) {
    case CPSCOPE_FP64:
      return ((const double*)data)[index];
    case CPSCOPE_FP32:
      return ((const float*)data)[index];
    case CPSCOPE_BF16:
      half = ((const uint16_t*)data)[index];
      bits = (uint32_t)half << 16;
      memcpy(&value, &bits, sizeof value);
      return value;
    default:
      half = ((const uint16_t*)data)[index];
      if ((half & 0x7c00) == 0x7c00)
        return (half & 0x3ff) ? NAN : (half >> 15 ? -INFINITY : INFINITY);
      value = (float)(half & 0x3ff) + ((half & 0x7c00) ? 1024.0f : 0.0f);
      value = ldexpf(value, ((half & 0x7c00) ? (half >> 10 & 31) : 1) - 25);
      return half >> 15 ? -value : value;
  }
}

static void store(const struct cpscope_call* call, void* data, int64_t index, double value) {
  if (call->result_dtype == CPSCOPE_FP64)
    ((double*)data)[index] = value;
  else
    ((float*)data)[index] = (float)value;
}

static int64_t place(const struct cpscope_tensor* tensor, int64_t row, int64_t head) {
  return row * tensor->row_stride + head * tensor->head_stride;
}

/* Does row q see column k? */
static int is_visible(const struct cpscope_call* call, int64_t q, int64_t k) {
  for (int64_t s = 0; s < call->num_slices; ++s) {
    const struct cpscope_slice* slice = &call->slices[s];
    const int64_t diagonal = (k - slice->k0) - (q - slice->q0);
    if (q >= slice->q0 && q < slice->q1 && k >= slice->k0 && k < slice->k1 &&
        diagonal >= slice->lo && diagonal <= slice->hi)
      return 1;
  }
  return 0;
}

/* The logit of a cell; `slope` is its derivative by scale * q.k. */
static double logit_of(const struct cpscope_call* call, int64_t q, int64_t head, int64_t k,
                       double* slope) {
  double sum = 0;
  for (int32_t lane = 0; lane < call->dim_qk; ++lane)
    sum += load(call->q.data, call->dtype, place(&call->q, q, head) + lane) *
           load(call->k.data, call->dtype, place(&call->k, k, call->kv_head_of[head]) + lane);
  sum *= call->scale;
  *slope = 1;
  if (call->softcap <= 0) return sum;
  const double bent = tanh(sum / call->softcap);
  *slope = 1 - bent * bent;
  return call->softcap * bent;
}

static void forward_row(const struct cpscope_call* call, int64_t q, int64_t head, double* logits,
                        double* row) {
  double most = -INFINITY, weight = 0, slope;
  for (int64_t k = 0; k < call->kv_rows; ++k) {
    logits[k] = is_visible(call, q, k) ? logit_of(call, q, head, k, &slope) : -INFINITY;
    if (logits[k] > most) most = logits[k];
  }
  memset(row, 0, sizeof(double) * (size_t)call->dim_v);
  for (int64_t k = 0; k < call->kv_rows; ++k) {
    if (logits[k] == -INFINITY) continue; /* never touch a key that is not visible: it may be NaN */
    const double part = exp(logits[k] - most);
    weight += part;
    for (int32_t lane = 0; lane < call->dim_v; ++lane)
      row[lane] +=
          part * load(call->v.data, call->dtype, place(&call->v, k, call->kv_head_of[head]) + lane);
  }
  for (int32_t lane = 0; lane < call->dim_v; ++lane)
    store(call, call->out.data, place(&call->out, q, head) + lane,
          weight > 0 ? row[lane] / weight : 0.0);
  store(call, call->lse.data, place(&call->lse, q, head),
        weight > 0 ? most + log(weight) : -INFINITY);
}

/* Adds what one cell gives to dq (of one row and head), dk and dv ([kv_rows, kv_heads, lanes]). */
static void backward_cell(const struct cpscope_call* call, int64_t q, int64_t head, int64_t k,
                          double lse, double delta, double* dq, double* dk, double* dv) {
  const int32_t kv_head = call->kv_head_of[head];
  double slope, d_weight = 0;
  const double weight = exp(logit_of(call, q, head, k, &slope) - lse);
  for (int32_t lane = 0; lane < call->dim_v; ++lane) {
    const double d_out = load(call->d_out.data, call->dtype, place(&call->d_out, q, head) + lane);
    d_weight += d_out * load(call->v.data, call->dtype, place(&call->v, k, kv_head) + lane);
    dv[(k * call->kv_heads + kv_head) * call->dim_v + lane] += weight * d_out;
  }
  const double d_logit = weight * (d_weight - delta) * slope * call->scale;
  for (int32_t lane = 0; lane < call->dim_qk; ++lane) {
    dq[lane] += d_logit * load(call->k.data, call->dtype, place(&call->k, k, kv_head) + lane);
    dk[(k * call->kv_heads + kv_head) * call->dim_qk + lane] +=
        d_logit * load(call->q.data, call->dtype, place(&call->q, q, head) + lane);
  }
}

static void backward_row(const struct cpscope_call* call, int64_t q, int64_t head, double* dq,
                         double* dk, double* dv) {
  const double lse = load(call->lse.data, call->result_dtype, place(&call->lse, q, head));
  double delta = 0;
  memset(dq, 0, sizeof(double) * (size_t)call->dim_qk);
  if (lse != -INFINITY) {
    for (int32_t lane = 0; lane < call->dim_v; ++lane)
      delta += load(call->d_out.data, call->dtype, place(&call->d_out, q, head) + lane) *
               load(call->out.data, call->dtype, place(&call->out, q, head) + lane);
    for (int64_t k = 0; k < call->kv_rows; ++k) {
      if (is_visible(call, q, k)) backward_cell(call, q, head, k, lse, delta, dq, dk, dv);
    }
  }
  for (int32_t lane = 0; lane < call->dim_qk; ++lane)
    store(call, call->dq.data, place(&call->dq, q, head) + lane, dq[lane]);
}

static void store_key_gradients(const struct cpscope_call* call, const double* dk,
                                const double* dv) {
  for (int64_t k = 0; k < call->kv_rows; ++k) {
    for (int32_t head = 0; head < call->kv_heads; ++head) {
      const int64_t row = k * call->kv_heads + head;
      for (int32_t lane = 0; lane < call->dim_qk; ++lane)
        store(call, call->dk.data, place(&call->dk, k, head) + lane, dk[row * call->dim_qk + lane]);
      for (int32_t lane = 0; lane < call->dim_v; ++lane)
        store(call, call->dv.data, place(&call->dv, k, head) + lane, dv[row * call->dim_v + lane]);
    }
  }
}

static int32_t attend(const struct cpscope_call* call, char* message, size_t message_size) {
  const int64_t kv_rows = call->kv_rows * call->kv_heads;
  const int64_t lanes = call->dim_qk + call->dim_v;
  /* One row of logits and one of lanes, then dk and dv. */
  double* work = calloc((size_t)(call->kv_rows + lanes + kv_rows * lanes), sizeof(double));
  if (work == NULL) {
    if (message_size > 0) strncpy(message, "out of memory", message_size);
    return CPSCOPE_UNSUPPORTED;
  }
  double* row = work + call->kv_rows;
  double* dk = row + lanes;
  double* dv = dk + kv_rows * call->dim_qk;
  for (int64_t q = 0; q < call->q_rows; ++q) {
    for (int64_t head = 0; head < call->heads; ++head) {
      if (call->is_backward)
        backward_row(call, q, head, row, dk, dv);
      else
        forward_row(call, q, head, work, row);
    }
  }
  if (call->is_backward) store_key_gradients(call, dk, dv);
  free(work);
  return CPSCOPE_OK;
}

static const struct cpscope_plugin kPlugin = {CPSCOPE_PLUGIN_ABI, CPSCOPE_HOST, "naive attention",
                                              attend};

const struct cpscope_plugin* cpscope_open_plugin(void) { return &kPlugin; }
