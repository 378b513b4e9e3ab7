#include "sim/plan/planner/draft_reader.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Query heads that read these KV heads.
HeadRange query_heads_of(const Attention& attention, HeadRange kv_heads) {
  const int32_t group = attention.heads / attention.kv_heads;
  return {kv_heads.begin * group, kv_heads.end * group};
}

bool contains(HeadRange outer, HeadRange inner) {
  return outer.begin <= inner.begin && inner.end <= outer.end;
}

std::string name_heads(HeadRange heads) {
  return heads.size() == 1 ? fmt::format("head {}", heads.begin)
                           : fmt::format("heads {}..{}", heads.begin, heads.end - 1);
}

/// Ascending rows as runs of stride 1.
std::vector<TokenRun> unit_runs(std::span<const TokenRun> rows) {
  std::vector<TokenRun> runs;
  for (const TokenRun& run : rows) {
    if (run.stride == 1) {
      runs.push_back(run);
      continue;
    }
    for (int64_t i = 0; i < run.count(); ++i) runs.push_back({run.at(i), run.at(i) + 1, 1});
  }
  return runs;
}

/// The places of ascending rows in a list of ascending rows; nothing if one is not there.
std::optional<std::vector<TokenRun>> places_in(std::span<const TokenRun> outer,
                                               std::span<const TokenRun> inner) {
  std::vector<TokenRun> places;
  const std::vector<TokenRun> all = unit_runs(outer);
  int64_t place = 0;  // of the first row of `at`
  auto at = all.begin();
  for (const TokenRun& run : unit_runs(inner)) {
    for (int64_t row = run.begin; row < run.end;) {
      for (; at != all.end() && at->end <= row; ++at) place += at->count();
      if (at == all.end() || row < at->begin) return std::nullopt;
      const int64_t end = std::min(run.end, at->end);
      append_run(places, {place + row - at->begin, place + end - at->begin, 1});
      row = end;
    }
  }
  return places;
}

/// The pieces of some rows of a buffer, at their rows in the buffer.
PieceTable make_part_pieces(std::span<const TokenRun> tokens, std::span<const TokenRun> rows,
                            const BatchSlots& slots, Side side) {
  std::vector<Piece> pieces;
  for (const TokenRun& run : unit_runs(rows)) {
    const PieceTable table = make_pieces(slice_rows(tokens, run.begin, run.end), slots, side);
    for (Piece piece : table.pieces) {
      piece.row += run.begin;
      pieces.push_back(piece);
    }
  }
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::pair(a.sequence, a.row) < std::pair(b.sequence, b.row);
  });
  PieceTable table;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i > 0 && pieces[i].sequence == pieces[i - 1].sequence) continue;
    table.sequences.push_back(pieces[i].sequence);
    table.first.push_back(static_cast<int64_t>(i));
  }
  table.first.push_back(static_cast<int64_t>(pieces.size()));
  table.pieces = std::move(pieces);
  return table;
}

int64_t pack(RankId rank, BlockId block) {
  return (int64_t{to_index(rank)} << 32) | to_index(block);
}

}  // namespace

std::string describe_block(const Plan& plan, const DraftBlock& block) {
  const bool is_q = block.side == Side::q;
  if (block.owner == kSeveralRanks)
    return fmt::format("the joined {} of {} blocks", is_q ? "queries" : "keys", block.parts.size());
  std::string text =
      fmt::format("the {} of rank {}", is_q ? "queries" : "keys", to_index(block.owner));
  const auto runs = plan.list(block.tokens);
  if (block.rows != kAllRows && !runs.empty()) {
    const TokenRun& first = runs.front();
    const int64_t rest = plan.rows(block.tokens) - first.count();
    text += first.count() == 1 ? fmt::format(" at token id {}", first.begin)
                               : fmt::format(" at token ids {}..{}", first.begin, first.last());
    if (first.stride > 1) text += fmt::format(" by {}", first.stride);
    if (rest > 0) text += fmt::format(" and {} more", rest);
  }
  const int32_t all = is_q ? plan.scenario.attention.heads : plan.scenario.attention.kv_heads;
  if (block.heads.size() > 0 && block.heads != HeadRange{0, all})
    text += fmt::format(", {}{}", is_q ? "" : "KV ", name_heads(block.heads));
  return text;
}

DraftReader::DraftReader(PlanBuilder& builder, ScheduleDraft& draft)
    : builder_(builder), draft_(draft) {
  name_home_blocks();
}

/// The first block that is a rank's whole home buffer stands for it.
void DraftReader::name_home_blocks() {
  constexpr BlockId kNone{-1};
  home_q_.assign(builder_.ranks().size(), kNone);
  home_kv_.assign(builder_.ranks().size(), kNone);
  for (const BlockId id : draft_.blocks.ids()) {
    DraftBlock& block = draft_.blocks[id];
    const bool is_q = block.side == Side::q;
    const HeadRange all = is_q ? builder_.all_heads() : builder_.all_kv_heads();
    if (block.heads.size() == 0) block.heads = all;
    if (!block.parts.empty()) continue;
    BlockId& home = (is_q ? home_q_ : home_kv_)[block.owner];
    if (block.rows == kAllRows && block.heads == all && home == kNone) {
      home = id;
    } else {
      has_parts_ = true;
    }
  }
  for (const RankId rank : builder_.ranks()) {
    const Plan& plan = builder_.plan();
    if (home_q_[rank] == kNone)
      home_q_[rank] =
          draft_.add_block({Side::q, rank, plan.q_lists[rank], kAllRows, builder_.all_heads()});
    if (home_kv_[rank] == kNone)
      home_kv_[rank] = draft_.add_block(
          {Side::kv, rank, plan.kv_lists[rank], kAllRows, builder_.all_kv_heads()});
  }
}

std::optional<Error> DraftReader::read(const std::vector<DraftStep>& from, ReadPass& pass,
                                       std::optional<DraftPlace>& wrong) {
  std::vector<ReadStep>& steps = pass.steps;
  size_t num_sends = 0;
  for (const DraftStep& step : from) num_sends += step.before.size() + step.during.size();
  received_.reserve(num_sends);
  steps.resize(std::max<size_t>(1, from.size()));  // results are finished in the last one
  for (size_t s = 0; s < from.size(); ++s) {
    DraftPlace place{.step = s};
    if (auto error = read_step(from[s], steps[s], place)) {
      wrong = place;
      return error;
    }
  }
  pass.num_copies = received_.size();
  const auto ranges = intersect_all(builder_, q_tables_, kv_tables_, jobs_);
  if (!ranges) return too_many_slices();
  auto range = ranges->begin();
  for (ReadStep& step : steps) {
    for (ReadCompute& compute : step.computes) compute.range = *range++;
  }
  return std::nullopt;
}

/// `place` is the send or compute that is read now.
std::optional<Error> DraftReader::read_step(const DraftStep& from, ReadStep& into,
                                            DraftPlace& place) {
  const size_t step = place.step;
  place.part = DraftPart::before;
  if (auto error = read_sends(step, place, from.before, step, into.before)) return error;
  place.part = DraftPart::compute;
  into.computes.reserve(from.computes.size());
  for (place.index = 0; place.index < from.computes.size(); ++place.index) {
    if (auto error = read_compute(from.computes[place.index], step, into)) return error;
  }
  place.part = DraftPart::during;
  return read_sends(step, place, from.during, step + 1, into.during);
}

/// Sends of one list run at the same time: none sends what another one brings.
std::optional<Error> DraftReader::read_sends(size_t step, DraftPlace& place,
                                             const std::vector<DraftSend>& sends, size_t usable,
                                             std::vector<ReadSend>& into) {
  const size_t first = into.size();
  into.reserve(first + sends.size());
  for (place.index = 0; place.index < sends.size(); ++place.index) {
    const DraftSend& send = sends[place.index];
    if (const auto& parts = draft_.blocks[send.block].parts; !parts.empty()) {
      if (auto error = check_joined(send)) return error;
      into.push_back({send, send.block});
      continue;
    }
    const auto held = find(send.src, send.block, step);
    if (!held) return lacks(send.src, "sends", send.block);
    into.push_back({send, held->held.holder, held->held.rows, held->copy});
  }
  for (place.index = 0; place.index < sends.size(); ++place.index) {
    const DraftSend& send = sends[place.index];
    if (find(send.dst, send.block, std::numeric_limits<size_t>::max()))
      return make_bad_input(fmt::format("rank {} receives {}, which it holds already",
                                        to_index(send.dst), name(send.block)),
                            "send every block to a rank once");
    const Arrival arrival{send.block, CopyId{static_cast<int32_t>(received_.size())}, usable};
    received_.emplace(pack(send.dst, send.block), arrival);
    into[first + place.index].to_copy = arrival.copy;
    if (has_parts_ && draft_.blocks[send.block].parts.empty()) {
      const RankId owner = draft_.blocks[send.block].owner;
      arrivals_[(int64_t{to_index(send.dst)} << 32) | to_index(owner)].push_back(arrival);
    }
  }
  return std::nullopt;
}

/// A rank's own results are merged from buffers of its own queries alone.
std::optional<Error> DraftReader::check_joined(const DraftSend& send) const {
  const DraftBlock& block = draft_.blocks[send.block];
  for (const BlockId part : block.parts) {
    if (block.side == Side::q && owns(send.dst, part))
      return make_bad_input(fmt::format("rank {} gathers its own queries", to_index(send.dst)),
                            "compute with them apart from those of other ranks");
  }
  return std::nullopt;
}

std::optional<Error> DraftReader::read_compute(const DraftCompute& compute, size_t step,
                                               ReadStep& into) {
  const Attention& attention = builder_.attention();
  const DraftBlock &q = draft_.blocks[compute.q], &kv = draft_.blocks[compute.kv];
  const auto rows = find(compute.rank, compute.q, step);
  if (!rows) return lacks(compute.rank, "computes with", compute.q);
  const auto keys = find(compute.rank, compute.kv, step);
  if (!keys) return lacks(compute.rank, "computes with", compute.kv);
  const HeadRange readers = query_heads_of(attention, kv.heads);
  HeadRange heads = compute.heads;
  if (heads.size() == 0)
    heads = {std::max(q.heads.begin, readers.begin), std::min(q.heads.end, readers.end)};
  if (heads.size() <= 0)
    return make_bad_input(
        fmt::format("rank {} computes with {} and {}: no query head of the one reads a KV head "
                    "of the other",
                    to_index(compute.rank), name(compute.q), name(compute.kv)),
        fmt::format("{} read KV {}", name_heads(readers), name_heads(kv.heads)));
  if (!contains(q.heads, heads) || !contains(readers, heads))
    return make_bad_input(
        fmt::format("rank {} computes {} of {} and {}, which do not have them all",
                    to_index(compute.rank), name_heads(heads), name(compute.q), name(compute.kv)),
        fmt::format("{} read KV {}", name_heads(readers), name_heads(kv.heads)));
  into.computes.push_back(
      {compute.rank, rows->held.holder, keys->held.holder, rows->copy, keys->copy, heads, {}});
  jobs_.push_back({table_of(rows->held, Side::q), table_of(keys->held, Side::kv)});
  return std::nullopt;
}

/// What a rank holds of a block in a step, or nothing if it lacks a row or head of it.
std::optional<DraftReader::Found> DraftReader::find(RankId rank, BlockId id, size_t step) {
  const DraftBlock& block = draft_.blocks[id];
  if (owns(rank, id)) {
    const auto& home = block.side == Side::q ? home_q_ : home_kv_;
    return Found{{home[rank], block.rows}};
  }
  if (const auto found = received_.find(pack(rank, id));
      found != received_.end() && found->second.usable <= step)
    return Found{{id, kAllRows}, found->second.copy};
  if (!has_parts_) return std::nullopt;
  const auto received = arrivals_.find((int64_t{to_index(rank)} << 32) | to_index(block.owner));
  if (received == arrivals_.end()) return std::nullopt;
  for (const Arrival& arrival : received->second) {
    if (arrival.usable > step) continue;
    if (const auto& held = rows_inside(arrival.block, id)) return Found{*held, arrival.copy};
  }
  return std::nullopt;
}

const std::optional<DraftReader::Held>& DraftReader::rows_inside(BlockId outer, BlockId inner) {
  const auto [found, is_new] = inside_.try_emplace({outer, inner});
  if (is_new) found->second = find_rows_inside(outer, inner);
  return found->second;
}

/// The rows of a block in another one, if that contains all its rows and heads.
std::optional<DraftReader::Held> DraftReader::find_rows_inside(BlockId outer, BlockId inner) {
  const DraftBlock &a = draft_.blocks[outer], &b = draft_.blocks[inner];
  if (a.side != b.side || a.owner != b.owner || !contains(a.heads, b.heads)) return std::nullopt;
  if (a.rows == kAllRows || a.rows == b.rows)
    return Held{outer, a.rows == b.rows ? kAllRows : b.rows};
  const Plan& plan = builder_.plan();
  if (b.rows == kAllRows) {
    if (plan.rows(a.tokens) < plan.rows(b.tokens)) return std::nullopt;
    return Held{outer, kAllRows};
  }
  const auto places = places_in(plan.list(a.rows), plan.list(b.rows));
  if (!places) return std::nullopt;
  if (count_ids(*places) == plan.rows(a.tokens)) return Held{outer, kAllRows};
  return Held{outer, builder_.add_list(*places)};
}

/// The table of pieces of some rows of a held block; made once.
int32_t DraftReader::table_of(const Held& part, Side side) {
  const auto [found, is_new] = tables_.try_emplace(part, 0);
  if (!is_new) return found->second;
  std::vector<PieceTable>& tables = side == Side::q ? q_tables_ : kv_tables_;
  const Plan& plan = builder_.plan();
  const auto tokens = plan.list(draft_.blocks[part.holder].tokens);
  tables.push_back(part.rows == kAllRows
                       ? make_pieces(tokens, builder_.slots(), side)
                       : make_part_pieces(tokens, plan.list(part.rows), builder_.slots(), side));
  return found->second = static_cast<int32_t>(tables.size()) - 1;
}

std::string DraftReader::name(BlockId block) const {
  return describe_block(builder_.plan(), draft_.blocks[block]);
}

Error DraftReader::lacks(RankId rank, std::string_view verb, BlockId block) const {
  return make_bad_input(
      fmt::format("rank {} {} {}, which it does not hold then", to_index(rank), verb, name(block)),
      "a block that is sent during a step can be used from the next step on");
}

}  // namespace cpscope
