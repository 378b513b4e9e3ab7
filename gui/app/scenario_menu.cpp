#include "gui/app/scenario_menu.h"

#include <algorithm>
#include <array>
#include <utility>

namespace cpscope::gui {
namespace {

struct GroupNames {
  std::string_view title;
  std::vector<std::string_view> names;
};

const std::vector<GroupNames>& all_groups() {
  static const std::vector<GroupNames> kGroups = {
      {"Balance",
       {"contiguous_idle", "zigzag", "striped", "one_long_many_short", "drawn_window",
        "hybrid_sizes"}},
      {"Padding",
       {"thd_padding_one_gpu", "thd_padding_p2p", "thd_padding_a2a", "thd_padding_all_gather",
        "thd_padding_hierarchical"}},
      {"Windows and chunks",
       {"swa_thd_a2a", "swa_thd_ring", "chunked_thd_p2p", "chunked_thd_a2a",
        "chunked_thd_all_gather"}},
      {"Packed documents", {"packed_group_cast", "packed_all_gather", "varlen_queries"}},
      {"Masks",
       {"shared_question", "block_causal", "top_k_rows", "cross_attention", "bottom_right"}},
      {"Heads",
       {"gqa_replicated_a2a", "a2a_any_heads", "upipe", "mla_head_dims", "latent_mla",
        "expanded_mla"}},
      {"Softmax, positions, bias",
       {"sink_p2p", "softcap_rope", "alibi_documents", "bias_gradient", "dropout_split"}},
      {"Numbers and orders",
       {"merge_16bit", "dkv_hops_ring", "imported_order", "fp8_ring", "fp8_even_row"}},
      {"Other ways than a ring of keys",
       {"pass_q", "token_ring", "helper_ring", "mesh", "double_ring", "two_d_attention",
        "ring_backward_q"}},
      {"Decoders and shared keys",
       {"decode_heads", "decode_combine", "decode_drafts", "shared_keys"}},
      {"Scale", {"million_tokens"}}};
  return kGroups;
}

ScenarioGroup::Entry make_entry(const Services& services, const std::string& name) {
  const std::optional<std::string> text =
      services.scenario_source ? services.scenario_source(name) : std::nullopt;
  ScenarioGroup::Entry entry{name, name, ""};
  if (!text) return entry;
  if (std::string title = read_heading(*text, "title"); !title.empty())
    entry.title = std::move(title);
  entry.question = read_heading(*text, "question");
  return entry;
}

}  // namespace

std::string read_heading(std::string_view text, std::string_view key) {
  while (!text.empty() && !text.starts_with('[')) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (!line.starts_with(key)) continue;
    line.remove_prefix(key.size());
    const size_t sign = line.find_first_not_of(' ');
    if (sign == std::string_view::npos || line[sign] != '=') continue;
    const size_t begin = line.find('"'), end = line.rfind('"');
    if (begin != std::string_view::npos && begin < end)
      return std::string(line.substr(begin + 1, end - begin - 1));
  }
  return "";
}

std::vector<ScenarioGroup> group_scenarios(const Services& services) {
  std::vector<std::string> rest = services.scenario_names;
  std::vector<ScenarioGroup> groups;
  for (const GroupNames& known : all_groups()) {
    ScenarioGroup group{known.title, {}};
    for (const std::string_view name : known.names) {
      const auto it = std::find(rest.begin(), rest.end(), name);
      if (it == rest.end()) continue;
      group.entries.push_back(make_entry(services, *it));
      rest.erase(it);
    }
    if (!group.entries.empty()) groups.push_back(std::move(group));
  }
  ScenarioGroup others{"Others", {}};
  for (const std::string& name : rest) others.entries.push_back(make_entry(services, name));
  if (!others.entries.empty()) groups.push_back(std::move(others));
  return groups;
}

}  // namespace cpscope::gui
