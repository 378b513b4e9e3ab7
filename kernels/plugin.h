#pragma once

/* What a kernel of somebody else looks like to cpscope: a shared library that exports
 *
 *     const struct cpscope_plugin* cpscope_open_plugin(void);
 *
 * cpscope plans, moves, merges and judges; the library computes the attention of one rank in one
 * step, forward or backward. Plain C99; kernels/plugin_example.c is a whole plugin. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever a field changes its meaning; new fields are added at the end of cpscope_call. */
#define CPSCOPE_PLUGIN_ABI 1u

enum cpscope_dtype { CPSCOPE_BF16 = 0, CPSCOPE_FP16 = 1, CPSCOPE_FP32 = 2, CPSCOPE_FP64 = 3 };
enum cpscope_memory { CPSCOPE_HOST = 0, CPSCOPE_DEVICE = 1 };
enum cpscope_status { CPSCOPE_OK = 0, CPSCOPE_UNSUPPORTED = 1 }; /* anything else: it went wrong */

/* Rows [q0, q1) see columns [k0, k1) where lo <= (k - k0) - (q - q0) <= hi. Rows and columns count
 * rows of q and of k, v of this call. */
struct cpscope_slice {
  int32_t q0, q1, k0, k1;
  int32_t lo, hi;
};

/* Element (row, head, lane) is data[row * row_stride + head * head_stride + lane]; strides in
 * elements. data is NULL where a tensor takes no part. */
struct cpscope_tensor {
  void* data;
  int64_t row_stride, head_stride;
};

struct cpscope_call {
  uint64_t struct_size; /* of the caller's cpscope_call */
  int32_t is_backward;
  int32_t dtype;        /* q, k, v, d_out, and out in backward as it was rounded: cpscope_dtype */
  int32_t result_dtype; /* all others: CPSCOPE_FP32, or CPSCOPE_FP64 where dtype is CPSCOPE_FP64 */
  int32_t rank, step;   /* for messages */
  int64_t q_rows, kv_rows;
  int32_t heads, kv_heads;           /* of this call */
  int32_t first_head, first_kv_head; /* numbers of the first ones in the whole problem */
  int32_t dim_qk, dim_v;
  const int32_t* kv_head_of; /* [heads] kv head of this call that a query head reads; host memory */
  double scale;              /* multiplies q.k */
  double softcap;            /* 0 = off, else s -> softcap * tanh(s / softcap) */

  /* The mask: slices do not overlap and name every visible cell. Host memory. */
  int64_t num_slices;
  const struct cpscope_slice* slices;

  /* Rows by sequence, as TransformerEngine passes them: valid rows and slots as prefix sums,
   * [num_sequences + 1], in the plugin's memory. NULL (and num_sequences 0) where the rows of a
   * sequence do not stand together, valid ones first. */
  int64_t num_sequences;
  const int32_t *cu_seqlens_q, *cu_seqlens_q_padded;
  const int32_t *cu_seqlens_kv, *cu_seqlens_kv_padded;

  /* [q_rows, heads, dim_qk], [kv_rows, kv_heads, dim_qk], [kv_rows, kv_heads, dim_v] */
  struct cpscope_tensor q, k, v;

  /* Forward: write every row. out [q_rows, heads, dim_v] is normalised, lse [q_rows, heads] the
   * natural logarithm of the sum of exponentials of scaled, capped logits; a row that sees nothing
   * has out 0 and lse -inf. max_logit [heads] may stay as it is: then cpscope computes it.
   * Backward: out and lse are read; they are those of the whole row over all ranks, sinks included,
   * so that exp(logit - lse) is the final weight. lse is -inf for rows that see nothing. */
  struct cpscope_tensor out, lse;
  struct cpscope_tensor max_logit; /* head_stride alone counts */

  /* Backward: d_out [q_rows, heads, dim_v] is read (anything may stand in rows whose lse is -inf);
   * write every row of dq [q_rows, heads, dim_qk], dk [kv_rows, kv_heads, dim_qk], dv [kv_rows,
   * kv_heads, dim_v]: this call's share, summed over the query heads of a kv head. */
  struct cpscope_tensor d_out;
  struct cpscope_tensor dq, dk, dv;

  /* Device memory: the cudaStream_t that cpscope waits for after the call; else NULL. */
  void* stream;
};

struct cpscope_plugin {
  uint32_t abi_version; /* CPSCOPE_PLUGIN_ABI */
  int32_t memory;       /* cpscope_memory: where the tensors and cu_seqlens shall be */
  const char* name;     /* one line for reports */

  /* Returns a cpscope_status. What goes wrong may be said in `message`, a text of at most
   * `message_size` bytes with its terminating 0. Calls never overlap. */
  int32_t (*attend)(const struct cpscope_call* call, char* message, size_t message_size);
};

/* The one symbol that is looked for. */
const struct cpscope_plugin* cpscope_open_plugin(void);

#ifdef __cplusplus
}
#endif
