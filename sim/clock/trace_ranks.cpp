#include "sim/clock/trace_ranks.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr const char* kSayRank = "say which rank it is of the context-parallel group: RANK=FILE";

/// The place of the world's rank in its context-parallel group.
Result<int64_t> place_in_group(const ForeignTrace& trace, int64_t cp_size) {
  const int64_t rank = *trace.rank;
  if (trace.world_size == 0 || trace.world_size == cp_size) return rank;
  std::set<std::vector<int64_t>> groups;
  for (const std::vector<int64_t>& group : trace.groups) {
    if (static_cast<int64_t>(group.size()) == cp_size &&
        std::find(group.begin(), group.end(), rank) != group.end())
      groups.insert(group);
  }
  if (groups.size() != 1)
    return make_bad_input(
        fmt::format("rank {} of {} is in {} groups of cp_size = {} ranks, so its place in the "
                    "context-parallel group is not clear",
                    rank, trace.world_size, groups.size(), cp_size),
        kSayRank, trace.path);
  const std::vector<int64_t>& group = *groups.begin();
  return std::distance(group.begin(), std::find(group.begin(), group.end(), rank));
}

void add_work(TraceProcess& work, TraceProcess&& more) {
  const auto offset = static_cast<uint32_t>(work.names.size());
  for (TraceSpan& span : more.spans) {
    span.name += offset;
    work.spans.push_back(span);
  }
  std::move(more.names.begin(), more.names.end(), std::back_inserter(work.names));
  work.other.insert(work.other.end(), more.other.begin(), more.other.end());
  std::stable_sort(
      work.spans.begin(), work.spans.end(),
      [](const TraceSpan& a, const TraceSpan& b) { return a.time.start_ns < b.time.start_ns; });
}

}  // namespace

TraceSource parse_trace_source(const std::string& text) {
  int64_t rank = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), rank);
  const auto digits = static_cast<size_t>(end - text.data());
  if (failure != std::errc() || digits >= text.size() || text[digits] != '=' || text[0] == '-')
    return {text, std::nullopt};
  return {text.substr(digits + 1), rank};
}

std::vector<TraceSource> trace_sources(const std::vector<std::string>& texts) {
  std::vector<TraceSource> sources;
  for (const std::string& text : texts) sources.push_back(parse_trace_source(text));
  return sources;
}

Result<std::vector<RankTrace>> assign_ranks(std::vector<ForeignTrace> traces,
                                            const std::vector<TraceSource>& sources,
                                            int64_t cp_size) {
  std::vector<RankTrace> ranks;
  std::vector<std::string> paths;  // of the ranks
  const auto add = [&](int64_t rank, TraceProcess&& work, const std::string& path,
                       bool is_same_file) -> std::optional<Error> {
    if (rank >= cp_size)
      return make_bad_input(fmt::format("this is a trace of rank {}, and the scenario has ranks 0 "
                                        "to {}",
                                        rank, cp_size - 1),
                            "cp_size of the scenario must be that of the run", path);
    const RankId id{static_cast<int32_t>(rank)};
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i].rank != id) continue;
      if (!is_same_file || paths[i] != path)
        return make_bad_input(
            fmt::format("rank {} has two traces: the other is {}", rank, paths[i]),
            "give one for each rank", path);
      add_work(ranks[i].work, std::move(work));
      return std::nullopt;
    }
    ranks.push_back({id, std::move(work)});
    paths.push_back(path);
    return std::nullopt;
  };
  for (size_t t = 0; t < traces.size(); ++t) {
    ForeignTrace& trace = traces[t];
    std::optional<int64_t> rank = sources[t].rank;
    if (!rank && trace.rank) {
      const Result<int64_t> place = place_in_group(trace, cp_size);
      if (!place) return place.error();
      rank = place.value();
    }
    const bool has_labels = std::all_of(trace.processes.begin(), trace.processes.end(),
                                        [](const TraceProcess& each) { return each.rank; });
    // A profile of all GPUs of one host: torchrun gives rank r GPU r.
    const bool is_host = trace.format == "nsys" &&
                         static_cast<int64_t>(trace.processes.size()) == cp_size && cp_size > 1;
    for (size_t i = 0; !rank && is_host && i < trace.processes.size(); ++i)
      trace.processes[i].rank = static_cast<int64_t>(i);
    if (!rank && !has_labels && !is_host) {
      std::string labels;
      for (size_t i = 0; i < std::min<size_t>(trace.processes.size(), 4); ++i)
        labels += (i == 0 ? "" : ", ") + trace.processes[i].label.substr(0, 60);
      return make_bad_input("the trace does not say of which rank it is: " + labels, kSayRank,
                            trace.path);
    }
    for (TraceProcess& process : trace.processes) {
      const int64_t its = rank ? *rank : *process.rank;
      if (auto error = add(its, std::move(process), trace.path, rank.has_value())) return *error;
    }
  }
  std::sort(ranks.begin(), ranks.end(),
            [](const RankTrace& a, const RankTrace& b) { return a.rank < b.rank; });
  return ranks;
}

}  // namespace cpscope
