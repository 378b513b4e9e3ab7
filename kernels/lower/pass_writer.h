#pragma once

#include "kernels/lower/lowered_plan.h"
#include "sim/plan/visit_items.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace cpscope::kernels {

/// Writes one direction of a lowered plan anew, stage by stage, from the items that it had. Stages
/// without items are left out.
class PassWriter {
 public:
  PassWriter(LoweredPlan& lowered, Direction direction)
      : to_(lowered.plan.pass(direction)),
        to_notes_(lowered.notes[direction]),
        from_(std::exchange(to_, {})),
        notes_(std::exchange(to_notes_, {})) {
    to_.num_steps = from_.num_steps;
    to_notes_.ranks = notes_.ranks;
    to_notes_.is_cut = notes_.is_cut;
  }

  /// The items and notes as they were.
  const Pass& from() const { return from_; }
  const PassNotes& notes() const { return notes_; }
  PassNotes& new_notes() { return to_notes_; }

  void open(StepId step, StageKind kind) { open_ = {step, kind, count_items(to_, kind), 0}; }
  void close() {
    open_.end = count_items(to_, open_.kind);
    if (open_.end > open_.begin) to_.stages.push_back(open_);
  }

  /// Adds an item as it was.
  void copy(StageKind kind, int64_t item) {
    const auto i = static_cast<size_t>(item);
    switch (kind) {
      case StageKind::transfer:
        return add(from_.transfers[i], notes_.transfers[i]);
      case StageKind::compute:
        return add(from_.computes[i], notes_.computes[i]);
      case StageKind::reorder:
        to_.reorders.push_back(from_.reorders[i]);
        return to_notes_.reorders.push_back(notes_.reorders[i]);
      case StageKind::merge:
        return add(from_.merges[i], notes_.merges[i]);
      case StageKind::finish:
        to_.finishes.push_back(from_.finishes[i]);
        return to_notes_.finishes.push_back(notes_.finishes[i]);
    }
  }
  void add(const TransferItem& item, const TransferNote& note) {
    to_.transfers.push_back(item);
    to_notes_.transfers.push_back(note);
  }
  void add(const ComputeItem& item, const ComputeNote& note) {
    to_.computes.push_back(item);
    to_notes_.computes.push_back(note);
  }
  void add(const MergeItem& item, const MergeNote& note) {
    to_.merges.push_back(item);
    to_notes_.merges.push_back(note);
  }

  /// Adds all items of a stage for which keep(kind, item) is true.
  template <class Keep>
  void copy_stage(const Stage& stage, const Keep& keep) {
    open(stage.step, stage.kind);
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      if (keep(stage.kind, static_cast<size_t>(i))) copy(stage.kind, i);
    }
    close();
  }
  void copy_stage(const Stage& stage) {
    copy_stage(stage, [](StageKind, size_t) { return true; });
  }

 private:
  Pass& to_;
  PassNotes& to_notes_;
  const Pass from_;
  const PassNotes notes_;
  Stage open_;
};

/// Removes the items of a direction for which keep(kind, item) is false.
template <class Keep>
void keep_items(LoweredPlan& lowered, Direction direction, const Keep& keep) {
  PassWriter writer(lowered, direction);
  for (const Stage& stage : writer.from().stages) writer.copy_stage(stage, keep);
}

/// Removes the finishes of buffers that hold the dtype already.
inline void drop_narrow_finishes(LoweredPlan& lowered, Direction direction) {
  const Pass& pass = lowered.plan.pass(direction);
  std::vector<bool> is_narrow;
  for (const FinishItem& item : pass.finishes)
    is_narrow.push_back(lowered.buffers[item.buffer].is_narrow);
  keep_items(lowered, direction,
             [&](StageKind kind, size_t i) { return kind != StageKind::finish || !is_narrow[i]; });
}

/// Adds a list of rows to the plan.
inline RunListId add_list(Plan& plan, const std::vector<TokenRun>& runs) {
  const RunListId id = plan.run_lists.push_back(
      {static_cast<int64_t>(plan.runs.size()), static_cast<int64_t>(runs.size()), count_ids(runs)});
  plan.runs.insert(plan.runs.end(), runs.begin(), runs.end());
  return id;
}

/// [buffer] True for home buffers of gradients, whose final content is read.
inline IdVector<BufferId, bool> home_gradients(const Plan& plan) {
  IdVector<BufferId, bool> is_home(plan.buffers.size(), false);
  for (const HomeBuffers& home : plan.home) {
    for (const BufferId id : {home.dq, home.dkv}) {
      if (id != kNoBuffer) is_home[id] = true;
    }
  }
  return is_home;
}

/// Index of the first stage of computes; the number of stages if there is none.
inline size_t first_compute_stage(const Pass& pass) {
  size_t s = 0;
  while (s < pass.stages.size() && pass.stages[s].kind != StageKind::compute) ++s;
  return s;
}

}  // namespace cpscope::kernels
