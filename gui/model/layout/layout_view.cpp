#include "gui/model/layout/layout_view.h"

#include "gui/model/describe.h"
#include "gui/model/layout/layout_scene.h"
#include "gui/model/legend.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

/// Data shared by all layout pictures of a plan, independent of the camera.
struct LayoutMaps {
  PlaceMap q, kv;
};

std::shared_ptr<const LayoutMaps> layout_maps(const ViewInput& input) {
  const PlanIndex& index = *input.plan;
  const std::string key =
      fmt::format("layout {} {:x}", static_cast<const void*>(input.plan), index.plan().hash);
  return remember<LayoutMaps>(input.memo, key, false, [plan = input.plan] {
    auto maps = std::make_shared<LayoutMaps>();
    maps->q = make_place_map(*plan, Side::q);
    if (!plan->plan().layout.same_kv) maps->kv = make_place_map(*plan, Side::kv);
    return std::shared_ptr<const LayoutMaps>(std::move(maps));
  });
}

/// Adds everything of one side inside the box.
void add_side(const ViewInput& input, const PlaceMap& map, const Box& box, bool has_title,
              View& view) {
  const float scale = std::clamp(box.height() / 400, 0.6F, 1.6F);
  const float left_margin = box.width() >= 420 ? 62 + 16 * scale : 50.0F;
  const float right_margin = box.width() >= 520 ? 104.0F : 8.0F;
  LayoutScene scene{input,
                    map,
                    view,
                    Axis(static_cast<double>(map.tokens), input.camera.x, box.x0 + left_margin,
                         box.x1 - right_margin),
                    box.x0,
                    box.x1};
  view.scaled.push_back({scene.packed.begin(), box.y0, scene.packed.end(), box.y1});
  scene.text = std::clamp(12 * scale, 11.0F, 14.0F);
  scene.small = std::clamp(11 * scale, 10.5F, 13.0F);
  const Theme& theme = *input.theme;
  float y = box.y0 + 2;
  if (has_title) {
    const std::string title = fmt::format(
        "{}: {} tokens {}{} ranks", map.side == Side::q ? "Queries" : "Keys and values",
        print_count(map.tokens), map.heads.size() > 0 ? "on all, their heads cut between " : "on ",
        map.num_ranks);
    view.drawing.add(Label{{scene.packed.begin(), y},
                           Anchor::left_top,
                           theme.of(map.side == Side::q ? Role::query : Role::key),
                           scene.text,
                           Face::strong,
                           fit_text(input.text_width, title, scene.text, Face::strong,
                                    box.x1 - scene.packed.begin())});
    y += scene.text + 3;
  }
  y = add_packed_order(scene, y, 20 * scale, 26 * scale);
  const bool reorders = has_reorder(input, map.side);
  const float rest = box.y1 - y;
  float reorder_height = 0;
  if (reorders) reorder_height = rest < 190 ? rest - 12 : std::clamp(rest * 0.46F, 100.0F, 320.0F);
  const float bottom = box.y1 - reorder_height - (reorder_height > 0 ? 10 : 0);
  if (bottom - y > 60) {
    const float most = map.num_ranks <= 12 ? 30 * scale * static_cast<float>(map.num_ranks) : 1e9F;
    const float rows = std::min(most, (bottom - y) * (map.num_ranks <= 12 ? 0.55F : 0.72F));
    add_local_order(scene, {scene.packed.begin(), bottom - rows, scene.packed.end(), bottom}, y);
  }
  if (reorders && reorder_height > 60)
    add_reorder(scene, {box.x0, box.y1 - reorder_height, box.x1, box.y1});
}

/// Adds one entry of the legend; its sample consists of equal parts.
void add_sampled_entry(const ViewInput& input, Drawing& drawing, float& x, const Box& box,
                       const std::vector<FilledBox>& samples, const std::string& text) {
  add_legend_entry(drawing, input, box, x, text, 26, [&](const Box& swatch) {
    const float step = swatch.width() / static_cast<float>(samples.size());
    for (size_t i = 0; i < samples.size(); ++i) {
      FilledBox part = samples[i];
      part.box = {swatch.x0 + step * static_cast<float>(i), swatch.y0,
                  swatch.x0 + step * static_cast<float>(i + 1), swatch.y1};
      drawing.add(part);
    }
  });
}

void add_layout_legend(const ViewInput& input, const PlaceMap& map, const Box& box,
                       Drawing& drawing) {
  const Theme& theme = *input.theme;
  float x = box.x0 + (box.width() >= 420 ? 72.0F : 8.0F);
  std::vector<FilledBox> ranks;
  const int32_t shown = std::min(map.num_ranks, 6);
  for (int32_t i = 0; i < shown; ++i) {
    const int32_t rank = shown > 1 ? i * (map.num_ranks - 1) / (shown - 1) : 0;
    ranks.push_back({{}, theme.of_rank(rank, map.num_ranks)});
  }
  add_sampled_entry(
      input, drawing, x, box, ranks,
      map.num_ranks == 1 ? "rank 0" : fmt::format("ranks 0 to {}", map.num_ranks - 1));
  add_sampled_entry(input, drawing, x, box,
                    {{{}, theme.of(Role::padding), Hatch::dots, theme.of(Role::background)}},
                    "padding: a slot without a token");
  add_sampled_entry(input, drawing, x, box, {{{}, theme.of(Role::accent).with_alpha(150)}},
                    fmt::format("where tokens of rank {} go", input.focus_rank));
  if (const CpRound* round = round_at(*input.plan, input.moment); round != nullptr) {
    const Layout& layout = input.plan->plan().layout;
    add_legend_entry(drawing, input, box, x,
                     fmt::format("round {} of {}: ranks that work together",
                                 round - layout.rounds.data() + 1, layout.rounds.size()),
                     14, [&](const Box& swatch) {
                       drawing.add(OutlinedBox{swatch, theme.of(Role::transfer), 2});
                     });
  }
  if (map.num_ranks > 12) {
    std::vector<FilledBox> places;
    for (const double share : {0.0, 0.25, 0.5, 0.75, 1.0})
      places.push_back({{}, theme.of_quantity(share)});
    add_sampled_entry(input, drawing, x, box, places, "rows below: first to last token");
  }
}

}  // namespace

View draw_layout(const ViewInput& input) {
  View view;
  view.title = "Layout: owner and local row of each token";
  const Point middle{input.size.width / 2, input.size.height / 2};
  if (input.plan == nullptr) {
    add_sentence_line(view.drawing, input, middle,
                      "No plan is open. Open a scenario to see who owns its tokens");
    return view;
  }
  view.title = with_round(view.title, *input.plan, input.moment);
  const float width = input.size.width, height = input.size.height;
  if (!(width >= 160) || !(height >= 110)) {
    add_sentence_line(view.drawing, input, middle, "Enlarge this view to see the layout");
    return view;
  }
  const std::shared_ptr<const LayoutMaps> maps = layout_maps(input);
  const float bottom = height - kLegendHeight - 2;
  const Axis packed(static_cast<double>(maps->q.tokens), input.camera.x, 0, width - 176);
  view.scale = print_scale(packed.units_per_pixel(), "token");
  if (input.plan->plan().layout.same_kv) {
    add_side(input, maps->q, {4, 0, width - 4, bottom}, false, view);
  } else if (width > 1.5F * height) {
    add_side(input, maps->q, {4, 0, width / 2 - 6, bottom}, true, view);
    add_side(input, maps->kv, {width / 2 + 6, 0, width - 4, bottom}, true, view);
  } else {
    add_side(input, maps->q, {4, 0, width - 4, bottom / 2 - 4}, true, view);
    add_side(input, maps->kv, {4, bottom / 2 + 4, width - 4, bottom}, true, view);
  }
  add_layout_legend(input, maps->q, {0, height - kLegendHeight, width, height}, view.drawing);
  return view;
}

}  // namespace cpscope::gui
