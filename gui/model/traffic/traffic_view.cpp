#include "gui/model/traffic/traffic_view.h"

#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "gui/model/item_words.h"
#include "gui/model/legend.h"
#include "gui/model/traffic/edge_matrix.h"
#include "gui/model/traffic/traffic_marks.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope::gui {
namespace {

constexpr float kTrafficLine = 16;
constexpr float kTextHeight = 5 * kTrafficLine + 4;
constexpr float kSideText = 250;
constexpr int64_t kManyTransfers = 100'000;  // more are not summed within a frame
constexpr int64_t kLeastRange = 16;          // minimum ratio most / least of the colour scale

std::shared_ptr<const StageLinks> gather_links(const PlanIndex& index, int32_t first_stage,
                                               int32_t end_stage,
                                               std::shared_ptr<const EdgeMatrix> matrix) {
  auto made = std::make_shared<StageLinks>();
  made->matrix = matrix ? std::move(matrix) : std::make_shared<const EdgeMatrix>(index);
  made->first_stage = first_stage;
  made->end_stage = end_stage;
  made->plan_hash = index.plan().hash;
  made->links = made->matrix->of_stages(first_stage, end_stage);
  made->sent.assign(static_cast<size_t>(index.num_ranks()), 0);
  made->received = made->sent;
  for (const LinkBytes& link : made->links) {
    made->sent[link.src] += link.bytes;
    made->received[link.dst] += link.bytes;
  }
  return made;
}

/// The traffic of the moment. While that is being summed in the background: of an earlier moment,
/// or null if there is none yet.
std::shared_ptr<const StageLinks> find_links(const ViewInput& input) {
  const PlanIndex& index = *input.plan;
  const auto stages = static_cast<int32_t>(index.stages().size());
  const int32_t end = std::clamp(input.moment.end_stage, 0, stages);
  const int32_t first = input.is_cumulative ? 0 : std::clamp(input.moment.first_stage, 0, end);
  std::shared_ptr<const StageLinks> known;
  if (input.memo != nullptr) {
    input.memo->take_news();
    if (input.memo->key.starts_with("links "))
      known = std::static_pointer_cast<const StageLinks>(input.memo->value);
    if (known && known->plan_hash != index.plan().hash) known.reset();
  }
  const auto matrix = known ? known->matrix : nullptr;
  const bool is_long =
      matrix ? matrix->num_transfers(first, end) > kManyTransfers : index.is_large();
  const auto links = remember<StageLinks>(
      input.memo, fmt::format("links {:x} {} {}", index.plan().hash, first, end), is_long,
      [plan = input.plan, first, end, matrix] { return gather_links(*plan, first, end, matrix); });
  return links ? links : known;
}

TrafficScene make_scene(const ViewInput& input, const StageLinks& links) {
  const EdgeMatrix& matrix = *links.matrix;
  TrafficScene scene{input, matrix, links.links, links.sent, links.received, links};
  scene.first_stage = links.first_stage;
  scene.end_stage = links.end_stage;
  scene.most = input.is_cumulative ? matrix.most_of_all() : matrix.most_of_step();
  // Links with nearly the same bytes get nearly the same colour, and none is as dark as the
  // background.
  scene.least = std::min(matrix.least_of_step(), std::max<int64_t>(1, scene.most / kLeastRange));
  return scene;
}

LegendEntry text_line(std::string text, bool is_strong = false, bool is_faint = false) {
  LegendEntry entry;
  entry.text = std::move(text);
  entry.is_strong = is_strong;
  entry.is_faint = is_faint;
  entry.starts_line = true;
  return entry;
}

/// "this step", or "this transfer stage" when the moment is a part of a step.
std::string name_moment(const PlanIndex& index, Moment moment) {
  if (index.stages().empty()) return "this step";
  const auto last = static_cast<int32_t>(index.stages().size()) - 1;
  const int32_t first = std::clamp(moment.first_stage, 0, last);
  if (index.moment_of_step(index.step_of_stage(first)) == moment) return "this step";
  return fmt::format("this {} stage", to_name(index.stages()[first].kind));
}

std::vector<LegendEntry> make_lines(const TrafficScene& scene, const std::string& same) {
  const ViewInput& input = scene.input;
  const PlanIndex& index = *input.plan;
  const auto stages = static_cast<int32_t>(index.stages().size());
  const Moment moment = input.moment;
  const int32_t first = std::clamp(moment.first_stage, 0, stages);
  const int32_t end = std::clamp(moment.end_stage, first, stages);
  const int64_t now = scene.matrix.total(first, end);
  const int64_t so_far = scene.matrix.total(0, end), all = scene.matrix.total(0, stages);
  std::vector<LegendEntry> lines;
  std::string sums =
      fmt::format("{}: {}, so far {} of {}", name_moment(index, moment),
                  now == 0 ? "no bytes" : print_bytes(now), print_bytes(so_far), print_bytes(all));
  lines.push_back(text_line(std::move(sums), true));
  if (const CpRound* round = round_at(index, moment); round != nullptr)
    lines.push_back(text_line(name_round(index.plan().layout, *round)));
  const PayloadBytes payloads = scene.matrix.payloads(scene.first_stage, scene.end_stage);
  const std::string names = describe_payloads(payloads);
  if (!names.empty())
    lines.push_back(
        text_line(fmt::format("{} on {} links: {}", input.is_cumulative ? "so far" : "now",
                              print_count(static_cast<int64_t>(scene.links.size())), names)));
  if (!same.empty()) lines.push_back(text_line(same));
  const bool has_ring = scene.matrix.num_ranks() > 1 && scene.matrix.num_ranks() <= kMostRingRanks;
  if (has_ring && carries_partials(payloads))
    lines.push_back(
        text_line("Dashed arrows carry partial results to the owners of their rows.", false, true));
  const Parallel& parallel = index.plan().scenario.parallel;
  if (has_head_groups(parallel.comm_type) && parallel.a2a_size > 1)
    lines.push_back(
        text_line("Inside a group every rank exchanges heads with every other; between groups "
                  "KV goes round rings.",
                  false, true));
  if (has_windows(parallel.comm_type) && parallel.ring_window > 1)
    lines.push_back(
        text_line("Inside a window rows go round a ring in every step; each place has a "
                  "ring of its own across the windows, with one hop a window.",
                  false, true));
  const PlanSummary& summary = index.summary();
  if (summary.kv_bytes_moved > 0) {
    std::string kv =
        fmt::format("KV of the forward: {} needed on other ranks, {} moved",
                    print_bytes(summary.kv_bytes_necessary), print_bytes(summary.kv_bytes_moved));
    if (summary.kv_bytes_necessary <= summary.kv_bytes_moved)
      kv += fmt::format(" ({} needed)",
                        print_share(summary.kv_bytes_necessary, summary.kv_bytes_moved));
    else
      kv += sends_partials(parallel.comm_type) ? ": less, because queries travel too"
                                               : ": less, because no rank gets all heads";
    lines.push_back(text_line(std::move(kv)));
  }
  const bool has_dkv = scene.matrix.payloads(0, stages)[static_cast<size_t>(Payload::dkv)] > 0;
  std::string note =
      "A link is everything that one rank sends to one other, whatever wires it takes. Copies that "
      "stay on a rank are not counted.";
  if (has_dkv && index.plan().scenario.numerics.dkv_wire == WireFormat::fp32)
    note += " dkv travels in fp32, 4 bytes a value.";
  lines.push_back(text_line(std::move(note), false, true));
  return lines;
}

/// Adds links with their payloads, one per line, as many as fit.
void add_link_list(View& view, const TrafficScene& scene, const Box& box) {
  if (box.height() < 3 * kTrafficLine || scene.links.empty()) return;
  const std::vector<std::string> names = name_payloads(payloads_of_links(scene));
  std::vector<LegendEntry> lines;
  const auto room = static_cast<size_t>(box.height() / kTrafficLine);
  const size_t shown = names.size() <= room ? names.size() : room - 1;
  for (size_t i = 0; i < shown; ++i)
    lines.push_back(text_line(
        fmt::format("rank {} -> rank {}: {}", scene.links[i].src, scene.links[i].dst, names[i])));
  if (shown < names.size())
    lines.push_back(text_line(fmt::format("and {} more links", names.size() - shown), false, true));
  add_legend_flow(view.drawing, scene.input, box, lines);
}

/// Few ranks: draws the matrix, the ring next to it, and text below.
void draw_with_ring(View& view, const TrafficScene& scene) {
  const Size& size = scene.input.size;
  const float tall = size.height - kTextHeight - kTrafficLine - 3 * kViewPad;
  const float half = std::min(tall + 40, (size.width - 3 * kViewPad) * 0.5F);
  const float bottom = kViewPad + std::min(tall, half);
  const Box matrix{kViewPad, kViewPad, kViewPad + half, bottom};
  const Box ring{matrix.x1 + kViewPad, kViewPad, size.width - kViewPad, bottom};
  add_traffic_matrix(view, scene, matrix);
  std::string same;
  if (scene.matrix.num_ranks() > 1) same = add_traffic_ring(view, scene, ring);
  // If the ranks are drawn, the text below says that there are no transfers.
  if (scene.matrix.num_ranks() == 1)
    add_sentence(view.drawing, scene.input, ring, "One rank: no transfers.");
  add_byte_scale(view.drawing, scene, {kViewPad, bottom + kViewPad}, size.width - kViewPad);
  const Box text{kViewPad, bottom + kViewPad + kTrafficLine + 4, size.width - kViewPad,
                 size.height - 2};
  const float end = add_legend_flow(view.drawing, scene.input, text, make_lines(scene, same));
  add_link_list(view, scene,
                {kViewPad, end + kTrafficLine / 2, size.width - kViewPad, size.height - kViewPad});
}

/// Many ranks: draws the matrix, and text next to it or below it.
void draw_without_ring(View& view, const TrafficScene& scene) {
  const Size& size = scene.input.size;
  const bool has_side = size.width - kSideText >= size.height - kTextHeight;
  const Box matrix =
      has_side ? Box{kViewPad, kViewPad, size.width - kSideText - kViewPad, size.height - kViewPad}
               : Box{kViewPad, kViewPad, size.width - kViewPad,
                     size.height - kTextHeight - 2 * kTrafficLine};
  add_traffic_matrix(view, scene, matrix);
  if (has_side) {
    const float x = std::min(matrix.x1, matrix.y1 + 60) + kViewPad;
    add_byte_scale(view.drawing, scene, {x, kViewPad + kTrafficLine}, size.width - kViewPad);
    add_legend_column(
        view.drawing, scene.input,
        {x, kViewPad + 3 * kTrafficLine, size.width - kViewPad, size.height - kViewPad},
        make_lines(scene, ""));
  } else {
    add_byte_scale(view.drawing, scene, {kViewPad, matrix.y1 + 4}, size.width - kViewPad);
    add_legend_flow(
        view.drawing, scene.input,
        {kViewPad, matrix.y1 + kTrafficLine + 8, size.width - kViewPad, size.height - 2},
        make_lines(scene, ""));
  }
}

}  // namespace

void add_byte_scale(Drawing& drawing, const TrafficScene& scene, Point at, float x1) {
  if (scene.most == 0) return;
  constexpr float kLength = 96, kShort = 40, kHeight = 11, kText = 12, kGap = 6;
  const ViewInput& input = scene.input;
  const std::string least = print_bytes(scene.least), most = print_bytes(scene.most);
  const auto width = [&](const std::string& text) {
    return input.text_width(text, kText, Face::body);
  };
  const float left = at.x + width(least) + kGap;
  const bool is_short = left + kLength + kGap + width(most + " a link") > x1;
  const float right = left + (is_short ? kShort : kLength);
  const std::string name = first_that_fits(input.text_width,
                                           {most + " from one rank to one other, log scale",
                                            most + " a link, log scale", most + " a link", most},
                                           kText, Face::body, x1 - right - kGap);
  const auto write = [&](float x, const std::string& text) {
    drawing.add(Label{{x, at.y + kHeight / 2},
                      Anchor::left_middle,
                      input.theme->of(Role::text),
                      kText,
                      Face::body,
                      text});
  };
  write(at.x, least);
  Pixels pixels;
  pixels.box = {left, at.y, right, at.y + kHeight};
  pixels.width = 48;
  pixels.height = 1;
  const double ratio = static_cast<double>(scene.most) / static_cast<double>(scene.least);
  for (int32_t i = 0; i < pixels.width; ++i)
    pixels.colors.push_back(color_of_bytes(
        scene, std::llround(static_cast<double>(scene.least) * std::pow(ratio, i / 47.0))));
  drawing.add(std::move(pixels));
  write(right + kGap, name);
}

View draw_traffic(const ViewInput& input) {
  View view;
  view.title = input.is_cumulative ? "Traffic: bytes from rank to rank so far"
                                   : "Traffic: bytes from rank to rank now";
  const Box all{0, 0, input.size.width, input.size.height};
  if (input.size.width < 160 || input.size.height < 200) {
    add_sentence(view.drawing, input, all, "Too small for the traffic. Enlarge this panel.");
    return view;
  }
  const auto links = find_links(input);
  if (links == nullptr) {
    add_sentence(view.drawing, input, all, "Summing the bytes of all transfers.");
    return view;
  }
  const TrafficScene scene = make_scene(input, *links);
  if (links->matrix->num_ranks() <= kMostRingRanks)
    draw_with_ring(view, scene);
  else
    draw_without_ring(view, scene);
  return view;
}

}  // namespace cpscope::gui
