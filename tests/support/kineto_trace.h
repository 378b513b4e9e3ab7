#pragma once

#include "sim/plan/plan.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope::testing_support {

inline const std::string kAttentionForward =
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, "
    "cutlass::bfloat16_t>, false, true>(Flash_fwd_params)";
inline const std::string kAttentionBackward =
    "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8, "
    "cutlass::bfloat16_t>, false, true>(Flash_bwd_params)";
inline const std::string kSendRecv = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)";

/// One rank's trace as Kineto writes it (libkineto/src/output_json.cpp): the fields, their order
/// and their units. Times are nanoseconds from the base time.
class KinetoTrace {
 public:
  KinetoTrace(int64_t rank, int64_t world_size) : rank_(rank), world_size_(world_size) {}

  int64_t base_ns = 1'790'857'026'000'000'000;

  void add(const std::string& category, const std::string& name, int64_t pid, int64_t tid,
           int64_t start_ns, int64_t length_ns, const std::string& arguments) {
    events_.push_back(fmt::format(
        "\n  {{\n    \"ph\": \"X\", \"cat\": \"{}\", \"name\": \"{}\", \"pid\": {}, \"tid\": "
        "{},\n    \"ts\": {}.{:03}, \"dur\": {}.{:03},\n    \"args\": {{\n      {}\n    }}\n  }}",
        category, name, pid, tid, start_ns / 1000, start_ns % 1000, length_ns / 1000,
        length_ns % 1000, arguments));
  }
  void add_raw(const std::string& event) { events_.push_back(event); }

  /// A kernel on a stream of this rank's GPU.
  void add_kernel(const std::string& name, int64_t start_ns, int64_t length_ns,
                  const std::string& more = "", int64_t stream = 7) {
    const std::string arguments = fmt::format(
        "\"External id\": {}, \"device\": {}, \"context\": 1, \"stream\": {}, \"correlation\": "
        "{}{}",
        correlation_ + 100, rank_ % 8, stream, correlation_, more);
    ++correlation_;
    add("kernel", name, rank_ % 8, stream, start_ns, length_ns, arguments);
  }
  /// A collective of NCCL with what PyTorch says of it.
  void add_collective(const std::string& kernel, const std::string& collective, int64_t start_ns,
                      int64_t length_ns, int64_t in_elements, int64_t out_elements,
                      int64_t group_size, const std::string& dtype = "BFloat16") {
    add_kernel(kernel, start_ns, length_ns,
               fmt::format(", \"Collective name\": \"{}\", \"In msg nelems\": {}, \"Out msg "
                           "nelems\": {}, \"Group size\": {}, \"dtype\": \"{}\", \"Process Group "
                           "Name\": \"1\", \"Process Group Ranks\": \"[0, 1]\"",
                           collective, in_elements, out_elements, group_size, dtype),
               20);
  }
  /// A batch of sends and receives, issued by the host and carried out by one kernel, of which only
  /// the host's records say the sizes.
  void add_batch(int64_t start_ns, int64_t length_ns,
                 const std::vector<std::pair<std::string, int64_t>>& messages) {
    const int64_t issued_ns = start_ns > 2000 ? start_ns - 2000 : 0;
    for (const auto& [collective, elements] : messages)
      add("cpu_op", "record_param_comms", 4000, 4000, issued_ns, 10,
          fmt::format("\"External id\": 9, \"Collective name\": \"{}\", \"In msg nelems\": {}, "
                      "\"Out msg nelems\": {}, \"Group size\": {}, \"dtype\": \"BFloat16\"",
                      collective, elements, elements, world_size_));
    add("cuda_runtime", "cudaLaunchKernelExC", 4000, 4000, issued_ns + 20, 5,
        fmt::format("\"External id\": 9, \"correlation\": {}", correlation_));
    add_kernel(kSendRecv, start_ns, length_ns, "", 20);
  }

  std::string text() const {
    std::string list;
    for (size_t i = 0; i < events_.size(); ++i) list += (i == 0 ? "" : ",") + events_[i];
    return fmt::format(
        "{{\n  \"schemaVersion\": 1,\n  \"deviceProperties\": [],\n  \"distributedInfo\": "
        "{{\"backend\": \"nccl\", \"rank\": {}, \"world_size\": {}, \"pg_count\": 1, "
        "\"pg_config\": "
        "[{}], \"nccl_version\": \"2.27.3\"}},\n  \"displayTimeUnit\": \"ms\",\n  "
        "\"baseTimeNanoseconds\": {},\n  \"traceEvents\": [{}\n  ],\n  \"traceName\": "
        "\"rank{}.json\"\n}}\n",
        rank_, world_size_, groups, base_ns, list, rank_);
  }

  std::string groups =
      R"({"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "ranks": [0, 1]})";

 private:
  int64_t rank_, world_size_, correlation_ = 1;
  std::vector<std::string> events_;
};

/// When a rank carried out the items of a plan, as the trace says: [pass, kind, index], in ns.
using PlannedTimes =
    std::map<std::tuple<Direction, StageKind, int64_t>, std::pair<int64_t, int64_t>>;

/// Writes one layer of a plan as a framework over NCCL would: a batch of sends and receives for
/// each stage of a ring, one all-to-all, an all-gather each for K and V. Gives when the layer ends;
/// `times` are what the matcher must find.
inline int64_t add_layer(KinetoTrace& trace, const Plan& plan, RankId rank, int64_t start_ns,
                         PlannedTimes* times = nullptr) {
  const auto ranks = static_cast<int64_t>(plan.home.size());
  int64_t now = start_ns, link_free = start_ns;
  for (const Direction direction : kDirections) {
    const Pass& pass = plan.pass(direction);
    for (const Stage& stage : pass.stages) {
      int64_t sent = 0, received = 0, length = 40'000 + 1'000 * to_index(stage.step);
      const int64_t begin = std::max(now, link_free) + 1'000;
      bool adds = false, is_gradient = false;
      const CommType type = plan.scenario.parallel.comm_type;
      for (int64_t i = stage.begin; i < stage.end && stage.kind == StageKind::transfer; ++i) {
        const TransferItem& item = pass.transfers[static_cast<size_t>(i)];
        if (item.src == item.dst) continue;
        if (item.dst == rank) received += item.bytes;
        if (item.src != rank) continue;
        sent += item.bytes;
        adds = adds || item.landing == Landing::add;
        is_gradient = is_gradient || item.payload == Payload::dkv;
        if (times != nullptr)
          (*times)[{direction, stage.kind, i}] = {begin, begin + length - 1'000};
      }
      if (sent > 0 && type == CommType::p2p) {
        trace.add_batch(begin, length - 1'000,
                        {{"send", sent / 4},
                         {"recv", received / 4},
                         {"send", sent / 4},
                         {"recv", received / 4}});
      } else if (sent > 0 && type == CommType::all_gather) {
        // K and V, one after the other.
        const int64_t half = (length - 1'000) / 2, shard = sent / (ranks - 1) / 4;
        for (const int64_t at : {begin, begin + half})
          trace.add_collective(adds ? "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)"
                                    : "ncclDevKernel_AllGather_RING_LL(x)",
                               adds ? "_reduce_scatter_base" : "_allgather_base", at, half,
                               adds ? ranks * shard : shard, adds ? shard : ranks * shard, ranks);
        now = begin + length;
      } else if (sent > 0) {
        const int64_t elements = sent / (ranks - 1) * ranks / 2;
        trace.add_collective(kSendRecv, "all_to_all", begin, length - 1'000, elements, elements,
                             ranks);
        now = begin + length;
      }
      for (int64_t i = stage.begin; i < stage.end && stage.kind == StageKind::compute; ++i) {
        const ComputeItem& item = pass.computes[static_cast<size_t>(i)];
        if (item.rank != rank || item.visible_pairs == 0) continue;
        const bool is_backward = direction == Direction::backward;
        if (is_backward)
          trace.add_kernel("void flash_bwd_dot_do_o_kernel<true>(Flash_bwd_params)", now, 2'000);
        trace.add_kernel(is_backward ? kAttentionBackward : kAttentionForward,
                         now + (is_backward ? 2'000 : 0), 30'000);
        const int64_t end = now + (is_backward ? 32'000 : 30'000);
        if (times != nullptr) (*times)[{direction, stage.kind, i}] = {now, end};
        trace.add_kernel("void at::native::vectorized_elementwise_kernel<4>(int)", end + 1'000,
                         3'000);
        now = end + 15'000;
      }
      if (sent > 0) link_free = begin + length - 1'000;
      // A ring's transfer of dk and dv has nothing beside it.
      if (sent > 0 && is_gradient) now = std::max(now, link_free);
    }
    now = std::max(now, link_free);
  }
  return now + 20'000;
}

}  // namespace cpscope::testing_support
