#include "sim/plan/planner/planner_reshard.h"

#include "sim/base/check.h"
#include "sim/plan/layout.h"
#include "sim/plan/planner/plan_builder.h"

#include <algorithm>
#include <map>

namespace cpscope {
namespace {

/// A piece and the rank that holds it.
struct HeldPiece {
  int32_t rank = 0;
  Piece piece;
};

/// [sequence] The pieces of all ranks; none of sequences of other rounds.
std::vector<std::vector<HeldPiece>> pieces_by_sequence(const Layout& layout, size_t round) {
  std::vector<std::vector<HeldPiece>> all(layout.slots.sequences.size());
  const std::vector<int32_t> round_of = round_of_sequences(layout.rounds, all.size());
  for (const RankId rank : layout.q_runs.ids()) {
    for (const Piece& piece : make_pieces(layout.q_runs[rank], layout.slots, Side::q).pieces) {
      const auto s = static_cast<size_t>(piece.sequence);
      if (static_cast<size_t>(round_of[s]) == round) all[s].push_back({to_index(rank), piece});
    }
  }
  return all;
}

/// Rows that go from one rank to another, and where they land.
struct MovedRows {
  std::vector<TokenRun> from, to;
};

/// The part of `source` whose positions are in [begin, end), which lands from row `row` on.
void add_overlap(const Piece& source, int64_t begin, int64_t end, int64_t row, MovedRows& moved) {
  const int64_t first =
      std::max<int64_t>(0, (begin - source.position + source.stride - 1) / source.stride);
  const int64_t last =
      end <= source.position
          ? 0
          : std::min(source.count, (end - source.position + source.stride - 1) / source.stride);
  if (last <= first) return;
  append_run(moved.from, {source.row + first, source.row + last, 1});
  const int64_t lands = row + source.position_of(first) - begin;
  append_run(moved.to, {lands, lands + (last - first - 1) * source.stride + 1, source.stride});
}

}  // namespace

Plan plan_reshard(const Scenario& scenario, Layout from, const Layout& to, size_t round) {
  CPSCOPE_CHECK(from.rounds == to.rounds, "groups change with the order", from.rounds.size(),
                to.rounds.size());
  Scenario rows = scenario;
  rows.numerics.fp8.reset();  // hidden states are in the dtype
  rows.numerics.backward = false;
  const std::vector<std::vector<HeldPiece>> sources = pieces_by_sequence(from, round);
  PlanBuilder builder(rows, std::move(from));
  builder.add_home_buffers();
  builder.open_stage(builder.plan().forward, 0, StageKind::transfer);
  for (const RankId rank : to.q_runs.ids()) {
    std::map<int32_t, MovedRows> moved;  // by sender
    int64_t row = 0;
    for (const Piece& piece : make_pieces(to.q_runs[rank], to.slots, Side::q).pieces) {
      const std::vector<HeldPiece>& held = sources[static_cast<size_t>(piece.sequence)];
      if (held.empty()) continue;  // of another round
      CPSCOPE_CHECK(piece.stride == 1, "rows go to a layout with strides", piece.stride, row);
      for (const HeldPiece& source : held)
        add_overlap(source.piece, piece.position, piece.position + piece.count, row,
                    moved[source.rank]);
      row += piece.count;
    }
    const BufferId received = builder.add_buffer(rank, BufferKind::q, BufferRole::received,
                                                 kNoTokens, row, builder.all_heads());
    for (const auto& [sender, runs] : moved) {
      if (runs.from.empty()) continue;
      TransferItem item;
      item.src = RankId{sender};
      item.dst = rank;
      item.from = builder.plan().home[item.src].q;
      item.to = received;
      item.from_rows = builder.add_list(runs.from);
      item.to_rows = builder.add_list(runs.to);
      item.heads = builder.all_heads();
      item.payload = Payload::q;
      item.link = LinkClass::direct;
      builder.add_transfer(item);
    }
  }
  builder.close_stage();
  return std::move(builder.plan());
}

}  // namespace cpscope
