#include "sim/run/record/record_match.h"

#include "sim/plan/visit_items.h"

#include <fmt/format.h>

namespace cpscope {
namespace {

/// True for events of items and ranks that the plan has; a file may name any.
bool fits(const ItemEvent& event, const Plan& plan) {
  const auto& [direction, kind, index] = event.item;
  return kind <= StageKind::finish && index >= 0 &&
         index < count_items(plan.pass(direction), kind) && plan.home.has(event.rank) &&
         event.start_ns >= 0 && event.end_ns >= event.start_ns;
}

}  // namespace

std::optional<Error> check_record(const RunRecord& record, const Plan& plan,
                                  const std::string& path) {
  const std::string hash = to_hex(plan.hash);
  if (record.plan_hash == hash) return std::nullopt;
  if (record.plan_hash.empty())
    return make_error(ErrorKind::bad_input, "This file holds no run of cpscope: it names no plan",
                      "record one with `cpscope run --record`", path);
  return make_error(ErrorKind::bad_input,
                    fmt::format("This record belongs to another plan: hash {} differs from {}",
                                record.plan_hash, hash),
                    "open the scenario stored inside it", path);
}

std::optional<Error> check_events(const RunRecord& record, const Plan& plan,
                                  const std::string& path) {
  for (const ItemEvent& event : record.events) {
    if (!fits(event, plan))
      return make_error(ErrorKind::bad_input,
                        "This record has timed an item that its plan does not have",
                        "record the run again", path);
  }
  return std::nullopt;
}

}  // namespace cpscope
