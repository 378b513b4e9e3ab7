#pragma once

#include "sim/app/cli/picture_request.h"
#include "sim/app/report/figure.h"
#include "sim/clock/candidates.h"
#include "sim/run/toolbox.h"

#include <functional>

namespace cpscope {

/// The commands that draw, plugged in by main too. Empty in a program without pictures.
struct PictureCommands {
  std::function<int(const RenderRequest&, Toolbox&)> render;
  std::function<int(const WindowRequest&, Toolbox&)> open_window;
  FigureMaker draw_figures;  // of reports
  std::function<Result<size_t>(const Candidates&, const ComparisonPictureRequest&)> draw_comparison;
  bool has_png = false;  // else render writes only SVG
};

/// Parses the command line and runs one command. Returns the process exit code (contract, section
/// 3).
int run_program(int argc, char** argv, Toolbox& toolbox, const PictureCommands& pictures = {});

}  // namespace cpscope
