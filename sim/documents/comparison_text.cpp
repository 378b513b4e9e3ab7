#include "sim/documents/comparison_text.h"

#include "sim/base/machine_memory.h"
#include "sim/documents/json_text.h"

#include <algorithm>
#include <cstddef>
#include <ostream>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr size_t kMostShown = 16;

Json kv_json(const Candidate& candidate) {
  Json json = {{"necessary", candidate.kv_necessary},
               {"moved", candidate.kv_moved},
               {"moved_over_necessary", nullptr}};
  if (candidate.kv_necessary > 0) {
    json["moved_over_necessary"] =
        static_cast<double>(candidate.kv_moved) / static_cast<double>(candidate.kv_necessary);
  } else {
    json["reason"] = candidate.kv_moved > 0
                         ? "no rank needs keys of another rank: all bytes are unneeded"
                         : "nothing is necessary and nothing is moved";
  }
  return json;
}

Json candidate_json(const Candidate& candidate, bool is_best) {
  const Parallel& parallel = candidate.parallel;
  Json json = {{"name", candidate.name},
               {"cp_comm_type", to_name(parallel.comm_type)},
               {"layout", to_name(parallel.layout)},
               {"a2a_size", parallel.a2a_size},
               {"dispatch_chunk", parallel.dispatch_chunk},
               {"stripe", parallel.stripe},
               {"dispatch", to_name(parallel.dispatch)},
               {"is_own", candidate.is_own},
               {"status", candidate.refusal.empty() ? "predicted" : "refused"}};
  if (!candidate.refusal.empty()) {
    json["reason"] = candidate.refusal;
    return json;
  }
  json["forward_us"] = candidate.forward_us;
  json["backward_us"] = candidate.backward_us;
  json["total_us"] = candidate.total_us();
  json["mean_us"] = {{"compute", candidate.mean.compute_us},
                     {"local", candidate.mean.local_us},
                     {"exposed", candidate.mean.exposed_us},
                     {"idle", candidate.mean.idle_us},
                     {"launch_of_compute", candidate.mean.launch_us},
                     {"partner_of_exposed", candidate.mean.partner_us},
                     {"host_of_idle", candidate.mean.host_us}};
  json["exposed_us"] = candidate.exposed_us;
  json["bytes_sent_by_busiest_rank"] = candidate.bytes_sent;
  json["kv_bytes"] = kv_json(candidate);
  json["imbalance"] = {{"rank_max_over_mean", candidate.rank_max_over_mean},
                       {"critical_path_over_ideal", candidate.critical_path_over_ideal}};
  json["padding_share"] = candidate.padding_share;
  json["memory_bytes"] = candidate.memory_bytes;
  json["fits"] = candidate.fits;
  json["is_pareto"] = candidate.is_pareto;
  json["is_wasteful"] = candidate.is_wasteful;
  json["is_best"] = is_best;
  return json;
}

bool is_the_best(const Candidates& comparison, size_t index) {
  return static_cast<int64_t>(index) == comparison.best;
}

/// The fastest, the best of each communication type, the scenario's own and the Pareto front.
bool is_shown(const Candidates& comparison, size_t index) {
  const Candidate& candidate = comparison.candidates[index];
  if (index < kMostShown || candidate.is_own || candidate.is_pareto) return true;
  return std::none_of(comparison.candidates.begin(),
                      comparison.candidates.begin() + static_cast<std::ptrdiff_t>(index),
                      [&](const Candidate& before) {
                        return before.parallel.comm_type == candidate.parallel.comm_type;
                      });
}

}  // namespace

void write_comparison_text(const Candidates& comparison, bool is_full, std::ostream& out) {
  out << fmt::format(
      "{} candidates on {}, stack {}: predicted, not measured; * no other is as good in time, "
      "bytes and memory\n",
      comparison.candidates.size(), comparison.cluster, comparison.stack);
  out << fmt::format("{:<34} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>6} {:>7} {:>7}\n",
                     "candidate", "total ms", "forward", "exposed", "sent MiB", "KV/need",
                     "max/mean", "path", "pad %", "GiB");
  int64_t refused = 0, hidden = 0;
  for (size_t i = 0; i < comparison.candidates.size(); ++i) {
    const Candidate& c = comparison.candidates[i];
    if (!c.refusal.empty()) {
      ++refused;
      continue;
    }
    // Of several that are alike in all figures a reader wants one.
    if (!is_full && !is_shown(comparison, i)) {
      ++hidden;
      continue;
    }
    out << fmt::format(
        "{}{:<33} {:>10.3f} {:>10.3f} {:>9.3f} {:>9.1f} {:>9} {:>9.3f} {:>6.2f} "
        "{:>7.2f} {:>7.2f}{}{}{}\n",
        c.is_pareto ? '*' : ' ', c.name, c.total_us() * 1e-3, c.forward_us * 1e-3,
        c.exposed_us * 1e-3, static_cast<double>(c.bytes_sent) / (1 << 20), describe_kv_ratio(c),
        c.rank_max_over_mean, c.critical_path_over_ideal, 100 * c.padding_share,
        gibibytes(c.memory_bytes), is_the_best(comparison, i) ? "  <- best" : "",
        c.is_own ? "  (the scenario's own)" : "",
        !c.fits         ? "  does not fit"
        : c.is_wasteful ? "  pads too much"
                        : "");
  }
  if (hidden > 0) out << fmt::format("and {} more (--full, --json or --csv)\n", hidden);
  if (refused > 0) out << fmt::format("{} refused:\n", refused);
  for (const Candidate& c : comparison.candidates) {
    if (!c.refusal.empty()) out << fmt::format("  {:<33} {}\n", c.name, c.refusal);
  }
  out << recommend(comparison) << '\n';
  if (!comparison.note.empty()) out << "note: " << comparison.note << '\n';
}

std::string comparison_json(const Candidates& comparison) {
  Json json = {{"schema", 1},
               {"cluster", comparison.cluster},
               {"stack", comparison.stack},
               {"device_memory_gib", comparison.device_memory_gib}};
  Json rows = Json::array();
  for (size_t i = 0; i < comparison.candidates.size(); ++i)
    rows.push_back(candidate_json(comparison.candidates[i], is_the_best(comparison, i)));
  json["candidates"] = std::move(rows);
  json["recommendation"] = recommend(comparison);
  if (!comparison.note.empty()) json["note"] = comparison.note;
  return print_json(json);
}

}  // namespace cpscope
