#include "gui/window/render.h"

#include "gui/app/document/exact_steps.h"
#include "gui/app/find/find.h"
#include "gui/app/prediction.h"
#include "gui/app/run_views.h"
#include "gui/draw/glyph_widths.h"
#include "gui/draw/svg_file.h"
#include "gui/window/animation_order.h"
#include "gui/window/handout.h"
#include "gui/window/picture.h"
#include "gui/window/picture_size.h"
#include "gui/window/seek.h"
#include "gui/window/services.h"
#include "sim/base/version.h"
#include "sim/clock/trace_match.h"
#include "sim/documents/json_text.h"
#include "sim/findings/error_document.h"
#include "sim/findings/progress_bar.h"
#include "sim/run/grade/case.h"
#include "sim/run/record/record_match.h"
#ifdef CPSCOPE_HAS_IMGUI
#include "gui/draw/png_file.h"
#include "gui/window/animate.h"
#include "gui/window/paint_picture.h"
#include "sim/base/whole_file.h"
#endif

#include "sim/scenario/scenario_folder.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

enum class FileKind : uint8_t { png, svg };

/// The request after all its values are parsed.
struct Order {
  std::vector<ViewKind> views;  // side by side; empty: all views
  FileKind file{};
  ThemeName theme{};
  Size size;
  float scale = 1;
  AnimationOrder animation;
};

std::optional<FileKind> file_kind_of(const std::string& path, bool is_animated) {
  std::string ending = std::filesystem::path(path).extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  if (ending == ".png" || (is_animated && ending == ".apng")) return FileKind::png;
  if (ending == ".svg") return FileKind::svg;
  return std::nullopt;
}

std::optional<ViewKind> parse_view(const std::string& name) {
  for (const ViewKind kind : kViewKinds)
    if (to_name(kind) == name) return kind;
  return std::nullopt;
}

/// Reads "mask" or "mask,traffic"; nothing for "all".
Result<std::vector<ViewKind>> parse_views(const std::string& names) {
  std::vector<ViewKind> views;
  if (names == "all") return views;
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    const std::optional<ViewKind> view = parse_view(name);
    if (!view) {
      return make_bad_input(
          "--view: no view has this name: " + name,
          "layout, mask, traffic, timeline, numbers, balance or all; several with commas");
    }
    if (std::find(views.begin(), views.end(), *view) != views.end())
      return make_bad_input("--view: this view is named twice: " + name, "name it once");
    views.push_back(*view);
    begin = end + 1;
  }
  return views;
}

/// True if the picture needs a run.
bool shows_numbers(const RenderRequest& request) {
  return request.view == "all" || request.view.find("numbers") != std::string::npos;
}

/// Checks what an animation asks for besides what every picture does.
std::optional<Error> understand_animation(const RenderRequest& request, Order& order) {
  if (!request.is_animated) return std::nullopt;
  if (order.file != FileKind::png) {
    return make_bad_input("--animate writes animated PNG: " + request.out_path,
                          "end --out in .png");
  }
  order.animation = {.has_forward = request.pass != "backward",
                     .has_backward = request.pass != "forward",
                     .frames_per_step = static_cast<int32_t>(request.frames_per_step),
                     .seconds_per_step = request.seconds_per_step};
  return std::nullopt;
}

Result<Order> understand(const RenderRequest& request) {
  Order order;
  if (!request.lesson && request.scenario_path.empty()) return make_bad_input("FILE is required");
  if (!request.lesson && request.view.empty()) return make_bad_input("--view is required");
  const std::optional<FileKind> file = file_kind_of(request.out_path, request.is_animated);
  if (!file) {
    return make_bad_input("--out names no kind of picture: " + request.out_path,
                          "end it in .png or .svg");
  }
  order.file = *file;
  if (!request.lesson) {
    Result<std::vector<ViewKind>> views = parse_views(request.view);
    if (!views) return views.error();
    order.views = std::move(views).value();
  }
  const std::optional<ThemeName> theme = parse_theme(request.theme);
  if (!theme) return make_bad_input("--theme: no theme has this name: " + request.theme, "");
  order.theme = *theme;
  order.size = request.lesson        ? kHandoutSize
               : order.views.empty() ? natural_poster_size()
                                     : natural_size(order.views);
  order.scale = static_cast<float>(request.scale);
  if (request.size.empty()) {
    if (auto error = check_size(order.size, request.scale)) return *error;
  } else {
    const Result<Size> size = read_size(request.size, request.scale);
    if (!size) return size.error();
    order.size = size.value();
  }
  if (order.file == FileKind::png && !can_write_png()) {
    return make_error(ErrorKind::unavailable,
                      "this build cannot write PNG: it was made without Dear ImGui or libpng "
                      "(packages libimgui-dev, libpng-dev)",
                      "end --out in .svg");
  }
  if (auto error = understand_animation(request, order)) return *error;
  if (auto error = check_folder(request.out_path, "--out")) return *error;
  return order;
}

std::optional<Error> seek(AppState& state, const RenderRequest& request) {
  const PlanIndex& plan = *state.plan();
  if (request.rank && (*request.rank < 0 || *request.rank >= plan.num_ranks())) {
    return make_bad_input(fmt::format("--rank: this plan has no rank {}", *request.rank),
                          fmt::format("use 0 to {}", plan.num_ranks() - 1));
  }
  if (auto error = seek_named_step(state, request.step.value_or(first_shown_step(plan))))
    return error;
  if (!request.selection.empty()) {
    const FindAnswer answer = find_targets(plan, request.selection);
    if (answer.found.empty())
      return make_bad_input("--select: " + request.selection + ": " + answer.explanation, "");
    select(state, answer.found.front().target);
  }
  if (request.rank) state.focus_rank = static_cast<int32_t>(*request.rank);
  state.is_by_step = request.is_by_step;
  const Direction direction =
      plan.steps()[static_cast<size_t>(step_of(plan, state.playhead))].direction;
  const std::string_view wanted = !request.tensor.empty() ? std::string_view(request.tensor)
                                  : request.is_by_step && direction == Direction::backward ? "dq"
                                                                                           : "out";
  const auto* tensor = std::find(kErrorTensors.begin(), kErrorTensors.end(), wanted);
  state.tensor = static_cast<int32_t>(tensor - kErrorTensors.begin());
  return std::nullopt;
}

/// Runs the scenario if the picture shows numbers. Without --run, only if that takes seconds; a
/// page of all views otherwise omits the numbers and says why (`without_numbers`).
std::optional<Error> run_if_needed(AppState& state, const RenderRequest& request,
                                   const Order& order, Toolbox& toolbox,
                                   std::string& without_numbers) {
  constexpr double kFlopsOfSeconds = 2e11;
  const bool is_asked = !request.executor.empty();
  const bool is_all = order.views.empty();
  if (!is_asked && !shows_numbers(request)) return std::nullopt;
  CaseOptions options{.executor = request.executor,
                      .max_flops = is_asked ? 0.0 : kFlopsOfSeconds,
                      .measures_items = true,
                      .keeps_exact = true};
  const std::optional<Error> without_items = refuse_items(*state.plan());
  options.keeps_items = request.is_by_step && !without_items;
  ProgressBar bar(true);
  options.progress = bar.phases();
  CaseOutcome outcome = run_case(toolbox, state.plan()->checked(), options);
  if (!outcome.grade.tensors.empty()) {
    auto view = std::make_shared<RunView>(make_run_view(outcome));
    if (without_items) view->without_steps = to_sentence(*without_items);
    if (request.is_by_step)
      if (auto error = add_steps(*view, outcome.inputs, *state.plan(), toolbox, {})) return error;
    state.run_a = std::move(view);
    state.run_a_plan = state.document.plan();
    return std::nullopt;
  }
  const Error error = outcome.error.value_or(
      make_error(ErrorKind::unavailable, "the run gave no numbers: " + outcome.reason));
  if (is_asked || !is_all) return error;
  without_numbers = "No numbers: " + error.complaints.front().what;
  return std::nullopt;
}

/// Adds the requested times: predicted ones, and measured ones next to them.
std::optional<Error> predict_if_asked(AppState& state, const RenderRequest& request) {
  if (request.cluster.empty()) return std::nullopt;
  Result<Cluster> cluster = load_cluster(request.cluster, shipped_clusters());
  if (!cluster) return cluster.error();
  return show_prediction(state, std::move(cluster).value(), request.stack);
}

/// Adds the requested measured times. A page of all views runs the scenario for its numbers, so the
/// record becomes run B there.
std::optional<Error> read_record_if_asked(AppState& state, const RenderRequest& request) {
  if (request.record.empty()) return std::nullopt;
  Result<RunRecord> record = read_record(request.record);
  if (!record) return record.error();
  const Plan& plan = state.plan()->plan();
  if (auto error = check_record(record.value(), plan, request.record)) return error;
  if (auto error = check_events(record.value(), plan, request.record)) return error;
  if (record.value().events.empty()) {
    return make_error(ErrorKind::bad_input, "This record holds no times",
                      "record the run on an executor with a clock: cuda or nccl", request.record);
  }
  auto view = std::make_shared<RunView>();
  view->name = fmt::format("{}: {}", std::filesystem::path(request.record).filename().string(),
                           record.value().executor);
  view->is_simulated = record.value().clock == "simulated";
  view->events = std::move(record.value().events);
  const bool is_alone = !shows_numbers(request);
  (is_alone ? state.run_a : state.run_b) = std::move(view);
  (is_alone ? state.run_a_plan : state.run_b_plan) = state.document.plan();
  state.shows_time = true;
  return std::nullopt;
}

/// The same of traces of other software.
std::optional<Error> read_traces_if_asked(AppState& state, const RenderRequest& request) {
  if (request.measured.empty()) return std::nullopt;
  Result<SharedRun> run = load_traces(request.measured, request.layer, state.plan()->plan());
  if (!run) return run.error();
  const bool is_alone = !shows_numbers(request);
  (is_alone ? state.run_a : state.run_b) = std::move(run).value();
  (is_alone ? state.run_a_plan : state.run_b_plan) = state.document.plan();
  state.shows_time = true;
  return std::nullopt;
}

struct Written {
  Size pixels;
  size_t bytes = 0;
  int32_t frames = 0;       // of an animation
  int64_t duration_ms = 0;  // of an animation
};

#ifdef CPSCOPE_HAS_IMGUI
uint64_t hash_text(const std::string& text) {
  uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const char letter : text) {
    hash ^= static_cast<uint8_t>(letter);
    hash *= 1099511628211U;
  }
  return hash;
}

/// The command that makes the picture again; folders are left out, so that the bytes do not depend
/// on them.
std::string describe_command(const RenderRequest& request, const Order& order,
                             const AppState& state) {
  const std::string moment =
      request.is_animated
          ? fmt::format("--animate --pass {} --frames-per-step {} --step-seconds {}", request.pass,
                        request.frames_per_step, request.seconds_per_step)
          : fmt::format("--step {}", step_of(*state.plan(), state.playhead));
  std::string command =
      fmt::format("cpscope render {} --view {} {} --rank {} --theme {} --size {}x{}",
                  std::filesystem::path(request.scenario_path).filename().string(), request.view,
                  moment, state.focus_rank, request.theme, order.size.width, order.size.height);
  if (order.scale != 1) command += fmt::format(" --scale {}", order.scale);
  if (order.file == FileKind::png && request.fonts != "packages") command += " --fonts built-in";
  if (!request.executor.empty()) command += " --run " + request.executor;
  if (!request.selection.empty()) command += " --select '" + request.selection + "'";
  if (!request.tensor.empty()) command += " --tensor " + request.tensor;
  if (request.is_by_step) command += " --per-step";
  if (!request.cluster.empty())
    command += " --cluster " + std::filesystem::path(request.cluster).filename().string();
  if (!request.stack.empty()) command += " --stack " + request.stack;
  if (!request.record.empty())
    command += " --record " + std::filesystem::path(request.record).filename().string();
  for (const std::string& text : request.measured) {
    const TraceSource source = parse_trace_source(text);
    command += &text == &request.measured.front() ? " --measured " : " ";
    if (source.rank) command += fmt::format("{}=", *source.rank);
    command += std::filesystem::path(source.path).filename().string();
  }
  if (request.layer) command += fmt::format(" --layer {}", *request.layer);
  return command;
}

std::vector<PngText> describe_file(const RenderRequest& request, const Order& order,
                                   const AppState& state, const std::string& title,
                                   const std::string& description) {
  return {{"Title", title},
          {"Description", description},
          {"Software", "cpscope " + program_version()},
          {"scenario_hash", to_hex(hash_text(state.document.text()))},
          {"plan_hash", to_hex(state.plan()->plan().hash)},
          {"command", describe_command(request, order, state)}};
}

Result<Written> write_frames(const RenderRequest& request, const Order& order, AppState& state,
                             const std::function<Picture(const TextWidth&)>& compose,
                             FontChoice fonts) {
  const Result<PaintedAnimation> painted =
      paint_animation(state, compose, order.size, fonts, order.scale, order.animation);
  if (!painted) return painted.error();
  const PaintedAnimation& animation = painted.value();
  if (!animation.missing_fonts.empty()) std::cerr << "cpscope: " << animation.missing_fonts << '\n';
  const Result<std::string> text = animation.writer.finish(
      describe_file(request, order, state, animation.picture.title, describe(animation)));
  if (!text) return text.error();
  const Result<size_t> bytes = write_whole_file(request.out_path, text.value(), "the animation");
  if (!bytes) return bytes.error();
  return Written{animation.pixels, bytes.value(), animation.writer.num_frames(),
                 animation.writer.duration_ms()};
}

FontChoice fonts_of(const RenderRequest& request) {
  return request.fonts == "packages" ? FontChoice::packages : FontChoice::built_in;
}

Result<Written> write_painted(
    const RenderRequest& request, const Order& order,
    const std::function<Picture(const TextWidth&)>& compose,
    const std::function<std::vector<PngText>(const Picture&)>& describe_picture) {
  const PaintedPicture painted =
      paint_picture(compose, order.size, order.theme, fonts_of(request), order.scale);
  if (!painted.missing_fonts.empty()) std::cerr << "cpscope: " << painted.missing_fonts << '\n';
  const Result<size_t> bytes =
      write_png(request.out_path, painted.image, describe_picture(painted.picture));
  if (!bytes) return bytes.error();
  return Written{
      {static_cast<float>(painted.image.width), static_cast<float>(painted.image.height)},
      bytes.value()};
}

Result<Written> write_pixels(const RenderRequest& request, const Order& order, AppState& state,
                             const std::function<Picture(const TextWidth&)>& compose) {
  if (request.is_animated) return write_frames(request, order, state, compose, fonts_of(request));
  return write_painted(request, order, compose, [&](const Picture& picture) {
    return describe_file(request, order, state, picture.title, picture.alt);
  });
}
#endif

Result<Written> write_drawing(const RenderRequest& request, const Order& order,
                              const Picture& picture) {
  const SvgPage page{picture.size, theme_of(order.theme).of(Role::background), picture.title,
                     picture.alt};
  const Result<size_t> bytes = write_svg(request.out_path, picture.drawing, page);
  if (!bytes) return bytes.error();
  return Written{picture.size, bytes.value()};
}

Result<Written> write_handout(const RenderRequest& request, const Order& order, Toolbox& toolbox) {
  AppState state;
  state.theme = order.theme;
  plug_in(state, toolbox);
  const HandoutOrder handout{static_cast<int32_t>(*request.lesson - 1), request.has_answers,
                             "cpscope " + program_version()};
  if (auto error = refuse_handout(state, handout)) return *error;
  const auto compose = [&](const TextWidth& text_width) {
    return draw_handout(state, handout, text_width);
  };
#ifdef CPSCOPE_HAS_IMGUI
  if (order.file == FileKind::png)
    return write_painted(request, order, compose, [](const Picture& picture) {
      return std::vector<PngText>{{"Title", picture.title},
                                  {"Description", picture.alt},
                                  {"Software", "cpscope " + program_version()}};
    });
#endif
  return write_drawing(request, order, compose(TextWidth(estimate_width)));
}

Result<Written> write_picture(const RenderRequest& request, const Order& order, AppState& state,
                              const std::string& without_numbers) {
  const Plan& plan = state.plan()->plan();
  const std::string file = std::filesystem::path(request.scenario_path).filename().string();
  const auto compose = [&](const TextWidth& text_width) {
    const PictureSource source{
        &state,
        fmt::format("{}   plan {}   cpscope {}", file, to_hex(plan.hash), program_version()),
        text_width, without_numbers, request.is_animated ? kAnimatedCaption : 0};
    return order.views.empty() ? draw_poster(source, order.size)
                               : draw_picture(source, order.views, order.size);
  };
#ifdef CPSCOPE_HAS_IMGUI
  if (order.file == FileKind::png) return write_pixels(request, order, state, compose);
#endif
  return write_drawing(request, order, compose(TextWidth(estimate_width)));
}

/// `state`: null for a handout.
void say_written(const RenderRequest& request, const AppState* state, const Written& written) {
  if (!request.json) {
    std::cout << fmt::format("{}: {} x {} pixels, {} bytes", request.out_path, written.pixels.width,
                             written.pixels.height, written.bytes);
    if (written.frames > 0)
      std::cout << fmt::format(", {} frames, {:.1f} s", written.frames,
                               static_cast<double>(written.duration_ms) / 1000);
    std::cout << '\n';
    return;
  }
  Json document{{"schema", 1},
                {"out", request.out_path},
                {"width", written.pixels.width},
                {"height", written.pixels.height},
                {"bytes", written.bytes}};
  if (request.lesson) document["lesson"] = *request.lesson;
  if (state != nullptr) {
    document["view"] = request.view;
    document["step"] = step_of(*state->plan(), state->playhead);
    document["rank"] = state->focus_rank;
    document["plan_hash"] = to_hex(state->plan()->plan().hash);
  }
  if (written.frames > 0) {
    document["frames"] = written.frames;
    document["duration_ms"] = written.duration_ms;
  }
  std::cout << document.dump() << '\n';
}

}  // namespace

bool can_write_png() {
#ifdef CPSCOPE_HAS_IMGUI
  return true;
#else
  return false;
#endif
}

int render(const RenderRequest& request, Toolbox& toolbox) {
  const Result<Order> order = understand(request);
  if (!order) return report(order.error());
  if (request.lesson) {
    const Result<Written> written = write_handout(request, order.value(), toolbox);
    if (!written) return report(written.error());
    if (!request.is_quiet) say_written(request, nullptr, written.value());
    return 0;
  }
  AppState state;
  state.theme = order.value().theme;
  if (const auto error = state.document.load(request.scenario_path)) return report(*error);
  for (const std::string& warning : state.document.warnings()) std::cerr << warning << '\n';
  settle(state);
  if (state.document.refusal()) return report(*state.document.refusal());
  if (const auto error = seek(state, request)) return report(*error);
  std::string without_numbers;
  if (const auto error = predict_if_asked(state, request)) return report(*error);
  if (const auto error = read_record_if_asked(state, request)) return report(*error);
  if (const auto error = read_traces_if_asked(state, request)) return report(*error);
  if (const auto error = run_if_needed(state, request, order.value(), toolbox, without_numbers))
    return report(*error);
  const Result<Written> written = write_picture(request, order.value(), state, without_numbers);
  if (!written) {
    // A path that cannot be written is an error of the user.
    report(written.error());
    return 2;
  }
  if (!request.is_quiet) say_written(request, &state, written.value());
  return 0;
}

}  // namespace cpscope::gui
