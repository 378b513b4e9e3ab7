#include "sim/clock/pass_clock.h"

#include "sim/plan/decode_items.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <cmath>

namespace cpscope {
namespace {

constexpr int kMostRounds = 3;
constexpr double kSettled = 0.002;  // relative change of a pass below which rounds end

}  // namespace

ClockTime PassClock::enter(StageKind kind, int64_t index, RankId rank, StepId step,
                           const ClockTime& start, double end_us) {
  if (!keeps_events_) return {end_us, kNoEvent};
  const auto ns = [&](double us) { return std::llround((offset_us_ + us) * 1e3); };
  timeline_.events.push_back({{direction_, kind, index}, rank, step, ns(start.us), ns(end_us)});
  before_.push_back(start.event);
  return {end_us, static_cast<int64_t>(timeline_.events.size()) - 1};
}

ClockTime PassClock::begin_on_compute(Lane& lane) {
  lane.host.us += item_us();
  ClockTime start{lane.host.us, kNoEvent};
  start.raise(lane.compute);
  return start;
}

/// End time of `work_us` of work for a whole device that begins at `start`, with fewer
/// multiprocessors while transfers of the rank run.
double PassClock::beside_transfers(Lane& lane, double start, double work_us) const {
  const double share =
      1.0 - static_cast<double>(stack_.transfer_multiprocessors) / cluster_.device.multiprocessors;
  const std::vector<BusyTime>& beside = lane.beside.empty() ? lane.transfers : lane.beside;
  while (lane.next_beside < beside.size() && beside[lane.next_beside].end <= start)
    ++lane.next_beside;
  double now = start;
  for (size_t i = lane.next_beside; i < beside.size() && work_us > 0; ++i) {
    const BusyTime& stretch = beside[i];
    const double alone = std::max(0.0, stretch.begin - now);
    if (work_us <= alone) break;
    work_us -= alone;
    now = std::max(now, stretch.begin);
    const double shared = std::min(work_us / share, stretch.end - now);
    if (shared <= 0) continue;
    work_us -= shared * share;
    now += shared;
  }
  return now + work_us;
}

/// The clock rate falls in a pass that computes for long; the compute time is that of the visible
/// pairs at full speed.
void PassClock::find_slow_downs() {
  const double pairs_us =
      tiles_.whole_us / tiles_.tile_rows / tiles_.tile_keys / cluster_.device.multiprocessors;
  IdVector<RankId, double> busy_us(plan_.home.size());
  for (const ComputeItem& item : pass_.computes)
    busy_us[item.rank] += static_cast<double>(item.visible_pairs) * pairs_us;
  slow_down_.clear();
  for (const double us : busy_us) slow_down_.push_back(1.0 / cluster_.device.speed_share(us));
}

/// Device time of an item of a decode step, which is that of reading K and V; 0 for other items.
double PassClock::read_us(const ComputeItem& item) const {
  if (stack_.read_gb_s <= 0 || direction_ == Direction::backward || kernel_.bits > 16) return 0.0;
  const Attention& attention = plan_.scenario.attention;
  const int32_t most_rows = most_decode_rows(attention.head_dim_qk, attention.head_dim_v);
  // Most items have too many pairs or many rows in a slice; the sums of theirs are not needed.
  if (item.visible_pairs > most_rows * plan_.rows(item.kv_tokens) * item.heads.size()) return 0.0;
  const std::span<const BandSlice> slices = plan_.slices_of(item);
  if (std::any_of(slices.begin(), slices.end(),
                  [&](const BandSlice& slice) { return slice.q1 - slice.q0 > most_rows; }))
    return 0.0;
  const SliceSums sums = sum_slices(slices);
  if (!is_for_decode(sums, plan_.rows(item.kv_tokens), most_rows)) return 0.0;
  // Rows that are expanded are read as the keys and values of every head.
  const bool is_expanded = attention.expands_rows();
  const int64_t lanes = is_expanded ? attention.head_dim_qk + attention.head_dim_v
                                    : lanes_of(BufferKind::kv, attention);
  const int64_t heads = is_expanded ? item.heads.size() : kv_heads_of(attention, item.heads).size();
  const double us =
      static_cast<double>(kernel_.bits / 8 * sums.keys * heads * lanes) / stack_.read_gb_s * 1e-3;
  return kernel_.is_latent ? std::max(us, packed_us(item, slices)) + tiles_.owned_us : us;
}

/// Device time of the products of an item of a decode step of latent attention: all query heads
/// read the same keys, so that many heads make more work than reading does. A tile has 64 rows,
/// query rows times heads; each multiprocessor has about one, with a part of the keys.
double PassClock::packed_us(const ComputeItem& item, std::span<const BandSlice> slices) const {
  constexpr int64_t kRows = 64;
  double tiles = 0;  // of the fitted shape
  for (const BandSlice& slice : slices) {
    const int64_t rows = int64_t{slice.q1 - slice.q0} * item.heads.size(),
                  whole = (rows + kRows - 1) / kRows * kRows;
    tiles += static_cast<double>(whole) / tiles_.tile_rows *
             static_cast<double>(sum_slices({&slice, 1}).keys) / tiles_.tile_keys;
  }
  return tiles * tiles_.whole_us / cluster_.device.multiprocessors;
}

/// Device time of making the keys and values of an item's heads of latent rows, and in the backward
/// of the gradient of these rows; 0 where none are expanded.
double PassClock::expansion_us(const ComputeItem& item) const {
  const Attention& attention = plan_.scenario.attention;
  if (!attention.expands_rows()) return 0.0;
  // Of the products that attention makes in the same time: 32 heads of 192/128 from 512 elements,
  // one H200 (kernels/README.md).
  constexpr double kRateShare = 0.25;
  const bool is_backward = direction_ == Direction::backward;
  const double pair = is_backward ? 3.0 * attention.head_dim_qk + 2.0 * attention.head_dim_v
                                  : attention.head_dim_qk + attention.head_dim_v;
  const double products_per_us = pair * static_cast<double>(tiles_.tile_rows) *
                                 static_cast<double>(tiles_.tile_keys) / tiles_.whole_us *
                                 cluster_.device.multiprocessors * kRateShare;
  const double products = static_cast<double>(plan_.rows(item.kv_tokens)) * item.heads.size() *
                          attention.latent_dim * (attention.latent_nope_dim + attention.head_dim_v);
  return (is_backward ? 2.0 : 1.0) * products / products_per_us;
}

/// Device time of a compute item's tiles at full speed. Every round needs it again, so it is
/// cached.
double PassClock::tiles_us(int64_t index) {
  double* known = tiles_us_.empty() ? nullptr : &tiles_us_[static_cast<size_t>(index)];
  if (known != nullptr && *known >= 0) return *known;
  const ComputeItem& item = pass_.computes[static_cast<size_t>(index)];
  // Ranks that exchange heads share their slices, which may be a hundred million, and are next to
  // each other.
  const PricedWork work{
      item.first_slice,          item.num_slices,
      plan_.rows(item.q_tokens), plan_.rows(item.kv_tokens),
      item.heads.size(),         kv_heads_of(plan_.scenario.attention, item.heads).size()};
  if (last_work_ != work) {
    last_work_us_ = count_tiles_us(item);
    last_work_ = work;
  }
  if (known != nullptr) *known = last_work_us_;
  return last_work_us_;
}

double PassClock::count_tiles_us(const ComputeItem& item) {
  double us = read_us(item);
  if (us == 0.0) {
    const TileWork work =
        counter_.count(plan_.slices_of(item), plan_.rows(item.q_tokens), item.heads.size());
    us = spread_us(work, cluster_.device.multiprocessors, tiles_.tail_share);
  }
  return us + expansion_us(item);
}

/// Host time of one call and one merge per rank of keys.
double PassClock::calls_us() const {
  const double call_us =
      direction_ == Direction::backward ? stack_.backward_call_us : stack_.call_us;
  return (2.0 * static_cast<double>(plan_.home.size()) - 1.0) * call_us;
}

/// Device time of these merges.
double PassClock::merges_us(const ComputeItem& item) const {
  const double bytes = bytes_of(direction_ == Direction::backward ? item.dq : item.out);
  return (static_cast<double>(plan_.home.size()) - 1.0) *
         (stack_.row_launch_us + copy_us(stack_.merge_passes * bytes));
}

void PassClock::run_item(int64_t index, const ComputeItem& item) {
  if (item.num_slices == 0) return;
  Lane& lane = lanes_[item.rank];
  ClockTime start = begin_on_compute(lane);
  const ClockTime enqueued = start;
  wait_for_buffers(item, start);
  const double us = tiles_us(index) * slow_down_[item.rank];
  double end_us = 0;
  if (cuts_inputs_) {
    const double whole_us = start.us;
    start = enqueued;
    visit_reads(item, [&](BufferId id) {
      const double first_us = first_piece_us_[id];
      start.raise(first_us > 0 ? ClockTime{first_us, written_[id].event} : written_[id]);
    });
    end_us = std::max(beside_transfers(lane, start.us + tiles_.launch_us, us),
                      whole_us + piece_share(item) * us);
  } else {
    end_us = beside_transfers(lane, start.us + tiles_.launch_us, us);
  }
  if (stack_.calls_by_rank && plan_.scenario.parallel.comm_type == CommType::all_gather)
    end_us = std::max(end_us + merges_us(item), start.us + calls_us());
  const ClockTime end = enter(StageKind::compute, index, item.rank, item.step, start, end_us);
  lane.compute = end;
  lane.computes.push_back({start.us, end_us, lane.host.us});
  lane.launch_us += tiles_.launch_us;
  mark_buffers(item, end);
}

/// Kernels of a pass that computes once for long enough begin before all heads are there.
void PassClock::find_cuts() {
  // A piece costs some ten microseconds.
  constexpr double kShortUs = 150;
  once_.clear();
  cuts_inputs_ = false;
  if (!stack_.cuts_heads || !stack_.overlaps) return;
  const auto stage = std::find_if(pass_.stages.begin(), pass_.stages.end(),
                                  [](const Stage& s) { return s.kind == StageKind::compute; });
  if (stage == pass_.stages.end()) return;
  IdVector<RankId, int64_t> once(plan_.home.size());
  for (int64_t& index : once) index = -1;
  for (size_t i = 0; i < pass_.computes.size(); ++i) {
    const ComputeItem& item = pass_.computes[i];
    if (item.num_slices == 0) continue;
    if (once[item.rank] >= 0) return;
    once[item.rank] = static_cast<int64_t>(i);
  }
  // Tiles are counted only for a pass that computes once.
  if (std::none_of(once.begin(), once.end(),
                   [&](int64_t index) { return index >= 0 && tiles_us(index) >= kShortUs; }))
    return;
  once_ = std::move(once);
  // Row statistics of the backward read all of d_out first.
  cuts_inputs_ = std::all_of(pass_.stages.begin(), stage, [&](const Stage& before) {
    if (before.kind == StageKind::reorder) return stack_.fuses_rows;
    return before.kind == StageKind::transfer &&
           std::none_of(pass_.transfers.begin() + before.begin,
                        pass_.transfers.begin() + before.end,
                        [](const TransferItem& item) { return item.payload == Payload::d_out; });
  });
}

double PassClock::piece_share(const ComputeItem& item) const {
  const HeadRange kv = kv_heads_of(plan_.scenario.attention, item.heads);
  return static_cast<double>(std::max(1, kv.size() / 4)) / kv.size();
}

double PassClock::late_share(RankId rank) const {
  if (once_[rank] < 0) return 1;
  const Attention& attention = plan_.scenario.attention;
  const int32_t heads = pass_.computes[static_cast<size_t>(once_[rank])].heads.size();
  // Gradients of keys need whole groups.
  const int32_t together =
      direction_ == Direction::backward ? attention.heads / attention.kv_heads : 1;
  const int32_t last = (std::max(1, heads / 4) + together - 1) / together * together;
  return 3 * last > heads ? 1.0 : static_cast<double>(last) / heads;
}

/// Work of the compute stream other than attention.
template <class Item>
void PassClock::local(StageKind kind, int64_t index, const Item& item, double us) {
  Lane& lane = lanes_[item.rank];
  ClockTime start = begin_on_compute(lane);
  wait_for_buffers(item, start);
  const double end_us = start.us + us;
  lane.compute = enter(kind, index, item.rank, item.step, start, end_us);
  lane.locals.push_back({start.us, end_us, lane.host.us});
  mark_buffers(item, lane.compute);
}

void PassClock::run_item(int64_t index, const ReorderItem& item) {
  if (stack_.fuses_rows) {
    first_piece_us_[item.to] = first_piece_us_[item.from];
    return pass_on(item);
  }
  local(StageKind::reorder, index, item, stack_.row_launch_us + copy_us(2 * bytes_of(item.to)));
}

/// A compute's own result, which its kernel adds to what is there. Those of other ranks are merged
/// by a kernel of their own.
bool PassClock::is_fused(const MergeItem& item) const {
  return stack_.fuses_rows && direction_ == Direction::forward &&
         (item.partial == kNoBuffer || plan_.buffer(item.partial).role == BufferRole::partial);
}

void PassClock::run_item(int64_t index, const MergeItem& item) {
  if (is_fused(item)) return pass_on(item);
  double bytes = bytes_of(item.into);
  double passes = 1.0;  // the row saw nothing: zeros are written
  if (item.partial != kNoBuffer) {
    bytes = std::min(bytes, bytes_of(item.partial));
    passes = item.order == 0 ? stack_.first_merge_passes : stack_.merge_passes;
  }
  // With 0 passes the first partial is the accumulator, and nothing is launched.
  local(StageKind::merge, index, item,
        passes > 0 ? stack_.row_launch_us + copy_us(passes * bytes) : 0.0);
}

void PassClock::run_item(int64_t index, const FinishItem& item) {
  // The last merge finishes the rows.
  if (stack_.fuses_rows && direction_ == Direction::forward) return;
  local(StageKind::finish, index, item, stack_.row_launch_us + copy_us(2 * bytes_of(item.buffer)));
}

void PassClock::run_stage(const Stage& stage) {
  if (stage.kind == StageKind::transfer) return run_transfers(stage);
  for_each_item(pass_, direction_, stage,
                [&](const ItemId& id, const auto& item) { run_item(id.index, item); });
}

/// Length of the gaps, in which neither stream of a rank is busy, as far as the item after the gap
/// was not enqueued yet.
double PassClock::host_gaps_us(std::vector<BusyTime> busy, const std::vector<BusyTime>& transfers) {
  busy.insert(busy.end(), transfers.begin(), transfers.end());
  double sum = 0, end = 0;
  for (const BusyTime& stretch : joined(std::move(busy))) {
    sum += std::clamp(stretch.enqueued - end, 0.0, stretch.begin - end);
    end = stretch.end;
  }
  return sum;
}

std::vector<BusyTime> PassClock::all_transfers(const Lane& lane) {
  std::vector<BusyTime> all = lane.transfers;
  all.insert(all.end(), lane.outer_transfers.begin(), lane.outer_transfers.end());
  return all;
}

RankTimes PassClock::times_of(const Lane& lane, double total_us) const {
  const std::vector<BusyTime> computes = joined(lane.computes);
  const std::vector<BusyTime> transfers = joined(all_transfers(lane));
  std::vector<BusyTime> busy = lane.locals;
  busy.insert(busy.end(), computes.begin(), computes.end());
  busy = joined(std::move(busy));
  RankTimes times;
  times.compute_us = length_of(computes);
  times.local_us = length_of(busy) - times.compute_us;
  times.transfer_us = length_of(transfers);
  times.exposed_us = uncovered_us(transfers, busy);
  times.idle_us = total_us - length_of(busy) - times.exposed_us;
  times.launch_us = lane.launch_us;
  times.partner_us = uncovered_us(joined(lane.partner_waits), busy);
  times.groups_us = lane.groups_us;
  times.host_us = stack_.pass_us + host_gaps_us(busy, transfers);
  return times;
}

CriticalPath PassClock::find_critical_path(const ClockTime& last, double total_us) const {
  CriticalPath path;
  if (last.event == kNoEvent) return path;
  double busy = 0;
  for (int64_t event = last.event; event != kNoEvent;) {
    const ItemEvent& item = timeline_.events[static_cast<size_t>(event)];
    path.events.push_back(event);
    const int64_t before = before_[static_cast<size_t>(event - first_event_)];
    // An item may have begun to pack before the item that it waited for ended.
    const int64_t begin =
        before == kNoEvent
            ? item.start_ns
            : std::max(item.start_ns, timeline_.events[static_cast<size_t>(before)].end_ns);
    const double us = static_cast<double>(std::max<int64_t>(0, item.end_ns - begin)) * 1e-3;
    path.kind_us[static_cast<size_t>(item.item.kind)] += us;
    busy += us;
    event = before;
  }
  std::reverse(path.events.begin(), path.events.end());
  path.waiting_us = std::max(0.0, total_us - busy);
  return path;
}

/// Starts a new round, with the transfer times of the round before.
void PassClock::begin(IdVector<RankId, Lane> before) {
  timeline_.events.resize(static_cast<size_t>(first_event_));
  before_.clear();
  lanes_.assign(plan_.home.size(), Lane());
  for (const RankId rank : before.ids()) lanes_[rank].beside = joined(all_transfers(before[rank]));
  written_.assign(plan_.buffers.size(), ClockTime());
  read_.assign(plan_.buffers.size(), ClockTime());
  round_begin_us_ = 0;
  first_piece_us_.assign(plan_.buffers.size(), 0.0);
}

ClockTime PassClock::end() const {
  ClockTime last;
  for (const Lane& lane : lanes_) {
    last.raise(lane.compute);
    last.raise(lane.transfer);
    last.raise(lane.outer);
  }
  return last;
}

/// A round of cp_sizes begins on all ranks when the one before has ended on all: Megatron has a
/// barrier there.
void PassClock::wait_for_round(const Stage& before, const Stage& stage) {
  if (rounds_.empty() || rounds_[static_cast<size_t>(to_index(before.step))] ==
                             rounds_[static_cast<size_t>(to_index(stage.step))])
    return;
  end_round(before.step);
  const ClockTime barrier = end();
  round_begin_us_ = barrier.us;
  for (Lane& lane : lanes_) {
    for (ClockTime* const stream : {&lane.compute, &lane.transfer, &lane.outer})
      stream->raise(barrier);
  }
}

/// Counts how long the ranks of each group wait for the slowest group of the round; ranks without a
/// group wait for all of it.
void PassClock::end_round(StepId last_step) {
  if (rounds_.empty()) return;
  const double end_us = end().us;
  IdVector<RankId, double> group_end_us(lanes_.size(), round_begin_us_);
  const auto round = static_cast<size_t>(rounds_[static_cast<size_t>(to_index(last_step))]);
  for (const CpGroup& group : plan_.layout.rounds[round].groups) {
    double last_us = round_begin_us_;
    for (int32_t r = group.first_rank; r < group.first_rank + group.size; ++r) {
      const Lane& lane = lanes_[RankId{r}];
      last_us = std::max({last_us, lane.compute.us, lane.transfer.us, lane.outer.us});
    }
    for (int32_t r = group.first_rank; r < group.first_rank + group.size; ++r)
      group_end_us[RankId{r}] = last_us;
  }
  for (const RankId rank : lanes_.ids()) lanes_[rank].groups_us += end_us - group_end_us[rank];
}

PassTimeline PassClock::run() {
  PassTimeline result;
  if (pass_.stages.empty()) {
    result.ranks.resize(plan_.home.size());
    return result;
  }
  first_event_ = static_cast<int64_t>(timeline_.events.size());
  const bool slows = stack_.overlaps && stack_.transfer_multiprocessors > 0;
  double total_us = -1;
  find_slow_downs();
  if (slows) tiles_us_.assign(pass_.computes.size(), -1.0);
  find_cuts();
  // A transfer may begin during a compute that was enqueued before it, so the first round does not
  // know all transfers that slow a compute. Later rounds use the transfers of the round before.
  for (int round = 0; round < (slows ? kMostRounds : 1); ++round) {
    begin(round == 0 ? IdVector<RankId, Lane>() : std::move(lanes_));
    for (size_t s = 0; s < pass_.stages.size(); ++s) {
      if (s > 0) wait_for_round(pass_.stages[s - 1], pass_.stages[s]);
      run_stage(pass_.stages[s]);
    }
    end_round(pass_.stages.back().step);
    const double now = end().us;
    if (std::abs(now - total_us) <= kSettled * now) break;
    total_us = now;
  }
  const ClockTime last = end();
  result.total_us = last.us + stack_.pass_us;
  for (const Lane& lane : lanes_) result.ranks.push_back(times_of(lane, result.total_us));
  result.critical = find_critical_path(last, result.total_us);
  return result;
}

}  // namespace cpscope
