#include "sim/documents/comparison_text.h"

#include "sim/base/machine_memory.h"
#include "sim/documents/json_text.h"

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

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
               {"mesh_q", parallel.mesh_q},
               {"ring_window", parallel.ring_window},
               {"ring_backward", to_name(parallel.ring_backward)},
               {"heads_per_stage", parallel.heads_per_stage},
               {"combine", to_name(parallel.combine)},
               {"q_owner", to_name(parallel.q_owner)},
               {"cp_sizes", to_name(parallel.group_rule)},
               {"cp_size", parallel.cp_size},
               {"is_in_groups", parallel.group_rule == GroupRule::fixed},
               {"is_searched", candidate.is_searched},
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
  json["reshard_us"] = candidate.reshard_us;
  json["exposed_us"] = candidate.exposed_us;
  json["bytes_sent_by_busiest_rank"] = candidate.bytes_sent;
  json["kv_bytes"] = kv_json(candidate);
  json["imbalance"] = {{"rank_max_over_mean", candidate.rank_max_over_mean},
                       {"critical_path_over_ideal", candidate.critical_path_over_ideal}};
  if (parallel.group_rule == GroupRule::fixed) json["group_size"] = parallel.cp_sizes.front();
  if (candidate.group_loss) json["group_loss"] = *candidate.group_loss;
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

/// The fastest, the best of each communication type, also of groups of a fixed size, the scenario's
/// own and the Pareto front.
bool is_shown(const Candidates& comparison, size_t index) {
  const Candidate& candidate = comparison.candidates[index];
  if (index < kMostShown || candidate.is_own || candidate.is_pareto) return true;
  return std::none_of(comparison.candidates.begin(),
                      comparison.candidates.begin() + static_cast<std::ptrdiff_t>(index),
                      [&](const Candidate& before) {
                        return before.parallel.comm_type == candidate.parallel.comm_type &&
                               (before.parallel.group_rule == GroupRule::fixed) ==
                                   (candidate.parallel.group_rule == GroupRule::fixed);
                      });
}

const char* end_name(SearchEnd end) {
  switch (end) {
    case SearchEnd::time:
      return "time";
    case SearchEnd::tries:
      return "tries";
    case SearchEnd::done:
      break;
  }
  return "done";
}

/// What a search says beside its numbers.
struct SearchSentences {
  std::string tried, work, wires, between, left_out;
};

std::string times_bound(double total_us, double bound_us) {
  return bound_us > 0 ? fmt::format("; the best takes {:.2f} x that", total_us / bound_us) : "";
}

SearchSentences describe_search(const SearchReport& search, double best_us, int32_t ranks) {
  SearchSentences said;
  const int64_t waiting = search.ways - search.ways_tried - search.ways_too_slow;
  said.tried = fmt::format("searched: {} more ways, of which {} are refused", search.ways_tried,
                           search.ways_refused);
  if (search.ways_too_slow > 0)
    said.tried += fmt::format(
        "; {} not planned, because their share of the work alone takes longer "
        "than the best",
        search.ways_too_slow);
  if (waiting > 0) said.tried += fmt::format("; {} not tried", waiting);
  said.tried +=
      fmt::format("; {} orders of chunks of {} tokens", search.orders_tried, search.chunk);
  if (!search.starts.empty())
    said.tried += fmt::format(", from {}", fmt::join(search.starts, "; "));
  if (search.end == SearchEnd::done) {
    said.tried += ". It ended because nothing better was found for long";
  } else if (search.end == SearchEnd::tries) {
    said.tried += ". It ended with the number of tries";
  } else {
    said.tried += fmt::format(". It ended with the time: --tries {} gives the same again",
                              std::max<int64_t>(1, search.tries()));
  }
  said.work = fmt::format(
      "least time for the work: {} visible pairs / ({} ranks x {:.4g} pairs/s) = {:.3f} ms{}",
      search.pairs, ranks, search.pairs_per_us * 1e6, search.work_us * 1e-3,
      times_bound(best_us, search.work_us));
  const auto tell_wires = [&](const WireBound& bound, const char* where, const char* of) {
    return fmt::format("least time for {}: {} bytes of {} / ({} {} x {:.1f} GB/s) = {:.3f} ms{}",
                       where, bound.bytes,
                       search.sends_least ? "keys, and their gradients, that must be had from "
                                            "others to compute with one's own queries"
                                          : "all that the best sends",
                       bound.wires, of, bound.gb_s, bound.us() * 1e-3,
                       times_bound(best_us, bound.us()));
  };
  if (search.wires.wires > 0) said.wires = tell_wires(search.wires, "the wires", "ranks");
  if (search.between.wires > 0)
    said.between = tell_wires(search.between, "the wires between nodes", "NICs");
  said.left_out =
      "left out: cp_size, kv_replicated, partial_wire, dkv_wire and backward_kv are the "
      "scenario's; "
      "stripes other than 1, 16 and 256; a rank gets no more tokens than the fullest one had "
      "before";
  return said;
}

Json search_json(const SearchReport& search, double best_us, int32_t ranks) {
  const SearchSentences said = describe_search(search, best_us, ranks);
  const auto bound = [](const WireBound& wires, const std::string& text) -> Json {
    if (wires.wires == 0) return nullptr;
    return {{"bytes", wires.bytes},
            {"wires", wires.wires},
            {"gb_s", wires.gb_s},
            {"us", wires.us()},
            {"text", text}};
  };
  return {{"ways", search.ways},
          {"ways_tried", search.ways_tried},
          {"ways_refused", search.ways_refused},
          {"ways_too_slow", search.ways_too_slow},
          {"order_starts", search.starts},
          {"chunk_tokens", search.chunk},
          {"orders_tried", search.orders_tried},
          {"tries", search.tries()},
          {"ended_by", end_name(search.end)},
          {"work_bound",
           {{"visible_pairs", search.pairs},
            {"pairs_per_us", search.pairs_per_us},
            {"us", search.work_us},
            {"text", said.work}}},
          {"wire_bound", bound(search.wires, said.wires)},
          {"wire_bound_between_nodes", bound(search.between, said.between)},
          {"wire_bound_is_least", search.sends_least},
          {"tried", said.tried},
          {"left_out", said.left_out}};
}

/// Predicted time and ranks of the best candidate; nothing without one.
std::pair<double, int32_t> best_of(const Candidates& comparison) {
  const int32_t ranks = comparison.candidates[static_cast<size_t>(comparison.own)].parallel.cp_size;
  if (comparison.best < 0) return {0.0, ranks};
  return {comparison.candidates[static_cast<size_t>(comparison.best)].total_us(), ranks};
}

std::string describe_crossover(const Crossover& crossover) {
  if (crossover.points.empty()) return "there are no keys";
  if (crossover.queries == 0)
    return "sending queries is the faster forward up to as many queries as keys";
  if (crossover.queries == crossover.points.front().queries)
    return fmt::format("sending keys is the faster forward from {} queries on, the fewest tried",
                       crossover.queries);
  return fmt::format("sending keys is the faster forward from {} queries on, of {} keys",
                     crossover.queries, crossover.keys);
}

Json crossover_json(const Crossover& crossover) {
  Json points = Json::array();
  const auto way = [](const std::string& name, double us) -> Json {
    if (name.empty()) return nullptr;
    return {{"name", name}, {"forward_us", us}};
  };
  for (const CrossoverPoint& point : crossover.points) {
    points.push_back({{"queries", point.queries},
                      {"queries_travel", way(point.queries_way, point.queries_us)},
                      {"keys_travel", way(point.keys_way, point.keys_us)}});
  }
  Json json = {{"keys", crossover.keys}, {"points", std::move(points)}, {"queries", nullptr}};
  if (crossover.queries > 0) json["queries"] = crossover.queries;
  json["text"] = describe_crossover(crossover);
  return json;
}

}  // namespace

void write_crossover_text(const Crossover& crossover, std::ostream& out) {
  out << fmt::format("\n{} keys, more and more queries at their end; forward, predicted\n",
                     crossover.keys);
  const auto ms = [](const std::string& name, double us) {
    return name.empty() ? "-" : fmt::format("{:.3f}", us * 1e-3);
  };
  const auto known = [](const std::string& name) {
    return name.empty() ? "none is possible" : name;
  };
  out << fmt::format("{:>9}  {:<26} {:>9}  {:<26} {:>9}\n", "queries", "queries travel", "ms",
                     "keys travel", "ms");
  for (const CrossoverPoint& point : crossover.points) {
    out << fmt::format("{:>9}  {:<26} {:>9}  {:<26} {:>9}{}\n", point.queries,
                       known(point.queries_way), ms(point.queries_way, point.queries_us),
                       known(point.keys_way), ms(point.keys_way, point.keys_us),
                       point.keys_are_faster() ? "  keys" : "  queries");
  }
  out << describe_crossover(crossover) << '\n';
}

void write_comparison_text(const Candidates& comparison, bool is_full, std::ostream& out) {
  out << fmt::format(
      "{} candidates on {}, stack {}: predicted, not measured; * no other is as good in time, "
      "bytes and memory\n",
      comparison.candidates.size(), comparison.cluster, comparison.stack);
  if (comparison.reshards > 0) {
    out << fmt::format(
        "with {} change{} to the order of layout contiguous, or back, in the forward of a layer, "
        "and "
        "as many in its backward\n",
        comparison.reshards, comparison.reshards == 1 ? "" : "s");
  }
  size_t width = 33;
  for (size_t i = 0; i < comparison.candidates.size(); ++i) {
    const Candidate& c = comparison.candidates[i];
    if (c.refusal.empty() && (is_full || is_shown(comparison, i)))
      width = std::max(width, c.name.size());
  }
  out << fmt::format("{:<{}} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>6} {:>7} {:>7}\n",
                     "candidate", width + 1, "total ms", "forward", "exposed", "sent MiB",
                     "KV/need", "max/mean", "path", "pad %", "GiB");
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
        "{}{:<{}} {:>10.3f} {:>10.3f} {:>9.3f} {:>9.1f} {:>9} {:>9.3f} {:>6.2f} "
        "{:>7.2f} {:>7.2f}{}{}{}{}{}\n",
        c.is_pareto ? '*' : ' ', c.name, width, c.total_us() * 1e-3, c.forward_us * 1e-3,
        c.exposed_us * 1e-3, static_cast<double>(c.bytes_sent) / (1 << 20), describe_kv_ratio(c),
        c.rank_max_over_mean, c.critical_path_over_ideal, 100 * c.padding_share,
        gibibytes(c.memory_bytes),
        c.reshard_us > 0 ? fmt::format("  {:.3f} ms of changes", c.reshard_us * 1e-3) : "",
        c.group_loss ? fmt::format("  {:.0f} % waiting for the slowest group", 100 * *c.group_loss)
                     : "",
        is_the_best(comparison, i) ? "  <- best" : "", c.is_own ? "  (the scenario's own)" : "",
        !c.fits         ? "  does not fit"
        : c.is_wasteful ? "  pads too much"
                        : "");
  }
  if (hidden > 0) out << fmt::format("and {} more (--full, --json or --csv)\n", hidden);
  if (refused > 0) out << fmt::format("{} refused:\n", refused);
  for (const Candidate& c : comparison.candidates) {
    // A search tries hundreds of ways that the batch does not allow.
    if (!c.refusal.empty() && (is_full || !c.is_searched))
      out << fmt::format("  {:<33} {}\n", c.name, c.refusal);
  }
  if (comparison.search) {
    const auto [us, ranks] = best_of(comparison);
    const SearchSentences said = describe_search(*comparison.search, us, ranks);
    for (const std::string& sentence :
         {said.tried, said.work, said.wires, said.between, said.left_out})
      if (!sentence.empty()) out << sentence << '\n';
  }
  out << recommend(comparison) << '\n';
  if (!comparison.note.empty()) out << "note: " << comparison.note << '\n';
}

std::string comparison_json(const Candidates& comparison, const Crossover* crossover) {
  Json json = {{"schema", 1},
               {"cluster", comparison.cluster},
               {"stack", comparison.stack},
               {"device_memory_gib", comparison.device_memory_gib},
               {"reshards", comparison.reshards}};
  Json rows = Json::array();
  for (size_t i = 0; i < comparison.candidates.size(); ++i)
    rows.push_back(candidate_json(comparison.candidates[i], is_the_best(comparison, i)));
  json["candidates"] = std::move(rows);
  if (comparison.search) {
    const auto [us, ranks] = best_of(comparison);
    json["search"] = search_json(*comparison.search, us, ranks);
  }
  if (crossover != nullptr) json["crossover"] = crossover_json(*crossover);
  json["recommendation"] = recommend(comparison);
  if (!comparison.note.empty()) json["note"] = comparison.note;
  return print_json(json);
}

}  // namespace cpscope
