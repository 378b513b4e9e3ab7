#pragma once

#include <cstdint>
#include <string>

namespace cpscope::kernels::emulator {

/// A bug that the emulator plants in the kernel it runs, to show that the tests would see it.
enum class Fault {
  none,
  skip_barrier,           // a __syncthreads() or __syncwarp() that does not wait
  skip_copy_wait,         // copy_async_wait that returns at once
  skip_zero_fill,         // an invalid copy_async_16 leaves what was there
  copy_invalid_rows,      // an invalid copy_async_16 reads its source all the same
  plain_for_transposed,   // load_matrix_x4_transposed does not transpose
  skip_transaction_wait,  // mbarrier_wait that returns at once
  skip_named_barrier,     // named_barrier_sync that arrives and does not wait
  skip_product_wait,      // wgmma_wait whose products never give their results
  wrong_panel_stride,     // matrix_descriptor with panels too far apart
  skip_swizzle,           // a box that arrives without the swizzle
  skip_clipping,          // a box that reads rows past its end
  skip_box_wait,          // wait_for_boxes and wait_for_boxes_read that return at once
  skip_tensor_wait        // tcgen05_wait_ld whose values never arrive; _st: are never written
};

/// Settings of the emulated device, for later launches.
struct Settings {
  uint64_t seed = 1;  // of the order of threads and of the times when asynchronous work completes
  Fault fault = Fault::none;
  int32_t fault_line = 0;     // only calls on this source line have the fault; 0: all of them
  int64_t most_switches = 0;  // switches between threads of a CTA; more are an error; 0: no limit
  int32_t compute_capability = 90;
};

Settings& settings();

/// Counts over the launches since the last clear_counts().
struct Counts {
  int64_t ctas = 0;
  int64_t switches = 0;
  int64_t products = 0;  // multiply_add of a warp
  int64_t copies = 0;    // asynchronous copies completed
  int64_t faults = 0;    // number of times that Settings::fault changed the behaviour
};

Counts& counts();
void clear_counts();

}  // namespace cpscope::kernels::emulator
