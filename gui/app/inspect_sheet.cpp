#include "gui/app/inspect_sheet.h"

#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "gui/model/token_parts.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {

void Sheet::add(std::string label, CaptionWriter& value) {
  if (room() > 0) inspection_.rows.push_back({std::move(label), value.take()});
}

void Sheet::add(std::string label, std::string value) {
  if (room() > 0) inspection_.rows.push_back({std::move(label), {{std::move(value), {}, false}}});
}

void add_items(Sheet& sheet, std::string label, std::span<const ItemId> items, bool has_more) {
  const PlanIndex& index = sheet.index();
  const auto say_item = [&](CaptionWriter& line, const ItemId& item) {
    line.name(item).say(" (").step(index.step_of_stage(index.stage_of(item))).say(")");
  };
  sheet.add(std::move(label), sheet.line().list(items, say_item, -1, has_more));
}

void add_ids(Sheet& sheet, std::string label, std::span<const TokenRun> runs, Side side,
             bool names_owners) {
  CaptionWriter line = sheet.line();
  line.say(count_text(count_ids(runs), "token") + ": ");
  if (runs.empty()) line.say("none");
  line.runs(runs, side);
  if (names_owners) {
    const std::vector<int32_t> owners = owners_of(sheet.index(), runs, side);
    if (!owners.empty()) line.say(", of ").ranks(owners);
  }
  sheet.add(std::move(label), line);
}

void add_times(Sheet& sheet, const std::function<bool(const ItemEvent&)>& is_of, int64_t bytes) {
  for (const RunView* run : sheet.runs()) {
    int64_t first = 0, last = 0, busy = 0, count = 0;
    for (const ItemEvent& event : run->events) {
      if (!is_of(event)) continue;
      first = count == 0 ? event.start_ns : std::min(first, event.start_ns);
      last = std::max(last, event.end_ns);
      busy += event.end_ns - event.start_ns;
      ++count;
    }
    if (count == 0) continue;
    const char* mark = run->is_simulated ? "~" : "";
    const auto time = [mark](int64_t ns) { return mark + print_duration(static_cast<double>(ns)); };
    std::string text =
        fmt::format("{} to {} after the start, {}", time(first), time(last), time(last - first));
    if (count > 1) text += fmt::format("; {} in {}", time(busy), count_text(count, "item"));
    if (bytes > 0 && busy > 0)
      text += fmt::format(", {}{:.3g} GB/s", mark,
                          static_cast<double>(bytes) / static_cast<double>(busy));
    if (run->is_simulated) text += " (predicted)";
    sheet.add("Time in " + run->name, text);
  }
}

}  // namespace cpscope::gui
