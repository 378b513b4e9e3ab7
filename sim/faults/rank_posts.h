#pragma once

#include "sim/base/id_vector.h"
#include "sim/base/ids.h"
#include "sim/plan/item_event.h"
#include "sim/plan/plan.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// One pending message that a rank gives to its network, as sender or as receiver.
struct Post {
  RankId peer{};
  StepId step{};
  int64_t bytes = 0;
  ItemId item;  // a transfer of the plan
  bool is_send = false;

  friend bool operator==(const Post&, const Post&) = default;
};

/// The pending messages of every rank, in its own order: [group][post]. The posts of a group
/// are given to the network together, and the rank continues when all of them are matched
/// (ncclGroupEnd, batch_isend_irecv).
struct RankPosts {
  IdVector<RankId, std::vector<std::vector<Post>>> groups;
};

/// The posts of a plan: one group per rank for each transfer stage.
RankPosts make_posts(const Plan& plan);

/// A deadlock of a group of ranks.
struct Stall {
  RankId rank{};     // the rank that waits
  Post post;         // the first post, in schedule order, that no rank matches
  RankId culprit{};  // the rank with the wrong post
  std::string text;
};

/// Simulates all ranks as far as they can proceed. A send matches a receive when both ranks have
/// posted them, in order for each pair of ranks; different sizes never match. Nothing if every rank
/// finishes. The culprit is the waiting rank if the peer posts the match later, or if the waiting
/// post is not in `expected`, the proved plan's posts; else it is the peer.
std::optional<Stall> find_stall(const RankPosts& posts, const RankPosts& expected);

}  // namespace cpscope
