#include "gui/app/inspect_sheet.h"
#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "gui/model/item_words.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

void add_owned(Sheet& sheet, int32_t rank, Side side) {
  const Layout& layout = sheet.plan().layout;
  add_ids(sheet, layout.same_kv ? "Queries and keys" : (side == Side::q ? "Queries" : "Keys"),
          layout.runs(side)[RankId{rank}], side, false);
}

/// Bytes that one rank exchanges with each other rank, in both passes.
struct Partners {
  std::map<int32_t, int64_t> bytes;
  ByDirection<int64_t> by_pass;

  int64_t total() const { return by_pass.forward + by_pass.backward; }
};

Partners partners_of(const PlanIndex& index, int32_t rank, bool sends) {
  Partners partners;
  for (const Direction direction : kDirections) {
    const ItemColumns& c = index.columns(direction, StageKind::transfer);
    const auto& other = sends ? c.other_rank : c.rank;
    for (const int64_t item : sends ? c.all_of(rank) : c.all_to(rank)) {
      const auto i = static_cast<size_t>(item);
      if (other[i] == rank) continue;
      const int64_t bytes = index.pass(direction).transfers[i].bytes;
      partners.bytes[other[i]] += bytes;
      partners.by_pass[direction] += bytes;
    }
  }
  return partners;
}

void add_partners(Sheet& sheet, int32_t rank, bool sends) {
  const Partners partners = partners_of(sheet.index(), rank, sends);
  std::vector<std::pair<int32_t, int64_t>> most(partners.bytes.begin(), partners.bytes.end());
  std::stable_sort(most.begin(), most.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  CaptionWriter line = sheet.line();
  if (most.empty()) {
    line.say("nothing");
  } else {
    line.say(fmt::format("{}: {} forward, {} backward; {} ", print_bytes(partners.total()),
                         print_bytes(partners.by_pass.forward),
                         print_bytes(partners.by_pass.backward), sends ? "to" : "from"));
  }
  line.list(most, [&](CaptionWriter&, const auto& partner) {
    const auto [other, bytes] = partner;
    line.word(fmt::format("rank {}", other),
              LinkTarget{sends ? rank : other, sends ? other : rank});
    line.say(" " + print_bytes(bytes));
  });
  sheet.add(sends ? "Sends" : "Receives", line);
}

void add_rank_items(Sheet& sheet, int32_t rank, Direction direction) {
  const PlanIndex& index = sheet.index();
  std::string text;
  std::optional<ItemId> first;
  for (const StageKind kind : kStageKinds) {
    const std::vector<int64_t> items = index.columns(direction, kind).all_of(rank);
    if (items.empty()) continue;
    text += (text.empty() ? "" : ", ") + count_text(std::ssize(items), to_name(kind));
    if (kind == StageKind::transfer) text += " sent";
    if (kind != StageKind::compute) continue;
    first = ItemId{direction, kind, items.front()};
    const int64_t idle = std::count_if(items.begin(), items.end(), [&](int64_t i) {
      return index.pass(direction).computes[static_cast<size_t>(i)].num_slices == 0;
    });
    if (idle > 0) text += fmt::format(" ({} idle)", print_count(idle));
  }
  if (text.empty()) return;
  CaptionWriter line = sheet.line();
  line.say(text);
  if (first) line.say("; begins with ").name(*first);
  sheet.add(fmt::format("Items, {}", to_name(direction)), line);
}

void add_step_computes(Sheet& sheet, const StepRef& step) {
  const PlanIndex& index = sheet.index();
  const auto stages =
      index.stages().subspan(static_cast<size_t>(step.first_stage),
                             static_cast<size_t>(step.end_stage - step.first_stage));
  if (std::none_of(stages.begin(), stages.end(),
                   [](const StageRef& stage) { return stage.kind == StageKind::compute; })) {
    sheet.add("Work", "nothing is computed in this step");
    return;
  }
  const auto pairs = pairs_by_rank(index, {step.first_stage, step.end_stage});
  const int64_t total = std::accumulate(pairs.begin(), pairs.end(), int64_t{0});
  sheet.add("Work", fmt::format("{}, {}", count_text(total, "visible pair"),
                                print_flops(flops_of(index, step.direction, total))));
  const auto most = std::max_element(pairs.begin(), pairs.end());
  CaptionWriter line = sheet.line();
  if (*most * static_cast<int64_t>(pairs.size()) == total)
    line.say(fmt::format("all ranks alike with {}", count_text(*most, "pair")));
  else
    line.rank(static_cast<int32_t>(most - pairs.begin()))
        .say(fmt::format(" with {}, {:.2f} x the mean", count_text(*most, "pair"),
                         static_cast<double>(*most) * static_cast<double>(pairs.size()) /
                             static_cast<double>(total)));
  const int64_t idle = std::count(pairs.begin(), pairs.end(), 0);
  if (idle > 0 && total > 0)
    line.say(fmt::format("; {} compute nothing", count_text(idle, "rank")));
  sheet.add("Busiest", line);
}

void add_step_bytes(Sheet& sheet, const StepRef& step) {
  const PlanIndex& index = sheet.index();
  std::array<int64_t, kPayloads> bytes{};
  int64_t total = 0, most = 0;
  LinkTarget busiest;
  std::map<std::pair<int32_t, int32_t>, int64_t> links;
  for (int32_t s = step.first_stage; s < step.end_stage; ++s) {
    const StageRef& stage = index.stages()[static_cast<size_t>(s)];
    if (stage.kind != StageKind::transfer) continue;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const TransferItem& item = index.pass(stage.direction).transfers[static_cast<size_t>(i)];
      if (item.src == item.dst) continue;
      bytes[static_cast<size_t>(item.payload)] += item.bytes;
      total += item.bytes;
      links[{to_index(item.src), to_index(item.dst)}] += item.bytes;
    }
  }
  for (const auto& [link, carried] : links) {
    if (carried <= most) continue;
    most = carried;
    busiest = {link.first, link.second};
  }
  CaptionWriter line = sheet.line();
  if (total == 0) {
    line.say("nothing");
  } else {
    line.say(fmt::format("{} over {}: {}; most over ", print_bytes(total),
                         count_text(static_cast<int64_t>(links.size()), "link"),
                         describe_payloads(bytes)))
        .name(busiest)
        .say(" with " + print_bytes(most));
  }
  sheet.add("Moves", line);
}

/// Bytes of a rank's buffers if all of them held the dtype.
void add_memory(Sheet& sheet, int32_t rank) {
  const Plan& plan = sheet.plan();
  const int64_t element = element_bytes(plan.scenario.numerics.dtype);
  int64_t buffers = 0, bytes = 0;
  for (const BufferSpec& buffer : plan.buffers) {
    if (to_index(buffer.rank) != rank) continue;
    ++buffers;
    bytes += buffer.rows * buffer.heads.size() * lanes_of(buffer.kind, plan.scenario.attention) *
             element;
  }
  sheet.add("Buffers", fmt::format("{}, {} at {} a value; sums may be kept wider",
                                   count_text(buffers, "buffer"), print_bytes(bytes),
                                   count_text(element, "byte")));
}

}  // namespace

Inspection inspect_rank(Sheet sheet, int32_t rank) {
  const PlanIndex& index = sheet.index();
  const PlanSummary& summary = index.summary();
  const auto r = static_cast<size_t>(rank);
  add_owned(sheet, rank, Side::q);
  if (!index.plan().layout.same_kv) add_owned(sheet, rank, Side::kv);
  const int64_t pairs = summary.pairs_by_rank[r];
  std::string work = fmt::format("{} in all heads, {}", count_text(pairs, "visible pair"),
                                 share_text(pairs, summary.visible_pairs));
  if (summary.visible_pairs > 0)
    work += fmt::format(", {:.2f} x the mean", static_cast<double>(pairs) * index.num_ranks() /
                                                   static_cast<double>(summary.visible_pairs));
  sheet.add("Work, forward", work);
  sheet.add("FLOPs, forward", flops_equation(index, Direction::forward, pairs));
  add_partners(sheet, rank, true);
  add_partners(sheet, rank, false);
  for (const Direction direction : kDirections) add_rank_items(sheet, rank, direction);
  add_memory(sheet, rank);
  add_times(
      sheet, [&](const ItemEvent& event) { return to_index(event.rank) == rank; }, 0);
  return sheet.take();
}

Inspection inspect_link(Sheet sheet, const LinkTarget& link) {
  const PlanIndex& index = sheet.index();
  sheet.add("From and to", sheet.line().rank(link.src).say(" -> ").rank(link.dst));
  int64_t total = 0;
  for (const Direction direction : kDirections) {
    const ItemColumns& c = index.columns(direction, StageKind::transfer);
    std::vector<ItemId> items;
    std::array<int64_t, kPayloads> bytes{};
    for (const int64_t i : c.all_of(link.src)) {
      if (c.other_rank[static_cast<size_t>(i)] != link.dst) continue;
      const TransferItem& item = index.pass(direction).transfers[static_cast<size_t>(i)];
      items.push_back({direction, StageKind::transfer, i});
      bytes[static_cast<size_t>(item.payload)] += item.bytes;
    }
    const int64_t sum = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
    total += sum;
    if (items.empty()) continue;
    sheet.add(fmt::format("Bytes, {}", to_name(direction)),
              fmt::format("{} in {}: {}", print_bytes(sum),
                          count_text(static_cast<int64_t>(items.size()), "transfer"),
                          sum == 0 ? "nothing" : describe_payloads(bytes)));
    add_items(sheet, fmt::format("Transfers, {}", to_name(direction)), items);
  }
  sheet.add("Bytes in all", total == 0
                                ? std::string("nothing crosses this link")
                                : fmt::format("{} ({} B)", print_bytes(total), print_count(total)));
  if (link.src != link.dst) {
    sheet.add("The other way", sheet.line().name(LinkTarget{link.dst, link.src}));
  }
  add_times(
      sheet,
      [&](const ItemEvent& event) {
        if (event.item.kind != StageKind::transfer) return false;
        const ItemColumns& c = index.columns(event.item.direction, StageKind::transfer);
        const auto i = static_cast<size_t>(event.item.index);
        return i < c.rank.size() && c.rank[i] == link.src && c.other_rank[i] == link.dst;
      },
      total);
  return sheet.take();
}

Inspection inspect_step(Sheet sheet, int32_t number) {
  const PlanIndex& index = sheet.index();
  const StepRef& step = index.steps()[static_cast<size_t>(number)];
  constexpr int32_t kMostStages = 12;
  for (int32_t s = step.first_stage; s < std::min(step.end_stage, step.first_stage + kMostStages);
       ++s) {
    const StageRef& stage = index.stages()[static_cast<size_t>(s)];
    const int64_t count = stage.end - stage.begin;
    std::vector<ItemId> items;
    for (int64_t i = 0; i < std::min<int64_t>(count, 3); ++i)
      items.push_back({stage.direction, stage.kind, stage.begin + i});
    sheet.add(fmt::format("Stage {}", s - step.first_stage + 1),
              sheet.line()
                  .say(count_text(count, to_name(stage.kind)) + ": ")
                  .list(
                      items, [](CaptionWriter& line, const ItemId& i) { line.name(i); }, count));
  }
  if (step.end_stage - step.first_stage > kMostStages)
    sheet.add("",
              fmt::format("... and {} more",
                          count_text(step.end_stage - step.first_stage - kMostStages, "stage")));
  add_step_computes(sheet, step);
  add_step_bytes(sheet, step);
  CaptionWriter around = sheet.line();
  const bool is_last = number + 1 == static_cast<int32_t>(index.steps().size());
  if (number > 0) around.say("after ").name(StepTarget{number - 1});
  if (number > 0 && !is_last) around.say(", ");
  if (!is_last) around.say("before ").name(StepTarget{number + 1});
  if (index.steps().size() > 1) sheet.add("Order", around);
  add_times(
      sheet,
      [&](const ItemEvent& event) {
        return event.item.direction == step.direction && to_index(event.step) == step.step;
      },
      0);
  return sheet.take();
}

}  // namespace cpscope::gui
