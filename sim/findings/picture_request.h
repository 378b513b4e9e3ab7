#pragma once

#include "sim/clock/candidates.h"
#include "sim/findings/figure.h"
#include "sim/run/toolbox.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// What `render` is asked for, as it stands on the command line. Whoever draws checks it.
struct RenderRequest {
  std::string scenario_path;
  std::string view;                // a view's name, some with commas between them, or all
  std::string out_path;            // ends in .png or .svg
  std::string theme = "dark";      // dark | light | print
  std::string size;                // "1280x860" logical pixels; empty = what suits the view
  std::string fonts = "packages";  // packages | built-in (PNG)
  std::string executor;            // carried out on it first; empty = only where it is needed
  std::string selection;           // "rank 2", "q 0-64", "step 3": lit in every view
  std::string tensor;          // view numbers: whose errors; empty = out, or dq of a backward step
  bool is_by_step = false;     // view numbers: what the step wrote instead of the answer
  std::string cluster, stack;  // whose predicted times to show; empty stack = the cluster's first
  std::string record;          // view timeline: a record of the plan with measured times
  std::vector<std::string> measured;  // view timeline: traces of other software, FILE or RANK=FILE
  std::optional<int64_t> layer;       // of these traces; nothing: of median duration
  std::optional<int64_t> step;        // forward steps first, then backward ones
  std::optional<int64_t> rank;        // whose local order, whose caption
  double scale = 1.0;                 // pixels of a logical pixel
  std::optional<int64_t> lesson;      // from 1: a handout, without scenario_path and view
  bool has_answers = false;           // of a handout
  bool is_animated = false;           // the steps of a pass, one after the other, as animated PNG
  std::string pass = "forward";       // of an animation: forward | backward | both
  int64_t frames_per_step = 16;       // of an animation
  double seconds_per_step = 1.2;      // of an animation
  bool json = false;
  bool is_quiet = false;  // says nothing when all went well
};

/// What `compare --out` is asked for.
struct ComparisonPictureRequest {
  std::string out_path;        // ends in .png or .svg
  std::string theme = "dark";  // dark | light | print
  std::string title;           // of the scenario
};

/// What `gui` is asked for.
struct WindowRequest {
  std::string path;                   // scenario or record; empty = a shipped scenario
  std::string theme;                  // empty = dark, or the state's
  std::string screenshot_path;        // a picture of the window instead of a window
  std::string state_path;             // JSON that a screenshot was saved with
  std::string size;                   // "1600x1000"; empty = that
  std::string executor;               // carry the scenario out on it at once
  std::string cluster, stack;         // whose predicted times to show, as in RenderRequest
  std::vector<std::string> measured;  // traces of other software, and their layer, as above
  std::optional<int64_t> layer;
  std::optional<int64_t> step;  // where the playhead stands at first, as in RenderRequest
  std::string watch_folder;     // what is shown goes there whenever the window comes to rest
  double scale = 0.0;           // pixels of a logical pixel; 0 = the screen's
  int64_t frames = 0;           // close after so many; 0 = when the user does
};

/// The commands that draw, plugged in by main too. Empty in a program without pictures.
struct PictureCommands {
  std::function<int(const RenderRequest&, Toolbox&)> render;
  std::function<int(const WindowRequest&, Toolbox&)> open_window;
  FigureMaker draw_figures;  // of reports
  std::function<Result<size_t>(const Candidates&, const ComparisonPictureRequest&)> draw_comparison;
  bool has_png = false;  // else render writes only SVG
};

}  // namespace cpscope
