#include "gui/app/inspect_sheet.h"
#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "gui/model/item_tiles.h"
#include "gui/model/item_words.h"
#include "gui/model/mask/mask_picture.h"
#include "gui/model/neighbours.h"
#include "sim/plan/check/plan_text.h"
#include "sim/plan/item_uses.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr size_t kMostNeighbours = 2000;  // limit of the search; few of them are named

/// Adds one buffer of an item and the items that wrote it or read it.
void add_buffer(Sheet& sheet, const ItemId& item, BufferId id, bool is_read) {
  const BufferSpec& buffer = sheet.plan().buffer(id);
  CaptionWriter line = sheet.line();
  line.say(fmt::format("{}.{} of ", to_name(buffer.kind), to_name(buffer.role)))
      .rank(to_index(buffer.rank))
      .say(fmt::format(", {}, {} ({}); ", count_text(buffer.rows, "row"),
                       name_heads(buffer.heads, side_of(buffer.kind)), describe_role(buffer.role)));
  const Neighbours other = is_read ? find_writers(sheet.index(), item, id, kMostNeighbours)
                                   : find_readers(sheet.index(), item, id, kMostNeighbours);
  if (other.items.empty()) line.say(is_read ? "input of the pass" : "read by no later item");
  std::string_view last;
  const auto say_neighbour = [&](CaptionWriter&, const ItemId& neighbour) {
    const std::string_view verb = is_read ? made_by(neighbour.kind) : used_by(neighbour.kind);
    if (verb != last) line.say(verb).say(" ");
    last = verb;
    line.name(neighbour);
    const ItemFacts facts = facts_of(sheet.index(), neighbour);
    if (neighbour.kind == StageKind::transfer && facts.rank != facts.other_rank)
      line.say(is_read ? " from " : " to ").rank(is_read ? facts.rank : facts.other_rank);
    line.say(" in ").step(facts.step);
  };
  line.list(other.items, say_neighbour, -1, other.has_more);
  sheet.add(is_read ? "Reads" : "Writes", line);
}

template <class Item>
void add_buffers(Sheet& sheet, const ItemId& target, const Item& item) {
  visit_reads(item, [&](BufferId id) { add_buffer(sheet, target, id, true); });
  visit_writes(item, [&](BufferId id) { add_buffer(sheet, target, id, false); });
}

void add_slices(Sheet& sheet, const ComputeItem& item) {
  constexpr size_t kMostSlices = 8;
  const Plan& plan = sheet.plan();
  const auto slices = plan.slices_of(item);
  if (slices.empty()) {
    sheet.add("Slices", "none: no key of this buffer is visible, so the rank idles");
    return;
  }
  const size_t named = std::min(slices.size(), kMostSlices);
  for (size_t i = 0; i < named; ++i) {
    const BandSlice& slice = slices[i];
    sheet.add(
        fmt::format("Slice {} of {}", i + 1, print_count(static_cast<int64_t>(slices.size()))),
        sheet.line()
            .say(fmt::format("local rows {}, {}: queries ", describe_band(slice),
                             count_text(count_pairs(slice), "pair")))
            .runs(slice_rows(plan.list(item.q_tokens), slice.q0, slice.q1), Side::q)
            .say(" x keys ")
            .runs(slice_rows(plan.list(item.kv_tokens), slice.k0, slice.k1), Side::kv));
  }
  if (named < slices.size())
    sheet.add("", fmt::format("... and {} more",
                              count_text(static_cast<int64_t>(slices.size() - named), "slice")));
}

void add_tiles(Sheet& sheet, const ComputeItem& item) {
  const ItemTiles tiles = count_item_tiles(sheet.plan(), item, kTileEdge);
  const std::string label = fmt::format("Tiles {} x {}", kTileEdge, kTileEdge);
  if (tiles.edge == 0) {
    sheet.add(label, "too many partial ones to count");
    return;
  }
  std::string text = fmt::format("{} full, {} partial, {} empty", print_count(tiles.full),
                                 print_count(tiles.partial), print_count(tiles.empty));
  if (tiles.computed_pairs > 0)
    text += fmt::format("; {} of the pairs in full and partial tiles are masked",
                        print_share(tiles.wasted_pairs(), tiles.computed_pairs));
  sheet.add(label, text);
}

void add_facts(Sheet& sheet, const ItemId& target, const ComputeItem& item) {
  const Plan& plan = sheet.plan();
  const HeadRange kv_heads = kv_heads_of(plan.scenario.attention, item.heads);
  sheet.add("Heads", fmt::format("query {}, which read {}", name_heads(item.heads, Side::q),
                                 name_heads(kv_heads, Side::kv)));
  add_ids(sheet, "Queries", plan.list(item.q_tokens), Side::q, true);
  add_ids(sheet, "Keys", plan.list(item.kv_tokens), Side::kv, true);
  add_buffers(sheet, target, item);
  const int64_t pairs = item.heads.size() == 0 ? 0 : item.visible_pairs / item.heads.size();
  const int64_t area = plan.rows(item.q_tokens) * plan.rows(item.kv_tokens);
  sheet.add("Visible pairs",
            fmt::format("{} a head ({}) x {} = {}", print_count(pairs), share_text(pairs, area),
                        count_text(item.heads.size(), "head"), print_count(item.visible_pairs)));
  if (item.num_slices > 0) {
    sheet.add(fmt::format("FLOPs, {}", to_name(target.direction)),
              flops_equation(sheet.index(), target.direction, item.visible_pairs));
    add_tiles(sheet, item);
  }
  add_slices(sheet, item);
}

/// Adds the tokens of the rows that an item touches; `buffer` gives their side.
void add_tokens(Sheet& sheet, const ItemId& target, BufferId buffer) {
  const Side side = side_of(sheet.plan().buffer(buffer).kind);
  const std::vector<TokenRun> ids =
      tokens_of(sheet.plan(), sheet.index().columns(target.direction), target, side);
  if (!ids.empty()) add_ids(sheet, "Tokens", ids, side, true);
}

void add_facts(Sheet& sheet, const ItemId& target, const TransferItem& item) {
  const Plan& plan = sheet.plan();
  const LinkTarget link{to_index(item.src), to_index(item.dst)};
  if (item.link == LinkClass::self)
    sheet.add("Link", sheet.line().rank(link.src).say(" to itself: nothing crosses a wire"));
  else
    sheet.add("Link", sheet.line().name(link));
  sheet.add("Carries", fmt::format("{}, {}{}", to_name(item.payload),
                                   name_heads(item.heads, side_of(item.payload)),
                                   item.landing == Landing::add ? ", added where it lands" : ""));
  add_tokens(sheet, target, item.from);
  const int64_t element = wire_element_bytes(item, plan.scenario);
  sheet.add("Bytes", item.link == LinkClass::self
                         ? fmt::format("0 on the wire: {} copied on the rank",
                                       count_text(plan.rows_of(item), "row"))
                         : bytes_formula(plan, {.payload = item.payload,
                                                .rows = plan.rows_of(item),
                                                .heads = item.heads.size(),
                                                .element = element,
                                                .bytes = item.bytes}));
  add_buffers(sheet, target, item);
  if (item.from_rows != kAllRows) sheet.add("Rows taken", describe_runs(plan.list(item.from_rows)));
  if (item.to_rows != kAllRows) sheet.add("Rows filled", describe_runs(plan.list(item.to_rows)));
}

void add_facts(Sheet& sheet, const ItemId& target, const ReorderItem& item) {
  const Plan& plan = sheet.plan();
  add_tokens(sheet, target, item.to);
  add_buffers(sheet, target, item);
  const auto order = plan.list(item.order);
  sheet.add("Order", fmt::format("row i of the result is row order[i]: {} in {}: {}",
                                 count_text(plan.rows(item.order), "row"),
                                 count_text(static_cast<int64_t>(order.size()), "run"),
                                 describe_runs(order)));
}

void add_facts(Sheet& sheet, const ItemId& target, const MergeItem& item) {
  const BufferKind kind = sheet.plan().buffer(item.into).kind;
  sheet.add("Merge",
            item.partial == kNoBuffer
                ? std::string("no partial result: the accumulator is set to zero")
                : fmt::format("number {} into this accumulator{}", print_count(item.order + 1),
                              item.order == 0 ? ", which it begins" : ""));
  sheet.add("Formula", kind == BufferKind::out
                           ? "m = max(m_a, m_b); l = l_a e^(m_a - m) + l_b e^(m_b - m); "
                             "o = (o_a l_a e^(m_a - m) + o_b l_b e^(m_b - m)) / l"
                           : "sum = a + b, in the order of the numbers");
  add_tokens(sheet, target, item.into);
  add_buffers(sheet, target, item);
}

void add_facts(Sheet& sheet, const ItemId& target, const FinishItem& item) {
  sheet.add("Does", describe_finish(sheet.plan(), item));
  add_tokens(sheet, target, item.buffer);
  add_buffers(sheet, target, item);
}

}  // namespace

Inspection inspect_item(Sheet sheet, const ItemId& target) {
  const ItemFacts facts = facts_of(sheet.index(), target);
  sheet.add("Id", print_item(target));
  sheet.add("When", sheet.line()
                        .name(StepTarget{facts.step})
                        .say(fmt::format(", {}: {}", name_stage(sheet.index(), facts.stage),
                                         to_name(target.kind))));
  CaptionWriter rank = sheet.line();
  rank.rank(facts.rank);
  if (facts.other_rank >= 0) rank.say(" to ").rank(facts.other_rank);
  sheet.add("Rank", rank);
  int64_t bytes = 0;
  visit_item(sheet.plan(), target, [&](const auto& item) {
    add_facts(sheet, target, item);
    if constexpr (requires { item.bytes; }) bytes = item.bytes;
  });
  add_times(
      sheet, [&](const ItemEvent& event) { return event.item == target; }, bytes);
  return sheet.take();
}

}  // namespace cpscope::gui
