// Rows of an engine on their way: to other buffers of the device, to a wire, from it, and straight
// to another device.
#include "kernels/rank_engine.h"
#include "kernels/row_sum.h"
#include "kernels/scalar_types.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

/// `count` rows from `from` on go to `to` and what follows.
struct RowStretchCopy {
  int64_t from = 0, to = 0, count = 0;
};

// More copies of their own cost more than packing.
constexpr size_t kMostStretches = 6;

/// Rows of a list, or all of them: from one run, which `all` keeps.
std::span<const TokenRun> runs_of_rows(const Plan& plan, RunListId list, const TokenRun& all) {
  return list == kAllRows ? std::span(&all, 1) : plan.list(list);
}

/// Stretches that lie in one piece on both sides; nothing if they are too many.
std::optional<std::vector<RowStretchCopy>> find_stretches(std::span<const TokenRun> from,
                                                          std::span<const TokenRun> to) {
  std::vector<RowStretchCopy> stretches;
  size_t f = 0, t = 0;
  int64_t from_done = 0, to_done = 0;
  while (f < from.size() && t < to.size()) {
    const bool is_whole = from[f].stride == 1 && to[t].stride == 1;
    const int64_t left = std::min(from[f].count() - from_done, to[t].count() - to_done);
    const int64_t count = is_whole ? left : 1;
    const RowStretchCopy next{from[f].at(from_done), to[t].at(to_done), count};
    if (!stretches.empty() && stretches.back().from + stretches.back().count == next.from &&
        stretches.back().to + stretches.back().count == next.to) {
      stretches.back().count += count;
    } else {
      if (stretches.size() == kMostStretches) return std::nullopt;
      stretches.push_back(next);
    }
    if ((from_done += count) == from[f].count()) from_done = 0, ++f;
    if ((to_done += count) == to[t].count()) to_done = 0, ++t;
  }
  return stretches;
}

/// Stretches of one length that lie evenly apart on both sides: a single copy.
struct RowBlocks {
  RowStretchCopy first;
  int64_t count = 1;
  int64_t from_rows = 0, to_rows = 0;  // from one to the next
};

std::vector<RowBlocks> blocks_of(const std::vector<RowStretchCopy>& stretches) {
  std::vector<RowBlocks> blocks;
  for (const RowStretchCopy& next : stretches) {
    if (!blocks.empty()) {
      RowBlocks& last = blocks.back();
      const int64_t from_rows = next.from - last.first.from - (last.count - 1) * last.from_rows;
      const int64_t to_rows = next.to - last.first.to - (last.count - 1) * last.to_rows;
      const bool is_even =
          last.count == 1 || (from_rows == last.from_rows && to_rows == last.to_rows);
      // The copy unit steps forward, by at least a block.
      if (is_even && next.count == last.first.count && from_rows >= next.count &&
          to_rows >= next.count) {
        last = {last.first, last.count + 1, from_rows, to_rows};
        continue;
      }
    }
    blocks.push_back({next});
  }
  return blocks;
}

Dtype wire_element(const Plan& plan, const TransferItem& item) {
  return item.wire_fp32 ? Dtype::fp32 : plan.scenario.numerics.dtype;
}

/// Does this array of a buffer travel? lse does not: it is used where it was made.
bool travels(BufferKind kind, bool second, ArrayLanes lanes) {
  return lanes.lanes > 0 && !(second && kind == BufferKind::out);
}

/// packed: rows come from staging, one behind the other.
std::optional<std::vector<RowStretchCopy>> stretches_of(const Plan& plan, const TransferItem& item,
                                                        bool packed) {
  const TokenRun all{0, num_rows_of(plan, item), 1};
  return find_stretches(runs_of_rows(plan, packed ? kAllRows : item.from_rows, all),
                        runs_of_rows(plan, item.to_rows, all));
}

/// Rows go to staging, one behind the other.
std::optional<std::vector<RowStretchCopy>> unpacked_stretches(const Plan& plan,
                                                              const TransferItem& item) {
  const TokenRun all{0, num_rows_of(plan, item), 1};
  return find_stretches(runs_of_rows(plan, item.from_rows, all), std::span(&all, 1));
}

/// Copies of rows of some heads from a block to another one of the same elements.
void add_copies(const std::vector<RowStretchCopy>& stretches, const RowBlock& from,
                const RowBlock& to, int64_t row_lanes, std::vector<ByteRows>& copies) {
  const int64_t size = element_size(from.element);
  for (const RowBlocks& blocks : blocks_of(stretches)) {
    const RowStretchCopy& first = blocks.first;
    copies.push_back({static_cast<const uint8_t*>(from.data) + first.from * from.row_stride * size,
                      from.row_stride * size,
                      static_cast<uint8_t*>(to.data) + first.to * to.row_stride * size,
                      to.row_stride * size, row_lanes * size, first.count, blocks.count,
                      blocks.from_rows, blocks.to_rows});
  }
}

/// Number of a gradient's transfer, one of the lowered plan's.
std::optional<size_t> gradient_index(const LoweredPlan& lowered, const TransferItem& item) {
  const bool is_gradient = item.payload == Payload::dq || item.payload == Payload::dkv;
  if (!is_gradient) return std::nullopt;
  return static_cast<size_t>(&item - lowered.plan.backward.transfers.data());
}

Rounding rounding_of(const LoweredPlan& lowered, const TransferItem& item) {
  const std::optional<size_t> index = gradient_index(lowered, item);
  return index ? lowered.origins_of(true).roundings[*index] : Rounding{};
}

bool is_share(const LoweredPlan& lowered, const TransferItem& item) {
  const std::optional<size_t> index = gradient_index(lowered, item);
  return index && lowered.origins_of(true).are_shares[*index];
}

/// Has a transfer between buffers of fp32 numbers to round?
bool rounds_fp32(const LoweredPlan& lowered, const TransferItem& item) {
  const Numerics& numerics = lowered.plan.scenario.numerics;
  return numerics.dtype != Dtype::fp32 &&
         (numerics.accumulate == Accumulate::dtype || rounding_of(lowered, item) != Rounding{});
}

/// Does the sender hold an array as its wire takes it?
bool is_sent_as_held(const LoweredPlan& lowered, const TransferItem& item, bool second) {
  const Dtype element = sent_element(lowered, item, second);
  return element == wire_element(lowered.plan, item) &&
         (element != Dtype::fp32 || !rounds_fp32(lowered, item));
}

/// Does the receiver hold an item's arrays as the wire brings them?
bool is_held_as_received(const LoweredPlan& lowered, const TransferItem& item) {
  if (item.landing == Landing::add || is_share(lowered, item)) return false;
  const Plan& plan = lowered.plan;
  const BufferKind kind = plan.buffer(item.from).kind;
  for (const bool second : {false, true}) {
    const ArrayLanes lanes = array_lanes(kind, second, plan.scenario.attention);
    if (!travels(kind, second, lanes)) continue;
    if (element_in(plan, lowered.is_narrow, item.to, second) != wire_element(plan, item) ||
        lanes.pitch != lanes.lanes)
      return false;
  }
  return true;
}

/// And the sender?
bool is_held_as_it_travels(const LoweredPlan& lowered, const TransferItem& item) {
  if (!is_held_as_received(lowered, item)) return false;
  const BufferKind kind = lowered.plan.buffer(item.from).kind;
  for (const bool second : {false, true}) {
    if (travels(kind, second, array_lanes(kind, second, lowered.plan.scenario.attention)) &&
        !is_sent_as_held(lowered, item, second))
      return false;
  }
  return true;
}

}  // namespace

bool lands_straight(const LoweredPlan& lowered, const TransferItem& item) {
  return is_held_as_received(lowered, item) && stretches_of(lowered.plan, item, true).has_value();
}

bool goes_straight(const LoweredPlan& lowered, const TransferItem& item) {
  return is_held_as_it_travels(lowered, item) &&
         stretches_of(lowered.plan, item, true).has_value() &&
         stretches_of(lowered.plan, item, false).has_value();
}

bool can_be_pushed(const LoweredPlan& lowered, const TransferItem& item) {
  const Plan& plan = lowered.plan;
  const BufferKind kind = plan.buffer(item.from).kind;
  if (kind == BufferKind::out || !is_held_as_it_travels(lowered, item)) return false;
  for (const bool second : {false, true}) {
    const ArrayLanes lanes = array_lanes(kind, second, plan.scenario.attention);
    // Places of heads are whole groups of RowPush then, too.
    if (lanes.lanes * element_size(wire_element(plan, item)) % 16 != 0) return false;
  }
  return true;
}

bool pushes_all_pieces(const LoweredPlan& lowered, bool is_backward, RankId rank) {
  const Pass& pass = is_backward ? lowered.plan.backward : lowered.plan.forward;
  const std::vector<int32_t>& pieces = lowered.origins_of(is_backward).pieces;
  for (size_t i = 0; i < pass.transfers.size(); ++i) {
    if (pieces[i] >= 0 && pass.transfers[i].src == rank &&
        !goes_straight(lowered, pass.transfers[i]))
      return true;
  }
  return false;
}

bool leaves_unpacked(const LoweredPlan& lowered, const TransferItem& item) {
  const Plan& plan = lowered.plan;
  const BufferKind kind = plan.buffer(item.from).kind;
  for (const bool second : {false, true}) {
    const ArrayLanes lanes = array_lanes(kind, second, plan.scenario.attention);
    if (!travels(kind, second, lanes)) continue;
    if (lanes.pitch != lanes.lanes || !is_sent_as_held(lowered, item, second)) return false;
  }
  return unpacked_stretches(plan, item).has_value();
}

/// What the transfer takes from the sender's buffer.
RowBlock RankEngine::sent_block(const TransferItem& item, bool second) const {
  const Dtype held = arrays_.element(item.from, second);
  return sent_element(lowered_, item, second) == held
             ? arrays_.block(item.from, second, item.heads.begin)
             : arrays_.wire_block(item.from, second, item.heads.begin);
}

/// The transfer's rows of one array, from the sender's buffer to the receiver's. Only the end that
/// is here has an address.
RowCopy RankEngine::copy_of(const TransferItem& item, bool second) const {
  const Numerics& numerics = plan_.scenario.numerics;
  const BufferSpec& from = plan_.buffer(item.from);
  const ArrayLanes lanes = array_lanes(from.kind, second, attention_);
  RowCopy copy;
  if (arrays_.holds(item.from)) {
    copy.from = sent_block(item, second);
    copy.from.rows = arrays_.row_list(item.from_rows);
  }
  if (arrays_.holds(item.to)) {
    copy.to = arrays_.block(item.to, second, item.heads.begin);
    copy.to.rows = arrays_.row_list(item.to_rows);
  }
  copy.num_rows = num_rows_of(plan_, item);
  copy.heads = item.heads.size();
  copy.lanes = lanes.pitch;
  copy.adds = item.landing == Landing::add;
  // What stays on the rank is not rounded by any wire.
  if (item.payload == Payload::dkv && item.link != LinkClass::self && !item.wire_fp32)
    copy.value_dtype = numerics.dtype;
  if (numerics.accumulate == Accumulate::dtype) copy.sum_dtype = numerics.dtype;
  const Rounding rounding = rounding_of(lowered_, item);
  if (rounding.values || (rounding.sums && !copy.adds)) copy.value_dtype = numerics.dtype;
  if (rounding.sums) copy.sum_dtype = numerics.dtype;
  return copy;
}

void RankEngine::move(const TransferItem& item, Stream stream) {
  for (const bool second : {false, true}) {
    if (!second || arrays_.has_second(item.from)) launch_row_copy(copy_of(item, second), stream);
  }
}

std::vector<ByteRows> RankEngine::copies_of(const TransferItem& item,
                                            const RankEngine& receiver) const {
  const auto stretches = stretches_of(plan_, item, false);
  const BufferKind kind = plan_.buffer(item.from).kind;
  std::vector<ByteRows> copies;
  for (const bool second : {false, true}) {
    const ArrayLanes lanes = array_lanes(kind, second, attention_);
    if (!travels(kind, second, lanes)) continue;
    add_copies(stretches.value(), sent_block(item, second),
               receiver.arrays_.block(item.to, second, item.heads.begin),
               int64_t{item.heads.size()} * lanes.lanes, copies);
  }
  return copies;
}

std::vector<ListedRows> RankEngine::listed_rows_of(const TransferItem& item,
                                                   const RankEngine& receiver) const {
  const BufferKind kind = plan_.buffer(item.from).kind;
  std::vector<ListedRows> listed;
  for (const bool second : {false, true}) {
    const ArrayLanes lanes = array_lanes(kind, second, attention_);
    if (!travels(kind, second, lanes)) continue;
    const RowBlock from = sent_block(item, second),
                   to = receiver.arrays_.block(item.to, second, item.heads.begin);
    const int64_t size = element_size(from.element);
    listed.push_back({from.data, from.row_stride * size, arrays_.row_list(item.from_rows), to.data,
                      to.row_stride * size, arrays_.row_list(item.to_rows),
                      int64_t{item.heads.size()} * lanes.lanes * size, num_rows_of(plan_, item)});
  }
  return listed;
}

std::vector<ByteRows> RankEngine::copies_of_packed(const TransferItem& item, const void* staging,
                                                   const RankEngine& receiver) const {
  const auto stretches = stretches_of(plan_, item, true);
  const BufferKind kind = plan_.buffer(item.from).kind;
  const Dtype element = wire_element(plan_, item);
  const auto* wire = static_cast<const uint8_t*>(staging);
  std::vector<ByteRows> copies;
  for (const bool second : {false, true}) {
    const ArrayLanes lanes = array_lanes(kind, second, attention_);
    if (!travels(kind, second, lanes)) continue;
    const int64_t row_lanes = int64_t{item.heads.size()} * lanes.lanes;
    // Rows that are only read.
    const RowBlock from{const_cast<uint8_t*>(wire), element, row_lanes, lanes.lanes, nullptr};
    add_copies(stretches.value(), from, receiver.arrays_.block(item.to, second, item.heads.begin),
               row_lanes, copies);
    wire += num_rows_of(plan_, item) * row_lanes * element_size(element);
  }
  return copies;
}

std::vector<ByteRows> RankEngine::copies_to_staging(const TransferItem& item, void* staging) const {
  const auto stretches = unpacked_stretches(plan_, item);
  const BufferKind kind = plan_.buffer(item.from).kind;
  const Dtype element = wire_element(plan_, item);
  auto* wire = static_cast<uint8_t*>(staging);
  std::vector<ByteRows> copies;
  for (const bool second : {false, true}) {
    const ArrayLanes lanes = array_lanes(kind, second, attention_);
    if (!travels(kind, second, lanes)) continue;
    const int64_t row_lanes = int64_t{item.heads.size()} * lanes.lanes;
    add_copies(stretches.value(), sent_block(item, second),
               {wire, element, row_lanes, lanes.lanes, nullptr}, row_lanes, copies);
    wire += num_rows_of(plan_, item) * row_lanes * element_size(element);
  }
  return copies;
}

int64_t RankEngine::wire_bytes(const TransferItem& item) const {
  int64_t bytes = 0;
  for (const bool second : {false, true}) {
    const BufferKind kind = plan_.buffer(item.from).kind;
    // lse never travels: it is used where it was made.
    if (second && kind == BufferKind::out) continue;
    const RowCopy copy = copy_of(item, second);
    bytes += copy.num_rows * copy.heads * array_lanes(kind, second, attention_).lanes *
             element_size(wire_element(plan_, item));
  }
  return bytes;
}

void RankEngine::pack(const TransferItem& item, void* staging, Stream stream) {
  const BufferKind kind = plan_.buffer(item.from).kind;
  auto* wire = static_cast<uint8_t*>(staging);
  for (const bool second : {false, true}) {
    const int32_t lanes = array_lanes(kind, second, attention_).lanes;
    if (!travels(kind, second, array_lanes(kind, second, attention_))) continue;
    RowCopy copy = copy_of(item, second);
    copy.lanes = lanes;
    copy.to = {wire, wire_element(plan_, item), int64_t{copy.heads} * lanes, lanes, nullptr};
    copy.adds = false;
    launch_row_copy(copy, stream);
    wire += copy.num_rows * copy.heads * lanes * element_size(wire_element(plan_, item));
  }
}

void RankEngine::unpack(const TransferItem& item, const void* staging, Stream stream) {
  const BufferKind kind = plan_.buffer(item.to).kind;
  auto* wire = static_cast<uint8_t*>(const_cast<void*>(staging));
  for (const bool second : {false, true}) {
    const int32_t lanes = array_lanes(kind, second, attention_).lanes;
    if (!travels(kind, second, array_lanes(kind, second, attention_))) continue;
    RowCopy copy = copy_of(item, second);
    copy.lanes = lanes;
    copy.from = {wire, wire_element(plan_, item), int64_t{copy.heads} * lanes, lanes, nullptr};
    launch_row_copy(copy, stream);
    wire += copy.num_rows * copy.heads * lanes * element_size(wire_element(plan_, item));
  }
}

void RankEngine::add_shares(const std::vector<Share>& shares, Stream stream) {
  const TransferItem& any = *shares.front().item;
  const BufferKind kind = plan_.buffer(any.to).kind;
  std::vector<const uint8_t*> wires;  // [share] the array that comes next
  for (const Share& share : shares) wires.push_back(static_cast<const uint8_t*>(share.staging));
  for (const bool second : {false, true}) {
    const int32_t lanes = array_lanes(kind, second, attention_).lanes;
    RowSum sum;
    sum.into = arrays_.block(any.to, second, any.heads.begin);
    sum.num_shares = static_cast<int32_t>(shares.size());
    sum.heads = any.heads.size();
    sum.lanes = lanes;
    sum.num_rows = plan_.buffer(any.to).rows;
    for (size_t s = 0; s < shares.size(); ++s) {
      const TransferItem& item = *shares[s].item;
      RowBlock& block = sum.shares[s];
      if (wires[s] == nullptr) {
        block = arrays_.block(item.from, second, item.heads.begin);
      } else {
        const Dtype element = wire_element(plan_, item);
        const int64_t row_lanes = int64_t{item.heads.size()} * lanes;
        // Rows that are only read.
        block = {const_cast<uint8_t*>(wires[s]), element, row_lanes, lanes, nullptr};
        wires[s] += num_rows_of(plan_, item) * row_lanes * element_size(element);
      }
      block.rows = arrays_.share_rows(item);
    }
    launch_row_sum(sum, stream);
  }
}

/// Flags for the one rank of this device, and who sets them.
void RankEngine::plan_arrivals() {
  for (const bool is_backward : {false, true}) {
    const LoweredPlan::Origins& origins = lowered_.origins_of(is_backward);
    const Pass& pass = is_backward ? plan_.backward : plan_.forward;
    InputFlags& inputs = inputs_[is_backward ? 1 : 0];
    for (size_t r = 0; r < origins.cuts.size(); ++r) {
      const RankId rank{static_cast<int32_t>(r)};
      if (!arrays_.is_here(rank)) continue;
      for (size_t i = 0; i < pass.transfers.size(); ++i) {
        const TransferItem& item = pass.transfers[i];
        if (origins.pieces[i] >= 0 && item.dst == rank &&
            std::find(inputs.sources.begin(), inputs.sources.end(), item.src) ==
                inputs.sources.end())
          inputs.sources.push_back(item.src);
      }
      inputs.array = arrays_.reserve(
          fmt::format("rank {} arrivals", r),
          static_cast<int64_t>(origins.cuts[r].q.size() * inputs.sources.size() * sizeof(int32_t)));
    }
  }
}

bool RankEngine::has_arrivals_from(bool is_backward, RankId source) const {
  const std::vector<RankId>& sources = inputs_[is_backward ? 1 : 0].sources;
  return std::find(sources.begin(), sources.end(), source) != sources.end();
}

int32_t* RankEngine::arrival_flag(bool is_backward, int32_t piece, RankId source) const {
  const InputFlags& inputs = inputs_[is_backward ? 1 : 0];
  const auto place = std::find(inputs.sources.begin(), inputs.sources.end(), source);
  return arrays_.at<int32_t>(inputs.array) + piece * static_cast<int64_t>(inputs.sources.size()) +
         (place - inputs.sources.begin());
}

/// tile_heads: of the owned side, as in TileShape.
Arrivals RankEngine::arrivals_of(const ComputeItem& item, bool is_backward, TileOwner owner,
                                 int32_t tile_heads) const {
  const LoweredPlan::Origins& origins = lowered_.origins_of(is_backward);
  if (!origins.is_cut()) return {};
  const HeadCuts& cuts = origins.cuts[static_cast<size_t>(to_index(item.rank))];
  const bool is_query = owner == TileOwner::queries;
  const int32_t first = is_query ? item.heads.begin : kv_heads_of(attention_, item.heads).begin;
  Arrivals arrivals;
  const InputFlags& inputs = inputs_[is_backward ? 1 : 0];
  arrivals.flags = arrays_.at<int32_t>(inputs.array);
  arrivals.expected = pass_number_;
  arrivals.num_sources = static_cast<int32_t>(inputs.sources.size());
  for (const int32_t end : is_query ? cuts.q : cuts.kv)
    arrivals.ends[arrivals.num_pieces++] = std::max(0, end - first) / tile_heads;
  return arrivals;
}

/// A piece must not wait for later ones.
int32_t RankEngine::most_heads_of(const ComputeItem& item, bool is_backward, TileOwner owner,
                                  int32_t tile_heads) const {
  const Arrivals arrivals = arrivals_of(item, is_backward, owner, tile_heads);
  int32_t most = 0;
  for (int32_t piece = 0; piece < arrivals.num_pieces; ++piece) {
    const int32_t heads = arrivals.ends[piece] - (piece == 0 ? 0 : arrivals.ends[piece - 1]);
    most = most == 0 ? heads : std::min(most, heads);
  }
  return most;
}

}  // namespace cpscope::kernels
