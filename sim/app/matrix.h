#pragma once

#include "sim/app/commands.h"

namespace cpscope {

/// `verify --matrix`: sweeps communication type x layout x mask x format x padding x feature on
/// small shapes, runs every cell and plants a fault in it, and prints the table of what passes and
/// what is refused, with the reasons.
int command_matrix(const CommandOptions& options, Toolbox& toolbox);

}  // namespace cpscope
