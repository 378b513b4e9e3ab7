#include "kernels/run/nccl_run.h"

#include "kernels/group/byte_stream.h"
#include "kernels/group/group_message.h"
#include "kernels/run/rank_results.h"
#include "sim/run/dtype.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <new>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

// Steps that are enqueued ahead of the running one: enough to keep a device busy, few enough that
// its launch queue never fills and blocks the thread that must notice failures.
constexpr size_t kStepsAhead = 2;

// Repeats whose items are measured; one of them is kept.
constexpr int32_t kMeasuredRepeats = 3;

/// Adds the names of the kernels of a device's own items to those of other devices.
void add_names(const std::vector<std::string>& own, std::vector<std::string>& all) {
  all.resize(own.size());
  for (size_t i = 0; i < own.size(); ++i) {
    if (!own[i].empty()) all[i] = own[i];
  }
}

/// True if items are measured in separate repeats: their events cost host time that must not count
/// in the times of passes. Not with an observer, which sees all repeats.
bool has_own_repeats(const RunOptions& options) {
  return options.measures_items && options.repeats > 1 && !options.observer;
}

int64_t num_repeats(const RunOptions& options) {
  const int64_t repeats = std::max(1, options.repeats);
  return has_own_repeats(options) ? repeats + kMeasuredRepeats : repeats;
}

bool is_in_order(const CheckedPlan& checked) { return !checked.admitted_because().empty(); }

/// The lowest compute capability of this process's devices. Processes are expected to have the same
/// devices.
int32_t lowest_capability(const NcclGroup& nccl) {
  int32_t lowest = std::numeric_limits<int32_t>::max();
  for (int32_t rank = nccl.first_rank(); rank < nccl.end_rank(); ++rank)
    lowest = std::min(lowest, describe_device(nccl.device_of(rank)).compute_capability);
  return lowest;
}

/// A piece costs some ten microseconds of launches, waits and idle multiprocessors; a pass that is
/// not much longer stays whole.
HeadPieces pieces_of(const Plan& plan, Wire wire, std::optional<int32_t> most) {
  if (wire != Wire::copies) return {};
  // Set explicitly: any size is allowed.
  if (most) return {*most, 1};

  constexpr double kShortPass = 150e-6, kFlopsPerSecond = 600e12;
  const Attention& attention = plan.scenario.attention;
  double pairs = 0;
  for (const ComputeItem& item : plan.forward.computes)
    pairs += static_cast<double>(item.visible_pairs);
  const double seconds = 2.0 * (attention.head_dim_qk + attention.head_dim_v) * pairs /
                         static_cast<double>(plan.home.size()) / kFlopsPerSecond;
  return {seconds < kShortPass ? 1 : Arrivals::kMostPieces};
}

Fp8Amax larger_of(const Fp8Amax& a, const Fp8Amax& b) {
  return {std::max(a.qkv, b.qkv), std::max(a.d_out, b.d_out)};
}

Bytes to_message(const Fp8Amax& amax) {
  Bytes bytes;
  put(bytes, amax);
  return bytes;
}

/// Number of stages up to and including the first computes.
size_t num_stages_to_compute(const Pass& pass) {
  const auto found = std::find_if(pass.stages.begin(), pass.stages.end(), [](const Stage& stage) {
    return stage.kind == StageKind::compute;
  });
  return static_cast<size_t>(found - pass.stages.begin()) + 1;
}

}  // namespace

NcclRun::NcclRun(const CheckedPlan& checked, const RunOptions& options, NcclGroup& nccl,
                 const Ways& ways, int64_t run)
    : checked_(checked),
      options_(options),
      nccl_(nccl),
      // A faulty plan may read what it writes, so its items run one after another.
      wire_(is_in_order(checked) ? Wire::nccl : ways.wire),
      generation_(ways.generation),
      lowered_(lower_for_devices(checked, options,
                                 {.generation = generation_,
                                  .compute_capability = lowest_capability(nccl),
                                  .pieces = pieces_of(checked.plan(), wire_, ways.most_pieces),
                                  .adds_shares = wire_ == Wire::copies,
                                  .without = ways.without})),
      plan_(lowered_.plan),
      run_(run),
      watch_(options.control,
             (plan_.forward.num_items() + plan_.backward.num_items()) * num_repeats(options)) {}

void NcclRun::publish(Activity activity, int32_t step) {
  const WorkPoint point{run_, activity, step};
  if (point == published_) return;
  published_ = point;
  nccl_.processes().publish(point);
}

std::string NcclRun::agree(const std::string& complaint) {
  const std::vector<Bytes> all = value_or_stop(nccl_.processes().gather(to_bytes(complaint)));
  const auto found =
      std::find_if(all.begin(), all.end(), [](const Bytes& bytes) { return !bytes.empty(); });
  return to_string(
      value_or_stop(nccl_.processes().broadcast(found == all.end() ? Bytes{} : *found)));
}

bool NcclRun::agree_to_cancel() {
  // No process may leave alone: the others would wait for its transfers.
  if (can_be_cancelled_ && !is_cancelled_)
    is_cancelled_ = !agree(watch_.is_cancelled() ? "cancelled" : "").empty();
  return is_cancelled_;
}

void NcclRun::barrier() { value_or_stop(nccl_.processes().barrier()); }

std::string NcclRun::prepare(const RunInputs& inputs) {
  publish(Activity::preparing);
  if (wire_ == Wire::copies)
    swaps_ = {find_swaps(Direction::forward), find_swaps(Direction::backward)};
  // Different files on different hosts would show only as wrong numbers, or not at all.
  const std::string hash = to_hex(plan_.hash);
  const std::string first = to_string(value_or_stop(nccl_.processes().broadcast(to_bytes(hash))));
  std::string complaint;
  if (hash != first) {
    complaint = fmt::format(
        "process {} has plan {}, process 0 has {}: start all with the same "
        "command, files and version",
        nccl_.processes().process(), hash, first);
  }
  complaint = agree(complaint);
  if (!complaint.empty()) return complaint;
  can_be_cancelled_ = !agree(options_.control.is_cancelled ? "can be cancelled" : "").empty();
  try {
    const auto num_ranks = static_cast<int32_t>(plan_.home.size());
    for (const RankId rank : ranks_of(nccl_.first_rank(), nccl_.end_rank())) {
      if (to_index(rank) >= num_ranks) continue;
      devices_.emplace_back(lowered_, rank, nccl_.device_of(to_index(rank)), options_, generation_,
                            wire_, is_in_order(checked_));
      if (const auto reason = devices_.back().why_too_large(); reason && complaint.empty())
        complaint = *reason;
      nccl_.check();
    }
    for (RankDevice& device : devices_) {
      if (!complaint.empty()) break;
      device.load(inputs);
      nccl_.check();
    }
  } catch (const GroupStopped&) {
    throw;
  } catch (const DeviceError& error) {
    complaint = error.what();
  } catch (const std::bad_alloc&) {
    complaint = "this machine does not give the host memory that the plan needs";
  }
  complaint = agree(complaint);
  if (complaint.empty() && plan_.scenario.numerics.fp8) quantise();
  return complaint;
}

/// All processes hold the same plan, so they all ask for the largest values of all ranks, or none
/// does.
void NcclRun::quantise() {
  Fp8Amax most;
  if (plan_.scenario.numerics.fp8->recipe == Fp8Recipe::current) {
    for (RankDevice& device : devices_) most = larger_of(most, device.find_amax());
    const std::vector<Bytes> all = value_or_stop(nccl_.processes().gather(to_message(most)));
    for (const Bytes& one : all) most = larger_of(most, ByteReader(one).take<Fp8Amax>());
    const Bytes agreed = value_or_stop(nccl_.processes().broadcast(to_message(most)));
    most = ByteReader(agreed).take<Fp8Amax>();
  }
  for (RankDevice& device : devices_) device.quantise(most);
}

Result<RunOutput> NcclRun::carry_out() {
  RunOutput output;
  barrier();
  for (RankDevice& device : devices_) device.start_clock();
  output.forward_seconds = run_pass(Direction::forward);
  if (is_cancelled_) return watch_.error("the run", "items");
  for (RankDevice& device : devices_) device.collect_forward(output.answer);
  if (plan_.scenario.numerics.backward) {
    output.backward_seconds = run_pass(Direction::backward);
    if (is_cancelled_) return watch_.error("the run", "items");
    for (RankDevice& device : devices_) device.collect_backward(output.answer);
  }
  for (RankDevice& device : devices_) {
    output.kernels = device.generation_text();
    const auto names = device.item_kernels();
    for (const Direction direction : kDirections)
      add_names(names[direction], output.item_kernels[direction]);
    output.list_seconds = std::max(output.list_seconds, device.list_seconds());
    output.tile_flops += device.tile_flops();
    for (const ItemEvent& event : device.events()) {
      output.events.push_back(event);
      if (event.item.kind == StageKind::compute)
        output.tile_seconds += static_cast<double>(event.end_ns - event.start_ns) * 1e-9;
    }
  }
  return output;
}

std::vector<double> NcclRun::run_pass(Direction direction) {
  const int32_t repeats = std::max(1, options_.repeats);
  const bool measures_apart = has_own_repeats(options_);
  if (direction == Direction::backward) {
    for (RankDevice& device : devices_) device.keep_inputs();
  }
  std::vector<double> seconds = run_repeats(direction, repeats, !measures_apart);
  const std::vector<double> measured =
      measures_apart ? run_repeats(direction, kMeasuredRepeats, true) : seconds;
  publish(Activity::finishing);
  // All processes keep the events of one repeat, which process 0 chooses.
  if (options_.measures_items && !is_cancelled_) {
    const auto repeats_ago = static_cast<int32_t>(measured.size()) - 1 - middle_of(measured);
    const Bytes chosen =
        value_or_stop(nccl_.processes().broadcast(to_bytes(fmt::to_string(repeats_ago))));
    for (RankDevice& device : devices_) device.keep_repeat(direction, std::stoi(to_string(chosen)));
  }
  return seconds;
}

std::vector<double> NcclRun::run_repeats(Direction direction, int32_t repeats,
                                         bool measures_items) {
  std::vector<double> seconds;
  for (int32_t repeat = 0; repeat < repeats && !is_cancelled_; ++repeat) {
    for (RankDevice& device : devices_) device.begin_pass(direction, measures_items);
    barrier();
    const auto start = std::chrono::steady_clock::now();
    publish(direction == Direction::backward ? Activity::backward : Activity::forward);
    run_stages(direction);
    wait_until_open(0);
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return seconds;
}

void NcclRun::run_stages(Direction direction) {
  const Pass& pass = plan_.pass(direction);
  if (direction == Direction::backward) {
    for (RankDevice& device : devices_) device.make_sent_statistics();
  }
  const auto end_step = [&](StepId step) {
    for (RankDevice& device : devices_) device.end_step(step);
    open_steps_.push_back(step);
    wait_until_open(kStepsAhead);
  };
  const bool is_cut = lowered_.notes[direction].is_cut;
  const size_t num_begun = is_cut ? num_stages_to_compute(pass) : 0;
  const std::vector<bool>& swaps = swaps_[direction];
  for (size_t s = 0; s < pass.stages.size(); ++s) {
    const Stage& stage = pass.stages[s];
    if (is_cut && s < num_begun) {
      if (s == 0) begin_in_pieces(direction);
    } else if (wire_ == Wire::copies) {
      if (swaps[s]) run_by_devices(pass.stages[s + 1]);
      if (s == 0 || !swaps[s - 1]) run_by_devices(stage);
    } else if (stage.kind == StageKind::transfer && !is_in_order(checked_)) {
      run_transfers(stage.begin, stage.end);
    } else {
      for (int64_t i = stage.begin; i < stage.end; ++i) {
        // A faulty plan may send data that it has just received.
        if (stage.kind == StageKind::transfer) {
          run_transfers(i, i + 1);
          continue;
        }
        for (RankDevice& device : devices_) device.enqueue(stage.kind, i);
      }
    }
    if (options_.observer) observe(stage);
    if (s + 1 == pass.stages.size() || pass.stages[s + 1].step != stage.step) end_step(stage.step);
    num_enqueued_ += stage.end - stage.begin;
    watch_.reach(num_enqueued_);
    if (agree_to_cancel()) return;
  }
}

/// Calls work(device) for all devices, each on its own thread unless work runs during the call: a
/// copy costs the host some microseconds, and the last device should not start only after the sum
/// of these.
template <class Work>
void NcclRun::each_device(Work work) {
  if (works_at_once() || devices_.size() == 1) {
    for (RankDevice& device : devices_) work(device);
    return;
  }
  by_threads([&](RankDevice& device, bool is_second) {
    if (!is_second) work(device);
  });
}

/// Calls work(device, is_second) on two threads for each device.
template <class Work>
void NcclRun::by_threads(Work work) {
  if (workers_ == nullptr) workers_ = std::make_unique<DeviceWorkers>(2 * devices_.size());
  workers_->run([&](size_t index) { work(devices_[index / 2], index % 2 != 0); });
}

/// Stages after which the next one is enqueued first, because the host needs time for transfers.
std::vector<bool> NcclRun::find_swaps(Direction direction) const {
  const std::vector<Stage>& stages = plan_.pass(direction).stages;
  std::vector<bool> swaps(stages.size(), false);
  for (size_t s = 0; s + 1 < stages.size(); ++s)
    swaps[s] = may_swap(stages[s], stages[s + 1], direction);
  return swaps;
}

/// True if computes may be enqueued before the transfers that precede them: they touch nothing that
/// the transfers write, and the transfers need no multiprocessor, for which they would wait.
bool NcclRun::may_swap(const Stage& transfers, const Stage& computes, Direction direction) const {
  if (transfers.kind != StageKind::transfer || computes.kind != StageKind::compute ||
      transfers.step != computes.step)
    return false;
  const Pass& pass = plan_.pass(direction);
  std::set<BufferId> read, written;
  for (int64_t i = computes.begin; i < computes.end; ++i) {
    const BufferUse use = uses_of(plan_, pass.computes[static_cast<size_t>(i)]);
    for (const BufferPart& part : use.reads) read.insert(part.buffer);
    for (const BufferPart& part : use.writes) written.insert(part.buffer);
  }
  for (int64_t i = transfers.begin; i < transfers.end; ++i) {
    const TransferItem& item = pass.transfers[static_cast<size_t>(i)];
    if (item.src == item.dst || !goes_straight(lowered_, item) || read.contains(item.to) ||
        written.contains(item.to) || written.contains(item.from))
      return false;
  }
  return true;
}

/// Runs a stage with copies.
void NcclRun::run_by_devices(const Stage& stage) {
  if (stage.kind == StageKind::transfer) {
    each_device([&](RankDevice& device) { device.send(stage.begin, stage.end, devices_); });
    each_device([&](RankDevice& device) { device.receive(stage.begin, stage.end, devices_); });
    return;
  }
  each_device([&](RankDevice& device) {
    for (int64_t i = stage.begin; i < stage.end; ++i) device.enqueue(stage.kind, i);
  });
}

void NcclRun::begin_in_pieces(Direction direction) {
  const Pass& pass = plan_.pass(direction);
  const Stage& computes = pass.stages[num_stages_to_compute(pass) - 1];
  const int32_t num_pieces = lowered_.notes[direction].num_pieces();
  const auto send = [&](RankDevice& device, int32_t first, int32_t last) {
    if (first == 0) device.push_first_piece(devices_);
    for (int32_t piece = std::max(first, 1); piece < last; ++piece)
      device.send_piece(piece, devices_);
  };
  const auto compute = [&](RankDevice& device) {
    for (int64_t i = computes.begin; i < computes.end; ++i) device.enqueue(StageKind::compute, i);
  };
  if (works_at_once()) {
    for (RankDevice& device : devices_) send(device, 0, num_pieces);
    for (RankDevice& device : devices_) compute(device);
    return;
  }
  // Kernels wait for arriving pieces, and their transfers need no multiprocessors, or have them
  // already. So all devices compute as soon as one piece has arrived, however long the host takes
  // for the others.
  bool& is_loaded = is_loaded_[direction];
  if (is_loaded) {
    by_threads([&](RankDevice& device, bool is_second) {
      if (is_second) return send(device, 1, num_pieces);
      send(device, 0, 1);
      compute(device);
    });
    return;
  }
  // At the first launch CUDA loads the kernel, which may wait for other work, and launches of other
  // threads wait for that one. So all devices send everything before any computes.
  each_device([&](RankDevice& device) { send(device, 0, num_pieces); });
  each_device(compute);
  is_loaded = true;
}

void NcclRun::run_transfers(int64_t begin, int64_t end) {
  int64_t num_messages = 0;
  for (RankDevice& device : devices_) num_messages += device.pack(begin, end);
  if (num_messages > 0) {
    nccl_.begin();
    for (RankDevice& device : devices_) device.post(nccl_);
    nccl_.end();
  }
  for (RankDevice& device : devices_) device.unpack();
}

/// Waits until at most `most_steps` steps are running, and reports the progress of this process to
/// the group.
void NcclRun::wait_until_open(size_t most_steps) {
  PollPause pause;
  while (true) {
    std::optional<StepId> oldest;
    for (RankDevice& device : devices_) {
      const std::optional<StepId> open = device.open_step();
      if (open && (!oldest || *open < *oldest)) oldest = open;
    }
    while (!open_steps_.empty() && (!oldest || open_steps_.front() < *oldest))
      open_steps_.pop_front();
    if (oldest) publish(published_.activity, to_index(*oldest));
    nccl_.check();
    if (open_steps_.size() <= most_steps) return;
    pause.wait();
  }
}

void NcclRun::observe(const Stage& stage) {
  std::vector<ItemResult> results;
  for (int64_t i = stage.begin; i < stage.end; ++i) {
    for (RankDevice& device : devices_) {
      for (ItemResult& result : device.read_results(stage.kind, i))
        results.push_back(std::move(result));
    }
  }
  const std::vector<Bytes> others = value_or_stop(nccl_.processes().gather(encode_items(results)));
  for (size_t process = 1; process < others.size(); ++process) {
    for (ItemResult& result : decode_items(others[process])) results.push_back(std::move(result));
  }
  if (nccl_.processes().process() != 0) return;
  std::stable_sort(results.begin(), results.end(), [](const ItemResult& a, const ItemResult& b) {
    return a.item.index < b.item.index;
  });
  for (const ItemResult& result : results) options_.observer(result);
}

std::vector<RankId> NcclRun::ranks_of(int32_t first, int32_t end) const {
  std::vector<RankId> ranks;
  for (int32_t rank = first; rank < std::min(end, static_cast<int32_t>(plan_.home.size())); ++rank)
    ranks.push_back(RankId{rank});
  return ranks;
}

void NcclRun::gather(RunOutput& output) {
  publish(Activity::finishing);
  ProcessGroup& processes = nccl_.processes();
  const std::vector<RankId> here = ranks_of(nccl_.first_rank(), nccl_.end_rank());
  output.is_whole = processes.process() == 0;
  // Process 0 already has its own results.
  const std::vector<Bytes> all = value_or_stop(
      processes.gather(output.is_whole ? Bytes{} : encode_results(checked_.plan(), here, output)));
  for (size_t process = 1; process < all.size(); ++process) {
    const RankRange range = nccl_.ranks_of_process(static_cast<int32_t>(process));
    const std::vector<RankId> there = ranks_of(range.first, range.end);
    if (!add_results(checked_.plan(), there, all[process], output))
      throw DeviceError(
          fmt::format("the answers of process {} are not those of the plan", process));
  }
  round_values(plan_.scenario.numerics.dtype, output.answer.dbias.values);
  barrier();
}

std::string NcclRun::find_broken_guard() {
  std::string broken;
  for (RankDevice& device : devices_) {
    if (broken.empty()) broken = device.find_broken_guard();
  }
  return agree(broken);
}

}  // namespace cpscope::kernels
