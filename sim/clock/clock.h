#pragma once

#include "sim/clock/cluster.h"
#include "sim/plan/plan.h"
#include "sim/run/executor.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// Where the time of one rank goes in one pass; the first four sum to the pass.
struct RankTimes {
  double compute_us = 0;   // attention
  double local_us = 0;     // merges, reorders and finishes
  double exposed_us = 0;   // a transfer of the rank is under way and nothing else
  double idle_us = 0;      // nothing is: launches, waiting for others
  double transfer_us = 0;  // transfers, hidden or not
};

/// Why the pass takes as long as it does: the chain of items, each begun when the one before it
/// ended, that ends last. By kind of item; `waiting` is host and launch time between them.
struct CriticalPath {
  std::array<double, 5> kind_us{};  // [StageKind]
  double waiting_us = 0;
  std::vector<int64_t> events;  // of Timeline::events, first to last
};

struct PassTimeline {
  double total_us = 0;  // all ranks, from the first item's host time to the last rank's end
  std::vector<RankTimes> ranks;
  CriticalPath critical;  // without events when none are kept
};

/// What will happen when. Times of `events` in ns from the start of the forward; the backward
/// begins where the forward ends. A transfer stands with its sender, from packing to the end of the
/// wire.
struct Timeline {
  std::string cluster, stack;
  std::vector<ItemEvent> events;  // items that take time, in plan order; empty when not kept
  PassTimeline forward, backward;
  std::vector<int64_t> memory_bytes;  // [rank] high-water mark, see high_water_bytes
};

struct ClockOptions {
  std::string_view stack = {};  // of the cluster; empty: its first
  bool keeps_events = true;
};

/// Predicts when every item of the plan is carried out. Per rank one stream computes, merges,
/// reorders and finishes, another one transfers; a host thread enqueues both in plan order. An item
/// begins when its stream is free and the buffers that it touches allow it, as
/// kernels/buffer_hazards has it. A message takes the time of its rank's share of the wire: all
/// messages of one rank in one stage share its link, ranks of one NIC share that. A compute beside
/// a transfer of its rank has fewer multiprocessors. Errors: bad_input (no such stack), refused
/// (more ranks than GPUs), unavailable (no times of kernels for the scenario). Cost: O(items +
/// slices), 48 bytes an event. Source of the form: field page cp_field C.1; alpha and beta, Hockney
/// 1994.
Result<Timeline> predict(const Plan& plan, const Cluster& cluster,
                         const ClockOptions& options = {});

/// Floating-point operations of one visible pair of one query head, two for each product that is
/// added: forward 2 (dim_qk + dim_v), backward 2 (3 dim_qk + 2 dim_v) (FlashAttention-2's count).
double flops_per_pair(const Attention& attention, bool is_backward);

/// Those of all visible pairs of a pass, divided by the ranks.
double flops_of_pass(const Plan& plan, bool is_backward);

/// TFLOP/s a GPU of the visible pairs alone, over the whole pass. 0 where it takes no time.
double tflops_of_pass(const Plan& plan, bool is_backward, double total_us);

/// The refusal of a scenario that wants more ranks than the cluster has GPUs.
std::optional<Error> refuse_small_cluster(const Scenario& scenario, const Cluster& cluster);

/// Most bytes that each rank has in use at once, if a buffer lives from its first item to its last
/// one and inputs and answers live all through their pass: q, kv, d_out in the dtype, results and
/// partials in fp32 (out with its lse), and staging memory for what is on the wire when `packs`.
std::vector<int64_t> high_water_bytes(const Plan& plan, bool packs);

/// Bytes of the whole buffer in device memory.
int64_t buffer_bytes(const BufferSpec& spec, const Scenario& scenario);

}  // namespace cpscope
