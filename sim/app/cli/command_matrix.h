#pragma once

#include "sim/app/cli/command.h"

#include <string>

namespace cpscope {

struct MatrixArguments {
  std::string executor;
  std::string markdown_path;  // also write the table, with what other frameworks offer
  OutputFiles files;
  bool json = false;
};

/// `verify --matrix`: sweeps communication type x layout x mask x format x padding x feature on
/// small shapes, runs every cell and plants a fault in it, and prints the table of what passes and
/// what is refused, with the reasons.
int command_matrix(const MatrixArguments& options, const Tools& tools);

}  // namespace cpscope
