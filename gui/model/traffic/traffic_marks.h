#pragma once

#include "gui/model/axis.h"
#include "gui/model/traffic/edge_matrix.h"
#include "gui/model/view.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cpscope::gui {

/// The traffic of stages [first_stage, end_stage) of a plan.
struct StageLinks {
  std::shared_ptr<const EdgeMatrix> matrix;
  std::vector<LinkBytes> links;         // by (src, dst)
  std::vector<int64_t> sent, received;  // [rank]
  int32_t first_stage = 0, end_stage = 0;
  uint64_t plan_hash = 0;
  // The last picture of the cells, so that changed lights need no new one. Not thread-safe.
  mutable std::string cells_key;
  mutable Pixels cells;
};

/// The data of the traffic view: links in use, and the bytes that every rank sends and receives.
struct TrafficScene {
  const ViewInput& input;
  const EdgeMatrix& matrix;
  const std::vector<LinkBytes>& links;         // by (src, dst)
  const std::vector<int64_t>&sent, &received;  // [rank]
  const StageLinks& stages;                    // the stages of all these figures
  int64_t least = 0, most = 0;                 // bytes of a link at the ends of the colour scale
  int32_t first_stage = 0, end_stage = 0;
};

/// The colour of a link: logarithmic from `least` to `most`.
Color color_of_bytes(const TrafficScene& scene, int64_t bytes);

/// Adds the matrix with its numbers, sums and regions. `box` is all the room.
void add_traffic_matrix(View& view, const TrafficScene& scene, const Box& box);

/// Adds the ranks on a ring, or groups of ranks on a ring, with an arrow for every link. Returns a
/// sentence about the load of all arrows if it is the same.
std::string add_traffic_ring(View& view, const TrafficScene& scene, const Box& box);

/// [link of the scene] Bytes by payload; zeros if the stages have too many items to visit for every
/// picture; nothing if there are too many links.
std::vector<PayloadBytes> payloads_of_links(const TrafficScene& scene);

/// "kv 48 KiB, dkv 96 KiB" of each; empty texts of zeros.
std::vector<std::string> name_payloads(const std::vector<PayloadBytes>& payloads);

/// True for results that are not finished: they are merged by the owners of their rows.
bool carries_partials(const PayloadBytes& bytes);

/// "rank 2 sends 48 KiB, receives 48 KiB".
std::string describe_rank_bytes(const TrafficScene& scene, int32_t rank);

/// Adds the colour scale of bytes with its ends, in a row that ends at x1 at most.
void add_byte_scale(Drawing& drawing, const TrafficScene& scene, Point at, float x1);

inline constexpr int32_t kMostRingRanks = 32;

}  // namespace cpscope::gui
