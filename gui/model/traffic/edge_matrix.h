#pragma once

#include "gui/model/plan_index.h"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace cpscope::gui {

/// Bytes from one rank to another.
struct LinkBytes {
  int32_t src = 0, dst = 0;
  int64_t bytes = 0;

  friend bool operator==(const LinkBytes&, const LinkBytes&) = default;
};

/// Bytes by payload, [Payload].
using PayloadBytes = std::array<int64_t, kPayloads>;

/// Transfers between ranks, by stage and by link: both lookups cost only the size of their answer.
/// Copies that stay on a rank are left out. Bytes are those on the wire.
class EdgeMatrix {
 public:
  explicit EdgeMatrix(const PlanIndex& index);

  int32_t num_ranks() const { return num_ranks_; }
  /// Number of links that carry anything in some stage.
  size_t num_links() const { return links_.size(); }
  /// Bytes of stages [first_stage, end_stage), by (src, dst); links without bytes are left out.
  std::vector<LinkBytes> of_stages(int32_t first_stage, int32_t end_stage) const;
  /// Number of transfers between ranks in stages [first_stage, end_stage).
  int64_t num_transfers(int32_t first_stage, int32_t end_stage) const {
    return first_of_stage_[static_cast<size_t>(end_stage)] -
           first_of_stage_[static_cast<size_t>(first_stage)];
  }
  /// Bytes of all stages before end_stage, from prefix sums.
  std::vector<LinkBytes> until(int32_t end_stage) const { return of_stages(0, end_stage); }
  /// Total bytes of stages [first_stage, end_stage), by payload.
  PayloadBytes payloads(int32_t first_stage, int32_t end_stage) const;
  int64_t total(int32_t first_stage, int32_t end_stage) const;
  /// Least and most bytes that a link carries in one step, and the most in all steps. 0 if there
  /// are no links.
  int64_t least_of_step() const { return least_of_step_; }
  int64_t most_of_step() const { return most_of_step_; }
  int64_t most_of_all() const { return most_of_all_; }

 private:
  struct Link {
    int32_t src, dst;
  };
  /// Bytes that a link has carried at the end of `stage`.
  struct Sum {
    int32_t stage;
    int64_t bytes;
  };
  struct Share {
    int32_t link;
    int64_t bytes;
  };
  int64_t carried(size_t link, int32_t end_stage) const;
  void find_links(const PlanIndex& index);
  void add_sums();
  void find_extremes(const PlanIndex& index);

  int32_t num_ranks_ = 0;
  std::vector<Link> links_;              // ascending
  std::vector<int64_t> first_of_stage_;  // [stages + 1] indices into shares_
  std::vector<Share> shares_;            // by stage, then link
  std::vector<int64_t> first_of_link_;   // [links + 1] indices into sums_
  std::vector<Sum> sums_;                // by link, then stage
  std::vector<PayloadBytes> payloads_;   // [stages + 1] bytes before each stage
  int64_t least_of_step_ = 0, most_of_step_ = 0, most_of_all_ = 0;
};

}  // namespace cpscope::gui
