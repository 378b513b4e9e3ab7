// Wire::copies: sends rows to other devices of this process by copy engines, and by a kernel when
// they are needed at once.
#include "kernels/run/rank_device.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

namespace cpscope::kernels {

void RankDevice::plan_copies() {
  int64_t most_sent = 0, most_received = 0;
  for (const Direction direction : kDirections) {
    const Pass& pass = plan_.pass(direction);
    std::vector<CopyPlan>& copies = copies_[direction];
    const std::vector<TransferNote>& notes = lowered_.notes[direction].transfers;
    int64_t sent = 0, received = 0;
    for (size_t i = 0; i < pass.transfers.size(); ++i) {
      const TransferItem& item = pass.transfers[i];
      const bool lands = lands_straight(lowered_, item);
      const bool is_packed =
          lands ? !goes_straight(lowered_, item) : !leaves_unpacked(lowered_, item);
      const CopyPlan& copy = copies.emplace_back(CopyPlan{is_packed, lands, sent, received, {}});
      CPSCOPE_CHECK(
          item.src != rank_ || item.dst == rank_ || engine_.wire_bytes(item) == item.bytes,
          "the plan counts other bytes", engine_.wire_bytes(item), item.bytes);
      if (item.src == item.dst || notes[i].piece != kWhole) continue;
      if (item.src == rank_ && copy.is_packed) sent += align(item.bytes);
      if (item.dst == rank_ && !copy.lands_straight) received += align(item.bytes);
    }
    most_sent = std::max(most_sent, sent);
    most_received = std::max(most_received, received);
  }
  reserve_staging(most_sent, most_received);
  numbers_ = staging_.reserve(fmt::format("rank {} numbers", to_index(rank_)),
                              kNumbers * int64_t{sizeof(int32_t)});
  num_pushed_ = staging_.reserve(fmt::format("rank {} pushed", to_index(rank_)), kPushedBytes);
  first_pushed_ = staging_.reserve(fmt::format("rank {} first pushed", to_index(rank_)),
                                   int64_t{sizeof(int32_t)});
}

void RankDevice::send(int64_t begin, int64_t end, std::deque<RankDevice>& devices) {
  select_device(device_);
  for (int64_t i = begin; i < end; ++i) {
    const TransferItem& item = pass().transfers[static_cast<size_t>(i)];
    // An empty message would only cost its latency.
    if (item.src == rank_ && item.dst != rank_ && item.bytes > 0)
      send_item(i, devices[static_cast<size_t>(to_index(item.dst))]);
  }
}

void RankDevice::send_item(int64_t index, RankDevice& receiver) {
  const TransferItem& item = pass().transfers[static_cast<size_t>(index)];
  const bool is_result = item.payload == Payload::out || item.payload == Payload::partial ||
                         item.payload == Payload::dq || item.payload == Payload::dkv;
  const BufferUse reads{{{item.from, item.heads}}, {}}, writes{{}, {{item.to, item.heads}}};
  const Stream copier = is_result ? result_stream_.get() : transfer_stream();
  const CopyPlan& plan = copy_plan(index);
  // The next transfer is packed while this one is copied.
  const Stream reader = plan.is_packed ? packing_stream_.get() : copier;
  Sent& sent = sent_[static_cast<size_t>(index)];
  sent = {reader, copier, nullptr, std::make_shared<DeviceEvent>(false)};
  if (plan.lands_straight) receiver.hazards_.begin(writes, copier);
  hazards_.begin(reads, reader);
  clock_->start(reader);
  if (plan.is_packed) {
    engine_.pack(item, packed_place(plan), reader);
    sent.read = std::make_shared<DeviceEvent>(false);
    record_event(sent.read->get(), reader);
    wait_for_event(copier, sent.read->get());
  } else {
    sent.read = sent.arrived;
  }
  for (const ByteRows& rows : wire_rows(index, receiver)) copy_byte_rows(rows, copier);
  record_event(sent.arrived->get(), copier);
  clock_->stop({direction_, StageKind::transfer, index}, rank_, item.step, copier);
}

/// Moves rows that stay here by a kernel, because copies on one device take multiprocessors too.
/// Additions follow item order, so they share a stream with rows that arrive from other devices.
void RankDevice::keep_item(int64_t index, int64_t stage) {
  const TransferItem& item = pass().transfers[static_cast<size_t>(index)];
  const Stream stream = landing_stream_.get();
  const BufferUse use = uses_of(plan_, item);
  hazards_.begin(use, stream);
  clock_->start(stream);
  engine_.run(item, stream);
  clock_->stop({direction_, StageKind::transfer, index}, rank_, item.step, stream);
  hazards_.end(use, stream, stage);
}

void RankDevice::receive(int64_t begin, int64_t end, const std::deque<RankDevice>& devices) {
  select_device(device_);
  const int64_t stage = num_stages_++;
  const auto each = [&](const auto& visit) {
    for (int64_t i = begin; i < end; ++i) visit(pass().transfers[static_cast<size_t>(i)], i);
  };
  const std::vector<TransferNote>& notes = lowered_.notes[direction_].transfers;
  const auto is_share = [&](int64_t i) { return notes[static_cast<size_t>(i)].is_share; };
  // Additions must not be overwritten; other rows that stay here wait for no arriving ones.
  const auto stays_first = [&](const TransferItem& item, int64_t i) {
    return item.src == rank_ && item.dst == rank_ && item.landing == Landing::replace &&
           !is_share(i);
  };
  std::map<int32_t, std::vector<int64_t>> sums;  // [BufferId] shares
  each([&](const TransferItem& item, int64_t i) {
    if (stays_first(item, i)) keep_item(i, stage);
  });
  each([&](const TransferItem& item, int64_t i) {
    const bool stays = item.src == item.dst;
    if (!stays && item.bytes == 0) return;
    if (!stays && item.src == rank_) {
      const Sent& sent = sent_[static_cast<size_t>(i)];
      hazards_.end({{{item.from, item.heads}}, {}}, sent.reader, sent.read);
    }
    if (item.dst != rank_ || stays_first(item, i)) return;
    if (is_share(i)) {
      sums[to_index(item.to)].push_back(i);
    } else if (stays) {
      keep_item(i, stage);
    } else {
      receive_item(i, devices[static_cast<size_t>(to_index(item.src))], stage);
    }
  });
  for (auto& [buffer, shares] : sums) add_shares(shares, devices, stage);
}

/// Adds up shares once all of them have arrived, in the plan's order; they may have been sent in
/// another order.
void RankDevice::add_shares(std::vector<int64_t>& shares, const std::deque<RankDevice>& devices,
                            int64_t stage) {
  const std::vector<TransferNote>& notes = lowered_.notes[direction_].transfers;
  const auto item_of = [&](int64_t i) -> const TransferItem& {
    return pass().transfers[static_cast<size_t>(i)];
  };
  std::sort(shares.begin(), shares.end(), [&](int64_t a, int64_t b) {
    return notes[static_cast<size_t>(a)].origin < notes[static_cast<size_t>(b)].origin;
  });
  const TransferItem& any = item_of(shares.front());
  const Stream stream = landing_stream_.get();
  BufferUse use{{}, {{any.to, any.heads}}};
  std::vector<RankEngine::Share> places;
  std::vector<ItemId> kept;
  for (const int64_t i : shares) {
    const TransferItem& item = item_of(i);
    if (item.src == rank_) {
      use.reads.push_back({item.from, item.heads});
      kept.push_back({direction_, StageKind::transfer, i});
      places.push_back({&item, nullptr});
      continue;
    }
    const Sent& sent =
        devices[static_cast<size_t>(to_index(item.src))].sent_[static_cast<size_t>(i)];
    wait_for_event(stream, sent.arrived->get());
    places.push_back({&item, received_place(copy_plan(i))});
  }
  hazards_.begin(use, stream);
  clock_->start(stream);
  engine_.add_shares(places, stream);
  if (!kept.empty()) clock_->stop_all(kept, rank_, any.step, stream);
  hazards_.end(use, stream, stage);
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
  engine_.unpack(item, received_place(copy_plan(index)), stream);
  hazards_.end(writes, stream, stage);
}

void RankDevice::send_piece(int32_t piece, std::deque<RankDevice>& devices) {
  if (pushes_all_pieces()) return;
  select_device(device_);
  // The first piece has the wire for itself, because kernels of other devices wait for it.
  if (piece == 1 && engine_.has_arrivals_from(direction_, rank_))
    wait_for_first_piece(transfer_stream());
  send_piece(piece, devices, *piece_clock_);
}

/// Waits until the rows of the first piece that stay here are in place.
void RankDevice::wait_for_first_piece(Stream stream) {
  wait_for_flag(stream, engine_.arrival_flag(direction_, 0, rank_), pass_value());
}

void RankDevice::send_piece(int32_t piece, std::deque<RankDevice>& devices, ItemClock& clock) {
  const std::vector<TransferNote>& notes = lowered_.notes[direction_].transfers;
  for (size_t i = 0; i < notes.size(); ++i) {
    const TransferItem& item = pass().transfers[i];
    if (notes[i].piece != piece || item.src != rank_ || item.dst == rank_) continue;
    RankDevice& receiver = devices[static_cast<size_t>(to_index(item.dst))];
    // No other item touches these buffers between the begin of the pass and its compute item, which
    // waits for flags.
    copy_straight(static_cast<int64_t>(i), receiver, clock, transfer_stream());
    if (is_last_of_piece(i)) set_flag(piece, receiver, transfer_stream());
  }
}

/// True if this transfer completes this rank's part of the piece at the receiver.
bool RankDevice::is_last_of_piece(size_t index) const {
  const std::vector<TransferNote>& notes = lowered_.notes[direction_].transfers;
  const TransferItem& item = pass().transfers[index];
  for (size_t i = index + 1; i < notes.size() && notes[i].piece == notes[index].piece; ++i) {
    const TransferItem& later = pass().transfers[i];
    if (later.src == item.src && later.dst == item.dst) return false;
  }
  return true;
}

void RankDevice::push_first_piece(std::deque<RankDevice>& devices) {
  select_device(device_);
  std::optional<FirstPush>& push = pushes_[direction_];
  if (!push) push = find_push(devices);
  if (!push->is_taken) {
    CPSCOPE_CHECK(!pushes_all_pieces(), "a push has no room for all pieces", to_index(rank_),
                  to_name(direction_));
    move_own_pieces();
    // Another thread may be sending the next pieces.
    return send_piece(0, devices, *clock_);
  }
  const Stream stream = landing_stream_.get();
  push->rows.value = pass_value();
  clock_->start(stream);
  launch_row_push(push->rows, stream);
  if (!push->items.empty())
    clock_->stop_all(push->items, rank_, pass().transfers[push->items.front().index].step, stream);
  // A compute item waits for flags itself; but it must not occupy the multiprocessors that the push
  // needs.
  wait_for_flag(compute_stream(), push->rows.own_flags[0], pass_value());
}

/// Finds the rows that the kernel pushes: the first piece that this rank sends, or all pieces, and
/// all pieces of rows that stay here, with their flags. They are the same in all passes of a
/// direction.
RankDevice::FirstPush RankDevice::find_push(std::deque<RankDevice>& devices) {
  const PassNotes& notes = lowered_.notes[direction_];
  FirstPush push;
  RowPush& rows = push.rows;
  rows.num_done = staging_.at<int32_t>(num_pushed_);
  const bool keeps = engine_.has_arrivals_from(direction_, rank_);
  const bool pushes_all = pushes_all_pieces();
  // Later pieces: these CTAs are fast enough to finish while one KV head of 16384 tokens is
  // computed, and the other multiprocessors are free; a wire needs more of them.
  rows.num_later_ctas = pushes_all ? 32 : 16;
  const auto num_own = static_cast<int32_t>(notes.ranks[rank_].cuts.q.size());
  const int32_t num_pieces = pushes_all ? notes.num_pieces() : num_own;
  for (int32_t piece = 0; piece < num_pieces; ++piece) {
    for (size_t i = 0; i < notes.transfers.size(); ++i) {
      const TransferItem& item = pass().transfers[i];
      const bool stays = item.dst == rank_;
      if (notes.transfers[i].piece != piece || item.src != rank_ ||
          (piece > 0 && !stays && !pushes_all))
        continue;
      const auto index = static_cast<int64_t>(i);
      if (!add_to_push(index, devices, rows)) return {};
      push.items.push_back({direction_, StageKind::transfer, index});
      if (!stays && is_last_of_piece(i) &&
          !add_flag(rows, flag_at(piece, devices[static_cast<size_t>(to_index(item.dst))])))
        return {};
    }
    if (keeps && piece < num_own) rows.own_flags[piece] = flag_at(piece, *this);
    end_piece(rows);
  }
  if (!keeps) rows.own_flags[0] = staging_.at<int32_t>(first_pushed_);
  push.is_taken = true;
  return push;
}

/// Moves the rows that stay here, by kernels that end before any kernel waits for flags.
void RankDevice::move_own_pieces() {
  const PassNotes& notes = lowered_.notes[direction_];
  const Stream stream = landing_stream_.get();
  BufferUse local;
  for (size_t i = 0; i < notes.transfers.size(); ++i) {
    const TransferItem& item = pass().transfers[i];
    if (notes.transfers[i].piece < 0 || item.src != rank_ || item.dst != rank_) continue;
    keep_item(static_cast<int64_t>(i), BufferHazards::kAlone);
    local.writes.push_back({item.to, item.heads});
  }
  if (local.writes.empty()) return;
  const size_t num_pieces = notes.ranks[rank_].cuts.q.size();
  for (size_t piece = 0; piece < num_pieces; ++piece)
    set_flag(static_cast<int32_t>(piece), *this, stream);
  hazards_.end(local, stream);
}

/// Returns false if the kernel does not support the transfer's rows.
bool RankDevice::add_to_push(int64_t index, std::deque<RankDevice>& devices, RowPush& push) {
  const TransferItem& item = pass().transfers[static_cast<size_t>(index)];
  const RankDevice& receiver = devices[static_cast<size_t>(to_index(item.dst))];
  const auto add = [&](const auto& copy) { return add_rows(push, copy); };
  // As many copies as can_come_in_pieces counted; separate stretches would be more.
  if (pushes_all_pieces()) {
    const std::vector<ListedRows> rows = engine_.listed_rows_of(item, receiver.engine_);
    return std::all_of(rows.begin(), rows.end(), add);
  }
  const std::vector<ByteRows>& rows = wire_rows(index, receiver);
  return std::all_of(rows.begin(), rows.end(), add);
}

uint8_t* RankDevice::packed_place(const CopyPlan& plan) const {
  return staging_.at<uint8_t>(send_staging_) + plan.sent;
}

uint8_t* RankDevice::received_place(const CopyPlan& plan) const {
  return staging_.at<uint8_t>(receive_staging_) + plan.received;
}

/// The rows that a transfer sends. Addresses stay the same in all passes.
const std::vector<ByteRows>& RankDevice::wire_rows(int64_t index, const RankDevice& receiver) {
  CopyPlan& plan = copies_[direction_][static_cast<size_t>(index)];
  if (!plan.rows.empty()) return plan.rows;
  const TransferItem& item = pass().transfers[static_cast<size_t>(index)];
  if (plan.lands_straight) {
    plan.rows = plan.is_packed
                    ? engine_.copies_of_packed(item, packed_place(plan), receiver.engine_)
                    : engine_.copies_of(item, receiver.engine_);
    return plan.rows;
  }
  uint8_t* const place = receiver.received_place(receiver.copy_plan(index));
  plan.rows =
      plan.is_packed
          ? std::vector{ByteRows{packed_place(plan), item.bytes, place, item.bytes, item.bytes, 1}}
          : engine_.copies_to_staging(item, place);
  return plan.rows;
}

void RankDevice::copy_straight(int64_t index, RankDevice& receiver, ItemClock& clock,
                               Stream stream) {
  const TransferItem& item = pass().transfers[index];
  clock.start(stream);
  for (const ByteRows& rows : wire_rows(index, receiver)) copy_byte_rows(rows, stream);
  clock.stop({direction_, StageKind::transfer, index}, rank_, item.step, stream);
}

/// The receiver's flag that reports the arrival of this rank's part of a piece.
int32_t* RankDevice::flag_at(int32_t piece, const RankDevice& receiver) const {
  return receiver.engine_.arrival_flag(direction_, piece, rank_);
}

void RankDevice::set_flag(int32_t piece, const RankDevice& receiver, Stream stream) {
  constexpr int64_t kBytes = sizeof(int32_t);
  copy_byte_rows({staging_.at<int32_t>(numbers_) + pass_value(), kBytes, flag_at(piece, receiver),
                  kBytes, kBytes, 1},
                 stream);
}

}  // namespace cpscope::kernels
