#pragma once

#include "sim/findings/picture_request.h"
#include "sim/run/toolbox.h"

#include <functional>

namespace cpscope {

/// Parses the command line and runs one command. Returns the process exit code (contract, section
/// 3).
int run_program(int argc, char** argv, Toolbox& toolbox, const PictureCommands& pictures = {});

}  // namespace cpscope
