#include "gui/model/numbers/error_heat.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cpscope::gui {
namespace {

constexpr int64_t kMostPixels = 4096;

/// Cells along one axis: `count` cells of equal width between two pixels.
struct Cells {
  float begin = 0, end = 0;
  std::vector<std::pair<int64_t, int64_t>> ids;  // [cell] ids that it shows, [first, last)

  float pixel_of(size_t cell) const {
    return begin + (end - begin) * static_cast<float>(cell) / static_cast<float>(ids.size());
  }
};

/// One cell for every id, or for every pixel if ids are narrower.
Cells cut_axis(const Axis& axis) {
  Cells cells;
  const auto total = static_cast<int64_t>(axis.total());
  const auto lo = std::clamp<int64_t>(static_cast<int64_t>(std::floor(axis.lo())), 0, total),
             hi = std::clamp<int64_t>(static_cast<int64_t>(std::ceil(axis.hi())), 0, total);
  if (lo >= hi || axis.end() - axis.begin() < 1) return cells;
  if (axis.pixels_per_unit() >= 1 && hi - lo <= kMostPixels) {
    cells.begin = axis.pixel_of(static_cast<double>(lo));
    cells.end = axis.pixel_of(static_cast<double>(hi));
    for (int64_t id = lo; id < hi; ++id) cells.ids.emplace_back(id, id + 1);
    return cells;
  }
  const float first = std::floor(std::max(axis.begin(), axis.pixel_of(0)));
  const float last = std::ceil(std::min(axis.end(), axis.pixel_of(axis.total())));
  const auto count = static_cast<int64_t>(std::min<float>(last - first, kMostPixels));
  if (count < 1) return cells;
  cells.begin = first;
  cells.end = last;
  const float width = (last - first) / static_cast<float>(count);
  for (int64_t cell = 0; cell < count; ++cell) {
    const float pixel = first + width * static_cast<float>(cell);
    const auto begin =
        std::clamp<int64_t>(static_cast<int64_t>(std::floor(axis.value_at(pixel))), 0, total - 1);
    const auto end = std::clamp<int64_t>(
        static_cast<int64_t>(std::ceil(axis.value_at(pixel + width))), begin + 1, total);
    cells.ids.emplace_back(begin, end);
  }
  return cells;
}

}  // namespace

ErrorHeat fold_errors(const ErrorField& field, const ErrorScale& scale, const Axis& heads,
                      const Axis& tokens) {
  ErrorHeat heat;
  const Cells across = cut_axis(heads), down = cut_axis(tokens);
  if (across.ids.empty() || down.ids.empty()) return heat;
  heat.pixels.box = {across.begin, down.begin, across.end, down.end};
  heat.pixels.width = static_cast<int32_t>(across.ids.size());
  heat.pixels.height = static_cast<int32_t>(down.ids.size());
  heat.pixels.colors.reserve(across.ids.size() * down.ids.size());
  std::vector<float> worst(static_cast<size_t>(field.heads));
  for (size_t y = 0; y < down.ids.size(); ++y) {
    field.shares.worst_of_rows(down.ids[y].first, down.ids[y].second, worst);
    for (size_t x = 0; x < across.ids.size(); ++x) {
      const auto [head, end_head] = across.ids[x];
      float share = worst[static_cast<size_t>(head)];
      for (int64_t next = head + 1; next < end_head; ++next)
        share = MaxPyramid::worse(share, worst[static_cast<size_t>(next)]);
      heat.pixels.colors.push_back(scale.color_of(share));
      if (share < 0 || !field.is_over(share)) continue;
      ++heat.num_flagged;
      const float height = (down.pixel_of(y) + down.pixel_of(y + 1)) / 2;
      if (heat.flagged_heights.empty() || heat.flagged_heights.back() != height)
        heat.flagged_heights.push_back(height);
      if (heat.flags.size() >= ErrorHeat::kMostFlags) continue;
      heat.flags.push_back(
          {{across.pixel_of(x), down.pixel_of(y), across.pixel_of(x + 1), down.pixel_of(y + 1)},
           down.ids[y].first,
           static_cast<int32_t>(head)});
    }
  }
  return heat;
}

}  // namespace cpscope::gui
