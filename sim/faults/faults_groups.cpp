#include "sim/faults/catalogue_parts.h"
#include "sim/faults/plan_edits.h"
#include "sim/plan/band.h"
#include "sim/plan/token_run.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// The rank that owns the tokens of a list, or of a part of it.
std::optional<int32_t> owner_of(const Plan& plan, Side side, RunListId list) {
  if (plan.rows(list) == 0) return std::nullopt;
  const int64_t token = plan.list(list).front().begin;
  for (const RankId rank : plan.layout.runs(side).ids()) {
    for (const TokenRun& run : plan.layout.runs(side)[rank]) {
      if (token >= run.begin && token < run.end && (token - run.begin) % run.stride == 0)
        return to_index(rank);
    }
  }
  return std::nullopt;
}

/// A group of four is made of two groups of two: neither half meets the keys of the other.
std::optional<PlantedFault> plant_group_in_halves(const Plan& healthy) {
  const auto half_of = [&](int32_t rank) {
    for (const CpRound& round : healthy.layout.rounds) {
      for (const CpGroup& group : round.groups) {
        if (group.size == 4 && group.has(rank)) return (rank - group.first_rank) / 2;
      }
    }
    return -1;
  };
  std::optional<PlantedFault> planted = plant_slices(
      healthy, "the four ranks of a group are two groups of two, which never exchange keys",
      [&](const ComputeItem& item, std::vector<BandSlice>& slices) {
        const auto owner = owner_of(healthy, Side::kv, item.kv_tokens);
        if (owner && half_of(*owner) != half_of(to_index(item.rank))) slices.clear();
      });
  if (!planted) return std::nullopt;
  // What these items do not compute is in no sum.
  for (const Direction direction : kDirections) {
    Pass& pass = planted->plan->pass(direction);
    std::set<std::pair<RankId, StepId>> computed;
    for (const ComputeItem& item : pass.computes)
      if (item.num_slices > 0) computed.emplace(item.rank, item.step);
    for (MergeItem& item : pass.merges)
      if (!computed.contains({item.rank, item.step})) item.partial = kNoBuffer;
  }
  return planted;
}

std::optional<PlantedFault> plant_positions_of_all_ranks(const Plan& healthy) {
  if (healthy.scenario.attention.rope_theta == 0) return std::nullopt;
  for (const CpRound& round : healthy.layout.rounds) {
    for (const CpGroup& group : round.groups) {
      if (group.size == healthy.layout.cp_size) continue;
      // The first rank's first chunk has the same positions, its second chunk others.
      return PlantedFault{.site = {.item = {.kind = StageKind::transfer},
                                   .rank = RankId{group.first_rank},
                                   .is_load = true},
                          .what = "rows are rotated as if all ranks shared their sequence",
                          .mistake = plant_mistake(Mistake::positions_of_all_ranks, {})};
    }
  }
  return std::nullopt;
}

/// Valid tokens of the only sequence in a list.
int32_t count_valid(const Plan& plan, Side side, RunListId list) {
  const SlotSide slot = plan.layout.slots.sequences.front().side(side);
  const std::vector<int64_t> tokens = expand(plan.list(list));
  return static_cast<int32_t>(
      std::count_if(tokens.begin(), tokens.end(), [&](int64_t id) { return slot.is_valid(id); }));
}

/// True for one request of a decoder, whose queries are the last tokens of their keys.
bool is_decoder_of_one(const Plan& plan) {
  const MaskType mask = plan.scenario.attention.mask_type;
  return plan.layout.slots.sequences.size() == 1 &&
         (mask == MaskType::causal_bottom_right || mask == MaskType::padding_causal_bottom_right) &&
         plan.scenario.parallel.comm_type == CommType::gather_q;
}

/// Drafts see the keys of a rank as if these were the end of the sequence.
std::optional<PlantedFault> plant_drafts_by_local_length(const Plan& healthy) {
  if (!is_decoder_of_one(healthy)) return std::nullopt;
  return plant_slices(healthy,
                      "the last query sees all keys of a rank, those before it one key less each",
                      [&](const ComputeItem& item, std::vector<BandSlice>& slices) {
                        const int32_t rows = count_valid(healthy, Side::q, item.q_tokens);
                        const int32_t keys = count_valid(healthy, Side::kv, item.kv_tokens);
                        slices = {{0, rows, 0, keys, -rows, keys - rows}};
                      });
}

int32_t block_of(int32_t rank, int32_t size) { return rank / size * size; }

/// Every message inside a group goes as far round the block of the rank that posts it.
void move_into_blocks(const CpGroup& group, RankPosts& posts) {
  for (int32_t rank = group.first_rank; rank < group.first_rank + group.size; ++rank) {
    const int32_t block = block_of(rank, group.size);
    for (std::vector<Post>& together : posts.groups[RankId{rank}]) {
      for (Post& post : together) {
        const int32_t peer = to_index(post.peer);
        if (!group.has(peer)) continue;
        const int32_t place = (peer - block + group.size) % group.size;
        post.peer = RankId{block + place};
      }
    }
  }
}

/// Every rank counts the last key as its own; all but the one that stores it read a row behind
/// their keys.
std::optional<PlantedFault> plant_local_length_too_long(const Plan& healthy) {
  if (!is_decoder_of_one(healthy)) return std::nullopt;
  const SlotSide slot = healthy.layout.slots.sequences.front().side(Side::kv);
  if (slot.valid == 0) return std::nullopt;
  const int64_t last = slot.valid_end() - 1;
  return plant_slices(
      healthy, "ranks that do not store the last key count it in their local length",
      [&](const ComputeItem& item, std::vector<BandSlice>& slices) {
        const std::vector<int64_t> tokens = expand(healthy.list(item.kv_tokens));
        const int32_t rows = count_valid(healthy, Side::q, item.q_tokens);
        const int32_t keys = count_valid(healthy, Side::kv, item.kv_tokens);
        const bool stores_last = std::find(tokens.begin(), tokens.end(), last) != tokens.end();
        if (rows == 0 || stores_last || keys == std::ssize(tokens)) return;
        slices = {{0, rows, 0, keys + 1, -rows, keys + 1}};
      });
}

/// Ranks of a group look up the communicator of the block of as many ranks that they are in, which
/// is not the group where it does not begin at a multiple of its size.
std::optional<PlantedFault> plant_group_across_blocks(const Plan& healthy) {
  for (const CpRound& round : healthy.layout.rounds) {
    for (const CpGroup& group : round.groups) {
      if (group.first_rank % group.size == 0) continue;
      const auto hop = find_item(healthy.forward.transfers, [&](const TransferItem& item) {
        return to_index(item.src) == group.first_rank && item.dst != item.src &&
               group.has(to_index(item.dst));
      });
      if (!hop) continue;
      const TransferItem& first = healthy.forward.transfers[static_cast<size_t>(*hop)];
      return PlantedFault{
          .site = forward_site(StageKind::transfer, first.src, first.step, *hop),
          .what = fmt::format("ranks {} to {} exchange rows in the groups of ranks {} to {} and {} "
                              "to {}",
                              group.first_rank, group.first_rank + group.size - 1,
                              block_of(group.first_rank, group.size),
                              block_of(group.first_rank, group.size) + group.size - 1,
                              block_of(group.first_rank, group.size) + group.size,
                              block_of(group.first_rank, group.size) + 2 * group.size - 1),
          .posts = [group](RankPosts& posts) { move_into_blocks(group, posts); }};
    }
  }
  return std::nullopt;
}

/// A rank that has no key of a request returns zeros, whose lse is -inf.
std::optional<PlantedFault> plant_empty_as_zero(const Plan& healthy) {
  const auto& items = healthy.forward.merges;
  return plant_at(
      items,
      find_item(items,
                [](const MergeItem& item) { return item.order > 0 && item.partial != kNoBuffer; }),
      StageKind::merge, Mistake::empty_merged_as_zero,
      "rows that saw no key on a rank are merged as if their lse were 0");
}

}  // namespace

std::vector<Fault> group_faults() {
  const std::string sizes = "cp_size = 4\ncp_sizes = ";
  const std::string drafts =
      "cp_size = 2\ncp_comm_type = \"gather_q\"\nlayout = \"striped\"\nstripe = 4";
  const std::string bottom_right = "attn_mask_type = \"causal_bottom_right\"";
  return {
      {.name = "group_of_fewer_ranks",
       .field_class = "M10",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "NVIDIA/Megatron-LM PR#5679",
       .wild = "Groups were cut from ranks whose number they do not divide: who requested four "
               "ranks could get the two that were left.",
       .scenario =
           scenario_text({.batch = "lengths = [64, 30, 17]", .parallel = sizes + "[4, 2, 1]"}),
       .blind = BlindScenario{scenario_text({.batch = "lengths = [64, 30, 17]",
                                             .parallel = sizes + "[2, 2, 1]"}),
                              "no group has four ranks"},
       .plant = plant_group_in_halves,
       .cause = "rank_alone"},
      {.name = "group_across_two_communicators",
       .field_class = "M14",
       .place = FaultPlace::executor,
       .detector = Detector::liveness,
       .source = "NVIDIA/Megatron-LM PR#7141",
       .wild = "The scheduler gave a sample to ranks 2 to 5, where communicators of four ranks are "
               "those of ranks 0 to 3 and 4 to 7: its group shared ranks with both.",
       .scenario =
           scenario_text({.batch = "lengths = [17, 64, 30]", .parallel = sizes + "[1, 2, 1]"}),
       .blind = BlindScenario{scenario_text({.batch = "lengths = [64, 17, 30]",
                                             .parallel = sizes + "[2, 1, 1]"}),
                              "the group of two begins at an even rank"},
       .plant = plant_group_across_blocks},
      {.name = "rope_of_all_ranks_in_a_group",
       .field_class = "M11",
       .place = FaultPlace::inputs,
       .detector = Detector::position,
       .source = "NVIDIA/Megatron-LM PR#6821",
       .wild = "Hybrid context parallelism bound a group to each batch, and RoPE got the group of "
               "all ranks: wrong positions, NaN gradients, or a model that trains and is wrong.",
       .scenario = scenario_text({.attention = "rope_theta = 10000.0",
                                  .batch = "lengths = [64, 32, 16]",
                                  .parallel = sizes + "[4, 2, 1]"}),
       .blind = BlindScenario{scenario_text({.attention = "rope_theta = 10000.0",
                                             .batch = "lengths = [64, 32]",
                                             .parallel = sizes + "[4, 4]"}),
                              "every group has all ranks"},
       .plant = plant_positions_of_all_ranks},
      {.name = "rank_without_keys_counted",
       .field_class = "M13",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "vllm-project/vllm-ascend PR#14126",
       .wild =
           "A rank of a decoder can hold no key of a short request. Its part must be zeros with "
           "lse -inf; the kernel's own numbers for no keys went into the merge instead.",
       .scenario = scenario_text({.attention = bottom_right,
                                  .batch = "lengths = [2, 2]\nkv_lengths = [3, 48]",
                                  .parallel = drafts,
                                  .numerics = "dtype = \"fp32\"\nbackward = false"}),
       .blind = BlindScenario{scenario_text({.attention = bottom_right,
                                             .batch = "lengths = [2, 2]\nkv_lengths = [40, 48]",
                                             .parallel = drafts,
                                             .numerics = "dtype = \"fp32\"\nbackward = false"}),
                              "every rank holds keys of both requests"},
       .plant = plant_empty_as_zero},
      {.name = "drafts_masked_by_local_length",
       .field_class = "M12",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "lightseekorg/tokenspeed PR#364",
       .wild = "Each rank of a decoder holds every P-th block of keys. The kernel masked drafts "
               "against the number of keys on its rank, so that they missed keys before them.",
       .scenario = scenario_text({.attention = bottom_right,
                                  .batch = "lengths = [4]\nkv_lengths = [48]",
                                  .parallel = drafts,
                                  .numerics = "dtype = \"fp32\"\nbackward = false"}),
       .blind = BlindScenario{scenario_text({.attention = bottom_right,
                                             .batch = "lengths = [1]\nkv_lengths = [48]",
                                             .parallel = drafts,
                                             .numerics = "dtype = \"fp32\"\nbackward = false"}),
                              "a single query sees all keys"},
       .plant = plant_drafts_by_local_length,
       .cause = "mask_by_local_place"},
      {.name = "local_length_one_too_long",
       .field_class = "M15",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "vllm-project/vllm#50391",
       .wild = "Tokens were accepted, and every rank of a decoder added their number to the length "
               "of its own keys. Each key is on one rank: the others read slots behind theirs.",
       .scenario = scenario_text({.attention = bottom_right,
                                  .batch = "lengths = [1]\nkv_lengths = [45]\nkv_slots = [56]",
                                  .parallel = drafts,
                                  .numerics = "dtype = \"fp32\"\nbackward = false"}),
       .blind = BlindScenario{scenario_text({.attention = bottom_right,
                                             .batch = "lengths = [1]\nkv_lengths = [45]\n"
                                                      "kv_slots = [56]",
                                             .parallel = "cp_size = 1\ncp_comm_type = "
                                                         "\"gather_q\"\nlayout = \"striped\"\n"
                                                         "stripe = 4",
                                             .numerics = "dtype = \"fp32\"\nbackward = false"}),
                              "the only rank stores all keys"},
       .plant = plant_local_length_too_long,
       .cause = "local_length_too_long"},
  };
}

}  // namespace cpscope
