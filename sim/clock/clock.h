#pragma once

#include "sim/clock/cluster.h"
#include "sim/plan/direction.h"
#include "sim/plan/item_event.h"
#include "sim/plan/plan.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// Time of one rank in one pass by kind; the first four sum to the pass.
struct RankTimes {
  double compute_us = 0;   // attention
  double local_us = 0;     // merges, reorders and finishes
  double exposed_us = 0;   // only a transfer of the rank runs
  double idle_us = 0;      // nothing runs
  double transfer_us = 0;  // transfers, hidden or not
  double launch_us = 0;    // of compute_us: starts of attention kernels
  double partner_us = 0;   // of exposed_us: the other rank of the message is not ready
  double host_us = 0;      // of idle_us: the host has not yet enqueued the next item, or ends the
                           // pass; the rest waits for other ranks
  double groups_us = 0;    // of idle_us: cp_sizes, from the end of the rank's group to that of the
                           // slowest group of the round
};

/// Explains the duration of the pass: the chain of items, each started when the one before it
/// ended, that ends last. By kind of item; `waiting` is host and launch time between them.
struct CriticalPath {
  std::array<double, 5> kind_us{};  // [StageKind]
  double waiting_us = 0;
  std::vector<int64_t> events;  // of Timeline::events, first to last
};

struct PassTimeline {
  double total_us = 0;  // all ranks, from the first item's host time to the last rank's end
  std::vector<RankTimes> ranks;
  CriticalPath critical;  // without events if none are stored
};

/// The predicted times. Times of `events` in ns from the start of the forward; the backward begins
/// where the forward ends. A transfer is listed with its sender, from packing to the end of the
/// wire time.
struct Timeline {
  std::string cluster, stack;
  std::vector<ItemEvent> events;  // items that take time, in plan order; empty if not stored
  PassTimeline forward, backward;
  std::vector<int64_t> memory_bytes;  // [rank] high-water mark, see high_water_bytes

  const PassTimeline& pass(Direction direction) const {
    return direction == Direction::backward ? backward : forward;
  }
};

struct ClockOptions {
  std::string_view stack = {};  // name in the cluster; empty: its first
  bool keeps_events = true;
};

/// Predicts the time of every item of the plan. Each rank has one stream for computes, merges,
/// reorders and finishes, and another one for transfers; a host thread enqueues both in plan order.
/// An item begins when its stream is free and the buffers that it uses allow it, as
/// kernels/buffer_hazards requires. A message takes the time of its rank's share of the wire: all
/// messages of one rank in one stage share its link, and ranks of one NIC share the NIC. A compute
/// at the same time as a transfer of its rank has fewer multiprocessors.
/// Errors: bad_input (unknown stack), refused (more ranks than GPUs), unavailable (no kernel times
/// for the scenario). Cost: O(items + slices), 48 bytes per event. Source of the form: field page
/// cp_field C.1; alpha and beta, Hockney 1994.
Result<Timeline> predict(const Plan& plan, const Cluster& cluster,
                         const ClockOptions& options = {});

/// Floating-point operations of one visible pair of one query head, a multiply and an add for each
/// product: forward 2 (dim_qk + dim_v), backward 2 (3 dim_qk + 2 dim_v) (FlashAttention-2's count).
double flops_per_pair(const Attention& attention, Direction direction);

/// Operations of all visible pairs of a pass, divided by the number of ranks.
double flops_of_pass(const Plan& plan, Direction direction);

/// TFLOP/s per GPU of the visible pairs alone, over the whole pass. 0 if the pass takes no time.
double tflops_of_pass(const Plan& plan, Direction direction, double total_us);

/// The refusal of a scenario that needs more ranks than the cluster has GPUs.
std::optional<Error> refuse_small_cluster(const Scenario& scenario, const Cluster& cluster);

/// Most bytes that each rank uses at once, if a buffer lives from its first item to its last one
/// and inputs and answers live for their whole pass: q, kv, d_out in the dtype, results and
/// partials in fp32 (out with its lse), and staging memory for messages when `packs`.
std::vector<int64_t> high_water_bytes(const Plan& plan, bool packs);

/// Bytes of the whole buffer in device memory.
int64_t buffer_bytes(const BufferSpec& spec, const Scenario& scenario);

}  // namespace cpscope
