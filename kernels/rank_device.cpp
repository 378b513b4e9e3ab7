#include "kernels/rank_device.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

// Messages begin on this many bytes of staging.
constexpr int64_t kAlignment = 256;

// Passes are counted to here and then again from 0: a flag is never what it was a pass before.
constexpr int32_t kNumbers = 1024;

int64_t align(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

double gibibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

std::vector<bool> only(const Plan& plan, RankId rank) {
  std::vector<bool> is_here(plan.home.size(), false);
  is_here[to_index(rank)] = true;
  return is_here;
}

/// Later members are made on the device as well.
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
              {options.poison, generation, options.threads}),
      transfer_stream_(Urgency::urgent),
      hazards_(plan_) {
  wire == Wire::copies ? plan_copies() : plan_staging();
}

RankDevice::~RankDevice() {
  // Memory, streams and events go back to the device that they came from.
  try {
    select_device(device_);
  } catch (const DeviceError&) {
    // A device that is gone takes everything with it.
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

void RankDevice::plan_copies() {
  int64_t most_sent = 0, most_received = 0;
  for (const bool is_backward : {false, true}) {
    const Pass& pass = is_backward ? plan_.backward : plan_.forward;
    std::vector<CopyPlan>& copies = copies_[is_backward ? 1 : 0];
    int64_t sent = 0, received = 0;
    for (const TransferItem& item : pass.transfers) {
      const CopyPlan& copy = copies.emplace_back(CopyPlan{
          goes_straight(lowered_, item), lands_straight(lowered_, item), sent, received, {}});
      CPSCOPE_CHECK(
          item.src != rank_ || item.dst == rank_ || engine_.wire_bytes(item) == item.bytes,
          "the plan counts other bytes", engine_.wire_bytes(item), item.bytes);
      if (item.src == item.dst) continue;
      if (item.src == rank_ && !copy.goes_straight) sent += align(item.bytes);
      if (item.dst == rank_ && !copy.lands_straight) received += align(item.bytes);
    }
    most_sent = std::max(most_sent, sent);
    most_received = std::max(most_received, received);
  }
  reserve_staging(most_sent, most_received);
  numbers_ = staging_.reserve(fmt::format("rank {} numbers", to_index(rank_)),
                              kNumbers * int64_t{sizeof(int32_t)});
  num_pushed_ =
      staging_.reserve(fmt::format("rank {} pushed", to_index(rank_)), int64_t{sizeof(int32_t)});
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
    fill_bytes(staging_.at<int32_t>(num_pushed_), 0, int64_t{sizeof(int32_t)}, compute_stream());
  }
  engine_.load(inputs, compute_stream());
  wait_for_stream(compute_stream());
}

void RankDevice::start_clock() {
  // An event belongs to the device that was selected when it was made.
  select_device(device_);
  for (auto* clock : {&clock_, &piece_clock_})
    clock->emplace(options_.measures_items, transfer_stream());
}

std::vector<ItemEvent> RankDevice::events() {
  select_device(device_);
  std::vector<ItemEvent> events = clock_->read();
  const std::vector<ItemEvent> pieces = piece_clock_->read();
  events.insert(events.end(), pieces.begin(), pieces.end());
  return planned_events(lowered_, events);
}

void RankDevice::begin_pass(bool is_backward, bool measures_items) {
  select_device(device_);
  is_backward_ = is_backward;
  engine_.begin_pass(++pass_number_ % kNumbers);
  computed_.reset();
  sent_.assign(pass().transfers.size(), {});
  for (auto* clock : {&clock_, &piece_clock_}) {
    (*clock)->turn(measures_items);
    (*clock)->begin_repeat();
  }
}

void RankDevice::keep_repeat(bool is_backward, int32_t repeats_ago) {
  for (auto* clock : {&clock_, &piece_clock_})
    (*clock)->keep_only(is_backward, (*clock)->repeat() - repeats_ago);
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
  const ItemId id{is_backward_, kind, index};
  const Stream stream = compute_stream();
  switch (kind) {
    case StageKind::transfer:
      break;  // in three parts, below
    case StageKind::reorder:
      if (const ReorderItem& item = pass().reorders[index]; item.rank == rank_)
        enqueue_item(id, item.step, uses_of(item), stream, [&] { engine_.reorder(item, stream); });
      break;
    case StageKind::compute:
      if (const ComputeItem& item = pass().computes[index];
          item.rank == rank_ && item.num_slices > 0)
        compute(item, index);
      break;
    case StageKind::merge:
      if (const MergeItem& item = pass().merges[index]; item.rank == rank_)
        enqueue_item(id, item.step, uses_of(item), stream, [&] { engine_.merge(item, stream); });
      break;
    case StageKind::finish:
      if (const FinishItem& item = pass().finishes[index]; item.rank == rank_)
        enqueue_item(id, item.step, uses_of(item), stream, [&] { engine_.finish(item, stream); });
      break;
  }
}

/// Of an item in two the second one's CTAs come as the first one's go, and not before: it has its
/// counters to clear when the first one's kernel starts.
void RankDevice::compute(const ComputeItem& item, int64_t index) {
  const int64_t origin =
      lowered_.origins_of(is_backward_).of(StageKind::compute)[static_cast<size_t>(index)];
  const bool is_rest = computed_ == origin;
  computed_ = origin;
  const Stream stream = is_rest ? late_stream_.get() : compute_stream();
  if (is_rest) wait_for_event(stream, ready_.get());
  enqueue_item({is_backward_, StageKind::compute, index}, item.step,
               uses_of(plan_, item, is_backward_), stream, [&] {
                 const Event ready = is_rest ? nullptr : ready_.get();
                 is_backward_ ? engine_.compute_backward(item, stream, ready)
                              : engine_.compute_forward(item, stream, ready);
               });
}

std::vector<Stream> RankDevice::streams() const {
  return {compute_stream_.get(), transfer_stream_.get(), result_stream_.get(),
          packing_stream_.get(), landing_stream_.get(),  late_stream_.get()};
}

void RankDevice::send(int64_t begin, int64_t end, std::deque<RankDevice>& devices) {
  select_device(device_);
  for (int64_t i = begin; i < end; ++i) {
    const TransferItem& item = pass().transfers[static_cast<size_t>(i)];
    // Nothing on the wire would only cost its latency.
    if (item.src == rank_ && item.dst != rank_ && item.bytes > 0)
      send_item(i, devices[static_cast<size_t>(to_index(item.dst))]);
  }
}

void RankDevice::send_item(int64_t index, RankDevice& receiver) {
  const TransferItem& item = pass().transfers[static_cast<size_t>(index)];
  const bool is_result =
      item.payload == Payload::out || item.payload == Payload::dq || item.payload == Payload::dkv;
  const BufferUse reads{{{item.from, item.heads}}, {}}, writes{{}, {{item.to, item.heads}}};
  const Stream copier = is_result ? result_stream_.get() : transfer_stream();
  Sent& sent = sent_[static_cast<size_t>(index)];
  sent = {copier, copier, nullptr, std::make_shared<DeviceEvent>(false)};
  const CopyPlan& plan = copy_plan(index);
  if (plan.lands_straight) receiver.hazards_.begin(writes, copier);
  if (plan.goes_straight) {
    hazards_.begin(reads, copier);
    copy_straight(index, receiver, *clock_, copier);
    record_event(sent.arrived->get(), copier);
    sent.read = sent.arrived;
    return;
  }
  // The next one is packed while this one travels.
  const Stream packer = sent.reader = packing_stream_.get();
  hazards_.begin(reads, packer);
  clock_->start(packer);
  uint8_t* const packed = staging_.at<uint8_t>(send_staging_) + plan.sent;
  engine_.pack(item, packed, packer);
  sent.read = std::make_shared<DeviceEvent>(false);
  record_event(sent.read->get(), packer);
  wait_for_event(copier, sent.read->get());
  if (plan.lands_straight) {
    for (const ByteRows& rows : engine_.copies_of_packed(item, packed, receiver.engine_))
      copy_byte_rows(rows, copier);
  } else {
    uint8_t* const place = receiver.staging_.at<uint8_t>(receiver.receive_staging_) +
                           receiver.copy_plan(index).received;
    copy_byte_rows({packed, item.bytes, place, item.bytes, item.bytes, 1}, copier);
  }
  clock_->stop({is_backward_, StageKind::transfer, index}, rank_, item.step, copier);
  record_event(sent.arrived->get(), copier);
}

/// By a kernel: copies on one device take multiprocessors too. Additions follow item order, so they
/// share a stream with what lands from elsewhere.
void RankDevice::keep_item(int64_t index, int64_t stage) {
  const TransferItem& item = pass().transfers[static_cast<size_t>(index)];
  const Stream stream = landing_stream_.get();
  const BufferUse use = uses_of(item);
  hazards_.begin(use, stream);
  clock_->start(stream);
  engine_.move(item, stream);
  clock_->stop({is_backward_, StageKind::transfer, index}, rank_, item.step, stream);
  const auto moved = std::make_shared<DeviceEvent>(false);
  record_event(moved->get(), stream);
  hazards_.end(use, stream, moved, stage);
}

void RankDevice::receive(int64_t begin, int64_t end, const std::deque<RankDevice>& devices) {
  select_device(device_);
  const int64_t stage = num_stages_++;
  const auto each = [&](const auto& visit) {
    for (int64_t i = begin; i < end; ++i) visit(pass().transfers[static_cast<size_t>(i)], i);
  };
  // What is added must not be overwritten; all else that stays waits for nothing that comes.
  const auto stays_first = [&](const TransferItem& item) {
    return item.src == rank_ && item.dst == rank_ && item.landing == Landing::replace;
  };
  each([&](const TransferItem& item, int64_t i) {
    if (stays_first(item)) keep_item(i, stage);
  });
  each([&](const TransferItem& item, int64_t i) {
    if (item.src == item.dst) {
      if (item.dst == rank_ && !stays_first(item)) keep_item(i, stage);
      return;
    }
    if (item.bytes == 0) return;
    if (item.src == rank_) {
      const Sent& sent = sent_[static_cast<size_t>(i)];
      hazards_.end({{{item.from, item.heads}}, {}}, sent.reader, sent.read);
    }
    if (item.dst == rank_) receive_item(i, devices[static_cast<size_t>(to_index(item.src))], stage);
  });
}

void RankDevice::receive_item(int64_t index, const RankDevice& sender, int64_t stage) {
  const TransferItem& item = pass().transfers[static_cast<size_t>(index)];
  const BufferUse writes{{}, {{item.to, item.heads}}};
  const Sent& sent = sender.sent_[static_cast<size_t>(index)];
  if (copy_plan(index).lands_straight)
    return hazards_.end(writes, sent.copier, sent.arrived, stage);
  const Stream stream = landing_stream_.get();
  wait_for_event(stream, sent.arrived->get());
  hazards_.begin(writes, stream);
  engine_.unpack(item, staging_.at<uint8_t>(receive_staging_) + copy_plan(index).received, stream);
  const auto placed = std::make_shared<DeviceEvent>(false);
  record_event(placed->get(), stream);
  hazards_.end(writes, stream, placed, stage);
}

void RankDevice::send_piece(int32_t piece, std::deque<RankDevice>& devices) {
  select_device(device_);
  const std::vector<int32_t>& pieces = lowered_.origins_of(is_backward_).pieces;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const TransferItem& item = pass().transfers[i];
    if (pieces[i] != piece || item.src != rank_) continue;
    RankDevice& receiver = devices[static_cast<size_t>(to_index(item.dst))];
    // Nothing touches these buffers between the begin of the pass and its compute item, which waits
    // for flags.
    copy_straight(static_cast<int64_t>(i), receiver, *piece_clock_, transfer_stream());
    if (is_last_of_piece(i)) set_flag(piece, receiver);
  }
}

/// Has the receiver the whole of this rank's part of the piece with this transfer?
bool RankDevice::is_last_of_piece(size_t index) const {
  const std::vector<int32_t>& pieces = lowered_.origins_of(is_backward_).pieces;
  const TransferItem& item = pass().transfers[index];
  for (size_t i = index + 1; i < pieces.size() && pieces[i] == pieces[index]; ++i) {
    const TransferItem& later = pass().transfers[i];
    if (later.src == item.src && later.dst == item.dst) return false;
  }
  return true;
}

void RankDevice::push_first_piece(int64_t end, std::deque<RankDevice>& devices) {
  select_device(device_);
  const std::vector<int32_t>& pieces = lowered_.origins_of(is_backward_).pieces;
  RowPush push;
  push.value = pass_number_ % kNumbers;
  push.num_done = staging_.at<int32_t>(num_pushed_);
  std::vector<int64_t> pushed, kept;
  bool has_all = true;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const TransferItem& item = pass().transfers[i];
    const auto index = static_cast<int64_t>(i);
    if (item.src != rank_) continue;
    const bool stays = item.dst == rank_ && index < end;
    if (!stays && pieces[i] != 0) continue;
    const bool is_added = add_to_push(index, devices, push, pushed);
    if (!is_added && stays) kept.push_back(index);
    has_all &= is_added || stays;
    if (stays || !is_last_of_piece(i)) continue;
    if (push.num_flags == RowPush::kMostFlags) {
      has_all = false;
      break;
    }
    push.flags[push.num_flags++] =
        devices[static_cast<size_t>(to_index(item.dst))].engine_.arrival_flag(is_backward_, 0,
                                                                              rank_);
  }
  if (!has_all) {
    for (int64_t i = 0; i < end; ++i) {
      const TransferItem& item = pass().transfers[static_cast<size_t>(i)];
      if (item.src == rank_ && item.dst == rank_) keep_item(i, BufferHazards::kAlone);
    }
    return send_piece(0, devices);
  }
  const Stream stream = landing_stream_.get();
  std::vector<ItemId> ids;
  BufferUse local;
  for (const int64_t index : pushed) {
    const TransferItem& item = pass().transfers[static_cast<size_t>(index)];
    ids.push_back({is_backward_, StageKind::transfer, index});
    if (item.dst == rank_) local.writes.push_back({item.to, item.heads});
  }
  clock_->start(stream);
  launch_row_push(push, stream);
  if (!ids.empty())
    clock_->stop_all(ids, rank_, pass().transfers[static_cast<size_t>(pushed.front())].step,
                     stream);
  hazards_.end(local, stream);
  for (const int64_t index : kept) keep_item(index, BufferHazards::kAlone);
}

/// False, and nothing added, where the kernel does not take the transfer's rows.
bool RankDevice::add_to_push(int64_t index, std::deque<RankDevice>& devices, RowPush& push,
                             std::vector<int64_t>& pushed) {
  if (!copy_plan(index).goes_straight) return false;
  const TransferItem& item = pass().transfers[static_cast<size_t>(index)];
  const std::vector<ByteRows>& rows =
      straight_rows(index, devices[static_cast<size_t>(to_index(item.dst))]);
  if (push.num_copies + static_cast<int32_t>(rows.size()) > RowPush::kMostCopies ||
      !std::all_of(rows.begin(), rows.end(), can_push))
    return false;
  for (const ByteRows& copy : rows) push.copies[push.num_copies++] = copy;
  pushed.push_back(index);
  return true;
}

/// Addresses stay from pass to pass.
const std::vector<ByteRows>& RankDevice::straight_rows(int64_t index, const RankDevice& receiver) {
  std::vector<ByteRows>& rows = copies_[is_backward_ ? 1 : 0][static_cast<size_t>(index)].rows;
  if (rows.empty())
    rows = engine_.copies_of(pass().transfers[static_cast<size_t>(index)], receiver.engine_);
  return rows;
}

void RankDevice::copy_straight(int64_t index, RankDevice& receiver, ItemClock& clock,
                               Stream stream) {
  const TransferItem& item = pass().transfers[index];
  clock.start(stream);
  for (const ByteRows& rows : straight_rows(index, receiver)) copy_byte_rows(rows, stream);
  clock.stop({is_backward_, StageKind::transfer, index}, rank_, item.step, stream);
}

void RankDevice::set_flag(int32_t piece, RankDevice& receiver) {
  constexpr int64_t kBytes = sizeof(int32_t);
  copy_byte_rows({staging_.at<int32_t>(numbers_) + pass_number_ % kNumbers, kBytes,
                  receiver.engine_.arrival_flag(is_backward_, piece, rank_), kBytes, kBytes, 1},
                 transfer_stream());
}

int64_t RankDevice::pack(int64_t begin, int64_t end) {
  select_device(device_);
  sends_.clear();
  landings_.clear();
  int64_t sent = 0, received = 0, num_received = 0;
  for (int64_t i = begin; i < end; ++i) {
    const TransferItem& item = pass().transfers[i];
    const ItemId id{is_backward_, StageKind::transfer, i};
    if (item.src == item.dst) {
      if (item.src == rank_) landings_.push_back({&item, id, 0});
      continue;
    }
    if (item.bytes == 0) continue;  // would only cost its latency
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
  // What stays here need not wait for the wire, except that additions follow item order.
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
  // What is packed may be overwritten: the wire takes it from staging.
  for (const Message& message : sends_) hazards_.end({{message.item->from}, {}}, transfer_stream());
  return static_cast<int64_t>(sends_.size()) + num_received;
}

bool RankDevice::is_local(const Message& message) { return message.item->src == message.item->dst; }

void RankDevice::move(const Message& message) {
  const TransferItem& item = *message.item;
  enqueue_item(message.id, item.step, uses_of(item), transfer_stream(),
               [&] { engine_.move(item, transfer_stream()); });
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

void RankDevice::read_array(const ItemId& id, StepId step, BufferId buffer, bool second,
                            const char* name, int64_t rows, std::vector<ItemResult>& results) {
  const BufferSpec& spec = plan_.buffer(buffer);
  const int64_t lanes = array_lanes(spec.kind, second, plan_.scenario.attention).lanes;
  ItemResult result{id, rank_, step, name, {rows, spec.heads.size(), lanes}, {}};
  const std::vector<float> values = engine_.read(buffer, second, compute_stream());
  result.values.assign(values.begin(), values.begin() + rows * spec.heads.size() * lanes);
  results.push_back(std::move(result));
}

std::vector<ItemResult> RankDevice::read_results(StageKind kind, int64_t index) {
  select_device(device_);
  const ItemId id{is_backward_, kind, index};
  std::vector<ItemResult> results;
  const auto read = [&](StepId step, BufferId buffer, bool second, const char* name, int64_t rows) {
    read_array(id, step, buffer, second, name, rows, results);
  };
  if (kind == StageKind::compute) {
    const ComputeItem& item = pass().computes[index];
    if (item.rank != rank_ || item.num_slices == 0) return results;
    const int64_t q_rows = plan_.rows(item.q_tokens), kv_rows = plan_.rows(item.kv_tokens);
    if (is_backward_) {
      read(item.step, item.dq, false, "dq", q_rows);
      read(item.step, item.dkv, false, "dk", kv_rows);
      read(item.step, item.dkv, true, "dv", kv_rows);
    } else {
      read(item.step, item.out, false, "out", q_rows);
      read(item.step, item.out, true, "lse", q_rows);
    }
  }
  if (kind == StageKind::finish) {
    const FinishItem& item = pass().finishes[index];
    if (item.rank != rank_) return results;
    const BufferSpec& spec = plan_.buffer(item.buffer);
    const std::array<const char*, 2> names =
        spec.kind == BufferKind::out   ? std::array<const char*, 2>{"out", "lse"}
        : spec.kind == BufferKind::dkv ? std::array<const char*, 2>{"dk", "dv"}
                                       : std::array<const char*, 2>{"dq", ""};
    read(item.step, item.buffer, false, names[0], spec.rows);
    if (*names[1] != '\0') read(item.step, item.buffer, true, names[1], spec.rows);
  }
  return results;
}

void RankDevice::collect_forward(Answer& answer) {
  select_device(device_);
  engine_.collect_forward(answer, compute_stream());
}

void RankDevice::collect_backward(Answer& answer) {
  select_device(device_);
  engine_.collect_backward(answer, compute_stream());
}

int64_t RankDevice::tile_flops() const {
  int64_t flops = 0;
  for (const ComputeItem& item : plan_.forward.computes) {
    if (item.rank == rank_) flops += engine_.tile_flops(item, false);
  }
  for (const ComputeItem& item : plan_.backward.computes) {
    if (item.rank == rank_) flops += engine_.tile_flops(item, true);
  }
  return flops;
}

std::string RankDevice::find_broken_guard() {
  select_device(device_);
  std::string broken = engine_.find_broken_guard(compute_stream());
  return broken.empty() ? staging_.find_broken_guard(compute_stream()) : broken;
}

}  // namespace cpscope::kernels
