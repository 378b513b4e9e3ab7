#include "sim/faults/parting.h"

#include "sim/plan/item_uses.h"
#include "sim/plan/token_run.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace cpscope {
namespace {

bool are_of_one_stage(const StateFrame& a, const StateFrame& b) {
  return a.direction == b.direction && a.step == b.step && a.kind == b.kind &&
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
bool is_same_buffer(const Plan& a, const Plan& b, BufferId id) {
  if (!b.buffers.has(id)) return false;
  const BufferSpec &left = a.buffer(id), &right = b.buffer(id);
  return left.rank == right.rank && left.kind == right.kind && left.role == right.role &&
         left.rows == right.rows;
}

/// True if an item writes this row of the buffers that it writes.
bool writes_row(const Plan& plan, const TransferItem& item, int64_t row) {
  if (item.to_rows == kAllRows) return true;
  for (const TokenRun& run : plan.list(item.to_rows)) {
    if (row >= run.begin && row < run.end && (row - run.begin) % run.stride == 0) return true;
  }
  return false;
}
template <class Item>
bool writes_row(const Plan& /*plan*/, const Item& /*item*/, int64_t /*row*/) {
  return true;
}

/// The item of the stage that writes this row; nothing if there is none.
std::optional<FaultSite> find_writer(const Plan& plan, const StateFrame& frame, BufferId buffer,
                                     int64_t row) {
  const Pass& pass = plan.pass(frame.direction);
  if (frame.stage >= static_cast<int64_t>(pass.stages.size())) return std::nullopt;
  std::optional<FaultSite> site;
  for_each_item(pass, frame.direction, pass.stages[static_cast<size_t>(frame.stage)],
                [&](const ItemId& id, const auto& item) {
                  visit_writes(item, [&](BufferId written) {
                    if (!site && written == buffer && writes_row(plan, item, row))
                      site = FaultSite{id, target_rank_of(item), frame.step};
                  });
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
    for (const BufferId buffer : right.rows.ids()) {
      if (!is_same_buffer(healthy_plan, plan, buffer)) continue;
      const std::vector<int64_t> rows = parted_rows(right.rows[buffer], seen.rows[buffer]);
      if (rows.empty()) continue;
      Parting parting{{},
                      buffer,
                      rows.front(),
                      rows.back() + 1,
                      token_of_row(healthy_plan, buffer, rows.front())};
      const RankId rank = healthy_plan.buffer(buffer).rank;
      if (right.stage < 0) {
        parting.site = {.item = {.kind = StageKind::transfer}, .rank = rank, .is_load = true};
      } else if (const auto writer = find_writer(healthy_plan, right, buffer, rows.front())) {
        parting.site = *writer;
      } else if (const auto intruder = find_writer(plan, seen, buffer, rows.front())) {
        parting.site = *intruder;
      } else {
        parting.site = {{right.direction, right.kind, 0}, rank, right.step};
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
  std::set<std::pair<BufferId, int64_t>> parted;
  for (size_t f = 0; f < aligned.size(); ++f) {
    if (aligned[f] == nullptr) continue;
    for (const BufferId buffer : healthy.frames[f].rows.ids()) {
      const BufferKind kind = healthy_plan.buffer(buffer).kind;
      const bool is_result =
          kind == BufferKind::out || kind == BufferKind::dq || kind == BufferKind::dkv;
      if (!is_result || !is_same_buffer(healthy_plan, plan, buffer)) continue;
      for (const int64_t row :
           parted_rows(healthy.frames[f].rows[buffer], aligned[f]->rows[buffer]))
        parted.emplace(buffer, row);
    }
  }
  return static_cast<int64_t>(parted.size());
}

}  // namespace cpscope
