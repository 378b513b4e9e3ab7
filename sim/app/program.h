#pragma once

#include "sim/app/picture_request.h"
#include "sim/run/executor.h"
#include "sim/run/judge.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace cpscope {

/// What main plugs into the program: it alone sees every room.
struct Toolbox {
  std::vector<std::unique_ptr<Executor>> executors;  // the first is the default
  std::vector<std::pair<std::string, std::string>>
      missing_executors;  // name, and why it is not here
  Judge judge;
  SampledJudge sampled_judge;
  MaskWitness witness;
  bool is_first_process = true;  // the others neither print results nor write files
};

/// The commands that draw, plugged in by main too. Empty in a program without pictures.
struct PictureCommands {
  std::function<int(const RenderRequest&, Toolbox&)> render;
  std::function<int(const WindowRequest&, Toolbox&)> open_window;
};

/// Parses the command line and runs one command. Returns the process exit code (contract, section
/// 3).
int run_program(int argc, char** argv, Toolbox& toolbox, const PictureCommands& pictures = {});

/// Project version, as written into records.
std::string program_version();

}  // namespace cpscope
