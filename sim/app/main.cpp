#include "reference/dense_oracle.h"
#include "reference/mask_predicate.h"
#include "reference/plan_walker.h"
#include "sim/app/program.h"

/// The front door: the only file that sees every room. It plugs executors and the judge into the
/// program.
int main(int argc, char** argv) {
  cpscope::Toolbox toolbox;
  toolbox.executors.push_back(cpscope::reference::make_plan_walker());
  toolbox.missing_executors = {{"cuda", "this build has no kernels room"},
                               {"nccl", "this build has no kernels room"}};
  toolbox.judge = cpscope::reference::judge;
  toolbox.witness = cpscope::reference::mask_witness();
  return cpscope::run_program(argc, argv, toolbox);
}
