// Transfers of an engine: to other buffers of the device, to a wire, from it, and directly to
// another device.
#include "kernels/device/scalar_types.h"
#include "kernels/rows/fp8_rows.h"
#include "kernels/rows/row_sum.h"
#include "kernels/run/rank_engine.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

/// Copies `count` rows from row `from` on to row `to` on.
struct RowStretchCopy {
  int64_t from = 0, to = 0, count = 0;
};

// More separate copies would cost more than packing.
constexpr size_t kMostStretches = 6;

/// Stretches of rows that are contiguous on both sides; nothing if they are too many.
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

/// Stretches of one length with equal distances on both sides: a single copy.
struct RowBlocks {
  RowStretchCopy first;
  int64_t count = 1;
  int64_t from_rows = 0, to_rows = 0;  // distance from one to the next
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
      // A strided copy goes forward only, by at least one block.
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

/// An array of a transfer's buffers that is sent; arrays follow each other on the wire.
struct WireArray {
  bool second = false;
  Dtype element{};              // of numbers that are not codes
  std::optional<Fp8Type> code;  // codes of this format travel, one byte each
  ArrayLanes lanes;
  int64_t row_lanes = 0;  // of all heads
  int64_t begin = 0;      // offset in bytes on the wire
  int64_t bytes = 0;

  int64_t size() const { return code ? 1 : element_size(element); }
};

/// The format of the codes that a transfer sends, if it does.
std::optional<Fp8Type> code_of(const Plan& plan, const TransferItem& item) {
  if (!sends_fp8(item, plan.scenario)) return std::nullopt;
  const bool is_gradient =
      item.payload == Payload::d_out && plan.scenario.numerics.fp8->format == Fp8Format::hybrid;
  return is_gradient ? Fp8Type::e5m2 : Fp8Type::e4m3;
}

/// True for lse and delta, which are sent in fp32.
bool is_statistic(BufferKind kind, bool second) {
  return kind == BufferKind::stats || (second && kind == BufferKind::out);
}

/// The lse of finished rows is not sent: it is used where it was computed.
std::vector<WireArray> wire_arrays(const Plan& plan, const TransferItem& item) {
  const BufferKind kind = plan.buffer(item.from).kind;
  std::vector<WireArray> arrays;
  for (const bool second : {false, true}) {
    const ArrayLanes lanes = array_lanes(kind, second, plan.scenario.attention);
    if (lanes.lanes == 0 || (second && item.payload == Payload::out)) continue;
    if (!second && item.payload == Payload::lse) continue;
    const Dtype element =
        is_statistic(kind, second) ? Dtype::fp32 : wire_dtype(item, plan.scenario.numerics);
    WireArray& array = arrays.emplace_back(WireArray{second, element, code_of(plan, item), lanes});
    array.row_lanes = int64_t{item.heads.size()} * lanes.lanes;
    array.bytes = plan.rows_of(item) * array.row_lanes * array.size();
  }
  // Numbers of fp32 must not begin between two of them: after an odd number of 16 bits.
  const bool is_second_first = arrays.front().bytes % arrays.back().size() != 0;
  if (is_second_first) std::swap(arrays.front(), arrays.back());
  int64_t begin = 0;
  for (WireArray& array : arrays) {
    array.begin = begin;
    begin += array.bytes;
  }
  return arrays;
}

/// packed: rows are read from staging, one after another.
std::optional<std::vector<RowStretchCopy>> stretches_of(const Plan& plan, const TransferItem& item,
                                                        bool packed) {
  const TokenRun all{0, plan.rows_of(item), 1};
  return find_stretches(runs_of_rows(plan, packed ? kAllRows : item.from_rows, all),
                        runs_of_rows(plan, item.to_rows, all));
}

/// Rows are written to staging, one after another.
std::optional<std::vector<RowStretchCopy>> unpacked_stretches(const Plan& plan,
                                                              const TransferItem& item) {
  const TokenRun all{0, plan.rows_of(item), 1};
  return find_stretches(runs_of_rows(plan, item.from_rows, all), std::span(&all, 1));
}

/// An array of a transfer in staging; strides count codes where codes travel. Rows that are only
/// read may be const.
RowBlock wire_block(const WireArray& array, const void* staging) {
  auto* const wire = static_cast<uint8_t*>(const_cast<void*>(staging)) + array.begin;
  return {wire, array.element, array.row_lanes, array.lanes.lanes, nullptr};
}

/// Adds copies of rows of some heads from a block to another one with the same elements.
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

/// Rows that are held as numbers and travel as codes are converted.
void copy_to_or_from_wire(const RowCopy& copy, const std::optional<Fp8Type>& code, bool encodes,
                          Stream stream) {
  if (!code) return launch_row_copy(copy, stream);
  launch_code_copy({copy, *code, encodes}, stream);
}

/// Index of a gradient's transfer, which must be one of the lowered plan's.
std::optional<size_t> gradient_index(const LoweredPlan& lowered, const TransferItem& item) {
  const bool is_gradient = item.payload == Payload::dq || item.payload == Payload::dkv;
  if (!is_gradient) return std::nullopt;
  return static_cast<size_t>(&item - lowered.plan.backward.transfers.data());
}

Rounding rounding_of(const LoweredPlan& lowered, const TransferItem& item) {
  const std::optional<size_t> index = gradient_index(lowered, item);
  return index ? lowered.notes.backward.transfers[*index].rounding : Rounding{};
}

bool is_share(const LoweredPlan& lowered, const TransferItem& item) {
  const std::optional<size_t> index = gradient_index(lowered, item);
  return index && lowered.notes.backward.transfers[*index].is_share;
}

/// True if a transfer between fp32 buffers has to round.
bool rounds_fp32(const LoweredPlan& lowered, const TransferItem& item) {
  const Numerics& numerics = lowered.plan.scenario.numerics;
  return numerics.dtype != Dtype::fp32 &&
         (numerics.accumulate == Accumulate::dtype || rounding_of(lowered, item) != Rounding{});
}

/// True if the sender stores an array in the form that its wire requires.
bool is_sent_as_held(const LoweredPlan& lowered, const TransferItem& item, const WireArray& array) {
  if (array.code) return false;
  const Dtype element = sent_element(lowered, item, array.second);
  return element == array.element && (element != Dtype::fp32 || !rounds_fp32(lowered, item));
}

/// True if the receiver stores an item's arrays in the form that the wire delivers.
bool is_held_as_received(const LoweredPlan& lowered, const TransferItem& item) {
  if (item.landing == Landing::add || is_share(lowered, item)) return false;
  const Plan& plan = lowered.plan;
  const std::vector<WireArray> arrays = wire_arrays(plan, item);
  return std::all_of(arrays.begin(), arrays.end(), [&](const WireArray& array) {
    return !array.code && element_in(lowered, item.to, array.second) == array.element &&
           array.lanes.pitch == array.lanes.lanes;
  });
}

/// True if the sender stores them in the form that the wire requires.
bool is_held_as_it_travels(const LoweredPlan& lowered, const TransferItem& item) {
  if (!is_held_as_received(lowered, item)) return false;
  const std::vector<WireArray> arrays = wire_arrays(lowered.plan, item);
  return std::all_of(arrays.begin(), arrays.end(),
                     [&](const WireArray& array) { return is_sent_as_held(lowered, item, array); });
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
  if (plan.buffer(item.from).kind == BufferKind::out || !is_held_as_it_travels(lowered, item))
    return false;
  const std::vector<WireArray> arrays = wire_arrays(plan, item);
  return std::all_of(arrays.begin(), arrays.end(), [&](const WireArray& array) {
    // Then heads also begin on whole groups of RowPush.
    return array.lanes.lanes * element_size(array.element) % 16 == 0;
  });
}

bool leaves_unpacked(const LoweredPlan& lowered, const TransferItem& item) {
  const std::vector<WireArray> arrays = wire_arrays(lowered.plan, item);
  return std::all_of(arrays.begin(), arrays.end(),
                     [&](const WireArray& array) {
                       return array.lanes.pitch == array.lanes.lanes &&
                              is_sent_as_held(lowered, item, array);
                     }) &&
         unpacked_stretches(lowered.plan, item).has_value();
}

/// The rows that the transfer reads from the sender's buffer.
RowBlock RankEngine::sent_block(const TransferItem& item, bool second) const {
  const Dtype held = arrays_.element(item.from, second);
  return sent_element(lowered_, item, second) == held
             ? arrays_.block(item.from, second, item.heads.begin)
             : arrays_.wire_block(item.from, second, item.heads.begin);
}

/// The transfer's rows of one array, from the sender's buffer to the receiver's. Only the end on
/// this device has an address.
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
  copy.num_rows = plan_.rows_of(item);
  copy.heads = item.heads.size();
  copy.lanes = lanes.pitch;
  copy.adds = item.landing == Landing::add;
  if (is_statistic(from.kind, second)) {
    copy.adds = false;  // scaled results have the lse of all of them
    return copy;
  }
  const bool is_sum = item.payload == Payload::dkv || item.payload == Payload::dq ||
                      item.payload == Payload::partial || copy.adds;
  // Rows that stay on the rank are not rounded by a wire.
  if (is_sum && item.link != LinkClass::self && !item.wire_fp32) copy.value_dtype = numerics.dtype;
  // A reduce-scatter adds in the format of the wire.
  const bool is_reduced = item.payload == Payload::out && copy.adds && !item.wire_fp32;
  if (numerics.accumulate == Accumulate::dtype || is_reduced) copy.sum_dtype = numerics.dtype;
  const Rounding rounding = rounding_of(lowered_, item);
  if (rounding.values || (rounding.sums && !copy.adds)) copy.value_dtype = numerics.dtype;
  if (rounding.sums) copy.sum_dtype = numerics.dtype;
  return copy;
}

void RankEngine::run(const TransferItem& item, Stream stream) {
  settle(item, stream);
  for (const bool second : {false, true}) {
    const bool is_sent = second ? arrays_.has_second(item.from) : item.payload != Payload::lse;
    // Added results have the same lse on every rank; the owner of the rows takes its own.
    const bool is_known = second && item.landing == Landing::add && item.payload == Payload::out &&
                          item.src != item.dst;
    if (is_sent && !is_known) launch_row_copy(copy_of(item, second), stream);
  }
}

std::vector<ByteRows> RankEngine::copies_of(const TransferItem& item,
                                            const RankEngine& receiver) const {
  const auto stretches = stretches_of(plan_, item, false);
  std::vector<ByteRows> copies;
  for (const WireArray& array : wire_arrays(plan_, item)) {
    add_copies(stretches.value(), sent_block(item, array.second),
               receiver.arrays_.block(item.to, array.second, item.heads.begin), array.row_lanes,
               copies);
  }
  return copies;
}

std::vector<ListedRows> RankEngine::listed_rows_of(const TransferItem& item,
                                                   const RankEngine& receiver) const {
  std::vector<ListedRows> listed;
  for (const WireArray& array : wire_arrays(plan_, item)) {
    const RowBlock from = sent_block(item, array.second),
                   to = receiver.arrays_.block(item.to, array.second, item.heads.begin);
    const int64_t size = element_size(from.element);
    listed.push_back({from.data, from.row_stride * size, arrays_.row_list(item.from_rows), to.data,
                      to.row_stride * size, arrays_.row_list(item.to_rows), array.row_lanes * size,
                      plan_.rows_of(item)});
  }
  return listed;
}

std::vector<ByteRows> RankEngine::copies_of_packed(const TransferItem& item, const void* staging,
                                                   const RankEngine& receiver) const {
  const auto stretches = stretches_of(plan_, item, true);
  std::vector<ByteRows> copies;
  for (const WireArray& array : wire_arrays(plan_, item)) {
    add_copies(stretches.value(), wire_block(array, staging),
               receiver.arrays_.block(item.to, array.second, item.heads.begin), array.row_lanes,
               copies);
  }
  return copies;
}

std::vector<ByteRows> RankEngine::copies_to_staging(const TransferItem& item, void* staging) const {
  const auto stretches = unpacked_stretches(plan_, item);
  std::vector<ByteRows> copies;
  for (const WireArray& array : wire_arrays(plan_, item)) {
    add_copies(stretches.value(), sent_block(item, array.second), wire_block(array, staging),
               array.row_lanes, copies);
  }
  return copies;
}

int64_t RankEngine::wire_bytes(const TransferItem& item) const {
  int64_t bytes = 0;
  for (const WireArray& array : wire_arrays(plan_, item)) bytes += array.bytes;
  return bytes;
}

void RankEngine::pack(const TransferItem& item, void* staging, Stream stream) {
  settle(item, stream);
  for (const WireArray& array : wire_arrays(plan_, item)) {
    RowCopy copy = copy_of(item, array.second);
    copy.lanes = array.lanes.lanes;
    copy.to = wire_block(array, staging);
    copy.adds = false;
    copy_to_or_from_wire(copy, array.code, true, stream);
  }
}

void RankEngine::unpack(const TransferItem& item, const void* staging, Stream stream) {
  for (const WireArray& array : wire_arrays(plan_, item)) {
    RowCopy copy = copy_of(item, array.second);
    copy.lanes = array.lanes.lanes;
    copy.from = wire_block(array, staging);
    copy_to_or_from_wire(copy, array.code, false, stream);
  }
}

void RankEngine::add_shares(const std::vector<Share>& shares, Stream stream) {
  const TransferItem& any = *shares.front().item;
  const size_t num_arrays = arrays_.has_second(any.to) ? 2 : 1;
  for (size_t a = 0; a < num_arrays; ++a) {  // dk and dv
    RowSum sum;
    sum.into = arrays_.block(any.to, a != 0, any.heads.begin);
    sum.num_shares = static_cast<int32_t>(shares.size());
    sum.heads = any.heads.size();
    sum.num_rows = plan_.buffer(any.to).rows;
    for (size_t s = 0; s < shares.size(); ++s) {
      const TransferItem& item = *shares[s].item;
      const WireArray array = wire_arrays(plan_, item).at(a);
      sum.lanes = array.lanes.lanes;
      sum.shares[s] = shares[s].staging == nullptr
                          ? arrays_.block(item.from, array.second, item.heads.begin)
                          : wire_block(array, shares[s].staging);
      sum.shares[s].rows = arrays_.share_rows(item);
    }
    launch_row_sum(sum, stream);
  }
}

/// Reserves the flags for the one rank of this device, and records which ranks set them.
void RankEngine::plan_arrivals() {
  for (const Direction direction : kDirections) {
    const PassNotes& notes = lowered_.notes[direction];
    const Pass& pass = plan_.pass(direction);
    InputFlags& inputs = inputs_[direction];
    if (!notes.is_cut) continue;
    for (const RankId rank : notes.ranks.ids()) {
      if (!arrays_.is_here(rank)) continue;
      for (size_t i = 0; i < pass.transfers.size(); ++i) {
        const TransferItem& item = pass.transfers[i];
        if (notes.transfers[i].piece != kWhole && item.dst == rank &&
            std::find(inputs.sources.begin(), inputs.sources.end(), item.src) ==
                inputs.sources.end())
          inputs.sources.push_back(item.src);
      }
      inputs.array = arrays_.reserve(fmt::format("rank {} arrivals", to_index(rank)),
                                     static_cast<int64_t>(notes.ranks[rank].cuts.q.size() *
                                                          inputs.sources.size() * sizeof(int32_t)));
    }
  }
}

bool RankEngine::has_arrivals_from(Direction direction, RankId source) const {
  const std::vector<RankId>& sources = inputs_[direction].sources;
  return std::find(sources.begin(), sources.end(), source) != sources.end();
}

int32_t* RankEngine::arrival_flag(Direction direction, int32_t piece, RankId source) const {
  const InputFlags& inputs = inputs_[direction];
  const auto place = std::find(inputs.sources.begin(), inputs.sources.end(), source);
  return arrays_.at<int32_t>(inputs.array) + piece * static_cast<int64_t>(inputs.sources.size()) +
         (place - inputs.sources.begin());
}

/// tile_heads: of the stationary side, as in TileShape.
Arrivals RankEngine::arrivals_of(const ComputeItem& item, Direction direction, TileOwner owner,
                                 int32_t tile_heads) const {
  const PassNotes& notes = lowered_.notes[direction];
  if (!notes.is_cut) return {};
  const HeadCuts& cuts = notes.ranks[item.rank].cuts;
  const bool is_query = owner == TileOwner::queries;
  const int32_t first = is_query ? item.heads.begin : kv_heads_of(attention_, item.heads).begin;
  Arrivals arrivals;
  const InputFlags& inputs = inputs_[direction];
  arrivals.flags = arrays_.at<int32_t>(inputs.array);
  arrivals.expected = pass_number_;
  arrivals.num_sources = static_cast<int32_t>(inputs.sources.size());
  for (const int32_t end : is_query ? cuts.q : cuts.kv)
    arrivals.ends[arrivals.num_pieces++] = std::max(0, end - first) / tile_heads;
  return arrivals;
}

/// Number of heads that may run together: a piece must not wait for later ones.
int32_t RankEngine::most_heads_of(const ComputeItem& item, Direction direction, TileOwner owner,
                                  int32_t tile_heads) const {
  const Arrivals arrivals = arrivals_of(item, direction, owner, tile_heads);
  int32_t most = 0;
  for (int32_t piece = 0; piece < arrivals.num_pieces; ++piece) {
    const int32_t heads = arrivals.ends[piece] - (piece == 0 ? 0 : arrivals.ends[piece - 1]);
    most = most == 0 ? heads : std::min(most, heads);
  }
  return most;
}

}  // namespace cpscope::kernels
