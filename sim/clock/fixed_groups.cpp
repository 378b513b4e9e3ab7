#include "sim/clock/fixed_groups.h"

#include <algorithm>
#include <array>

namespace cpscope {
namespace {

constexpr std::array kGroupTypes = {CommType::p2p, CommType::a2a, CommType::all_gather};

}  // namespace

std::vector<Parallel> list_fixed_groups(const Scenario& scenario) {
  const Parallel& own = scenario.parallel;
  std::vector<Parallel> list;
  const std::vector<int64_t>& lengths = scenario.batch.lengths;
  if (lengths.size() < 2 || scenario.batch.qkv_format != QkvFormat::thd) return list;
  if (!has_rounds(own) && own.max_tokens_per_rank == 0) return list;
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  for (int32_t size = 1; size < own.cp_size; size *= 2) {
    const bool holds = own.max_tokens_per_rank == 0 || longest <= own.max_tokens_per_rank * size;
    if (own.cp_size % size != 0 || !holds) continue;
    for (const CommType type : kGroupTypes) {
      if (size == 1 && type != CommType::p2p) continue;  // nothing is sent
      Parallel parallel = own;
      parallel.comm_type = type;
      parallel.layout = LayoutKind::dual_chunk;
      parallel.group_rule = GroupRule::fixed;
      parallel.cp_sizes = {size};
      parallel.ring_backward = RingBackward::kv;
      parallel.heads_per_stage = 0;
      parallel.indices_file.clear();
      parallel.imported = {};
      list.push_back(parallel);
    }
  }
  return list;
}

}  // namespace cpscope
