#include "sim/plan/check/check_rows.h"
#include "sim/plan/plan_summary.h"
#include "sim/plan/visible_interval.h"

#include <set>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

bool is_query_side(Payload payload) { return payload != Payload::kv && payload != Payload::dkv; }

/// Checks that every query row that travels to another rank, or whose result comes back, sees a
/// key. Keys are counted from the mask.
std::optional<std::string> check_queries_see(const Plan& plan) {
  const std::vector<bool> sees = find_seeing_queries(plan);
  RowPicker picker(plan);
  for (const Direction direction : kDirections) {
    for (const TransferItem& item : plan.pass(direction).transfers) {
      if (item.src == item.dst || !is_query_side(item.payload)) continue;
      const auto complain = [&](const std::string& what) {
        return fmt::format("{}, step {}: {} from rank {} to rank {} {}", to_name(direction),
                           to_index(item.step), to_name(item.payload), to_index(item.src),
                           to_index(item.dst), what);
      };
      const RunListId tokens = plan.buffer(item.from).tokens;
      if (tokens == kNoTokens) return complain("names no tokens");
      for (const TokenRun& run : picker.pick(tokens, item.from_rows)) {
        for (int64_t token = run.begin; token < run.end; token += run.stride) {
          if (token >= std::ssize(sees) || !sees[static_cast<size_t>(token)])
            return complain(fmt::format("carries query token {}, which sees no key", token));
        }
      }
    }
  }
  return std::nullopt;
}

/// [rank] Lists of the queries that it computes.
IdVector<RankId, std::vector<RunListId>> computed_queries(const Plan& plan) {
  IdVector<RankId, std::vector<RunListId>> lists(plan.home.size());
  std::set<std::pair<RankId, RunListId>> known;
  for (const ComputeItem& item : plan.forward.computes) {
    if (known.insert({item.rank, item.q_tokens}).second) lists[item.rank].push_back(item.q_tokens);
  }
  return lists;
}

}  // namespace

CheckResult check_cast_bytes(const Plan& plan, int64_t input_bytes, int64_t wire_bytes) {
  int64_t kv = 0, dkv = 0, refetched = 0;
  for (const TransferItem& item : plan.forward.transfers)
    kv += item.payload == Payload::kv ? item.bytes : 0;
  for (const TransferItem& item : plan.backward.transfers) {
    dkv += item.payload == Payload::dkv ? item.bytes : 0;
    refetched += item.payload == Payload::kv ? item.bytes : 0;
  }
  const bool moves_queries = plan.scenario.parallel.dispatch == Dispatch::queries;
  const int64_t necessary =
      moves_queries ? necessary_kv_bytes(plan, computed_queries(plan)) : necessary_kv_bytes(plan);
  if (kv != necessary)
    return broken("bytes", fmt::format("{} KV bytes are necessary, {} move", necessary, kv));
  if (auto text = check_queries_see(plan)) return broken("bytes", *text);
  const Numerics& numerics = plan.scenario.numerics;
  const int64_t expected_dkv = numerics.backward ? kv / input_bytes * wire_bytes : 0;
  const int64_t expected_kv =
      numerics.backward && plan.scenario.parallel.backward_kv == BackwardKv::refetch ? kv : 0;
  if (dkv != expected_dkv || refetched != expected_kv) {
    return broken("bytes",
                  fmt::format("backward fetches {} and returns {} bytes, {} and {} expected",
                              refetched, dkv, expected_kv, expected_dkv));
  }
  return passed("bytes", moves_queries
                             ? "only queries that see a key and the KV rows that they need leave "
                               "their rank, and KV gradients come back once"
                             : "only necessary KV rows move, and their gradients come back once");
}

}  // namespace cpscope
