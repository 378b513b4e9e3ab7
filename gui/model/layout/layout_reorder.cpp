#include "gui/model/describe.h"
#include "gui/model/item_words.h"
#include "gui/model/layout/layout_scene.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr size_t kMostMoves = 1500;

/// One reorder of the focus rank, and its progress.
struct ShownReorder {
  int32_t stage = 0;  // index in PlanIndex::stages
  ItemId target;
  const ReorderItem* item = nullptr;
  BufferKind kind{};  // kind of the rows that it moves
  bool goes_to_sequence = true;
  double progress = 1;
};

/// The rows of one local part that move between the two orders.
struct Move {
  LocalPart part;
  double ranked = 0, sequenced = 0;  // first row in each order
};

/// Finds the row of an id among ascending runs, by binary search.
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
  std::vector<int64_t> first_;  // [run] number of rows before it
};

/// The tensors of a buffer: a buffer of keys and values holds both, "k, v".
std::string_view name_of_rows(BufferKind kind) {
  if (kind == BufferKind::kv) return "k, v";
  if (kind == BufferKind::dkv) return "dk, dv";
  return to_name(kind);
}

/// Stages of the current step; if it reorders nothing, of the nearest step of the pass that does,
/// earlier ones first. Nothing when no step does.
std::optional<Moment> find_step(const ViewInput& input) {
  const PlanIndex& index = *input.plan;
  const std::span<const StageRef> stages = index.stages();
  if (stages.empty()) return std::nullopt;
  const auto count = static_cast<int32_t>(stages.size());
  const int32_t first = std::clamp(input.moment.first_stage, 0, count - 1);
  const int32_t now = index.step_of_stage(first);
  const Direction direction = stages[static_cast<size_t>(first)].direction;
  const auto reorders = [&](int32_t step) {
    const Moment moment = index.moment_of_step(step);
    for (int32_t s = moment.first_stage; s < moment.end_stage; ++s)
      if (stages[static_cast<size_t>(s)].kind == StageKind::reorder) return true;
    return false;
  };
  const auto is_of_pass = [&](int32_t step) {
    return index.steps()[static_cast<size_t>(step)].direction == direction;
  };
  for (int32_t step = now; step >= 0 && is_of_pass(step); --step)
    if (reorders(step)) return index.moment_of_step(step);
  const auto num_steps = static_cast<int32_t>(index.steps().size());
  for (int32_t step = now + 1; step < num_steps && is_of_pass(step); ++step)
    if (reorders(step)) return index.moment_of_step(step);
  return std::nullopt;
}

/// Progress of reorder number `turn` of the `turns` of a stage: those of the moment run one after
/// another.
double progress_of(const ViewInput& input, int32_t stage, size_t turn, size_t turns) {
  if (stage < input.moment.first_stage) return 1;
  if (stage >= input.moment.end_stage) return 0;
  const double progress =
      std::clamp(std::isfinite(input.progress) ? input.progress : 1.0, 0.0, 1.0);
  return std::clamp(progress * static_cast<double>(turns) - static_cast<double>(turn), 0.0, 1.0);
}

/// All reorders of the current step on the rank, in order: before and after attention, queries and
/// keys. Rows of the other side are included only if both sides share one picture.
std::vector<ShownReorder> find_reorders(const ViewInput& input, Side side, int32_t rank) {
  std::vector<ShownReorder> found;
  const std::optional<Moment> step = find_step(input);
  if (!step) return found;
  const Plan& plan = input.plan->plan();
  size_t turns = 0;
  for (int32_t s = step->first_stage; s < step->end_stage; ++s) {
    const StageRef& stage = input.plan->stages()[static_cast<size_t>(s)];
    if (stage.kind != StageKind::reorder) continue;
    const Pass& pass = input.plan->pass(stage.direction);
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const ReorderItem& item = pass.reorders[static_cast<size_t>(i)];
      const BufferSpec& to = plan.buffer(item.to);
      if (to_index(item.rank) != rank) continue;
      if (!plan.layout.same_kv && side_of(to.kind) != side) continue;
      found.push_back({s,
                       {stage.direction, StageKind::reorder, i},
                       &item,
                       to.kind,
                       to.role == BufferRole::sequence_order,
                       0});
      turns += s >= input.moment.first_stage && s < input.moment.end_stage ? 1 : 0;
    }
  }
  size_t turn = 0;
  for (ShownReorder& reorder : found) {
    const bool is_now =
        reorder.stage >= input.moment.first_stage && reorder.stage < input.moment.end_stage;
    reorder.progress = progress_of(input, reorder.stage, turn, turns);
    turn += is_now ? 1 : 0;
  }
  return found;
}

/// The selected reorder; otherwise the last one that has begun.
size_t choose_reorder(const ViewInput& input, const std::vector<ShownReorder>& reorders) {
  size_t chosen = 0;
  for (size_t i = 0; i < reorders.size(); ++i) {
    if (input.selection == Target(reorders[i].target)) return i;
    if (reorders[i].progress > 0) chosen = i;
  }
  return chosen;
}

/// Collects all moves. The rank-ordered buffer consists of the local buffers of some ranks, one
/// after another.
std::vector<Move> collect_moves(const PlanIndex& index, const PlaceMap& map,
                                const BufferSpec& ranked, const BufferSpec& sequenced) {
  std::vector<Move> moves;
  const RowFinder finder(index.plan().list(sequenced.tokens));
  int64_t row = 0;
  // A home buffer begins with its first token, which identifies its owner.
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

/// Draws a strided part, which becomes a comb in sequence order, as thin slices with ribbons from
/// where they were to where they go. `total`: rows of the buffer.
void add_strided(LayoutScene& scene, const ReorderFrame& frame, const Move& move, double total) {
  constexpr int64_t kSlices = 24;
  const int64_t slices = std::min(kSlices, move.part.rows);
  const auto rows = static_cast<double>(move.part.rows);
  const double per = rows / static_cast<double>(slices);
  const auto at = static_cast<float>(frame.progress);
  for (int64_t i = 0; i < slices; ++i) {
    const double ranked = move.ranked + per * static_cast<double>(i);
    // The teeth of a comb are not to scale: those of all ranks lie next to each other.
    const double width = total / static_cast<double>(slices * scene.map.num_ranks);
    const double sequenced = total * static_cast<double>(i) / static_cast<double>(slices) +
                             width * static_cast<double>(move.part.rank);
    const double from = frame.goes_to_sequence ? ranked : sequenced;
    const double to = frame.goes_to_sequence ? sequenced : ranked;
    const double from_width = frame.goes_to_sequence ? per : width;
    const double to_width = frame.goes_to_sequence ? width : per;
    const float f0 = frame.rows.pixel_of(from), f1 = frame.rows.pixel_of(from + from_width);
    const float t0 = frame.rows.pixel_of(to), t1 = frame.rows.pixel_of(to + to_width);
    if (std::max(f1, t1) < frame.rows.begin() || std::min(f0, t0) > frame.rows.end()) continue;
    const bool is_focus = move.part.rank == scene.input.focus_rank;
    scene.drawing().add(Ribbon{f0, f1, frame.from_y1, t0, t1, frame.to_y0,
                               scene.theme().of(Role::accent).with_alpha(is_focus ? 110 : 25)});
    const Color ghost = scene.rank_color(move.part.rank).with_alpha(70);
    if (frame.progress > 0)
      scene.drawing().add(FilledBox{{f0, frame.from_y0 + 1, f1, frame.from_y1 - 1}, ghost});
    scene.drawing().add(
        FilledBox{{f0 + (t0 - f0) * at, frame.from_y0 + (frame.to_y0 - frame.from_y0) * at,
                   f1 + (t1 - f1) * at, frame.from_y1 + (frame.to_y1 - frame.from_y1) * at},
                  scene.rank_color(move.part.rank)});
  }
}

/// Draws the current position of the rows as one box, and both end positions as ghosts with a
/// ribbon.
void add_move(LayoutScene& scene, const ReorderFrame& frame, const Move& move) {
  const auto rows = static_cast<double>(move.part.rows);
  const double from = frame.goes_to_sequence ? move.ranked : move.sequenced;
  const double to = frame.goes_to_sequence ? move.sequenced : move.ranked;
  const float f0 = frame.rows.pixel_of(from), f1 = frame.rows.pixel_of(from + rows);
  const float t0 = frame.rows.pixel_of(to), t1 = frame.rows.pixel_of(to + rows);
  const auto at = static_cast<float>(frame.progress);
  const Box box{f0 + (t0 - f0) * at, frame.from_y0 + (frame.to_y0 - frame.from_y0) * at,
                f1 + (t1 - f1) * at, frame.from_y1 + (frame.to_y1 - frame.from_y1) * at};
  // Ghosts at the start and end positions of the rows.
  const Color ghost = scene.rank_color(move.part.rank).with_alpha(70);
  if (frame.progress > 0)
    scene.drawing().add(
        FilledBox{{f0, frame.from_y0 + 1, std::max(f0 + 1, f1 - 1), frame.from_y1 - 1}, ghost});
  if (frame.progress < 1)
    scene.drawing().add(
        OutlinedBox{{t0, frame.to_y0 + 1, std::max(t0 + 1, t1 - 1), frame.to_y1 - 1}, ghost});
  if (box.x1 < frame.rows.begin() || box.x0 > frame.rows.end()) return;
  add_chunk(scene, box, move.part.rank);
  Box valid = box;
  for (const auto& [first, last] : padding_rows(scene.map, move.part)) {
    const float per_row = box.width() / static_cast<float>(rows);
    const Box dots{box.x0 + static_cast<float>(first) * per_row, box.y0,
                   box.x0 + static_cast<float>(last) * per_row, box.y1};
    add_padding(scene, dots);
    if (first == 0)
      valid.x0 = dots.x1;
    else
      valid.x1 = std::min(valid.x1, dots.x0);
  }
  const std::vector<std::string> texts = {
      fmt::format("rank {}: {}", move.part.rank,
                  print_tokens(scene.map, move.part.token, move.part.token + move.part.rows)),
      fmt::format("rank {}", move.part.rank), fmt::format("{}", move.part.rank)};
  // During the move boxes cross each other; then their names stay at the start position.
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
       fmt::format("reorder/{}{}", scene.map.side == Side::q ? "" : "kv/",
                   static_cast<int64_t>(move.ranked)),
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

/// Adds the sentence above the two orders.
void add_heading(LayoutScene& scene, const Box& box, const std::vector<ShownReorder>& reorders,
                 size_t chosen, HeadRange heads, int32_t rank) {
  const ShownReorder& shown = reorders[chosen];
  const PlanIndex& plan = *scene.input.plan;
  const std::string number = fmt::format("Reorder {} of {}", chosen + 1, reorders.size());
  const std::string state = describe_state(shown.progress);
  const std::string text = first_that_fits(
      scene.input.text_width,
      {fmt::format("{} on rank {} ({}): rows of {}, heads [{}, {}), {}, {}", number, rank,
                   name_step(plan, plan.step_of_stage(shown.stage)), name_of_rows(shown.kind),
                   heads.begin, heads.end,
                   shown.goes_to_sequence ? "from rank order to token order before attention"
                                          : "from token order to rank order after attention",
                   state),
       fmt::format("{}, rank {}: {} to {} order, {}", number, rank, name_of_rows(shown.kind),
                   shown.goes_to_sequence ? "token" : "rank", state),
       fmt::format("{}: {} to {} order", number, name_of_rows(shown.kind),
                   shown.goes_to_sequence ? "token" : "rank"),
       number},
      scene.small, Face::body, box.x1 - scene.packed.begin());
  scene.drawing().add(Label{{scene.packed.begin(), box.y0 + 2},
                            Anchor::left_top,
                            scene.theme().of(Role::text),
                            scene.small,
                            Face::body,
                            text});
}

/// Adds one chip for each reorder of the step, before and after attention: it shows the progress,
/// and a click selects the reorder.
void add_chips(LayoutScene& scene, float y, float right, const std::vector<ShownReorder>& reorders,
               size_t chosen) {
  constexpr float kHeight = 17, kInset = 6, kGap = 5;
  const Theme& theme = scene.theme();
  float x = scene.packed.begin();
  const auto width_of = [&](const std::string& text) {
    return scene.width_of(text, scene.small, Face::body);
  };
  float all = width_of("before attention") + width_of("after attention") + 4 * kGap;
  for (const ShownReorder& reorder : reorders)
    all += width_of(std::string(name_of_rows(reorder.kind))) + 2 * kInset + kGap;
  const std::string what = x + all <= right ? " attention" : "";
  for (size_t i = 0; i < reorders.size(); ++i) {
    const ShownReorder& reorder = reorders[i];
    const std::string text(name_of_rows(reorder.kind));
    const bool begins = i == 0 || reorders[i - 1].goes_to_sequence != reorder.goes_to_sequence;
    const std::string when = (reorder.goes_to_sequence ? "before" : "after") + what;
    const float before = begins ? width_of(when) + kGap + (i > 0 ? 2 * kGap : 0) : 0;
    const Box chip{x + before, y, x + before + width_of(text) + 2 * kInset, y + kHeight};
    if (chip.x1 > right) return;
    if (begins)
      scene.drawing().add(Label{{chip.x0 - kGap, chip.center().y},
                                Anchor::right_middle,
                                theme.of(Role::faint_text),
                                scene.small,
                                Face::body,
                                when});
    scene.drawing().add(FilledBox{chip, theme.of(Role::raised), Hatch::none, {}, 3});
    // The finished share is filled, from the left.
    const Color done = theme.of(Role::merge);
    const auto share = static_cast<float>(reorder.progress);
    if (share > 0)
      scene.drawing().add(FilledBox{
          {chip.x0, chip.y1 - 3, chip.x0 + chip.width() * share, chip.y1}, done, Hatch::none, {}});
    scene.drawing().add(OutlinedBox{chip, theme.of(i == chosen ? Role::accent : Role::border),
                                    i == chosen ? 2.0F : 1.0F, false, 3});
    scene.drawing().add(Label{{chip.center().x, chip.center().y - 1},
                              Anchor::center_middle,
                              theme.of(Role::text),
                              scene.small,
                              Face::body,
                              text});
    scene.view.hits.push_back(
        {chip, reorder.target,
         fmt::format("reordered/{}/{}", to_name(reorder.target.direction), reorder.target.index),
         describe_target(reorder.target, *scene.input.plan)});
    x = chip.x1 + kGap;
  }
}

}  // namespace

bool has_reorder(const ViewInput& input, Side side) {
  const int32_t rank = std::clamp(input.focus_rank, 0, input.plan->num_ranks() - 1);
  return !find_reorders(input, side, rank).empty();
}

void add_reorder(LayoutScene& scene, const Box& box) {
  const PlanIndex& index = *scene.input.plan;
  const int32_t rank = std::clamp(scene.input.focus_rank, 0, index.num_ranks() - 1);
  const std::vector<ShownReorder> reorders = find_reorders(scene.input, scene.map.side, rank);
  if (reorders.empty()) return;
  const size_t chosen = choose_reorder(scene.input, reorders);
  const ShownReorder& shown = reorders[chosen];
  const BufferSpec& from = index.plan().buffer(shown.item->from);
  const BufferSpec& to = index.plan().buffer(shown.item->to);
  const bool goes_to_sequence = shown.goes_to_sequence;
  const std::vector<Move> moves =
      collect_moves(index, scene.map, goes_to_sequence ? from : to, goes_to_sequence ? to : from);
  add_heading(scene, box, reorders, chosen, from.heads, rank);
  float heading = scene.small + 8;
  if (box.height() > 110) {
    add_chips(scene, box.y0 + heading - 2, box.x1, reorders, chosen);
    heading += 21;
  }
  const float strip = std::clamp((box.height() - heading) * 0.24F, 12.0F, 40.0F);
  const Axis rows(static_cast<double>(from.rows), scene.input.camera.x, scene.packed.begin(),
                  scene.packed.end());
  const ReorderFrame frame{rows,           box.y0 + heading, box.y0 + heading + strip,
                           box.y1 - strip, box.y1,           goes_to_sequence,
                           shown.progress};
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
      add_strided(scene, frame, moves[i], static_cast<double>(from.rows));
  }
  scene.drawing().add(PopClip{});
}

}  // namespace cpscope::gui
