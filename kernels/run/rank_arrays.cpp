#include "kernels/run/rank_arrays.h"

#include "kernels/device/scalar_types.h"

#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

std::array<int32_t, 4> share_key(const TransferItem& share) {
  return {share.src == share.dst ? 1 : 0, to_index(share.from_rows), to_index(share.to_rows),
          to_index(share.to)};
}

}  // namespace

ArrayLanes array_lanes(BufferKind kind, bool second, const Attention& attention) {
  const auto padded = [](int32_t lanes) { return ArrayLanes{lanes, padded_lanes(lanes)}; };
  switch (kind) {
    case BufferKind::q:
    case BufferKind::dq:
      return second ? ArrayLanes{} : padded(attention.head_dim_qk);
    case BufferKind::d_out:
      return second ? ArrayLanes{} : padded(attention.head_dim_v);
    case BufferKind::kv:
    case BufferKind::dkv:
      return padded(second ? attention.own_head_dim_v() : attention.key_dim());
    case BufferKind::out:
      return second ? ArrayLanes{1, 1} : padded(attention.head_dim_v);
    case BufferKind::stats:
      return {1, 1};
  }
  return {};
}

Dtype element_of(BufferKind kind, Dtype dtype) {
  const bool is_input =
      kind == BufferKind::q || kind == BufferKind::kv || kind == BufferKind::d_out;
  return is_input ? dtype : Dtype::fp32;
}

RankArrays::RankArrays(const LoweredPlan& lowered, IdVector<RankId, bool> is_here)
    : lowered_(lowered),
      plan_(lowered.plan),
      is_here_(std::move(is_here)),
      first_(plan_.buffers.size(), -1),
      second_(first_),
      wire_first_(first_),
      wire_second_(first_) {
  const int64_t wire_size = element_size(plan_.scenario.numerics.dtype);
  for (const BufferId id : plan_.buffers.ids()) {
    const BufferSpec& spec = plan_.buffer(id);
    if (!is_here_[spec.rank]) continue;
    for (const bool second : {false, true}) {
      const int64_t size = element_size(element(id, second));
      const ArrayLanes lanes = array_lanes(spec.kind, second, plan_.scenario.attention);
      if (lanes.lanes == 0) continue;
      const int64_t count = spec.rows * spec.heads.size() * lanes.pitch;
      const std::string name =
          fmt::format("rank {} {}.{}{}", to_index(spec.rank), to_name(spec.kind),
                      to_name(spec.role), second ? " (second array)" : "");
      (second ? second_ : first_)[id] = arrays_.reserve(name, count * size);
      if (lowered.buffers[id].has_wire_copy) {
        (second ? wire_second_ : wire_first_)[id] =
            arrays_.reserve(name + " for wires", count * wire_size);
      }
    }
    if (lowered.buffers[id].has_wire_copy) {
      row_uses_[id];
      row_list_bytes_ += spec.rows;
    }
  }
  for (const Direction direction : kDirections) plan_row_lists(direction);
  plan_share_rows();
}

void RankArrays::plan_row_lists(Direction direction) {
  const Pass& pass = plan_.pass(direction);
  const PassNotes& notes = lowered_.notes[direction];
  for (size_t i = 0; i < pass.transfers.size(); ++i) {
    const TransferItem& item = pass.transfers[i];
    if (is_here(item.src)) plan_row_list(item.from_rows);
    // A kernel that pushes scattered rows needs the list of their places.
    const bool is_listed =
        notes.transfers[i].piece != kWhole && notes.ranks[item.src].pushes_all_pieces;
    if (is_here(item.dst) || (is_here(item.src) && is_listed)) plan_row_list(item.to_rows);
  }
  for (const ReorderItem& item : pass.reorders) {
    if (is_here(item.rank)) plan_row_list(item.order);
  }
  for (const MergeItem& item : pass.merges) {
    if (is_here(item.rank)) plan_row_list(item.into_rows);
  }
}

void RankArrays::plan_row_list(RunListId list) {
  if (list == kAllRows || row_lists_.contains(to_index(list))) return;
  row_lists_[to_index(list)];
  row_list_bytes_ += plan_.rows(list) * static_cast<int64_t>(sizeof(int32_t));
}

void RankArrays::plan_share_rows() {
  const std::vector<TransferNote>& notes = lowered_.notes.backward.transfers;
  for (size_t i = 0; i < notes.size(); ++i) {
    const TransferItem& item = plan_.backward.transfers[i];
    if (!notes[i].is_share || !is_here(item.dst) ||
        !share_rows_.try_emplace(share_key(item)).second)
      continue;
    row_list_bytes_ += plan_.buffer(item.to).rows * static_cast<int64_t>(sizeof(int32_t));
  }
}

std::vector<int32_t> RankArrays::make_share_rows(const TransferItem& share) const {
  const int64_t count = plan_.rows_of(share);
  const TokenRun all{0, count, 1};
  const RunListId read_rows = share.src == share.dst ? share.from_rows : RunListId{kAllRows};
  const std::vector<int64_t> to = expand(runs_of_rows(plan_, share.to_rows, all));
  const std::vector<int64_t> from = expand(runs_of_rows(plan_, read_rows, all));
  std::vector<int32_t> rows(static_cast<size_t>(plan_.buffer(share.to).rows), -1);
  for (size_t i = 0; i < to.size(); ++i)
    rows.at(static_cast<size_t>(to[i])) = static_cast<int32_t>(from[i]);
  return rows;
}

std::vector<uint8_t> RankArrays::make_row_uses(BufferId id) const {
  std::vector<uint8_t> uses(static_cast<size_t>(plan_.buffer(id).rows), 0);
  for (const TransferItem& item : plan_.backward.transfers) {
    if (item.from != id) continue;
    const bool leaves = sent_element(lowered_, item, false) != element(id, false);
    const TokenRun all{0, plan_.rows_of(item), 1};
    for (const int64_t row : expand(runs_of_rows(plan_, item.from_rows, all)))
      uses.at(static_cast<size_t>(row)) |= leaves ? WireRows::kLeaves : WireRows::kStays;
  }
  return uses;
}

void RankArrays::allocate(uint8_t fill, Stream stream) {
  arrays_.allocate(fill, stream);
  for (auto& [list, memory] : row_lists_) {
    std::vector<int32_t> rows;
    rows.reserve(static_cast<size_t>(plan_.rows(RunListId{list})));
    for (const TokenRun& run : plan_.list(RunListId{list})) {
      for (int64_t row = run.begin; row < run.end; row += run.stride)
        rows.push_back(static_cast<int32_t>(row));
    }
    memory = to_device(rows, stream);
  }
  const std::vector<TransferNote>& notes = lowered_.notes.backward.transfers;
  for (size_t i = 0; i < notes.size(); ++i) {
    const TransferItem& item = plan_.backward.transfers[i];
    if (!notes[i].is_share || !is_here(item.dst)) continue;
    DeviceMemory& memory = share_rows_.at(share_key(item));
    if (memory.data() == nullptr) memory = to_device(make_share_rows(item), stream);
  }
  for (auto& [id, memory] : row_uses_) memory = to_device(make_row_uses(id), stream);
}

Dtype element_in(const LoweredPlan& lowered, BufferId id, bool second) {
  const BufferKind kind = lowered.plan.buffer(id).kind;
  const Dtype dtype = lowered.plan.scenario.numerics.dtype;
  const bool is_lse = second && kind == BufferKind::out;
  return lowered.buffers[id].is_narrow && !is_lse ? dtype : element_of(kind, dtype);
}

Dtype sent_element(const LoweredPlan& lowered, const TransferItem& item, bool second) {
  const bool has_copy = lowered.buffers[item.from].has_wire_copy;
  if (has_copy && item.src != item.dst && !item.wire_fp32)
    return lowered.plan.scenario.numerics.dtype;
  return element_in(lowered, item.from, second);
}

Dtype RankArrays::element(BufferId id, bool second) const {
  return element_in(lowered_, id, second);
}

RowBlock RankArrays::block(BufferId id, bool second, int32_t first_head) const {
  return block_at((second ? second_ : first_)[id], element(id, second), id, second, first_head);
}

RowBlock RankArrays::wire_block(BufferId id, bool second, int32_t first_head) const {
  return block_at((second ? wire_second_ : wire_first_)[id], plan_.scenario.numerics.dtype, id,
                  second, first_head);
}

RowBlock RankArrays::block_at(int32_t array, Dtype element, BufferId id, bool second,
                              int32_t first_head) const {
  const BufferSpec& spec = plan_.buffer(id);
  const ArrayLanes lanes = array_lanes(spec.kind, second, plan_.scenario.attention);
  auto* data = at<uint8_t>(array);
  const int64_t offset = int64_t{first_head - spec.heads.begin} * lanes.pitch;
  return {data + offset * element_size(element), element, int64_t{spec.heads.size()} * lanes.pitch,
          lanes.pitch, nullptr};
}

DeviceRows RankArrays::rows(BufferId id, bool second, int32_t first_head) const {
  const RowBlock rows = block(id, second, first_head);
  return {rows.data, rows.row_stride, rows.head_stride};
}

BufferShape RankArrays::shape(BufferId id, bool second) const {
  const BufferSpec& spec = plan_.buffer(id);
  const ArrayLanes lanes = array_lanes(spec.kind, second, plan_.scenario.attention);
  return {spec.rows, spec.heads.size(), lanes.lanes, lanes.pitch};
}

const int32_t* RankArrays::row_list(RunListId list) const {
  return list == kAllRows ? nullptr : row_lists_.at(to_index(list)).as<int32_t>();
}

const int32_t* RankArrays::share_rows(const TransferItem& share) const {
  return share_rows_.at(share_key(share)).as<int32_t>();
}

}  // namespace cpscope::kernels
