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

inline constexpr size_t kPayloads = static_cast<size_t>(Payload::dkv) + 1;

/// Bytes by what they are, [Payload].
using PayloadBytes = std::array<int64_t, kPayloads>;

/// What travels between ranks, by stage and by link: both ways of asking cost what they answer.
/// Copies that stay on a rank are left out. Bytes are those on the wire.
class EdgeMatrix {
 public:
  explicit EdgeMatrix(const PlanIndex& index);

  int32_t num_ranks() const { return num_ranks_; }
  /// Links that ever carry anything.
  size_t num_links() const { return links_.size(); }
  /// Bytes of stages [first_stage, end_stage), by (src, dst), none of them 0.
  std::vector<LinkBytes> of_stages(int32_t first_stage, int32_t end_stage) const;
  /// Transfers between ranks in stages [first_stage, end_stage).
  int64_t num_transfers(int32_t first_stage, int32_t end_stage) const {
    return first_of_stage_[static_cast<size_t>(end_stage)] -
           first_of_stage_[static_cast<size_t>(first_stage)];
  }
  /// Bytes of all stages before end_stage, from running sums.
  std::vector<LinkBytes> until(int32_t end_stage) const { return of_stages(0, end_stage); }
  /// Bytes of stages [first_stage, end_stage) in all, by payload.
  PayloadBytes payloads(int32_t first_stage, int32_t end_stage) const;
  int64_t total(int32_t first_stage, int32_t end_stage) const;
  /// Least and most bytes that a link carries in one step, and the most in all steps. 0 without
  /// links.
  int64_t least_of_step() const { return least_of_step_; }
  int64_t most_of_step() const { return most_of_step_; }
  int64_t most_of_all() const { return most_of_all_; }

 private:
  struct Link {
    int32_t src, dst;
  };
  /// Bytes that a link has carried when `stage` is over.
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
  std::vector<int64_t> first_of_stage_;  // [stages + 1] into shares_
  std::vector<Share> shares_;            // by stage, then link
  std::vector<int64_t> first_of_link_;   // [links + 1] into sums_
  std::vector<Sum> sums_;                // by link, then stage
  std::vector<PayloadBytes> payloads_;   // [stages + 1] before each stage
  int64_t least_of_step_ = 0, most_of_step_ = 0, most_of_all_ = 0;
};

}  // namespace cpscope::gui
