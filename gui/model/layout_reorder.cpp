#include "gui/model/layout_scene.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr size_t kMostMoves = 1500;

/// The reorder that the picture is about, and how far it is.
struct ShownReorder {
  int32_t stage = 0;  // in PlanIndex::stages
  const ReorderItem* item = nullptr;
  std::string kinds;  // of all buffers that this stage reorders on the rank: "q, kv"
  double progress = 1;
};

/// Rows of one local part on their way between the two orders.
struct Move {
  LocalPart part;
  double ranked = 0, sequenced = 0;  // first row in each order
};

/// Number of an id among ascending runs, by binary search.
class RowFinder {
 public:
  explicit RowFinder(std::span<const TokenRun> runs) : runs_(runs) {
    int64_t row = 0;
    first_.reserve(runs.size());
    for (const TokenRun& run : runs) {
      first_.push_back(row);
      row += run.count();
    }
  }

  int64_t row_of(int64_t token) const {
    const auto it = std::partition_point(runs_.begin(), runs_.end(),
                                         [&](const TokenRun& r) { return r.begin <= token; });
    if (it == runs_.begin()) return 0;
    const auto at = static_cast<size_t>(it - runs_.begin()) - 1;
    return first_[at] + (token - runs_[at].begin) / runs_[at].stride;
  }

 private:
  std::span<const TokenRun> runs_;
  std::vector<int64_t> first_;  // [run] rows before it
};

/// The reorder stage that happens now, else the last one of the pass, else its next one.
std::optional<int32_t> find_stage(const ViewInput& input, double& progress) {
  const std::span<const StageRef> stages = input.plan->stages();
  if (stages.empty()) return std::nullopt;
  const auto count = static_cast<int32_t>(stages.size());
  const int32_t first = std::clamp(input.moment.first_stage, 0, count - 1);
  const int32_t end = std::clamp(input.moment.end_stage, first + 1, count);
  const bool is_backward = stages[static_cast<size_t>(first)].is_backward;
  const auto is_reorder = [&](int32_t s) {
    const StageRef& stage = stages[static_cast<size_t>(s)];
    return stage.kind == StageKind::reorder && stage.is_backward == is_backward;
  };
  progress = std::clamp(std::isfinite(input.progress) ? input.progress : 1.0, 0.0, 1.0);
  for (int32_t s = first; s < end; ++s)
    if (is_reorder(s)) return s;
  progress = 1;
  for (int32_t s = first; s-- > 0;)
    if (is_reorder(s)) return s;
  progress = 0;
  for (int32_t s = end; s < count; ++s)
    if (is_reorder(s)) return s;
  return std::nullopt;
}

std::optional<ShownReorder> find_reorder(const ViewInput& input, int32_t rank) {
  ShownReorder shown;
  const std::optional<int32_t> stage = find_stage(input, shown.progress);
  if (!stage) return std::nullopt;
  shown.stage = *stage;
  const StageRef& ref = input.plan->stages()[static_cast<size_t>(*stage)];
  const Pass& pass = input.plan->pass(ref.is_backward);
  for (int64_t i = ref.begin; i < ref.end; ++i) {
    const ReorderItem& item = pass.reorders[static_cast<size_t>(i)];
    if (to_index(item.rank) != rank) continue;
    if (shown.item == nullptr) shown.item = &item;
    if (!shown.kinds.empty()) shown.kinds += ", ";
    shown.kinds += to_name(input.plan->plan().buffer(item.to).kind);
  }
  if (shown.item == nullptr) return std::nullopt;
  return shown;
}

/// Everything that moves. The rank-ordered buffer is the local buffers of some ranks, one after
/// another.
std::vector<Move> collect_moves(const PlanIndex& index, const PlaceMap& map,
                                const BufferSpec& ranked, const BufferSpec& sequenced) {
  std::vector<Move> moves;
  const RowFinder finder(index.plan().list(sequenced.tokens));
  int64_t row = 0;
  // A home buffer begins with its first token, which names its owner.
  const std::vector<TokenRun> head_only;
  std::vector<int32_t> group;
  int64_t covered = 0, passed = 0;
  for (const TokenRun& run : index.plan().list(ranked.tokens)) {
    while (covered < passed + run.count()) {
      const int32_t owner = index.owner(map.side, run.at(covered - passed)).rank;
      if (owner < 0) return moves;
      group.push_back(owner);
      covered += std::max<int64_t>(1, map.rows_of_rank[static_cast<size_t>(owner)]);
    }
    passed += run.count();
  }
  for (const int32_t rank : group) {
    for (const LocalPart& part : map.local_of(rank)) {
      moves.push_back({part, static_cast<double>(row + part.row),
                       static_cast<double>(finder.row_of(part.token))});
    }
    row += map.rows_of_rank[static_cast<size_t>(rank)];
  }
  return moves;
}

struct ReorderFrame {
  Axis rows;
  float from_y0, from_y1, to_y0, to_y1;
  bool goes_to_sequence;
  double progress;
};

/// Strided parts become a comb in sequence order: drawn as thin slices of it.
void add_strided(LayoutScene& scene, const ReorderFrame& frame, const Move& move, double extent) {
  constexpr int64_t kSlices = 24;
  const int64_t slices = std::min(kSlices, move.part.rows);
  const auto rows = static_cast<double>(move.part.rows);
  const double per = rows / static_cast<double>(slices);
  const auto at = static_cast<float>(frame.progress);
  for (int64_t i = 0; i < slices; ++i) {
    const double ranked = move.ranked + per * static_cast<double>(i);
    const double sequenced =
        move.sequenced + extent * static_cast<double>(i) / static_cast<double>(slices);
    const double width = extent / static_cast<double>(slices * scene.map.num_ranks);
    const double from = frame.goes_to_sequence ? ranked : sequenced;
    const double to = frame.goes_to_sequence ? sequenced : ranked;
    const double from_width = frame.goes_to_sequence ? per : width;
    const double to_width = frame.goes_to_sequence ? width : per;
    const float f0 = frame.rows.pixel_of(from), f1 = frame.rows.pixel_of(from + from_width);
    const float t0 = frame.rows.pixel_of(to), t1 = frame.rows.pixel_of(to + to_width);
    if (std::max(f1, t1) < frame.rows.begin() || std::min(f0, t0) > frame.rows.end()) continue;
    scene.drawing().add(
        FilledBox{{f0 + (t0 - f0) * at, frame.from_y0 + (frame.to_y0 - frame.from_y0) * at,
                   f1 + (t1 - f1) * at, frame.from_y1 + (frame.to_y1 - frame.from_y1) * at},
                  scene.rank_color(move.part.rank)});
  }
}

/// Where the rows lie now, as one box; their two ends as a ribbon and two ghosts.
void add_move(LayoutScene& scene, const ReorderFrame& frame, const Move& move) {
  const auto rows = static_cast<double>(move.part.rows);
  const double from = frame.goes_to_sequence ? move.ranked : move.sequenced;
  const double to = frame.goes_to_sequence ? move.sequenced : move.ranked;
  const float f0 = frame.rows.pixel_of(from), f1 = frame.rows.pixel_of(from + rows);
  const float t0 = frame.rows.pixel_of(to), t1 = frame.rows.pixel_of(to + rows);
  const auto at = static_cast<float>(frame.progress);
  const Box box{f0 + (t0 - f0) * at, frame.from_y0 + (frame.to_y0 - frame.from_y0) * at,
                f1 + (t1 - f1) * at, frame.from_y1 + (frame.to_y1 - frame.from_y1) * at};
  // Ghosts where the rows come from and go to.
  const Color ghost = scene.rank_color(move.part.rank).with_alpha(70);
  if (frame.progress > 0)
    scene.drawing().add(
        FilledBox{{f0, frame.from_y0 + 1, std::max(f0 + 1, f1 - 1), frame.from_y1 - 1}, ghost});
  if (frame.progress < 1)
    scene.drawing().add(
        OutlinedBox{{t0, frame.to_y0 + 1, std::max(t0 + 1, t1 - 1), frame.to_y1 - 1}, ghost});
  if (box.x1 < frame.rows.begin() || box.x0 > frame.rows.end()) return;
  add_chunk(scene, box, move.part.rank);
  const auto padding = padding_rows(scene.map, move.part);
  Box valid = box;
  if (!padding.empty()) {
    const float share = static_cast<float>(padding.front().first) / static_cast<float>(rows);
    valid.x1 = box.x0 + share * box.width();
    add_padding(scene, {valid.x1, box.y0, box.x1, box.y1});
  }
  const std::vector<std::string> texts = {
      fmt::format("rank {}: {}", move.part.rank,
                  print_tokens(scene.map, move.part.token, move.part.token + move.part.rows)),
      fmt::format("rank {}", move.part.rank), fmt::format("{}", move.part.rank)};
  // On the way boxes cross each other; then their names stay where they came from.
  const bool is_moving = frame.progress > 0 && frame.progress < 1;
  const Box named = is_moving ? Box{f0, frame.from_y0, f1, frame.from_y1} : valid;
  const Color ink = is_moving ? scene.theme().of(Role::faint_text)
                              : scene.theme().text_on(scene.rank_color(move.part.rank));
  add_fitting(scene, named, ink, scene.small, Face::body, texts);
  const Box shown{std::max(box.x0, frame.rows.begin()), box.y0, std::min(box.x1, frame.rows.end()),
                  box.y1};
  if (shown.x0 >= shown.x1) return;
  add_light(scene.drawing(), scene.theme(), shown,
            light_of(scene, move.part.token, move.part.rows, 1));
  scene.view.hits.push_back(
      {shown, TokenRange{scene.map.side, move.part.token, move.part.token + move.part.rows},
       fmt::format("reorder/{}", static_cast<int64_t>(move.ranked)),
       describe_local(scene.map, move.part)});
}

void add_move_ribbon(LayoutScene& scene, const ReorderFrame& frame, const Move& move) {
  const auto rows = static_cast<double>(move.part.rows);
  const double from = frame.goes_to_sequence ? move.ranked : move.sequenced;
  const double to = frame.goes_to_sequence ? move.sequenced : move.ranked;
  const bool is_focus = move.part.rank == scene.input.focus_rank;
  const Color color = scene.theme().of(Role::accent).with_alpha(is_focus ? 110 : 40);
  scene.drawing().add(Ribbon{frame.rows.pixel_of(from), frame.rows.pixel_of(from + rows),
                             frame.from_y1, frame.rows.pixel_of(to), frame.rows.pixel_of(to + rows),
                             frame.to_y0, color});
}

std::string describe_state(double progress) {
  if (progress <= 0) return "not begun";
  if (progress >= 1) return "done";
  return fmt::format("{:.0f} %", progress * 100);
}

/// The sentence above the two orders.
void add_heading(LayoutScene& scene, const Box& box, const ShownReorder& shown,
                 bool goes_to_sequence, HeadRange heads, int32_t rank) {
  const StageRef& stage = scene.input.plan->stages()[static_cast<size_t>(shown.stage)];
  const std::string text = fmt::format(
      "Reorder on rank {} ({} step {}), rows of {}, heads [{}, {}): {}, {}", rank,
      stage.is_backward ? "backward" : "forward", stage.step + 1, shown.kinds, heads.begin,
      heads.end,
      goes_to_sequence ? "from rank order to token order" : "from token order to rank order",
      describe_state(shown.progress));
  scene.drawing().add(Label{{scene.packed.begin(), box.y0 + 2},
                            Anchor::left_top,
                            scene.theme().of(Role::text),
                            scene.small,
                            Face::body,
                            fit_text(scene.input.text_width, text, scene.small, Face::body,
                                     box.x1 - scene.packed.begin())});
}

}  // namespace

bool has_reorder(const ViewInput& input) {
  double progress = 1;
  return find_stage(input, progress).has_value();
}

void add_reorder(LayoutScene& scene, const Box& box) {
  const PlanIndex& index = *scene.input.plan;
  const int32_t rank = std::clamp(scene.input.focus_rank, 0, index.num_ranks() - 1);
  const std::optional<ShownReorder> shown = find_reorder(scene.input, rank);
  if (!shown) return;
  const BufferSpec& from = index.plan().buffer(shown->item->from);
  const BufferSpec& to = index.plan().buffer(shown->item->to);
  const bool goes_to_sequence = to.role == BufferRole::sequence_order;
  const std::vector<Move> moves =
      collect_moves(index, scene.map, goes_to_sequence ? from : to, goes_to_sequence ? to : from);
  add_heading(scene, box, *shown, goes_to_sequence, from.heads, rank);
  const float heading = scene.small + 8;
  const float strip = std::clamp((box.height() - heading) * 0.24F, 12.0F, 40.0F);
  const Axis rows(static_cast<double>(from.rows), scene.input.camera.x, scene.packed.begin(),
                  scene.packed.end());
  const ReorderFrame frame{rows,   box.y0 + heading, box.y0 + heading + strip, box.y1 - strip,
                           box.y1, goes_to_sequence, shown->progress};
  const Theme& theme = scene.theme();
  for (const bool is_from : {true, false}) {
    const float y0 = is_from ? frame.from_y0 : frame.to_y0;
    const float y1 = is_from ? frame.from_y1 : frame.to_y1;
    add_title(scene, (y0 + y1) / 2, is_from == goes_to_sequence ? "rank order" : "token order",
              theme.of(Role::text), is_from == goes_to_sequence ? "ranks" : "tokens");
    const Box slot = cut_box(rows, 0, static_cast<double>(from.rows), y0, y1);
    scene.drawing().add(OutlinedBox{slot, theme.of(Role::border), 1, true});
  }
  scene.drawing().add(PushClip{{rows.begin(), frame.from_y0, rows.end(), frame.to_y1}});
  const size_t every = 1 + moves.size() / kMostMoves;
  for (size_t i = 0; i < moves.size(); i += every)
    if (moves[i].part.stride == 1) add_move_ribbon(scene, frame, moves[i]);
  for (size_t i = 0; i < moves.size(); i += every) {
    const LocalPart& part = moves[i].part;
    if (part.stride == 1)
      add_move(scene, frame, moves[i]);
    else
      add_strided(scene, frame, moves[i], static_cast<double>(from.rows) - moves[i].sequenced);
  }
  scene.drawing().add(PopClip{});
}

}  // namespace cpscope::gui
