#include "gui/app/inspect_sheet.h"

#include "gui/model/axis.h"
#include "gui/model/describe.h"

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

void say_item(CaptionWriter& writer, const ItemId& item) {
  writer.word(name_target(item, &writer.index()), item);
}

void say_more(CaptionWriter& writer, int64_t named, int64_t total, bool has_more) {
  if (named >= total && !has_more) return;
  writer.say(
      fmt::format(" ... and {}{} more", has_more ? "at least " : "", print_count(total - named)));
}

void say_items(CaptionWriter& writer, std::span<const ItemId> items, int64_t total, bool has_more) {
  const size_t named = std::min(items.size(), kMostLinks);
  for (size_t i = 0; i < named; ++i) {
    if (i > 0) writer.say(", ");
    say_item(writer, items[i]);
    const PlanIndex& index = writer.index();
    writer.say(" (").step(index.step_of_stage(index.stage_of(items[i]))).say(")");
  }
  if (items.empty()) writer.say("none");
  say_more(writer, static_cast<int64_t>(named), total, has_more);
}

void say_step(CaptionWriter& writer, int32_t step) {
  const StepTarget target{step};
  writer.word(name_target(target, &writer.index()), target);
}

void say_link(CaptionWriter& writer, int32_t src, int32_t dst) {
  writer.rank(src).say(" -> ").rank(dst);
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
