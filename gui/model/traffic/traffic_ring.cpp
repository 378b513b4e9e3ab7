#include "gui/model/item_words.h"
#include "gui/model/legend.h"
#include "gui/model/light.h"
#include "gui/model/traffic/traffic_marks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr size_t kMostEqualLabels = 8;     // if more arrows have the same label, it is shown once
constexpr float kLeastLabelledRing = 190;  // minimum pixels of a ring with equal labels
constexpr int64_t kMostNamedItems = 100'000;
constexpr float kWidestLabel = 0.6F;  // of the ring's box, of labels that are equal
constexpr float kLabelGap = 9;        // pixels from an arrow to its label

/// The positions of the ranks, and the circles of their groups.
struct RingPlaces {
  std::vector<Point> ranks;
  std::vector<Point> groups;  // centres; empty if there are no groups
  float group_radius = 0;
  float node = 12;  // radius of a rank's circle
};

/// The first point is at the top, the others follow clockwise; all are rotated back by a share of
/// the distance of two neighbours.
Point on_circle(Point center, float radius, int32_t index, int32_t count, double back = 0) {
  const double turn =
      2 * std::numbers::pi * (index - back) / std::max(1, count) - std::numbers::pi / 2;
  return {center.x + radius * static_cast<float>(std::cos(turn)),
          center.y + radius * static_cast<float>(std::sin(turn))};
}

RingPlaces place_ranks(const TrafficScene& scene, const Box& box) {
  RingPlaces places;
  const int32_t ranks = scene.matrix.num_ranks();
  const Parallel& parallel = scene.input.plan->plan().scenario.parallel;
  const float side = std::min(box.width(), box.height());
  const Point center = box.center();
  // Groups that exchange heads, or windows.
  const int32_t group_size = has_head_groups(parallel.comm_type)           ? parallel.a2a_size
                             : parallel.comm_type == CommType::double_ring ? parallel.ring_window
                                                                           : 1;
  const bool has_groups = group_size > 1 && group_size < ranks;
  if (!has_groups) {
    places.node = std::clamp(side / (static_cast<float>(ranks) * 0.9F + 6), 6.0F, 17.0F);
    const float radius = ranks == 1 ? 0 : side / 2 - places.node - 14;
    for (int32_t rank = 0; rank < ranks; ++rank)
      places.ranks.push_back(on_circle(center, radius, rank, ranks));
    return places;
  }
  const int32_t groups = ranks / group_size;
  // Neighbouring groups must not touch.
  const auto spread = static_cast<float>(std::sin(std::numbers::pi / groups));
  places.group_radius = side / 2 * spread / (1 + spread) * 0.78F;
  const float radius = side / 2 - places.group_radius - 8;
  // Between the circles of neighbours is room for an arrow.
  constexpr float kArrow = 24;
  const auto step = static_cast<float>(std::sin(std::numbers::pi / group_size));
  const float room = ((places.group_radius - 6) * step - kArrow / 2) / (1 + step);
  places.node = std::clamp(std::min(places.group_radius / 3.2F, room), 4.0F, 15.0F);
  for (int32_t group = 0; group < groups; ++group)
    places.groups.push_back(on_circle(center, radius, group, groups, 0.5));
  // The first rank of a group is the outermost, so that links of the same places run side by side.
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const int32_t group = rank / group_size;
    const double turned = (group - 0.5) * group_size / groups;
    places.ranks.push_back(on_circle(places.groups[group], places.group_radius - places.node - 6,
                                     rank % group_size, group_size, -turned));
  }
  return places;
}

bool overlaps(const Box& a, const Box& b) {
  return a.x0 < b.x1 && b.x0 < a.x1 && a.y0 < b.y1 && b.y0 < a.y1;
}

struct Arrow {
  Point from, to;
  Point right;  // unit vector to the right
};

/// An arrow from circle edge to circle edge, slightly right of the middle so that both directions
/// are visible.
Arrow place_arrow(const RingPlaces& places, const LinkBytes& link, bool has_reverse) {
  const Point a = places.ranks[link.src], b = places.ranks[link.dst];
  const float dx = b.x - a.x, dy = b.y - a.y;
  const float length = std::max(1e-3F, std::sqrt(dx * dx + dy * dy));
  const Point ahead{dx / length, dy / length}, right{-dy / length, dx / length};
  const float shift = has_reverse ? std::min(4.0F, places.node / 3) : 0;
  const float trim = std::min(places.node + 3, length / 2 - 1);
  return {{a.x + ahead.x * trim + right.x * shift, a.y + ahead.y * trim + right.y * shift},
          {b.x - ahead.x * trim + right.x * shift, b.y - ahead.y * trim + right.y * shift},
          right};
}

/// Adds a label next to its arrow where there is nothing else; leaves it out when there is no room.
void add_arrow_label(Drawing& drawing, const TrafficScene& scene, const Box& bounds,
                     const Arrow& arrow, const std::string& text, std::vector<Box>& taken) {
  const float width = scene.input.text_width(text, kSmallText, Face::body) + 6;
  const float height = kSmallText + 4;
  for (const float along : {0.5F, 0.34F, 0.66F, 0.22F, 0.78F}) {
    for (const float side : {0.0F, 1.0F, -1.0F}) {
      const float away = side * (kLabelGap + std::abs(arrow.right.x) * width / 2);
      const Point at{arrow.from.x + (arrow.to.x - arrow.from.x) * along + arrow.right.x * away,
                     arrow.from.y + (arrow.to.y - arrow.from.y) * along + arrow.right.y * away};
      const Box box{at.x - width / 2, at.y - height / 2, at.x + width / 2, at.y + height / 2};
      if (box.x0 < bounds.x0 || box.x1 > bounds.x1 || box.y0 < bounds.y0 || box.y1 > bounds.y1)
        continue;
      if (std::any_of(taken.begin(), taken.end(), [&](const Box& b) { return overlaps(b, box); }))
        continue;
      taken.push_back(box);
      drawing.add(FilledBox{box, scene.input.theme->of(Role::background), Hatch::none, {}, 3});
      drawing.add(Label{at, Anchor::center_middle, scene.input.theme->of(Role::text), kSmallText,
                        Face::body, text});
      return;
    }
  }
}

void add_nodes(View& view, const TrafficScene& scene, const RingPlaces& places) {
  const Theme& theme = *scene.input.theme;
  for (size_t i = 0; i < places.ranks.size(); ++i) {
    const auto rank = static_cast<int32_t>(i);
    const Point at = places.ranks[i];
    const Box box{at.x - places.node, at.y - places.node, at.x + places.node, at.y + places.node};
    const Color color = theme.of_rank(rank, scene.matrix.num_ranks());
    view.drawing.add(FilledBox{box, color, Hatch::none, {}, places.node});
    const Light light = light_of_rank(scene.input, rank);
    if (rank == scene.input.focus_rank)
      view.drawing.add(OutlinedBox{box, theme.of(Role::accent), 2, false, places.node});
    if (light != Light::none)
      view.drawing.add(OutlinedBox{box.inset(-2),
                                   theme.of(light == Light::hovered    ? Role::hovered
                                            : light == Light::selected ? Role::selected
                                                                       : Role::related),
                                   light == Light::selected ? 2.0F : 1.0F, false, places.node + 2});
    const std::string text = fmt::format("{}", rank);
    const float size = std::clamp(places.node * 0.9F, 8.0F, 13.0F);
    view.drawing.add(
        Label{at, Anchor::center_middle, theme.text_on(color), size, Face::strong, text});
    view.hits.push_back(
        {box, RankTarget{rank}, fmt::format("node/{}", rank), describe_rank_bytes(scene, rank)});
  }
}

void add_groups(Drawing& drawing, const TrafficScene& scene, const RingPlaces& places) {
  for (size_t group = 0; group < places.groups.size(); ++group) {
    const Point at = places.groups[group];
    const float r = places.group_radius;
    const Box box{at.x - r, at.y - r, at.x + r, at.y + r};
    drawing.add(OutlinedBox{box, scene.input.theme->of(Role::border), 1, false, r});
  }
}

/// The names of the groups, above all arrows.
void add_group_names(Drawing& drawing, const TrafficScene& scene, const RingPlaces& places) {
  const Theme& theme = *scene.input.theme;
  for (size_t group = 0; group < places.groups.size(); ++group) {
    const bool is_window =
        scene.input.plan->plan().scenario.parallel.comm_type == CommType::double_ring;
    const std::string name = fmt::format("{} {}", is_window ? "window" : "group", group);
    const float half = scene.input.text_width(name, kSmallText, Face::body) / 2 + 2;
    const Point at{places.groups[group].x, places.groups[group].y - places.group_radius - 4};
    drawing.add(
        FilledBox{{at.x - half, at.y - kSmallText / 2 - 1, at.x + half, at.y + kSmallText / 2 + 1},
                  theme.of(Role::background),
                  Hatch::none,
                  {},
                  3});
    drawing.add(
        Label{at, Anchor::center_middle, theme.of(Role::faint_text), kSmallText, Face::body, name});
  }
}

std::vector<LinkBytes>::const_iterator find_link(const TrafficScene& scene, int32_t src,
                                                 int32_t dst) {
  const auto at = std::partition_point(
      scene.links.begin(), scene.links.end(),
      [&](const LinkBytes& l) { return l.src != src ? l.src < src : l.dst < dst; });
  const bool is_it = at != scene.links.end() && at->src == src && at->dst == dst;
  return is_it ? at : scene.links.end();
}

Color arrow_color(const TrafficScene& scene, const LinkBytes& link) {
  const Light light = light_of_link(scene.input, link.src, link.dst);
  if (light == Light::none) return scene.input.theme->of(Role::transfer);
  return scene.input.theme->of(light == Light::hovered    ? Role::hovered
                               : light == Light::selected ? Role::selected
                                                          : Role::related);
}

/// Keys and values, queries, results, and gradients have a colour each.
Role role_of(Payload payload) {
  switch (payload) {
    case Payload::kv:
      return Role::key;
    case Payload::q:
      return Role::query;
    case Payload::dkv:
    case Payload::dq:
    case Payload::d_out:
      return Role::compute;
    case Payload::out:
    case Payload::partial:
    case Payload::lse:
    case Payload::stats:
      break;
  }
  return Role::merge;
}

/// Adds a packet. Without a name its shape tells the kind: keys, values and queries are round,
/// gradients square, results hollow.
void add_packet(Drawing& drawing, const ViewInput& input, Point at, Payload payload,
                bool is_named) {
  constexpr float kDot = 4;
  const Role role = role_of(payload);
  const Color color = input.theme->of(role), back = input.theme->of(Role::background);
  const std::string name(to_name(payload));
  const float high = is_named ? kSmallText / 2 + 2 : kDot;
  const float half = is_named ? input.text_width(name, kSmallText, Face::strong) / 2 + 3 : kDot;
  const Box box{at.x - half, at.y - high, at.x + half, at.y + high};
  const float rounding = !is_named && role == Role::compute ? 0 : high;
  const bool is_hollow = !is_named && role == Role::merge;
  drawing.add(FilledBox{box, is_hollow ? back : color, Hatch::none, {}, rounding});
  drawing.add(OutlinedBox{box, is_hollow ? color : back, is_hollow ? 2.0F : 1.0F, false, rounding});
  if (is_named)
    drawing.add(Label{at, Anchor::center_middle, input.theme->text_on(color), kSmallText,
                      Face::strong, name});
}

/// Adds what travels while the moment runs, one packet for each payload of a link. All of them
/// leave with the moment's begin, one after another, and have arrived at its end.
void add_packets(Drawing& drawing, const TrafficScene& scene, const std::vector<Arrow>& arrows,
                 const std::vector<PayloadBytes>& payloads) {
  constexpr float kNamed = 90;       // pixels of an arrow whose packets have room for names
  constexpr size_t kMostNamed = 40;  // links
  constexpr double kLag = 0.22, kLeastLag = 10;  // between packets: of the arrow, in pixels
  const ViewInput& input = scene.input;
  if (!(input.progress < 1) || input.is_cumulative) return;
  for (size_t link = 0; link < std::min(arrows.size(), payloads.size()); ++link) {
    const Arrow& arrow = arrows[link];
    const float dx = arrow.to.x - arrow.from.x, dy = arrow.to.y - arrow.from.y;
    const float length = std::max(1.0F, std::sqrt(dx * dx + dy * dy));
    const double lag = std::clamp(kLeastLag / length, kLag, 0.5);
    const auto kinds = std::count_if(payloads[link].begin(), payloads[link].end(),
                                     [](int64_t bytes) { return bytes > 0; });
    int32_t number = 0;
    for (size_t kind = 0; kind < payloads[link].size(); ++kind) {
      if (payloads[link][kind] == 0) continue;
      const double gone = input.progress * (1 + lag * static_cast<double>(kinds - 1));
      const auto share = static_cast<float>(std::clamp(gone - lag * number++, 0.0, 1.0));
      add_packet(drawing, input, {arrow.from.x + dx * share, arrow.from.y + dy * share},
                 static_cast<Payload>(kind), length >= kNamed && arrows.size() <= kMostNamed);
    }
  }
}

}  // namespace

std::vector<PayloadBytes> payloads_of_links(const TrafficScene& scene) {
  const PlanIndex& index = *scene.input.plan;
  if (static_cast<int64_t>(scene.links.size()) > kMostNamedItems) return {};
  std::vector<PayloadBytes> bytes(scene.links.size(), PayloadBytes{});
  if (count_stage_items(index, scene.first_stage, scene.end_stage) > kMostNamedItems) return bytes;
  for (int32_t s = scene.first_stage; s < scene.end_stage; ++s) {
    const StageRef& stage = index.stages()[s];
    if (stage.kind != StageKind::transfer) continue;
    const auto& items = index.pass(stage.direction).transfers;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const TransferItem& item = items[i];
      const auto at = find_link(scene, to_index(item.src), to_index(item.dst));
      if (at != scene.links.end())
        bytes[at - scene.links.begin()][static_cast<size_t>(item.payload)] += item.bytes;
    }
  }
  return bytes;
}

std::vector<std::string> name_payloads(const std::vector<PayloadBytes>& payloads) {
  std::vector<std::string> names;
  for (const PayloadBytes& bytes : payloads) names.push_back(describe_payloads(bytes));
  return names;
}

bool carries_partials(const PayloadBytes& bytes) {
  return bytes[static_cast<size_t>(Payload::partial)] > 0;
}

std::string describe_rank_bytes(const TrafficScene& scene, int32_t rank) {
  const auto at = static_cast<size_t>(rank);
  return fmt::format("rank {} sends {}, receives {}", rank, print_bytes(scene.sent[at]),
                     print_bytes(scene.received[at]));
}

std::string add_traffic_ring(View& view, const TrafficScene& scene, const Box& box) {
  const RingPlaces places = place_ranks(scene, box);
  add_groups(view.drawing, scene, places);
  const std::vector<PayloadBytes> payloads = payloads_of_links(scene);
  const std::vector<std::string> names = name_payloads(payloads);
  const bool is_uniform =
      names.size() > 2 && std::all_of(names.begin(), names.end(),
                                      [&](const std::string& name) { return name == names[0]; });
  int64_t most = 1;
  for (const LinkBytes& link : scene.links) most = std::max(most, link.bytes);
  const auto has_link = [&](int32_t src, int32_t dst) {
    return find_link(scene, src, dst) != scene.links.end();
  };
  std::vector<Arrow> arrows;
  for (size_t i = 0; i < scene.links.size(); ++i) {
    const LinkBytes& link = scene.links[i];
    arrows.push_back(place_arrow(places, link, has_link(link.dst, link.src)));
    const float width = 1.2F + 3.3F * static_cast<float>(static_cast<double>(link.bytes) /
                                                         static_cast<double>(most));
    const bool has_partials = i < payloads.size() && carries_partials(payloads[i]);
    view.drawing.add(Line{arrows.back().from, arrows.back().to, arrow_color(scene, link), width,
                          has_partials, true});
  }
  add_group_names(view.drawing, scene, places);
  add_nodes(view, scene, places);
  // Equal labels on all arrows would hide a small ring.
  const bool is_crowded = names.size() > kMostEqualLabels || box.width() < kLeastLabelledRing ||
                          (is_uniform && scene.input.text_width(names[0], kSmallText, Face::body) >
                                             box.width() * kWidestLabel);
  if (is_uniform && is_crowded) {
    add_packets(view.drawing, scene, arrows, payloads);
    return "each arrow: " + names[0];
  }
  std::vector<Box> taken;
  for (const Point& at : places.ranks)
    taken.push_back(
        {at.x - places.node, at.y - places.node, at.x + places.node, at.y + places.node});
  for (size_t i = 0; i < arrows.size(); ++i)
    add_arrow_label(view.drawing, scene, box, arrows[i], names[i], taken);
  add_packets(view.drawing, scene, arrows, payloads);
  return {};
}

}  // namespace cpscope::gui
