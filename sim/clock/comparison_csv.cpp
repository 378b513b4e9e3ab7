#include "sim/clock/candidates.h"

#include <fmt/format.h>

namespace cpscope {
namespace {

/// A field of a table, in quotes if it is not empty.
std::string quoted(const std::string& text) {
  if (text.empty()) return "";
  std::string field = "\"";
  for (const char letter : text) field += letter == '"' ? "\"\"" : std::string(1, letter);
  return field + "\"";
}

/// A number for programs: "inf" if bytes are moved that no rank needs, empty if none are.
std::string kv_ratio_field(const Candidate& candidate) {
  if (candidate.kv_necessary > 0)
    return fmt::format("{}", static_cast<double>(candidate.kv_moved) /
                                 static_cast<double>(candidate.kv_necessary));
  return candidate.kv_moved > 0 ? "inf" : "";
}

}  // namespace

std::string comparison_csv(const Candidates& comparison) {
  std::string text =
      "cp_comm_type,layout,a2a_size,dispatch_chunk,stripe,status,forward_us,backward_us,total_us,"
      "exposed_us,bytes_sent,kv_necessary,kv_moved,kv_moved_over_necessary,rank_max_over_mean,"
      "critical_path_over_ideal,padding_share,memory_bytes,fits,is_pareto,is_best,is_own,mesh_q,"
      "ring_window,ring_backward,heads_per_stage,combine,dispatch,is_searched,cp_sizes,cp_size,"
      "group_size,group_loss,reason\n";
  for (size_t i = 0; i < comparison.candidates.size(); ++i) {
    const Candidate& c = comparison.candidates[i];
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},",
                        to_name(c.parallel.comm_type), to_name(c.parallel.layout),
                        c.parallel.a2a_size, c.parallel.dispatch_chunk, c.parallel.stripe,
                        c.refusal.empty() ? "predicted" : "refused", c.forward_us, c.backward_us,
                        c.total_us(), c.exposed_us, c.bytes_sent, c.kv_necessary, c.kv_moved,
                        kv_ratio_field(c), c.rank_max_over_mean, c.critical_path_over_ideal,
                        c.padding_share, c.memory_bytes, c.fits ? 1 : 0, c.is_pareto ? 1 : 0,
                        static_cast<int64_t>(i) == comparison.best ? 1 : 0, c.is_own ? 1 : 0);
    text += fmt::format(
        "{},{},{},{},{},{},{},{},{},{},{},{}\n", c.parallel.mesh_q, c.parallel.ring_window,
        to_name(c.parallel.ring_backward), c.parallel.heads_per_stage, to_name(c.parallel.combine),
        to_name(c.parallel.dispatch), c.is_searched ? 1 : 0, to_name(c.parallel.group_rule),
        c.parallel.cp_size,
        c.parallel.group_rule == GroupRule::fixed ? fmt::format("{}", c.parallel.cp_sizes.front())
                                                  : "",
        c.group_loss ? fmt::format("{}", *c.group_loss) : "", quoted(c.refusal));
  }
  return text;
}

}  // namespace cpscope
