#include "gui/app/inspect_sheet.h"
#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "gui/model/item_tiles.h"
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

std::string_view describe_role(BufferRole role) {
  switch (role) {
    case BufferRole::home:
      return "own rows in local order";
    case BufferRole::ring_a:
      return "passing by, even hops";
    case BufferRole::ring_b:
      return "passing by, odd hops";
    case BufferRole::rank_order:
      return "one rank after another";
    case BufferRole::sequence_order:
      return "by ascending token";
    case BufferRole::received:
      return "rows of others that own queries need";
    case BufferRole::moved:
      return "rows computed for others";
    case BufferRole::partial:
      return "one result before it is merged";
  }
  return "";
}

/// "arrived by", "merged by": how a writer produced the rows that the item reads.
std::string_view made_by(StageKind kind) {
  switch (kind) {
    case StageKind::transfer:
      return "arrived by ";
    case StageKind::reorder:
      return "put in order by ";
    case StageKind::compute:
      return "computed by ";
    case StageKind::merge:
      return "merged by ";
    case StageKind::finish:
      return "finished by ";
  }
  return "";
}

/// "used by", "taken by": how a reader uses the rows that the item wrote.
std::string_view used_by(StageKind kind) {
  switch (kind) {
    case StageKind::transfer:
      return "sent by ";
    case StageKind::reorder:
      return "put in order by ";
    case StageKind::compute:
      return "used by ";
    case StageKind::merge:
      return "taken by ";
    case StageKind::finish:
      return "finished by ";
  }
  return "";
}

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
  const size_t named = std::min(other.items.size(), kMostLinks);
  for (size_t i = 0; i < named; ++i) {
    const ItemId& neighbour = other.items[i];
    if (i > 0) line.say(", ");
    const std::string_view verb = is_read ? made_by(neighbour.kind) : used_by(neighbour.kind);
    if (i == 0 || other.items[i - 1].kind != neighbour.kind) line.say(verb);
    say_item(line, neighbour);
    const ItemFacts facts = facts_of(sheet.index(), neighbour);
    if (neighbour.kind == StageKind::transfer && facts.rank != facts.other_rank) {
      line.say(is_read ? " from " : " to ");
      line.rank(is_read ? facts.rank : facts.other_rank);
    }
    line.say(" in ").step(facts.step);
  }
  say_more(line, static_cast<int64_t>(named), static_cast<int64_t>(other.items.size()),
           other.has_more);
  sheet.add(is_read ? "Reads" : "Writes", line);
}

template <class Item>
void add_buffers(Sheet& sheet, const ItemId& target, const Item& item) {
  visit_reads(item, [&](BufferId id) { add_buffer(sheet, target, id, true); });
  visit_writes(item, [&](BufferId id) { add_buffer(sheet, target, id, false); });
}

/// Adds runs of ids with their count and owners.
void add_ids(Sheet& sheet, const char* label, std::span<const TokenRun> runs, Side side) {
  CaptionWriter line = sheet.line();
  line.say(count_text(count_ids(runs), "token") + ": ");
  if (runs.empty()) line.say("none");
  line.runs(runs, side);
  const std::vector<int32_t> owners = owners_of(sheet.index(), runs, side);
  if (!owners.empty()) line.say(", of ").ranks(owners);
  sheet.add(label, line);
}

/// "queries [0, 8), 3 more runs": the ids of local rows.
void say_rows(CaptionWriter& line, std::span<const TokenRun> ids, int32_t begin, int32_t end,
              Side side) {
  line.runs(slice_rows(ids, begin, end), side);
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
    CaptionWriter line = sheet.line();
    line.say(fmt::format("local rows {}, {}: queries ", describe_band(slice),
                         count_text(count_pairs(slice), "pair")));
    say_rows(line, plan.list(item.q_tokens), slice.q0, slice.q1, Side::q);
    line.say(" x keys ");
    say_rows(line, plan.list(item.kv_tokens), slice.k0, slice.k1, Side::kv);
    sheet.add(
        fmt::format("Slice {} of {}", i + 1, print_count(static_cast<int64_t>(slices.size()))),
        line);
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
                        print_share(static_cast<double>(tiles.wasted_pairs()) /
                                    static_cast<double>(tiles.computed_pairs)));
  sheet.add(label, text);
}

void add_facts(Sheet& sheet, const ItemId& target, const ComputeItem& item) {
  const Plan& plan = sheet.plan();
  const HeadRange kv_heads = kv_heads_of(plan.scenario.attention, item.heads);
  sheet.add("Heads", fmt::format("query {}, which read {}", name_heads(item.heads, Side::q),
                                 name_heads(kv_heads, Side::kv)));
  add_ids(sheet, "Queries", plan.list(item.q_tokens), Side::q);
  add_ids(sheet, "Keys", plan.list(item.kv_tokens), Side::kv);
  add_buffers(sheet, target, item);
  const int64_t pairs = item.heads.size() == 0 ? 0 : item.visible_pairs / item.heads.size();
  const int64_t area = plan.rows(item.q_tokens) * plan.rows(item.kv_tokens);
  sheet.add("Visible pairs",
            fmt::format("{} a head ({}) x {} = {}", print_count(pairs), share_text(pairs, area),
                        count_text(item.heads.size(), "head"), print_count(item.visible_pairs)));
  if (item.num_slices > 0) {
    sheet.add(fmt::format("FLOPs, {}", to_name(target.direction)),
              flops_formula(sheet.index(), target.direction, item.visible_pairs) + " = " +
                  print_flops(flops_of(sheet.index(), target.direction, item.visible_pairs)));
    add_tiles(sheet, item);
  }
  add_slices(sheet, item);
}

void add_facts(Sheet& sheet, const ItemId& target, const TransferItem& item) {
  const Plan& plan = sheet.plan();
  CaptionWriter link = sheet.line();
  const int32_t src = to_index(item.src), dst = to_index(item.dst);
  if (item.link == LinkClass::self)
    link.rank(src).say(" to itself: nothing crosses a wire");
  else
    link.word(name_target(LinkTarget{src, dst}, &sheet.index()), LinkTarget{src, dst});
  sheet.add("Link", link);
  sheet.add("Carries", fmt::format("{}, {}{}", to_name(item.payload),
                                   name_heads(item.heads, side_of(item.payload)),
                                   item.landing == Landing::add ? ", added where it lands" : ""));
  const Side side = side_of(plan.buffer(item.from).kind);
  const std::vector<TokenRun> ids =
      tokens_of(plan, sheet.index().columns(target.direction), target, side);
  if (!ids.empty()) add_ids(sheet, "Tokens", ids, side);
  sheet.add("Bytes", item.link == LinkClass::self
                         ? fmt::format("0 on the wire: {} copied on the rank",
                                       count_text(rows_of(plan, item), "row"))
                         : bytes_formula(plan, {.payload = item.payload,
                                                .rows = rows_of(plan, item),
                                                .heads = item.heads.size(),
                                                .element = wire_element_bytes(plan, item),
                                                .bytes = item.bytes}));
  add_buffers(sheet, target, item);
  if (item.from_rows != kAllRows) sheet.add("Rows taken", describe_runs(plan.list(item.from_rows)));
  if (item.to_rows != kAllRows) sheet.add("Rows filled", describe_runs(plan.list(item.to_rows)));
}

void add_facts(Sheet& sheet, const ItemId& target, const ReorderItem& item) {
  const Plan& plan = sheet.plan();
  const BufferKind kind = plan.buffer(item.to).kind;
  add_ids(sheet, "Tokens",
          tokens_of(plan, sheet.index().columns(target.direction), target, side_of(kind)),
          side_of(kind));
  add_buffers(sheet, target, item);
  const auto order = plan.list(item.order);
  sheet.add("Order", fmt::format("row i of the result is row order[i]: {} in {}: {}",
                                 count_text(plan.rows(item.order), "row"),
                                 count_text(static_cast<int64_t>(order.size()), "run"),
                                 describe_runs(order)));
}

void add_own_tokens(Sheet& sheet, const ItemId& target, BufferId buffer) {
  const Side side = side_of(sheet.plan().buffer(buffer).kind);
  const std::vector<TokenRun> ids =
      tokens_of(sheet.plan(), sheet.index().columns(target.direction), target, side);
  if (!ids.empty()) add_ids(sheet, "Tokens", ids, side);
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
  add_own_tokens(sheet, target, item.into);
  add_buffers(sheet, target, item);
}

void add_facts(Sheet& sheet, const ItemId& target, const FinishItem& item) {
  const Plan& plan = sheet.plan();
  const BufferSpec& buffer = plan.buffer(item.buffer);
  const bool has_sink = plan.scenario.attention.softmax_type != SoftmaxType::vanilla;
  sheet.add("Does", fmt::format("{}rounds {} to {}",
                                buffer.kind == BufferKind::out && has_sink
                                    ? "lets the sink enter each softmax, once, and "
                                    : "",
                                to_name(buffer.kind), to_name(plan.scenario.numerics.dtype)));
  add_own_tokens(sheet, target, item.buffer);
  add_buffers(sheet, target, item);
}

}  // namespace

Inspection inspect_item(Sheet sheet, const ItemId& target) {
  const ItemFacts facts = facts_of(sheet.index(), target);
  sheet.add("Id", print_item(target));
  CaptionWriter place = sheet.line();
  say_step(place, facts.step);
  const StepRef& step = sheet.index().steps()[static_cast<size_t>(facts.step)];
  place.say(fmt::format(", stage {} of {}: {}", facts.stage - step.first_stage + 1,
                        step.end_stage - step.first_stage, to_name(target.kind)));
  sheet.add("When", place);
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
