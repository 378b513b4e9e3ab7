#include "sim/faults/rank_posts.h"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

void add_pass(const Plan& plan, Direction direction, RankPosts& posts) {
  const Pass& pass = plan.pass(direction);
  for (const Stage& stage : pass.stages) {
    if (stage.kind != StageKind::transfer) continue;
    IdVector<RankId, std::vector<Post>> of_stage(posts.groups.size());
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const TransferItem& item = pass.transfers[static_cast<size_t>(i)];
      if (item.src == item.dst) continue;
      const ItemId id{direction, StageKind::transfer, i};
      of_stage[item.src].push_back({item.dst, item.step, item.bytes, id, true});
      of_stage[item.dst].push_back({item.src, item.step, item.bytes, id, false});
    }
    for (const RankId rank : of_stage.ids()) {
      if (!of_stage[rank].empty()) posts.groups[rank].push_back(std::move(of_stage[rank]));
    }
  }
}

/// Simulates the progress of the ranks, group by group.
class Network {
 public:
  explicit Network(const RankPosts& posts)
      : posts_(posts), next_(posts.groups.size()), open_(posts.groups.size()) {
    for (const RankId rank : next_.ids()) hand_over(rank);
  }

  /// Matches pending messages where possible; false if none could be matched.
  bool advance() {
    bool has_moved = false;
    for (auto& [channel, sends] : sends_) {
      auto& receives = receives_[channel];
      while (!sends.empty() && !receives.empty() && sends.front().bytes == receives.front().bytes) {
        --open_[channel.first];
        --open_[channel.second];
        sends.pop_front();
        receives.pop_front();
        has_moved = true;
      }
    }
    for (const RankId rank : next_.ids()) {
      while (open_[rank] == 0 && next_[rank] < posts_.groups[rank].size()) {
        ++next_[rank];
        hand_over(rank);
        has_moved = true;
      }
    }
    return has_moved;
  }

  /// The first unmatched post in schedule order.
  std::optional<Stall> first_unmatched() const {
    std::optional<Stall> first;
    const auto key = [](RankId rank, const Post& post) {
      return std::tuple(post.item.direction, post.step, rank, post.item.index);
    };
    const auto look = [&](const std::map<Channel, std::deque<Post>>& queues, bool is_send) {
      for (const auto& [channel, queue] : queues) {
        const RankId rank = is_send ? channel.first : channel.second;
        if (queue.empty()) continue;
        if (!first || key(rank, queue.front()) < key(first->rank, first->post))
          first = Stall{.rank = rank, .post = queue.front(), .culprit = {}, .text = ""};
      }
    };
    look(sends_, true);
    look(receives_, false);
    return first;
  }

 private:
  using Channel = std::pair<RankId, RankId>;  // sender, receiver

  void hand_over(RankId rank) {
    if (next_[rank] >= posts_.groups[rank].size()) return;
    for (const Post& post : posts_.groups[rank][next_[rank]]) {
      (post.is_send ? sends_[{rank, post.peer}] : receives_[{post.peer, rank}]).push_back(post);
      ++open_[rank];
    }
  }

  const RankPosts& posts_;
  IdVector<RankId, size_t> next_;   // present group
  IdVector<RankId, int64_t> open_;  // unmatched posts
  std::map<Channel, std::deque<Post>> sends_, receives_;
};

/// True if this is one of the rank's posts, at any time.
bool holds(const RankPosts& posts, RankId rank, const Post& wanted) {
  for (const std::vector<Post>& group : posts.groups[rank]) {
    if (std::find(group.begin(), group.end(), wanted) != group.end()) return true;
  }
  return false;
}

}  // namespace

RankPosts make_posts(const Plan& plan) {
  RankPosts posts;
  posts.groups.resize(plan.home.size());
  for (const Direction direction : kDirections) add_pass(plan, direction, posts);
  return posts;
}

std::optional<Stall> find_stall(const RankPosts& posts, const RankPosts& expected) {
  Network network(posts);
  while (network.advance()) {
  }
  std::optional<Stall> stall = network.first_unmatched();
  if (!stall) return stall;
  const Post& post = stall->post;
  Post counterpart = post;
  counterpart.peer = stall->rank;
  counterpart.is_send = !post.is_send;
  const bool is_own_fault =
      holds(posts, post.peer, counterpart) || !holds(expected, stall->rank, post);
  stall->culprit = is_own_fault ? stall->rank : post.peer;
  stall->text =
      fmt::format("deadlock: rank {} in {} step {}: no match for its {} {} rank {} ({} bytes)",
                  to_index(stall->rank), to_name(post.item.direction), to_index(post.step),
                  post.is_send ? "send" : "receive", post.is_send ? "to" : "from",
                  to_index(post.peer), post.bytes);
  return stall;
}

}  // namespace cpscope
