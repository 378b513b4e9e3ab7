#pragma once

#include "gui/model/axis.h"
#include "gui/model/traffic/edge_matrix.h"
#include "gui/model/view.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cpscope::gui {

/// What travels in stages [first_stage, end_stage) of a plan.
struct StageLinks {
  std::shared_ptr<const EdgeMatrix> matrix;
  std::vector<LinkBytes> links;         // by (src, dst)
  std::vector<int64_t> sent, received;  // [rank]
  int32_t first_stage = 0, end_stage = 0;
  uint64_t plan_hash = 0;
  // The last picture of the cells, so that lights over it cost nothing. Not for several threads.
  mutable std::string cells_key;
  mutable Pixels cells;
};

/// What the traffic view shows: links in use, and how much every rank sends and receives.
struct TrafficScene {
  const ViewInput& input;
  const EdgeMatrix& matrix;
  const std::vector<LinkBytes>& links;         // by (src, dst)
  const std::vector<int64_t>&sent, &received;  // [rank]
  const StageLinks& stages;                    // of all these
  int64_t least = 0, most = 0;                 // bytes of a link at the ends of the colour scale
  int32_t first_stage = 0, end_stage = 0;
};

/// The colour of a link: logarithmic from `least` to `most`.
Color color_of_bytes(const TrafficScene& scene, int64_t bytes);

/// The matrix with its numbers, sums and regions. `box` is all there is.
void add_traffic_matrix(View& view, const TrafficScene& scene, const Box& box);

/// The ranks on a ring, or groups of ranks on a ring, with an arrow for every link. Returns a
/// sentence that names what all arrows carry, if they carry the same.
std::string add_traffic_ring(View& view, const TrafficScene& scene, const Box& box);

/// "kv 48 KiB, dkv 96 KiB" of the stages of the scene for each of its links; empty texts where the
/// stages have too many items to look at for every picture, nothing where there are too many links.
std::vector<std::string> name_payloads(const TrafficScene& scene);

/// The colours of bytes with their ends, in a row that ends at x1 at most.
void add_byte_scale(Drawing& drawing, const TrafficScene& scene, Point at, float x1);

inline constexpr int32_t kMostRingRanks = 32;

}  // namespace cpscope::gui
