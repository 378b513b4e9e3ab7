#include "gui/app/inspect_sheet.h"
#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "gui/model/item_words.h"
#include "gui/model/project.h"
#include "gui/model/token_parts.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr size_t kMostNamedSequences = 4;

void add_sequences(Sheet& sheet, const TokenRange& tokens) {
  const TokenRun run{tokens.begin, tokens.end, 1};
  const int64_t valid = count_valid(sheet.index(), tokens.side, run);
  sheet.add("Tokens", fmt::format("{}: {} valid, {} padding", print_count(run.count()),
                                  print_count(valid), print_count(run.count() - valid)));
  const std::vector<SequencePart> parts = sequence_parts(sheet.index(), tokens.side, run);
  if (parts.empty()) return sheet.add("Sequences", "none: this is the tail behind all sequences");
  const auto say_part = [&](CaptionWriter& line, const SequencePart& part) {
    line.word(fmt::format("sequence {}", part.sequence),
              TokenRange{tokens.side, part.ids.begin, part.ids.end});
    const int64_t end = part.position + part.ids.count();
    line.say(end <= 0 && part.position < 0
                 ? " padding before its tokens"
                 : " positions " + print_range(std::max<int64_t>(0, part.position), end));
  };
  sheet.add(parts.size() == 1 ? "Sequence" : "Sequences",
            sheet.line().list(std::span(parts).first(std::min(parts.size(), kMostNamedSequences)),
                              say_part, static_cast<int64_t>(parts.size())));
}

void add_owners(Sheet& sheet, const TokenRange& tokens, const char* label) {
  const std::vector<OwnedPart> parts = owned_parts(sheet.index(), tokens);
  if (parts.empty()) return sheet.add(label, "no owner");
  const auto& heads = sheet.index().plan().layout.q_heads;
  const auto say_part = [&](CaptionWriter& line, const OwnedPart& part) {
    line.rank(part.rank);
    if (sheet.index().are_heads_owned(tokens.side)) {
      const HeadRange& own = heads[RankId{part.rank}];
      line.say(" heads " + print_range(own.begin, own.end));
      return;
    }
    line.say(part.runs == 1
                 ? " local rows " + print_range(part.first_row, part.first_row + part.tokens)
                 : fmt::format(" {} in {}", count_text(part.tokens, "row"),
                               count_text(part.runs, "run")));
  };
  sheet.add(label, sheet.line().list(parts, say_part));
}

/// Adds the number of items of each kind in a projection, forward and backward separately.
void add_projected(Sheet& sheet, const Projection& projection, bool only_computes) {
  constexpr std::pair<StageKind, const char*> kRows[] = {{StageKind::compute, "Computed by"},
                                                         {StageKind::transfer, "Carried by"},
                                                         {StageKind::reorder, "Reordered by"},
                                                         {StageKind::merge, "Merged by"},
                                                         {StageKind::finish, "Finished by"}};
  for (const auto& [kind, label] : kRows) {
    if (only_computes && kind != StageKind::compute) continue;
    for (const Direction direction : kDirections) {
      std::vector<ItemId> items;
      for (const ItemId& item : projection.items) {
        if (item.kind == kind && item.direction == direction) items.push_back(item);
      }
      if (!items.empty())
        add_items(sheet, fmt::format("{}, {}", label, to_name(direction)), items,
                  projection.has_more_items);
    }
  }
}

std::string_view describe_class(int64_t visible, int64_t area) {
  if (visible == 0) return "empty: no owner computes it";
  return visible == area ? "full: no mask is needed" : "partial: the mask cuts it";
}

}  // namespace

Inspection inspect_tokens(Sheet sheet, const TokenRange& tokens) {
  const PlanIndex& index = sheet.index();
  const bool is_both = index.plan().layout.same_kv;
  const bool is_q = tokens.side == Side::q;
  sheet.add("Side",
            is_both ? "queries and keys: both lie alike" : (is_q ? "queries only" : "keys only"));
  add_sequences(sheet, tokens);
  add_owners(sheet, tokens, "Owner");
  if (is_q || is_both) {
    const int64_t seen = index.count_visible(tokens.begin, tokens.end, 0, index.tokens(Side::kv));
    sheet.add("As queries", fmt::format("see {} a head", count_text(seen, "pair")));
  }
  if (!is_q || is_both) {
    const int64_t seen = index.count_visible(0, index.tokens(Side::q), tokens.begin, tokens.end);
    sheet.add("As keys", fmt::format("are seen in {} a head", count_text(seen, "pair")));
  }
  const Projection projection = project(tokens, index);
  const auto say_link = [](CaptionWriter& line, const std::pair<int32_t, int32_t>& link) {
    line.word(fmt::format("{} -> {}", link.first, link.second),
              LinkTarget{link.first, link.second});
  };
  if (!projection.links.empty())
    sheet.add("Travel over", sheet.line().list(projection.links, say_link));
  add_projected(sheet, projection, false);
  return sheet.take();
}

Inspection inspect_pairs(Sheet sheet, const PairRange& pairs) {
  const PlanIndex& index = sheet.index();
  const TokenRange q{Side::q, pairs.q_begin, pairs.q_end}, k{Side::kv, pairs.k_begin, pairs.k_end};
  const int64_t rows = q.end - q.begin, columns = k.end - k.begin;
  const int64_t visible = index.count_visible(q.begin, q.end, k.begin, k.end);
  sheet.add("Queries x keys", sheet.line()
                                  .tokens({q.begin, q.end, 1}, Side::q)
                                  .say(" x ")
                                  .tokens({k.begin, k.end, 1}, Side::kv));
  sheet.add("Visible pairs", fmt::format("{} a head, {}: {} x {}", print_count(visible),
                                         share_text(visible, rows * columns), print_count(rows),
                                         print_count(columns)));
  sheet.add("Class", std::string(describe_class(visible, rows * columns)));
  const int64_t all = visible * index.plan().scenario.attention.heads;
  sheet.add("FLOPs, forward", flops_equation(index, Direction::forward, all) + ", all heads");
  add_owners(sheet, q, "Owner of queries");
  add_owners(sheet, k, "Owner of keys");
  add_projected(sheet, project(pairs, index), true);
  return sheet.take();
}

Inspection inspect_row(Sheet sheet, const RowTarget& row) {
  const PlanIndex& index = sheet.index();
  const Side side = side_of_tensor(row.tensor);
  const TokenRange token{side, row.token, row.token + 1};
  sheet.add("Place",
            sheet.line().name(token).say(", " + name_heads({row.head, row.head + 1}, side)));
  add_sequences(sheet, token);
  add_owners(sheet, token, "Owner");
  const int64_t seen =
      side == Side::q ? index.count_visible(row.token, row.token + 1, 0, index.tokens(Side::kv))
                      : index.count_visible(0, index.tokens(Side::q), row.token, row.token + 1);
  sheet.add(side == Side::q ? "Sees" : "Seen by",
            count_text(seen, side == Side::q ? "key" : "query"));
  add_errors(sheet, row);
  add_projected(sheet, project(row, index), false);
  return sheet.take();
}

}  // namespace cpscope::gui
