#include "reference/dense_oracle.h"
#include "reference/mask_predicate.h"
#include "reference/plan_walker.h"
#include "reference/sampled_judge.h"
#include "sim/app/program.h"

/// The front door: the only file that sees every room. It plugs executors and the judge into the
/// program.
int main(int argc, char** argv) {
  cpscope::Toolbox toolbox;
  toolbox.executors.push_back(cpscope::reference::make_plan_walker());
  toolbox.missing_executors = {{"cuda", "this build has no kernels room"},
                               {"nccl", "this build has no kernels room"}};
  toolbox.judge = cpscope::reference::judge;
  toolbox.sampled_judge = cpscope::reference::judge_rows;
  toolbox.witness = cpscope::reference::mask_witness();
  return cpscope::run_program(argc, argv, toolbox);
}
