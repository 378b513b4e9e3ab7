// Pictures of the module cpscope._core: the only file of this room that sees those of gui/.

#include "gui/window/plan_picture.h"
#include "reference/python/arrays.h"
#include "reference/python/boxes.h"

#include <optional>
#include <utility>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

namespace cpscope::python {
namespace nb = nanobind;
using namespace nb::literals;
namespace {

using PixelSize = std::optional<std::pair<float, float>>;

std::string draw_plan(const PlanBox& box, const std::string& view, const std::string& theme,
                      std::optional<int64_t> step, std::optional<int64_t> rank,
                      const std::optional<std::string>& cluster, const std::string& folder,
                      const std::string& stack, const PixelSize& size, bool is_bare,
                      const std::string& id_prefix) {
  auto made = [&]() -> Result<std::string> {
    const nb::gil_scoped_release release;
    gui::PlanPictureRequest request{.view = view,
                                    .theme = theme,
                                    .step = step,
                                    .rank = rank,
                                    .cluster = {},
                                    .stack = stack,
                                    .size = {},
                                    .is_bare = is_bare,
                                    .id_prefix = id_prefix};
    if (size) request.size = gui::Size{size->first, size->second};
    if (cluster) {
      Result<Cluster> loaded = load_cluster(*cluster, folder);
      if (!loaded) return loaded.error();
      request.cluster = std::move(loaded).value();
    }
    return gui::draw_plan_svg(box.checked, request);
  }();
  return take(std::move(made), kInput);
}

std::string draw_ways(const ComparisonBox& box, const std::string& theme,
                      const std::string& id_prefix) {
  return take(gui::draw_comparison_svg(box.candidates, box.scenario.title, theme, id_prefix),
              kInput);
}

}  // namespace

void bind_pictures(nb::module_& module) {
  module.def("draw_plan", &draw_plan, "plan"_a, "view"_a, "theme"_a, "step"_a.none(),
             "rank"_a.none(), "cluster"_a.none(), "folder"_a, "stack"_a, "size"_a.none(), "bare"_a,
             "id_prefix"_a);
  module.def("draw_ways", &draw_ways, "comparison"_a, "theme"_a, "id_prefix"_a);
}

}  // namespace cpscope::python
