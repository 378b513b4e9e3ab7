#include "sim/faults/parting.h"

#include "sim/plan/token_run.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace cpscope {
namespace {

bool are_of_one_stage(const StateFrame& a, const StateFrame& b) {
  return a.is_backward == b.is_backward && a.step == b.step && a.kind == b.kind &&
         (a.stage < 0) == (b.stage < 0);
}

/// [healthy frame] The frame of the other run at the same moment: after the same stage, or after
/// the last one before it if the other plan has no such stage.
std::vector<const StateFrame*> align(const WalkTrace& healthy, const WalkTrace& trace) {
  std::vector<const StateFrame*> aligned;
  size_t next = 0;
  for (const StateFrame& frame : healthy.frames) {
    size_t found = next;
    while (found < trace.frames.size() && !are_of_one_stage(frame, trace.frames[found])) ++found;
    if (found < trace.frames.size()) next = found + 1;
    aligned.push_back(next == 0 ? nullptr : &trace.frames[next - 1]);
  }
  return aligned;
}

/// True if both plans use this number for the same buffer.
bool is_same_buffer(const Plan& a, const Plan& b, size_t id) {
  if (id >= b.buffers.size()) return false;
  const BufferSpec &left = a.buffers[id], &right = b.buffers[id];
  return left.rank == right.rank && left.kind == right.kind && left.role == right.role &&
         left.rows == right.rows;
}

/// Visits the buffers that an item of the stage writes, and the rows written; kAllRows: any.
template <class Visit>
void for_each_written(const Pass& pass, bool is_backward, const Stage& stage, Visit visit) {
  for (int64_t i = stage.begin; i < stage.end; ++i) {
    switch (stage.kind) {
      case StageKind::transfer:
        visit(i, pass.transfers[i].to, pass.transfers[i].to_rows, pass.transfers[i].dst);
        break;
      case StageKind::reorder:
        visit(i, pass.reorders[i].to, kAllRows, pass.reorders[i].rank);
        break;
      case StageKind::compute: {
        const ComputeItem& item = pass.computes[i];
        visit(i, is_backward ? item.dq : item.out, kAllRows, item.rank);
        if (is_backward) visit(i, item.dkv, kAllRows, item.rank);
        break;
      }
      case StageKind::merge:
        visit(i, pass.merges[i].into, kAllRows, pass.merges[i].rank);
        break;
      case StageKind::finish:
        visit(i, pass.finishes[i].buffer, kAllRows, pass.finishes[i].rank);
        break;
    }
  }
}

bool holds_row(const Plan& plan, RunListId list, int64_t row) {
  if (list == kAllRows) return true;
  for (const TokenRun& run : plan.list(list)) {
    if (row >= run.begin && row < run.end && (row - run.begin) % run.stride == 0) return true;
  }
  return false;
}

/// The item of the stage that writes this row; nothing if there is none.
std::optional<FaultSite> find_writer(const Plan& plan, const StateFrame& frame, BufferId buffer,
                                     int64_t row) {
  const Pass& pass = frame.is_backward ? plan.backward : plan.forward;
  if (frame.stage >= static_cast<int64_t>(pass.stages.size())) return std::nullopt;
  std::optional<FaultSite> site;
  for_each_written(pass, frame.is_backward, pass.stages[static_cast<size_t>(frame.stage)],
                   [&](int64_t item, BufferId written, RunListId rows, RankId rank) {
                     if (site || written != buffer || !holds_row(plan, rows, row)) return;
                     site = FaultSite{frame.is_backward, false, frame.kind, rank, frame.step, item};
                   });
  return site;
}

int64_t token_of_row(const Plan& plan, BufferId buffer, int64_t row) {
  const RunListId list = plan.buffer(buffer).tokens;
  if (list == kNoTokens) return -1;
  const std::vector<TokenRun> runs = slice_rows(plan.list(list), row, row + 1);
  return runs.empty() ? -1 : runs.front().begin;
}

std::vector<int64_t> parted_rows(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  std::vector<int64_t> rows;
  for (size_t row = 0; row < a.size(); ++row) {
    if (a[row] != b[row]) rows.push_back(static_cast<int64_t>(row));
  }
  return rows;
}

}  // namespace

std::optional<Parting> find_parting(const Plan& healthy_plan, const WalkTrace& healthy,
                                    const Plan& plan, const WalkTrace& trace) {
  const std::vector<const StateFrame*> aligned = align(healthy, trace);
  for (size_t f = 0; f < aligned.size(); ++f) {
    if (aligned[f] == nullptr) continue;
    const StateFrame &right = healthy.frames[f], &seen = *aligned[f];
    std::optional<Parting> first;
    for (size_t b = 0; b < right.rows.size(); ++b) {
      if (!is_same_buffer(healthy_plan, plan, b)) continue;
      const std::vector<int64_t> rows = parted_rows(right.rows[b], seen.rows[b]);
      if (rows.empty()) continue;
      const BufferId buffer{static_cast<int32_t>(b)};
      Parting parting{{},
                      buffer,
                      rows.front(),
                      rows.back() + 1,
                      token_of_row(healthy_plan, buffer, rows.front())};
      const RankId rank = healthy_plan.buffers[b].rank;
      if (right.stage < 0) {
        parting.site = {.is_load = true, .kind = StageKind::transfer, .rank = rank};
      } else if (const auto writer = find_writer(healthy_plan, right, buffer, rows.front())) {
        parting.site = *writer;
      } else if (const auto intruder = find_writer(plan, seen, buffer, rows.front())) {
        parting.site = *intruder;
      } else {
        parting.site = {right.is_backward, false, right.kind, rank, right.step, 0};
      }
      if (!first || parting.site.rank < first->site.rank) first = parting;
    }
    if (first) return first;
  }
  return std::nullopt;
}

int64_t count_parted_results(const Plan& healthy_plan, const WalkTrace& healthy, const Plan& plan,
                             const WalkTrace& trace) {
  const std::vector<const StateFrame*> aligned = align(healthy, trace);
  std::set<std::pair<size_t, int64_t>> parted;
  for (size_t f = 0; f < aligned.size(); ++f) {
    if (aligned[f] == nullptr) continue;
    for (size_t b = 0; b < healthy.frames[f].rows.size(); ++b) {
      const BufferKind kind = healthy_plan.buffers[b].kind;
      const bool is_result =
          kind == BufferKind::out || kind == BufferKind::dq || kind == BufferKind::dkv;
      if (!is_result || !is_same_buffer(healthy_plan, plan, b)) continue;
      for (const int64_t row : parted_rows(healthy.frames[f].rows[b], aligned[f]->rows[b]))
        parted.emplace(b, row);
    }
  }
  return static_cast<int64_t>(parted.size());
}

}  // namespace cpscope
