#pragma once

#include "sim/plan/plan.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// One message that a rank hands to its network, as sender or as receiver.
struct Post {
  RankId peer{};
  StepId step{};
  int64_t bytes = 0;
  int64_t item = 0;  // transfer of the plan
  bool is_backward = false;
  bool is_send = false;

  friend bool operator==(const Post&, const Post&) = default;
};

/// What every rank posts, in its own order: [rank][group][post]. The posts of a group are handed
/// over together, and the rank goes on when all of them are matched (ncclGroupEnd,
/// batch_isend_irecv).
struct RankPosts {
  std::vector<std::vector<std::vector<Post>>> groups;
};

/// The posts of a plan: of each transfer stage, one group a rank.
RankPosts make_posts(const Plan& plan);

/// Where a group of ranks stands still for ever.
struct Stall {
  RankId rank{};     // that waits
  Post post;         // the first one, in schedule order, that nobody matches
  RankId culprit{};  // that does not post as it should
  std::string text;
};

/// Lets all ranks go on as far as they can. A send meets a receive when both ranks have them
/// posted, in order for each pair of ranks; different sizes never meet. Nothing when every rank
/// ends. The culprit is who waits, if the peer would come to it later or it was never to be posted
/// (`expected`: the proved plan's posts), else the peer.
std::optional<Stall> find_stall(const RankPosts& posts, const RankPosts& expected);

}  // namespace cpscope
