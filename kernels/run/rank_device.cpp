#include "kernels/run/rank_device.h"

#include "sim/base/machine_memory.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

/// Alignment of messages in staging.
constexpr int64_t kBufferAlignment = 256;

IdVector<RankId, bool> only(const Plan& plan, RankId rank) {
  IdVector<RankId, bool> is_here(plan.home.size(), false);
  is_here[rank] = true;
  return is_here;
}

/// Selects the device too, because later members are made on it.
DeviceInfo select_and_describe(int device) {
  select_device(device);
  return describe_device(device);
}

}  // namespace

RankDevice::RankDevice(const LoweredPlan& lowered, RankId rank, int device,
                       const RunOptions& options, std::optional<Generation> generation, Wire wire,
                       bool is_in_order)
    : lowered_(lowered),
      plan_(lowered.plan),
      options_(options),
      rank_(rank),
      device_(device),
      is_in_order_(is_in_order),
      info_(select_and_describe(device)),
      engine_(lowered, only(plan_, rank), info_.compute_capability,
              {.poison = options.poison,
               .generation = generation,
               .threads = options.threads,
               .repeats = options.repeats > 1,
               .has_own_device = true}),
      transfer_stream_(Urgency::urgent),
      hazards_(plan_) {
  wire == Wire::copies ? plan_copies() : plan_staging();
}

int64_t RankDevice::align(int64_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

RankDevice::~RankDevice() {
  // Memory, streams and events must be released on the device on which they were made.
  try {
    select_device(device_);
  } catch (const DeviceError&) {
    // If the device is gone, its resources are gone too.
  }
}

void RankDevice::plan_staging() {
  int64_t most_sent = 0, most_received = 0;
  for (const Pass* pass : {&plan_.forward, &plan_.backward}) {
    for (const Stage& stage : pass->stages) {
      if (stage.kind != StageKind::transfer) continue;
      int64_t sent = 0, received = 0;
      for (int64_t i = stage.begin; i < stage.end; ++i) {
        const TransferItem& item = pass->transfers[i];
        if (item.src == item.dst) continue;
        if (item.src == rank_) sent += align(item.bytes);
        if (item.dst == rank_) received += align(item.bytes);
      }
      most_sent = std::max(most_sent, sent);
      most_received = std::max(most_received, received);
    }
  }
  reserve_staging(most_sent, most_received);
}

void RankDevice::reserve_staging(int64_t sent, int64_t received) {
  send_staging_ = staging_.reserve(fmt::format("rank {} sent", to_index(rank_)), sent);
  receive_staging_ = staging_.reserve(fmt::format("rank {} received", to_index(rank_)), received);
}

std::optional<std::string> RankDevice::why_too_large() const {
  const int64_t needed = engine_.device_bytes() + staging_.total_bytes();
  if (needed <= info_.free_bytes) return std::nullopt;
  return fmt::format("rank {} of the plan needs {:.2f} GiB, GPU {} ({}) has {:.2f} GiB free",
                     to_index(rank_), gibibytes(needed), device_, info_.name,
                     gibibytes(info_.free_bytes));
}

void RankDevice::load(const RunInputs& inputs) {
  select_device(device_);
  engine_.allocate(compute_stream());
  staging_.allocate(options_.poison ? 0xff : 0x46, compute_stream());
  if (numbers_ >= 0) {
    std::array<int32_t, kNumbers> numbers;
    std::iota(numbers.begin(), numbers.end(), 0);
    copy_to_device(staging_.at<int32_t>(numbers_), numbers.data(), sizeof numbers,
                   compute_stream());
    fill_bytes(staging_.at<int32_t>(num_pushed_), 0, kPushedBytes, compute_stream());
  }
  engine_.load(inputs, compute_stream());
  wait_for_stream(compute_stream());
}

Fp8Amax RankDevice::find_amax() {
  select_device(device_);
  return engine_.fp8().find_amax(compute_stream());
}

void RankDevice::quantise(const Fp8Amax& amax) {
  select_device(device_);
  engine_.fp8().quantise(amax, compute_stream());
}

void RankDevice::start_clock() {
  // An event belongs to the device that was selected when it was made.
  select_device(device_);
  for (auto* clock : {&clock_, &piece_clock_})
    clock->emplace(options_.measures_items, transfer_stream());
  engine_.report_casts_to(&*clock_);
}

std::vector<ItemEvent> RankDevice::events() {
  select_device(device_);
  std::vector<ItemEvent> events = clock_->read();
  const std::vector<ItemEvent> pieces = piece_clock_->read();
  events.insert(events.end(), pieces.begin(), pieces.end());
  return planned_events(lowered_, events);
}

void RankDevice::begin_pass(Direction direction, bool measures_items) {
  select_device(device_);
  direction_ = direction;
  ++pass_number_;
  engine_.begin_pass(pass_value());
  if (direction == Direction::backward) {
    engine_.move_kept_inputs(false, compute_stream());
    engine_.clear_bias_gradient(compute_stream());
    wait_for_stream(compute_stream());
  }
  computed_.reset();
  sent_.assign(pass().transfers.size(), {});
  for (auto* clock : {&clock_, &piece_clock_}) {
    (*clock)->turn(measures_items);
    (*clock)->begin_repeat();
  }
}

void RankDevice::make_sent_statistics() {
  select_device(device_);
  const BufferUse use = RankEngine::sent_statistics_use(plan_, rank_);
  hazards_.begin(use, compute_stream());
  engine_.make_sent_statistics(rank_, compute_stream());
  hazards_.end(use, compute_stream());
}

void RankDevice::keep_inputs() {
  select_device(device_);
  engine_.move_kept_inputs(true, compute_stream());
  wait_for_stream(compute_stream());
}

void RankDevice::keep_repeat(Direction direction, int32_t repeats_ago) {
  for (auto* clock : {&clock_, &piece_clock_})
    (*clock)->keep_only(direction, (*clock)->repeat() - repeats_ago);
}

template <class Work>
void RankDevice::enqueue_item(const ItemId& id, StepId step, const BufferUse& use, Stream stream,
                              Work work) {
  hazards_.begin(use, stream);
  clock_->start(stream);
  work();
  clock_->stop(id, rank_, step, stream);
  hazards_.end(use, stream);
}

void RankDevice::enqueue(StageKind kind, int64_t index) {
  select_device(device_);
  const auto run = [&](const auto& item) {
    if (rank_of(item) != rank_) return;
    const Stream stream = compute_stream();
    enqueue_item({direction_, kind, index}, item.step, uses_of(plan_, item), stream,
                 [&] { engine_.run(item, stream); });
  };
  visit_item(pass(), kind, index,
             Overload{[](const TransferItem&) {},  // in three parts, below
                      [&](const ComputeItem& item) {
                        if (item.rank == rank_ && item.num_slices > 0) compute(item, index);
                      },
                      run});
}

/// Enqueues a compute item. If an item is in two parts, the CTAs of the second start when those of
/// the first end, not before: they would occupy multiprocessors while they wait for the last
/// inputs. If the first part ends with a kernel that adds up parts, the second runs after it:
/// otherwise that kernel would have no multiprocessors, and the first part's results would be late.
void RankDevice::compute(const ComputeItem& item, int64_t index) {
  const std::vector<ComputeNote>& notes = lowered_.notes[direction_].computes;
  const int64_t origin = notes[static_cast<size_t>(index)].origin;
  const bool is_rest = computed_ == origin;
  const bool is_first_of_two =
      !is_rest && std::any_of(notes.begin() + index + 1, notes.end(),
                              [&](const ComputeNote& later) { return later.origin == origin; });
  computed_ = origin;
  const bool is_beside = direction_ == Direction::forward || !engine_.adds_parts(item);
  const Stream stream = is_rest && is_beside ? late_stream_.get() : compute_stream();
  if (is_rest && is_beside) wait_for_flag(stream, engine_.begun_flag(), pass_value());
  enqueue_item({direction_, StageKind::compute, index}, item.step, uses_of(plan_, item), stream,
               [&] { engine_.run(item, stream, is_first_of_two && is_beside); });
}

std::vector<Stream> RankDevice::streams() const {
  return {compute_stream_.get(), transfer_stream_.get(), result_stream_.get(),
          packing_stream_.get(), landing_stream_.get(),  late_stream_.get()};
}

int64_t RankDevice::pack(int64_t begin, int64_t end) {
  select_device(device_);
  sends_.clear();
  landings_.clear();
  int64_t sent = 0, received = 0, num_received = 0;
  for (int64_t i = begin; i < end; ++i) {
    const TransferItem& item = pass().transfers[i];
    const ItemId id{direction_, StageKind::transfer, i};
    if (item.src == item.dst) {
      if (item.src == rank_) landings_.push_back({&item, id, 0});
      continue;
    }
    if (item.bytes == 0) continue;  // an empty message would only cost its latency
    if (item.src == rank_) {
      CPSCOPE_CHECK(engine_.wire_bytes(item) == item.bytes, "the plan counts other bytes",
                    engine_.wire_bytes(item), item.bytes);
      sends_.push_back({&item, id, sent});
      sent += align(item.bytes);
    }
    if (item.dst == rank_) {
      landings_.push_back({&item, id, received});
      received += align(item.bytes);
      ++num_received;
    }
  }
  const bool has_adds = std::any_of(landings_.begin(), landings_.end(), [](const Message& message) {
    return message.item->landing == Landing::add;
  });
  // Rows that stay on the rank need not wait for the wire, except that additions follow item order.
  if (!has_adds) {
    for (const Message& message : landings_) {
      if (is_local(message)) move(message);
    }
    std::erase_if(landings_, is_local);
  }
  if (sends_.empty()) return num_received;
  for (const Message& message : sends_)
    hazards_.begin({{message.item->from}, {}}, transfer_stream());
  clock_->start(transfer_stream());
  for (const Message& message : sends_) {
    engine_.pack(*message.item, staging_.at<uint8_t>(send_staging_) + message.offset,
                 transfer_stream());
  }
  // The buffer may be overwritten after packing: the wire reads staging.
  for (const Message& message : sends_) hazards_.end({{message.item->from}, {}}, transfer_stream());
  return static_cast<int64_t>(sends_.size()) + num_received;
}

bool RankDevice::is_local(const Message& message) { return message.item->src == message.item->dst; }

void RankDevice::move(const Message& message) {
  const TransferItem& item = *message.item;
  enqueue_item(message.id, item.step, uses_of(plan_, item), transfer_stream(),
               [&] { engine_.run(item, transfer_stream()); });
}

void RankDevice::post(NcclGroup& nccl) {
  select_device(device_);
  const int32_t here = to_index(rank_);
  for (const Message& message : sends_) {
    nccl.send(here, to_index(message.item->dst),
              staging_.at<uint8_t>(send_staging_) + message.offset, message.item->bytes,
              transfer_stream());
  }
  for (const Message& message : landings_) {
    if (is_local(message)) continue;
    nccl.receive(here, to_index(message.item->src),
                 staging_.at<uint8_t>(receive_staging_) + message.offset, message.item->bytes,
                 transfer_stream());
  }
}

void RankDevice::unpack() {
  select_device(device_);
  if (!sends_.empty()) {
    std::vector<ItemId> ids;
    for (const Message& message : sends_) ids.push_back(message.id);
    clock_->stop_all(ids, rank_, sends_.front().item->step, transfer_stream());
  }
  for (const Message& message : landings_) {
    if (is_local(message)) {
      move(message);
      continue;
    }
    const BufferUse use{{}, {message.item->to}};
    hazards_.begin(use, transfer_stream());
    engine_.unpack(*message.item, staging_.at<uint8_t>(receive_staging_) + message.offset,
                   transfer_stream());
    hazards_.end(use, transfer_stream());
  }
}

void RankDevice::end_step(StepId step) {
  select_device(device_);
  StepMark& mark = marks_.emplace_back(step);
  for (const Stream stream : streams())
    record_event(mark.events.emplace_back(std::make_shared<DeviceEvent>(false))->get(), stream);
}

std::optional<StepId> RankDevice::open_step() {
  select_device(device_);
  const auto is_done = [](const auto& event) { return is_event_done(event->get()); };
  while (!marks_.empty() &&
         std::all_of(marks_.front().events.begin(), marks_.front().events.end(), is_done)) {
    marks_.pop_front();
  }
  return marks_.empty() ? std::nullopt : std::optional(marks_.front().step);
}

void RankDevice::wait() {
  select_device(device_);
  for (const Stream stream : streams()) wait_for_stream(stream);
}

std::vector<ItemResult> RankDevice::read_results(StageKind kind, int64_t index) {
  select_device(device_);
  return engine_.read_results({direction_, kind, index}, compute_stream());
}

void RankDevice::collect_forward(Answer& answer) {
  select_device(device_);
  engine_.collect_forward(answer, compute_stream());
}

void RankDevice::collect_backward(Answer& answer) {
  select_device(device_);
  engine_.collect_backward(answer, compute_stream());
}

std::string RankDevice::find_broken_guard() {
  select_device(device_);
  std::string broken = engine_.find_broken_guard(compute_stream());
  return broken.empty() ? staging_.find_broken_guard(compute_stream()) : broken;
}

}  // namespace cpscope::kernels
