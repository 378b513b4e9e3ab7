#include "gui/app/lesson_figures.h"

#include "gui/model/axis.h"
#include "gui/model/token_parts.h"

#include <algorithm>

#include <fmt/format.h>

namespace cpscope::gui::words {

std::string print_ratio(double ratio) { return fmt::format("{:.2f}", ratio); }

std::string print_error(double error) { return fmt::format("{:.2e}", error); }

std::pair<int64_t, int64_t> count_idle(const Pass& pass) {
  const auto idle = std::count_if(pass.computes.begin(), pass.computes.end(),
                                  [](const ComputeItem& item) { return item.num_slices == 0; });
  return {idle, static_cast<int64_t>(pass.computes.size())};
}

int64_t count_padding(const PlanIndex& plan, Side side) {
  return plan.tokens(side) - count_valid(plan, side, {0, plan.tokens(side), 1});
}

void tell_kv_share(CaptionWriter& writer) {
  const PlanSummary& summary = writer.index().summary();
  const auto moved = static_cast<double>(summary.kv_bytes_moved);
  const auto needed = static_cast<double>(summary.kv_bytes_necessary);
  writer.say(fmt::format("{} of keys and values move in the forward", print_bytes(moved)));
  if (moved < needed) {
    // With heads split over the ranks, no rank needs all heads of any key.
    writer.say(fmt::format(", less than the {} that ranks with all heads would need.",
                           print_bytes(needed)));
    return;
  }
  writer.say(fmt::format(", {} of them needed", print_bytes(needed)));
  writer.say(moved > 0 ? fmt::format(" ({}).", print_share(needed / moved)) : ".");
}

void tell_sent(CaptionWriter& writer, int32_t rank) {
  const PlanSummary& summary = writer.index().summary();
  const auto r = static_cast<size_t>(rank);
  writer.rank(rank, true)
      .say(fmt::format(" sends {} forward and {} backward. ", print_bytes(summary.forward_bytes[r]),
                       print_bytes(summary.backward_bytes[r])));
}

void tell_balance(CaptionWriter& writer) {
  const PlanSummary& summary = writer.index().summary();
  writer.say(fmt::format(
      "The busiest rank has {} of the mean, and steps that wait for their busiest rank take {} of "
      "the ideal.",
      print_ratio(summary.rank_max_over_mean), print_ratio(summary.critical_path_over_ideal)));
}

}  // namespace cpscope::gui::words
