#include "kernels/rank_arrays.h"

#include "kernels/scalar_types.h"

#include <fmt/format.h>

namespace cpscope::kernels {

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
      return padded(second ? attention.head_dim_v : attention.head_dim_qk);
    case BufferKind::out:
      return second ? ArrayLanes{1, 1} : padded(attention.head_dim_v);
  }
  return {};
}

Dtype element_of(BufferKind kind, Dtype dtype) {
  const bool is_input =
      kind == BufferKind::q || kind == BufferKind::kv || kind == BufferKind::d_out;
  return is_input ? dtype : Dtype::fp32;
}

RankArrays::RankArrays(const Plan& plan, std::vector<bool> is_here, std::vector<bool> is_narrow)
    : plan_(plan),
      is_here_(std::move(is_here)),
      is_narrow_(std::move(is_narrow)),
      first_(plan.buffers.size(), -1),
      second_(plan.buffers.size(), -1) {
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    const BufferSpec& spec = plan.buffers[b];
    if (!is_here_[to_index(spec.rank)]) continue;
    for (const bool second : {false, true}) {
      const int64_t size = element_size(element(BufferId{static_cast<int32_t>(b)}, second));
      const ArrayLanes lanes = array_lanes(spec.kind, second, plan.scenario.attention);
      if (lanes.lanes == 0) continue;
      (second ? second_ : first_)[b] =
          arrays_.reserve(fmt::format("rank {} {}.{}{}", to_index(spec.rank), to_name(spec.kind),
                                      to_name(spec.role), second ? " (second array)" : ""),
                          spec.rows * spec.heads.size() * lanes.pitch * size);
    }
  }
  plan_row_lists(plan.forward);
  plan_row_lists(plan.backward);
}

void RankArrays::plan_row_lists(const Pass& pass) {
  for (const TransferItem& item : pass.transfers) {
    if (is_here(item.src)) plan_row_list(item.from_rows);
    if (is_here(item.dst)) plan_row_list(item.to_rows);
  }
  for (const ReorderItem& item : pass.reorders) {
    if (is_here(item.rank)) plan_row_list(item.order);
  }
}

void RankArrays::plan_row_list(RunListId list) {
  if (list == kAllRows || row_lists_.contains(to_index(list))) return;
  row_lists_[to_index(list)];
  row_list_bytes_ += plan_.rows(list) * static_cast<int64_t>(sizeof(int32_t));
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
}

Dtype element_in(const Plan& plan, const std::vector<bool>& is_narrow, BufferId id, bool second) {
  const BufferKind kind = plan.buffer(id).kind;
  const Dtype dtype = plan.scenario.numerics.dtype;
  const bool is_lse = second && kind == BufferKind::out;
  return is_narrow[static_cast<size_t>(to_index(id))] && !is_lse ? dtype : element_of(kind, dtype);
}

Dtype RankArrays::element(BufferId id, bool second) const {
  return element_in(plan_, is_narrow_, id, second);
}

RowBlock RankArrays::block(BufferId id, bool second, int32_t first_head) const {
  const BufferSpec& spec = plan_.buffer(id);
  const ArrayLanes lanes = array_lanes(spec.kind, second, plan_.scenario.attention);
  const Dtype element = this->element(id, second);
  auto* data = second ? this->second<uint8_t>(id) : first<uint8_t>(id);
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

}  // namespace cpscope::kernels
