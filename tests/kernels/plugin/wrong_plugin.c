/* The naive example, and what CPSCOPE_WRONG in the environment makes wrong with it. */
#define cpscope_open_plugin open_example_plugin
#include "kernels/plugin_example.c"
#undef cpscope_open_plugin

#include <stdio.h>
#include <unistd.h>

static int is_wrong(const char* how) {
  const char* wanted = getenv("CPSCOPE_WRONG");
  return wanted != NULL && strcmp(wanted, how) == 0;
}

static void write_zeros(const struct cpscope_call* call) {
  for (int64_t q = 0; q < call->q_rows; ++q) {
    for (int64_t head = 0; head < call->heads; ++head) {
      for (int32_t lane = 0; lane < call->dim_v; ++lane)
        store(call, call->out.data, place(&call->out, q, head) + lane, 0.0);
      store(call, call->lse.data, place(&call->lse, q, head), 0.0);
    }
  }
}

/* CPSCOPE_WRONG="item TENSOR RANK STEP ROW": one value of out (forward), dq or dk (backward) of one
 * item is off by 0.5. */
static void spoil_item(const struct cpscope_call* call) {
  const char* wanted = getenv("CPSCOPE_WRONG");
  char tensor[4] = "";
  int rank = 0, step = 0, row = 0;
  if (wanted == NULL || sscanf(wanted, "item %3s %d %d %d", tensor, &rank, &step, &row) != 4) return;
  if (call->rank != rank || call->step != step) return;
  const int is_backward = strcmp(tensor, "out") != 0;
  if (call->is_backward != is_backward) return;
  const struct cpscope_tensor* array = !is_backward                 ? &call->out
                                       : strcmp(tensor, "dq") == 0 ? &call->dq
                                                                   : &call->dk;
  const int64_t at = place(array, row, 0);
  store(call, array->data, at, load(array->data, call->result_dtype, at) + 0.5);
}

static int32_t attend_wrongly(const struct cpscope_call* call, char* message, size_t size) {
  const int64_t out_end = call->q_rows * call->heads * call->dim_v;
  if (is_wrong("status")) {
    snprintf(message, size, "no launch\nfor %d heads", (int)call->heads);
    return 7;
  }
  if (is_wrong("backward") && call->is_backward) return CPSCOPE_UNSUPPORTED;
  if (is_wrong("unwritten")) return CPSCOPE_OK;
  volatile uintptr_t nowhere = 16;
  if (is_wrong("crash") && call->rank == 1) *(volatile int*)nowhere = 1;
  if (is_wrong("abort")) abort();
  if (is_wrong("exit")) exit(0);
  if (is_wrong("hang")) for (;;) sleep(1);
  if (is_wrong("print")) printf("a word on stdout\n");
  const int32_t status = attend(call, message, size);
  if (is_wrong("zeros") && !call->is_backward) write_zeros(call);
  if (is_wrong("nan_logit") && !call->is_backward && call->rank == 1)
    store(call, call->max_logit.data, place(&call->max_logit, 0, 1), NAN);
  if (is_wrong("past_end") && !call->is_backward) store(call, call->out.data, out_end, 1.0);
  if (is_wrong("before") && call->is_backward) store(call, call->dk.data, -1, 1.0);
  spoil_item(call);
  if (is_wrong("input")) ((uint8_t*)call->k.data)[0] ^= 1;
  if (is_wrong("boundaries") && call->cu_seqlens_kv != NULL)
    ((int32_t*)call->cu_seqlens_kv)[1] += 1;
  if (is_wrong("head") && !call->is_backward) {
    /* Row 0 of head 0 holds the last head's. */
    const int64_t last = (call->heads - 1) * call->out.head_stride;
    for (int32_t lane = 0; lane < call->dim_v; ++lane)
      store(call, call->out.data, lane, load(call->out.data, call->result_dtype, last + lane));
  }
  return status;
}

const struct cpscope_plugin* cpscope_open_plugin(void) {
  static struct cpscope_plugin plugin;
  plugin = *open_example_plugin();
  if (is_wrong("open")) exit(0);
  plugin.attend = attend_wrongly;
  if (is_wrong("abi")) plugin.abi_version = 99;
  if (is_wrong("memory")) plugin.memory = 5;
  if (is_wrong("device")) plugin.memory = CPSCOPE_DEVICE;
  if (is_wrong("no_attend")) plugin.attend = NULL;
  return is_wrong("nothing") ? NULL : &plugin;
}
