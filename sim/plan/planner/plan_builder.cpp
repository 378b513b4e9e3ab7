#include "sim/plan/planner/plan_builder.h"

#include "sim/base/parallel.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <mutex>
#include <tuple>

#include <fmt/format.h>

namespace cpscope {

PlanBuilder::PlanBuilder(const Scenario& scenario, Layout layout) {
  plan_.scenario = scenario;
  plan_.layout = std::move(layout);
  mask_ = compile_mask(scenario.attention, plan_.layout.slots.sequences);
}

RunListId PlanBuilder::add_list(const std::vector<TokenRun>& runs) {
  const auto first = static_cast<int64_t>(plan_.runs.size());
  // Planners write [0, 0) for all rows of a rank that has none; documents have no empty runs.
  std::copy_if(runs.begin(), runs.end(), std::back_inserter(plan_.runs),
               [](const TokenRun& run) { return run.begin < run.end; });
  return plan_.run_lists.push_back({first, std::ssize(plan_.runs) - first, count_ids(runs)});
}

void PlanBuilder::expect_runs(int64_t count) {
  plan_.runs.reserve(plan_.runs.size() + static_cast<size_t>(count));
}

BufferId PlanBuilder::add_buffer(RankId rank, BufferKind kind, BufferRole role, RunListId tokens,
                                 int64_t rows, HeadRange heads) {
  return plan_.buffers.push_back({rank, kind, role, tokens, rows, heads});
}

BufferId PlanBuilder::add_buffer(RankId rank, BufferKind kind, BufferRole role, RunListId tokens,
                                 HeadRange heads) {
  return add_buffer(rank, kind, role, tokens, plan_.rows(tokens), heads);
}

BufferId PlanBuilder::add_partial(BufferId like) {
  BufferSpec spec = plan_.buffer(like);
  spec.role = BufferRole::partial;
  return plan_.buffers.push_back(spec);
}

void PlanBuilder::add_home_buffers() {
  size_t runs = plan_.runs.size();
  for (const RankId rank : ranks())
    runs += plan_.layout.q_runs[rank].size() + plan_.layout.kv_runs[rank].size();
  plan_.runs.reserve(runs);
  for (const RankId rank : ranks()) {
    // Ranks that own heads have the same queries.
    const bool is_known = owns_heads(scenario().parallel) && rank != RankId{0};
    plan_.q_lists.push_back(is_known ? plan_.q_lists[RankId{0}]
                                     : add_list(plan_.layout.q_runs[rank]));
    plan_.kv_lists.push_back(add_list(plan_.layout.kv_runs[rank]));
  }
  for (const RankId rank : ranks()) {
    const RunListId q = plan_.q_lists[rank], kv = plan_.kv_lists[rank];
    HomeBuffers home;
    const bool has_all = scenario().parallel.q_owner != QOwner::heads;
    home.q = add_buffer(rank, BufferKind::q, BufferRole::home, q,
                        has_all ? all_heads() : owned_heads(rank));
    home.kv = add_buffer(rank, BufferKind::kv, BufferRole::home, kv, all_kv_heads());
    home.out = add_buffer(rank, BufferKind::out, BufferRole::home, q, owned_heads(rank));
    if (has_backward()) {
      home.d_out = add_buffer(rank, BufferKind::d_out, BufferRole::home, q, all_heads());
      home.dq = add_buffer(rank, BufferKind::dq, BufferRole::home, q, all_heads());
      home.dkv = add_buffer(rank, BufferKind::dkv, BufferRole::home, kv, all_kv_heads());
    }
    plan_.home.push_back(home);
  }
}

void PlanBuilder::add_home_stats() {
  for (const RankId rank : ranks()) {
    plan_.home[rank].stats =
        add_buffer(rank, BufferKind::stats, BufferRole::home, plan_.q_lists[rank], all_heads());
  }
}

void PlanBuilder::open_stage(Pass& pass, int32_t step, StageKind kind) {
  CPSCOPE_CHECK(open_pass_ == nullptr, "a stage was opened inside another", step, open_step_);
  open_pass_ = &pass;
  open_step_ = step;
  open_kind_ = kind;
  open_begin_ = count_items(pass, kind);
}

void PlanBuilder::close_stage() {
  const int64_t end = count_items(*open_pass_, open_kind_);
  if (end > open_begin_) open_pass_->stages.push_back({step(), open_kind_, open_begin_, end});
  open_pass_->num_steps = std::max(open_pass_->num_steps, open_step_ + 1);
  open_pass_ = nullptr;
}

void PlanBuilder::add_compute(ComputeItem item) {
  item.step = step();
  open_pass_->computes.push_back(item);
}

void PlanBuilder::add_transfer(TransferItem item) {
  item.step = step();
  const int64_t rows = plan_.rows_of(item);
  // A rank without rows sends nothing, except in a ring, where the target slot must be given its
  // new tokens, even if there are none.
  if (rows == 0 && item.tokens == kNoTokens) return;
  if (item.src == item.dst) item.link = LinkClass::self;
  item.bytes = wire_bytes(plan_, item);
  open_pass_->transfers.push_back(item);
}

void PlanBuilder::add_reorder(RankId rank, BufferId from, BufferId to, RunListId order) {
  open_pass_->reorders.push_back({step(), rank, from, to, order});
}

void PlanBuilder::add_merge(RankId rank, BufferId partial, BufferId into, int32_t order,
                            RunListId into_rows) {
  open_pass_->merges.push_back({step(), rank, partial, into, order, into_rows});
}

void PlanBuilder::add_finish(RankId rank, BufferId buffer) {
  open_pass_->finishes.push_back({step(), rank, buffer});
}

namespace {

/// Tables of KV pieces, which may be made when they are looked at.
struct KeyTables {
  /// Calls visit(table).
  std::function<void(int32_t, const std::function<void(const PieceTable&)>&)> with;
  std::vector<CornerCount> corners;  // [table]
};

/// The corners of some tables, in the order of find_corners.
std::vector<SequenceCorner> join_corners(const KeyTables& tables,
                                         const std::vector<int32_t>& chosen) {
  std::vector<SequenceCorner> joined;
  for (const int32_t id : chosen) {
    tables.with(id, [&](const PieceTable& table) {
      const std::vector<SequenceCorner> corners = find_corners(table);
      joined.insert(joined.end(), corners.begin(), corners.end());
    });
  }
  if (chosen.size() < 2) return joined;
  std::sort(joined.begin(), joined.end(), [](const SequenceCorner& a, const SequenceCorner& b) {
    return std::tie(a.sequence, a.first_position) < std::tie(b.sequence, b.first_position);
  });
  return joined;
}

/// True if the jobs make more slices than a plan may have, found without making them. Only work
/// that could be so much is looked at: documents cut for hundreds of ranks would otherwise fill
/// gigabytes before they are refused.
bool makes_too_many_slices(const MaskBands& mask, const std::vector<PieceTable>& q_tables,
                           const KeyTables& kv_tables, const std::vector<SliceJob>& jobs) {
  std::vector<int64_t> q_corners;
  for (const PieceTable& table : q_tables) q_corners.push_back(count_corners(table).all);
  double most = 0;
  for (const SliceJob& job : jobs)
    most += static_cast<double>(q_corners[job.q_table]) *
            static_cast<double>(kv_tables.corners[job.kv_table].most);
  if (most <= static_cast<double>(kMaxPlanSlices)) return false;
  // Rings have a job for each pair of tables: the keys of all jobs of one query table are one list,
  // which is nearly always that of the table before too.
  int64_t least = 0;
  std::vector<int32_t> joined_tables, tables;
  std::vector<SequenceCorner> joined;
  for (size_t first = 0, end = 0; first < jobs.size() && least <= kMaxPlanSlices; first = end) {
    tables.clear();
    for (; end < jobs.size() && jobs[end].q_table == jobs[first].q_table; ++end)
      tables.push_back(jobs[end].kv_table);
    if (tables != joined_tables) joined = join_corners(kv_tables, tables);
    joined_tables = tables;
    least += count_least_bands(find_corners(q_tables[jobs[first].q_table]), joined, mask);
  }
  return least > kMaxPlanSlices;
}

/// Puts the bands of blocks of jobs, which end in any order, one block after another into a list.
/// Their memory is used again: bands may be gigabytes.
class BandQueue {
 public:
  BandQueue(std::vector<BandSlice>& into, int64_t blocks)
      : into_(into),
        before_(std::ssize(into)),
        is_done_(static_cast<size_t>(blocks), false),
        waiting_(is_done_.size()) {}

  /// An empty list.
  std::vector<BandSlice> take() {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) return {};
    std::vector<BandSlice> bands = std::move(spare_.back());
    spare_.pop_back();
    bands.clear();
    return bands;
  }

  void end(int64_t block, std::vector<BandSlice> bands) {
    const std::lock_guard lock(mutex_);
    is_done_[static_cast<size_t>(block)] = true;
    waiting_[static_cast<size_t>(block)] = std::move(bands);
    for (; begins_.size() < is_done_.size() && is_done_[begins_.size()];) {
      std::vector<BandSlice>& next = waiting_[begins_.size()];
      begins_.push_back(std::ssize(into_));
      make_room(std::ssize(next));
      into_.insert(into_.end(), next.begin(), next.end());
      spare_.push_back(std::move(next));
    }
  }

  /// [block] The place of its first band in the list; all blocks have ended.
  const std::vector<int64_t>& begins() const { return begins_; }

 private:
  /// If there is no room, makes some for all blocks, should they be as long as those so far.
  void make_room(int64_t count) {
    constexpr int64_t kMostGrowth = 8;
    const int64_t all = std::ssize(into_) - before_ + count;
    if (static_cast<size_t>(before_ + all) <= into_.capacity()) return;
    const int64_t blocks = std::ssize(begins_);
    const int64_t expected =
        std::min({all * std::ssize(is_done_) / blocks * 9 / 8, all * kMostGrowth, kMaxPlanSlices});
    into_.reserve(static_cast<size_t>(before_ + std::max(all, expected)));
  }

  std::mutex mutex_;
  std::vector<BandSlice>& into_;
  const int64_t before_;       // bands that were in the list
  std::vector<bool> is_done_;  // [block]
  std::vector<std::vector<BandSlice>> waiting_, spare_;
  std::vector<int64_t> begins_;
};

std::optional<std::vector<SliceRange>> intersect_tables(PlanBuilder& builder,
                                                        const std::vector<PieceTable>& q_tables,
                                                        const KeyTables& kv_tables,
                                                        const std::vector<SliceJob>& jobs) {
  if (makes_too_many_slices(builder.mask(), q_tables, kv_tables, jobs)) return std::nullopt;
  constexpr int64_t kBlocksOfThread = 16;
  const int64_t count = static_cast<int64_t>(jobs.size());
  const int64_t per_block = count / (kBlocksOfThread * default_thread_count()) + 1;
  const int64_t blocks = (count + per_block - 1) / per_block;
  BandQueue queue(builder.plan().slices, blocks);
  std::vector<SliceRange> ranges(jobs.size());
  std::atomic<int64_t> total{0};
  for_each_index(blocks, [&](int64_t block) {
    std::vector<BandSlice> bands = queue.take();
    for (int64_t j = block * per_block; j < std::min(count, (block + 1) * per_block); ++j) {
      if (total.load(std::memory_order_relaxed) > kMaxPlanSlices) return;
      const int64_t first = std::ssize(bands);
      kv_tables.with(jobs[j].kv_table, [&](const PieceTable& kv) {
        const int64_t pairs = intersect(q_tables[jobs[j].q_table], kv, builder.mask(), bands);
        ranges[j] = {first, std::ssize(bands) - first, pairs};
      });
      total.fetch_add(ranges[j].count, std::memory_order_relaxed);
    }
    queue.end(block, std::move(bands));
  });
  if (total.load() > kMaxPlanSlices) return std::nullopt;
  for (int64_t j = 0; j < count; ++j)
    ranges[j].first += queue.begins()[static_cast<size_t>(j / per_block)];
  return ranges;
}

}  // namespace

std::optional<std::vector<SliceRange>> intersect_all(PlanBuilder& builder,
                                                     const std::vector<PieceTable>& q_tables,
                                                     const std::vector<PieceTable>& kv_tables,
                                                     const std::vector<SliceJob>& jobs) {
  KeyTables tables{[&](int32_t id, const auto& visit) { visit(kv_tables[id]); }, {}};
  for (const PieceTable& table : kv_tables) tables.corners.push_back(count_corners(table));
  return intersect_tables(builder, q_tables, tables, jobs);
}

std::optional<std::vector<SliceRange>> intersect_all(PlanBuilder& builder,
                                                     const std::vector<PieceTable>& q_tables,
                                                     const std::vector<RunListId>& kv_lists,
                                                     const std::vector<SliceJob>& jobs) {
  KeyTables tables{[&](int32_t id, const auto& visit) {
                     const RunListId list = kv_lists[static_cast<size_t>(id)];
                     if (list == kNoTokens) return visit(PieceTable{{}, {}, {0}});
                     visit(make_pieces(builder.plan().list(list), builder.slots(), Side::kv));
                   },
                   std::vector<CornerCount>(kv_lists.size())};
  for_each_index(std::ssize(kv_lists), [&](int64_t id) {
    const RunListId list = kv_lists[static_cast<size_t>(id)];
    if (list != kNoTokens)
      tables.corners[static_cast<size_t>(id)] =
          count_corners(builder.plan().list(list), builder.slots(), Side::kv);
  });
  return intersect_tables(builder, q_tables, tables, jobs);
}

Error too_many_slices() {
  return make_refusal(fmt::format("the plan has more than {} band slices", kMaxPlanSlices),
                      "use a layout with longer runs, a larger chunk_size or fewer mask slices",
                      {"parallel.layout"});
}

void set_slices(ComputeItem& item, const SliceRange& range) {
  item.first_slice = range.first;
  item.num_slices = range.count;
  item.visible_pairs = range.pairs * item.heads.size();
}

}  // namespace cpscope
