#include "sim/faults/catalogue_parts.h"
#include "sim/faults/plan_edits.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// The ring hop that a rank sends in a forward step; nothing if the plan has no ring.
std::optional<int64_t> find_hop(const Plan& plan, int32_t src, int32_t step) {
  return find_item(plan.forward.transfers, [&](const TransferItem& item) {
    return item.link == LinkClass::ring && to_index(item.src) == src && to_index(item.step) == step;
  });
}

std::optional<PlantedFault> plant_posts(const Plan& healthy, int32_t rank, int32_t step,
                                        std::string what, std::function<void(RankPosts&)> posts) {
  const auto item = find_hop(healthy, rank, step);
  if (!item) return std::nullopt;
  return PlantedFault{.site = forward_site(StageKind::transfer, RankId{rank}, StepId{step}, *item),
                      .what = std::move(what),
                      .posts = std::move(posts)};
}

/// The rank with the shorter shard leaves the loop one step early.
std::optional<PlantedFault> plant_fewer_steps(const Plan& healthy) {
  const int32_t last = healthy.layout.cp_size - 2;
  return plant_posts(healthy, 0, last,
                     fmt::format("rank 0 ends the forward ring before step {}", last),
                     [last](RankPosts& posts) {
                       std::erase_if(posts.groups[RankId{0}], [&](const std::vector<Post>& group) {
                         return group.front().item.direction == Direction::forward &&
                                to_index(group.front().step) == last;
                       });
                     });
}

/// Rank 0 takes its neighbour in the fast group for its neighbour in the ring.
std::optional<PlantedFault> plant_wrong_group(const Plan& healthy) {
  if (healthy.scenario.parallel.comm_type != CommType::a2a_p2p) return std::nullopt;
  const auto hop = find_hop(healthy, 0, 0);
  if (!hop) return std::nullopt;
  const RankId right = healthy.forward.transfers[static_cast<size_t>(*hop)].dst;
  const ItemId item{Direction::forward, StageKind::transfer, *hop};
  return plant_posts(
      healthy, 0, 0, "rank 0 posts its ring messages to rank 1", [right, item](RankPosts& posts) {
        for (std::vector<Post>& group : posts.groups[RankId{0}]) {
          const bool is_ring = std::any_of(group.begin(), group.end(), [&](const Post& post) {
            return post.item == item && post.is_send;
          });
          for (Post& post : group) {
            if (is_ring && post.peer == right) post.peer = RankId{1};
          }
        }
      });
}

/// Rank 1 sends its true number of rows, the others expect the padded number.
std::optional<PlantedFault> plant_other_size(const Plan& healthy) {
  return plant_posts(healthy, 1, 0, "rank 1 sends fewer rows than rank 2 expects",
                     [](RankPosts& posts) {
                       for (Post& post : posts.groups[RankId{1}].front()) {
                         if (post.is_send) post.bytes /= 2;
                       }
                     });
}

/// Each rank waits for its send before it posts its receive.
std::optional<PlantedFault> plant_blocking_order(const Plan& healthy) {
  return plant_posts(healthy, 0, 0, "every rank waits for its send before it receives",
                     [](RankPosts& posts) {
                       for (auto& rank : posts.groups) {
                         std::vector<std::vector<Post>> one_by_one;
                         for (const std::vector<Post>& group : rank) {
                           for (const bool is_send : {true, false}) {
                             for (const Post& post : group) {
                               if (post.is_send == is_send) one_by_one.push_back({post});
                             }
                           }
                         }
                         rank = std::move(one_by_one);
                       }
                     });
}

}  // namespace

std::vector<Fault> message_faults() {
  return {
      {.name = "one_rank_takes_fewer_steps",
       .field_class = "33",
       .place = FaultPlace::executor,
       .detector = Detector::liveness,
       .source = "PrimeIntellect-ai/prime-rl PR#2946",
       .wild = "Shards of different lengths gave ranks different step counts; the collective "
               "deadlocked.",
       .scenario = scenario_text({}),
       .blind = BlindScenario{scenario_text({.parallel = "cp_size = 4\ncp_comm_type = \"a2a\""}),
                              "without a ring there are no steps to miss"},
       .plant = plant_fewer_steps},
      {.name = "message_sizes_differ",
       .field_class = "33",
       .place = FaultPlace::executor,
       .detector = Detector::liveness,
       .source = "NVIDIA/nccl#1967",
       .wild = "Sender and receiver of a message reckoned with different shapes; NCCL hung.",
       .scenario = scenario_text({}),
       .blind = std::nullopt,
       .plant = plant_other_size},
      {.name = "all_send_before_they_receive",
       .field_class = "33",
       .place = FaultPlace::executor,
       .detector = Detector::liveness,
       .source = "zhuzilin/ring-flash-attention#39",
       .wild = "Requests were waited for in the wrong order; with blocking sends no rank ever "
               "receives.",
       .scenario = scenario_text({}),
       .blind = BlindScenario{scenario_text({.parallel = "cp_size = 1"}), "one rank sends nothing"},
       .plant = plant_blocking_order},
      {.name = "ring_of_the_wrong_group",
       .field_class = "34",
       .place = FaultPlace::executor,
       .detector = Detector::liveness,
       .source = "NVIDIA/Megatron-LM PR#6816",
       .wild = "Members of hierarchical groups were computed wrongly: a hang, or cross-talk.",
       .scenario = scenario_text({.parallel = "cp_size = 4\ncp_comm_type = \"a2a+p2p\""}),
       .blind = std::nullopt,
       .plant = plant_wrong_group},
  };
}

}  // namespace cpscope
