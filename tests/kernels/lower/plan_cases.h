#pragma once

#include "sim/plan/planner/planner.h"
#include "sim/scenario/scenario_file.h"

#include <cstdint>
#include <string>

#include <fmt/format.h>

namespace cpscope::kernels {

/// A batch that is split and moved, forward and backward in bf16.
struct PlanCase {
  const char* type = "all_gather";
  std::string lengths = "256";
  int32_t ranks = 4;
  int32_t kv_heads = 8;  // of 32 heads
  const char* layout = "dual_chunk";
  const char* more = "";  // lines of [parallel]
};

inline Plan make_case_plan(const PlanCase& item) {
  const std::string text = fmt::format(
      "schema = 1\ntitle = \"t\"\nquestion = \"q?\"\n[attention]\nheads = 32\nkv_heads = {}\n"
      "head_dim = 64\nattn_mask_type = \"padding_causal\"\n[batch]\nqkv_format = \"thd\"\n"
      "lengths = [{}]\n[parallel]\ncp_size = {}\ncp_comm_type = \"{}\"\nlayout = \"{}\"\n{}"
      "[numerics]\ndtype = \"bf16\"\n",
      item.kv_heads, item.lengths, item.ranks, item.type, item.layout, item.more);
  return make_plan(parse_scenario(text, "t.toml").value().scenario).value();
}

}  // namespace cpscope::kernels
