#pragma once

#include "sim/base/result.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// Costs of a machine and its software, read from scenarios/clusters/*.toml. Times in microseconds
/// (us), sizes in bytes, rates in GB/s (1e9 bytes a second). Every table names its source.

/// Time of the messages of one rank, by the bytes that it sends (or receives) in one stage:
/// measured points with linear interpolation. Above the last point the last slope continues; below
/// the first point the first time holds. Two points are the usual alpha and beta.
struct LinkCurve {
  struct Point {
    double bytes = 0, us = 0;
  };
  std::vector<Point> points;  // bytes and us ascend; at least two

  double time_us(double bytes) const;
};

/// The wires between the GPUs of one node, or between nodes. A rank sends and receives at the same
/// time.
struct Link {
  std::string name, source;
  LinkCurve one_peer;    // to one rank, from one rank: a ring
  LinkCurve many_peers;  // to several, by the sum of the bytes: all-to-all, all-gather, group cast
};

/// The kernel of one direction: stationary tiles of queries, longest first, each on one
/// multiprocessor, which streams the tiles of keys that they see.
struct TileCost {
  int32_t tile_rows = 128;  // query rows of a stationary tile
  int32_t tile_keys = 128;  // keys of a streamed tile
  double launch_us = 0;     // from the kernel before to the first tile of this one
  double owned_us = 0;      // a stationary tile of one head: load it, write its results
  double whole_us = 0;      // a streamed tile that all of its rows see
  double masked_us = 0;     // a streamed tile with a mask
  double tail_share = 0;  // of its longest tile, how much longer than its shortest, that ends alone
};

/// Kernels for heads of up to these head_dims, with elements of `bits` bits.
struct KernelCost {
  int32_t head_dim_qk = 0, head_dim_v = 0;
  int32_t bits = 16;  // 8: fp8 with one scale a tensor; 16: bf16 and fp16; 32: fp32
  TileCost forward, backward;
  bool is_latent = false;  // V is a part of K (latent_dim)
};

/// The costs of one implementation that runs a plan.
struct Stack {
  std::string name, title, source;
  std::vector<KernelCost> kernels;  // ascending head_dims
  double item_us = 0;               // host time to enqueue a compute, merge, reorder or finish item
  double backward_item_us = 0;      // the same in the backward
  double message_us = 0;            // host time to enqueue the messages of a stage
  double pass_us = 0;        // once per pass: until the first item may begin, and to detect the end
  double row_launch_us = 0;  // launch of a kernel that moves or merges rows
  double read_gb_s = 0;  // rate at which forwards of decode steps (decode_items.h) read K and V; 0:
                         // they take the kernels for many rows
  double first_merge_passes = 2;  // passes of a first merge over its rows in fp32: read, write
  double merge_passes = 3;        // of a later merge: read two, write one
  bool packs = true;              // rows go through staging memory on both sides of a wire
  bool overlaps = true;           // transfers run at the same time as computes
  /// Kernels take rows from where transfers left them, so that nothing is reordered, and those of
  /// the forward merge their own results and finish them.
  bool fuses_rows = false;
  /// Inputs of a pass that computes once, and its results, travel in pieces of heads: the kernel
  /// begins with the first piece, and only the last piece of the results is sent after its end.
  bool cuts_heads = false;
  bool calls_by_rank = false;  // one attention call for the gathered keys of each rank, then merged
  double call_us = 0, backward_call_us = 0;  // host time of each such call and of its merge
  int32_t transfer_multiprocessors = 0;      // taken by transfers from a concurrent compute
};

/// One GPU. Its clock rate falls after kernels have kept it busy for a while.
struct DeviceCost {
  struct Speed {
    double busy_us = 0, share = 1;  // share of the speed at which kernels were timed
  };
  std::string name, source;
  int32_t multiprocessors = 0;
  double memory_gib = 0;
  double copy_gb_s = 0;          // bytes read plus bytes written by kernels that move rows
  std::vector<Speed> sustained;  // for a pass with this compute time; busy_us ascends, may be empty

  /// Share of the full speed in a pass with this compute time. Linear between the points.
  double speed_share(double busy_us) const;
};

struct Cluster {
  std::string name, title;
  int32_t gpus_per_node = 8;
  int32_t max_nodes = 1;
  int32_t nics_per_node = 8;  // with several nodes; GPUs share them evenly
  DeviceCost device;
  Link inside;                  // inside the node
  std::optional<Link> between;  // between nodes; given when max_nodes > 1
  std::vector<Stack> stacks;    // the first is the default

  int64_t num_gpus() const { return int64_t{gpus_per_node} * max_nodes; }
  int32_t node_of(int32_t rank) const { return rank / gpus_per_node; }
};

/// Reads a cluster file; its key `note` is a comment for people and is ignored. Errors: bad_input
/// with all complaints, each with its place.
Result<Cluster> parse_cluster(std::string_view text, const std::string& path);

/// A cluster by name ("h200x8": `folder`/h200x8.toml) or by path (ends in .toml). An unknown name
/// is bad_input; the error lists the known names.
Result<Cluster> load_cluster(const std::string& name, const std::string& folder);

/// Names that load_cluster knows, sorted.
std::vector<std::string> list_clusters(const std::string& folder);

/// The stack of that name, the first one for "". Errors: bad_input, with the known names.
Result<const Stack*> find_stack(const Cluster& cluster, std::string_view name);

/// The kernels of a stack for a scenario: the narrowest ones for its head_dims. Where a stack has
/// none of latent attention, those of other heads are taken, where none of 8 bits, and for mxfp8,
/// those of bf16. Errors: unavailable.
Result<const KernelCost*> find_kernel_cost(const Stack& stack, const Scenario& scenario);

/// What a reader of predicted times must know about the scenario's numbers, one sentence; empty if
/// nothing.
std::string note_on_times(const Stack& stack, const Scenario& scenario);

/// A file from which parse_cluster reads the same cluster.
std::string print_cluster(const Cluster& cluster);

/// The table [[stacks.kernels]] of such a file.
std::string print_kernel(const KernelCost& kernel);

}  // namespace cpscope
