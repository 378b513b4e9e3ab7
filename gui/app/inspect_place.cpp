#include "gui/app/inspect_sheet.h"
#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "gui/model/project.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr int64_t kMostNamedSequences = 4;

/// Ids [begin, end) that belong to one sequence, and how many of them are valid.
struct SequencePart {
  int64_t sequence, begin, end, valid_end;
  int64_t first_position;
};

/// The part of a sequence's slot inside the range; empty when begin >= end.
SequencePart part_of(const PlanIndex& index, int64_t sequence, const TokenRange& tokens) {
  const SequenceSlot& slot = index.plan().layout.slots.sequences[static_cast<size_t>(sequence)];
  const SlotSide ids = slot.side(tokens.side);
  SequencePart part{sequence, std::max(ids.begin, tokens.begin), std::min(ids.end(), tokens.end), 0,
                    0};
  part.valid_end = std::clamp(ids.valid_end(), part.begin, std::max(part.begin, part.end));
  part.first_position = part.begin - ids.begin;
  return part;
}

/// First and last sequence with ids in the range; -1 and -1 if there is none.
std::pair<int64_t, int64_t> sequences_of(const PlanIndex& index, const TokenRange& tokens) {
  const auto& sequences = index.plan().layout.slots.sequences;
  const auto first = sequences.begin() +
                     static_cast<std::ptrdiff_t>(index.first_sequence(tokens.side, tokens.begin));
  const auto end = std::partition_point(first, sequences.end(), [&](const SequenceSlot& s) {
    return s.side(tokens.side).begin < tokens.end;
  });
  if (first == end) return {-1, -1};
  return {first - sequences.begin(), end - sequences.begin() - 1};
}

void add_sequences(Sheet& sheet, const TokenRange& tokens) {
  const auto [first, last] = sequences_of(sheet.index(), tokens);
  int64_t valid = 0, named = 0;
  CaptionWriter line = sheet.line();
  for (int64_t s = first; s >= 0 && s <= last; ++s) {
    const SequencePart part = part_of(sheet.index(), s, tokens);
    valid += std::max<int64_t>(0, part.valid_end - part.begin);
    if (part.begin >= part.end || named == kMostNamedSequences) continue;
    if (named++ > 0) line.say(", ");
    line.word(fmt::format("sequence {}", s), TokenRange{tokens.side, part.begin, part.end});
    line.say(fmt::format(" positions [{}, {})", print_count(part.first_position),
                         print_count(part.first_position + part.end - part.begin)));
  }
  const int64_t count = tokens.end - tokens.begin;
  sheet.add("Tokens", fmt::format("{}: {} valid, {} padding", print_count(count),
                                  print_count(valid), print_count(count - valid)));
  if (first < 0) line.say("none: this is the tail behind all sequences");
  if (first >= 0) say_more(line, named, last - first + 1);
  sheet.add(first >= 0 && first == last ? "Sequence" : "Sequences", line);
}

/// How many ids of a run are in [begin, end), and the first of them.
TokenRun within(const TokenRun& run, int64_t begin, int64_t end) {
  const int64_t skipped =
      begin <= run.begin ? 0 : (begin - run.begin + run.stride - 1) / run.stride;
  return {run.begin + skipped * run.stride, std::min(run.end, end), run.stride};
}

struct OwnedPart {
  int64_t tokens = 0, runs = 0;
  int64_t first_row = 0;  // local row of the first run
};

void add_owners(Sheet& sheet, const TokenRange& tokens, const char* label) {
  std::map<int32_t, OwnedPart> parts;
  for (const OwnedRun& owned : sheet.index().owned(tokens.side)) {
    if (owned.run.begin >= tokens.end) break;
    const TokenRun inside = within(owned.run, tokens.begin, tokens.end);
    if (inside.count() == 0) continue;
    OwnedPart& part = parts[owned.rank];
    if (part.runs++ == 0)
      part.first_row = owned.row + (inside.begin - owned.run.begin) / owned.run.stride;
    part.tokens += inside.count();
  }
  CaptionWriter line = sheet.line();
  size_t named = 0;
  for (const auto& [rank, part] : parts) {
    if (named == kMostLinks) break;
    if (named++ > 0) line.say(", ");
    line.rank(rank);
    line.say(part.runs == 1 ? fmt::format(" local rows [{}, {})", print_count(part.first_row),
                                          print_count(part.first_row + part.tokens))
                            : fmt::format(" {} in {}", count_text(part.tokens, "row"),
                                          count_text(part.runs, "run")));
  }
  if (parts.empty()) line.say("no owner");
  say_more(line, static_cast<int64_t>(named), static_cast<int64_t>(parts.size()));
  sheet.add(label, line);
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
      if (items.empty()) continue;
      CaptionWriter line = sheet.line();
      say_items(line, items, static_cast<int64_t>(items.size()), projection.has_more_items);
      sheet.add(fmt::format("{}, {}", label, to_name(direction)), line);
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
  if (!projection.links.empty()) {
    CaptionWriter line = sheet.line();
    const size_t named = std::min(projection.links.size(), kMostLinks);
    for (size_t i = 0; i < named; ++i) {
      if (i > 0) line.say(", ");
      const auto [src, dst] = projection.links[i];
      line.word(fmt::format("{} -> {}", src, dst), LinkTarget{src, dst});
    }
    say_more(line, static_cast<int64_t>(named), static_cast<int64_t>(projection.links.size()));
    sheet.add("Travel over", line);
  }
  add_projected(sheet, projection, false);
  return sheet.take();
}

Inspection inspect_pairs(Sheet sheet, const PairRange& pairs) {
  const PlanIndex& index = sheet.index();
  const TokenRange q{Side::q, pairs.q_begin, pairs.q_end}, k{Side::kv, pairs.k_begin, pairs.k_end};
  const int64_t rows = q.end - q.begin, columns = k.end - k.begin;
  const int64_t visible = index.count_visible(q.begin, q.end, k.begin, k.end);
  CaptionWriter ids = sheet.line();
  ids.tokens({q.begin, q.end, 1}, Side::q).say(" x ").tokens({k.begin, k.end, 1}, Side::kv);
  sheet.add("Queries x keys", ids);
  sheet.add("Visible pairs", fmt::format("{} a head, {}: {} x {}", print_count(visible),
                                         share_text(visible, rows * columns), print_count(rows),
                                         print_count(columns)));
  sheet.add("Class", std::string(describe_class(visible, rows * columns)));
  const int64_t all = visible * index.plan().scenario.attention.heads;
  sheet.add("FLOPs, forward",
            fmt::format("{} = {}, all heads", flops_formula(index, Direction::forward, all),
                        print_flops(flops_of(index, Direction::forward, all))));
  add_owners(sheet, q, "Owner of queries");
  add_owners(sheet, k, "Owner of keys");
  add_projected(sheet, project(pairs, index), true);
  return sheet.take();
}

Inspection inspect_row(Sheet sheet, const RowTarget& row) {
  const PlanIndex& index = sheet.index();
  const Side side = side_of_tensor(row.tensor);
  const TokenRange token{side, row.token, row.token + 1};
  CaptionWriter ids = sheet.line();
  ids.word(name_target(token, &index), token)
      .say(fmt::format(", {}", name_heads({row.head, row.head + 1}, side)));
  sheet.add("Place", ids);
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
