#include "sim/clock/pass_clock.h"

#include <algorithm>
#include <array>

namespace cpscope {

/// Bytes and peers of every rank in the stage.
void PassClock::gather_traffic(const Stage& stage) {
  for (const RankId rank : touched_) exchanges_[rank] = RankExchange();
  touched_.clear();
  const auto touch = [&](RankId rank) -> RankExchange& {
    RankExchange& exchange = exchanges_[rank];
    if (!exchange.is_touched) touched_.push_back(rank);
    exchange.is_touched = true;
    return exchange;
  };
  for (int64_t i = stage.begin; i < stage.end; ++i) {
    const TransferItem& item = pass_.transfers[static_cast<size_t>(i)];
    if (item.src == item.dst || item.bytes == 0) continue;
    const bool is_inside =
        cluster_.node_of(to_index(item.src)) == cluster_.node_of(to_index(item.dst));
    RankExchange& from = touch(item.src);
    RankExchange& to = touch(item.dst);
    ++from.num_sent;
    ++to.num_received;
    for (RankTraffic* traffic : {&from.out, &to.in}) {
      (is_inside ? traffic->inside : traffic->between) += static_cast<double>(item.bytes);
      ++(is_inside ? traffic->inside_peers : traffic->between_peers);
    }
  }
}

/// Microseconds for the traffic of a rank in one direction. Both kinds of wire run at the same
/// time.
double PassClock::wire_us(const RankTraffic& traffic, double nic_bytes) const {
  const auto time = [](const Link& link, int32_t peers, double bytes) {
    return (peers == 1 ? link.one_peer : link.many_peers).time_us(bytes);
  };
  double us = 0;
  if (traffic.inside_peers > 0) us = time(cluster_.inside, traffic.inside_peers, traffic.inside);
  if (traffic.between_peers > 0)
    us = std::max(us, time(*cluster_.between, traffic.between_peers, nic_bytes));
  return us;
}

void PassClock::price_wires() {
  // GPUs that share a NIC need the time for the sum of their bytes.
  std::vector<std::pair<int64_t, std::array<double, 2>>> nics;
  for (const RankId rank : touched_) {
    const RankExchange& exchange = exchanges_[rank];
    if (exchange.out.between + exchange.in.between > 0)
      nics.push_back({nic_of(rank), {exchange.out.between, exchange.in.between}});
  }
  std::sort(nics.begin(), nics.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  const auto bytes_of_nic = [&](RankId rank) {
    const int64_t nic = nic_of(rank);
    std::array<double, 2> sum{};
    auto at = std::lower_bound(nics.begin(), nics.end(), nic,
                               [](const auto& entry, int64_t id) { return entry.first < id; });
    for (; at != nics.end() && at->first == nic; ++at) {
      sum[0] += at->second[0];
      sum[1] += at->second[1];
    }
    return sum;
  };
  for (const RankId rank : touched_) {
    RankExchange& exchange = exchanges_[rank];
    const std::array<double, 2> nic = bytes_of_nic(rank);
    exchange.wire_us = std::max(wire_us(exchange.out, nic[0]), wire_us(exchange.in, nic[1]));
  }
}

bool PassClock::is_result_stage(const Stage& stage) const {
  return std::all_of(pass_.transfers.begin() + stage.begin, pass_.transfers.begin() + stage.end,
                     [](const TransferItem& item) {
                       return item.payload == Payload::out || item.payload == Payload::dq ||
                              item.payload == Payload::dkv;
                     });
}

/// The results of the first heads are sent while the last ones are computed; what is left of their
/// time follows the compute.
void PassClock::send_early_results() {
  for (const RankId rank : touched_) {
    const double late = late_share(rank);
    if (late == 1) continue;
    double& us = exchanges_[rank].wire_us;
    us = std::max(0.0, (1 - late) * us - late * tiles_us(once_[rank])) + late * us;
  }
}

/// Rows that stay on their rank are copied on the stream of its transfers.
void PassClock::run_item(int64_t index, const TransferItem& item) {
  // Frameworks keep the rows of a round in tensors of their own.
  if (is_of_round(plan_, item)) {
    ClockTime end;
    end.raise(written_[item.from]);
    wait_to_write(item.to, end);
    read_[item.from].raise(end);
    written_[item.to].raise(end);
    return;
  }
  Lane& lane = lanes_[item.src];
  ClockTime start{lane.host.us, kNoEvent};
  start.raise(transfer_stream(lane));
  wait_for_buffers(item, start);
  const BufferSpec& from = plan_.buffer(item.from);
  BufferSpec moved = from;
  moved.heads = item.heads;
  moved.rows = item.from_rows != kAllRows ? plan_.rows(item.from_rows)
               : item.tokens != kNoTokens ? plan_.rows(item.tokens)
                                          : from.rows;
  const double end_us = start.us + stack_.row_launch_us + copy_us(2 * bytes_of(moved));
  const ClockTime end = enter(StageKind::transfer, index, item.src, item.step, start, end_us);
  lane.locals.push_back({start.us, end_us, lane.host.us});
  transfer_stream(lane) = end;
  read_[item.from].raise(end);
  written_[item.to].raise(end);
}

/// Rows to send are copied to staging; without staging the message only waits for its buffer.
void PassClock::pack(const Stage& stage) {
  for (const RankId rank : touched_) {
    Lane& lane = lanes_[rank];
    lane.host.us += stack_.message_us;
    RankExchange& exchange = exchanges_[rank];
    exchange.enqueued_us = lane.host.us;
    exchange.ready = {lane.host.us, kNoEvent};
    exchange.ready.raise(transfer_stream(lane));
  }
  for (int64_t i = stage.begin; i < stage.end; ++i) {
    const TransferItem& item = pass_.transfers[static_cast<size_t>(i)];
    if (item.src == item.dst || item.bytes == 0) continue;
    wait_to_read(item.from, exchanges_[item.src].ready);
    // Without staging the wire writes directly into the buffer.
    if (!stack_.packs) wait_to_write(item.to, exchanges_[item.dst].ready);
  }
  for (const RankId rank : touched_) {
    RankExchange& exchange = exchanges_[rank];
    exchange.begin_us = exchange.ready.us;
    exchange.end = exchange.ready;
    if (!stack_.packs || exchange.num_sent == 0) continue;
    const double bytes = exchange.out.inside + exchange.out.between;
    exchange.ready.us +=
        static_cast<double>(exchange.num_sent) * stack_.row_launch_us + copy_us(2 * bytes);
  }
}

/// Received rows are copied from staging to their buffer.
void PassClock::land() {
  for (const RankId rank : touched_) {
    const RankExchange& exchange = exchanges_[rank];
    Lane& lane = lanes_[rank];
    transfer_stream(lane).raise(exchange.end);
    busy_transfers(lane).push_back({exchange.begin_us, exchange.end.us, exchange.enqueued_us});
    if (exchange.ready.us < exchange.wire_begin_us)
      lane.partner_waits.push_back({exchange.ready.us, exchange.wire_begin_us});
  }
  for (const auto& [index, event] : sent_) {
    const TransferItem& item = pass_.transfers[static_cast<size_t>(index)];
    // After packing the rows may be overwritten; without staging only after they have been sent.
    const RankExchange& from = exchanges_[item.src];
    read_[item.from].raise(stack_.packs ? from.ready : ClockTime{from.end.us, event});
    Lane& lane = lanes_[item.dst];
    ClockTime& stream = transfer_stream(lane);
    if (stack_.packs) {
      wait_to_write(item.to, stream);
      const double begin = stream.us;
      stream.us += stack_.row_launch_us + copy_us(2.0 * static_cast<double>(item.bytes));
      BusyTime& last = busy_transfers(lane).back();
      if (begin <= last.end) {
        last.end = std::max(last.end, stream.us);
      } else {
        busy_transfers(lane).push_back({begin, stream.us, exchanges_[item.dst].enqueued_us});
      }
    }
    written_[item.to].raise({stream.us, event});
    if (cuts_inputs_ && once_[item.dst] >= 0) {
      const RankExchange& to = exchanges_[item.dst];
      double& first_us = first_piece_us_[item.to];
      const ComputeItem& compute = pass_.computes[static_cast<size_t>(once_[item.dst])];
      first_us = std::max(first_us,
                          to.wire_begin_us + piece_share(compute) * (stream.us - to.wire_begin_us));
    }
  }
}

/// True if the stage's hops cross nodes while a double ring goes on inside them. Inside one node
/// the two rings share a link, so that their hops take turns.
bool PassClock::has_outer_stream(const Stage& stage) const {
  const auto begin = pass_.transfers.begin();
  return std::all_of(begin + stage.begin, begin + stage.end, [&](const TransferItem& item) {
    return item.link == LinkClass::outer_ring &&
           cluster_.node_of(to_index(item.src)) != cluster_.node_of(to_index(item.dst));
  });
}

void PassClock::run_transfers(const Stage& stage) {
  is_outer_ = has_outer_stream(stage);
  gather_traffic(stage);
  price_wires();
  if (!once_.empty() && is_result_stage(stage)) send_early_results();
  for (int64_t i = stage.begin; i < stage.end; ++i) {
    const TransferItem& item = pass_.transfers[static_cast<size_t>(i)];
    if (item.src == item.dst) run_item(i, item);
  }
  pack(stage);
  // A message begins when both ranks are ready, and takes the time of the slower one.
  sent_.clear();
  for (int64_t i = stage.begin; i < stage.end; ++i) {
    const TransferItem& item = pass_.transfers[static_cast<size_t>(i)];
    if (item.src == item.dst || item.bytes == 0) continue;
    RankExchange &from = exchanges_[item.src], &to = exchanges_[item.dst];
    ClockTime both_ready = from.ready;
    both_ready.raise(to.ready);
    const ClockTime end =
        enter(StageKind::transfer, i, item.src, item.step, {from.begin_us, both_ready.event},
              both_ready.us + std::max(from.wire_us, to.wire_us));
    for (RankExchange* exchange : {&from, &to}) {
      exchange->wire_begin_us = std::min(exchange->wire_begin_us, both_ready.us);
      exchange->end.raise(end);
    }
    sent_.push_back({i, end.event});
  }
  land();
}

}  // namespace cpscope
