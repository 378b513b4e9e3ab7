#include "sim/faults/catalogue_parts.h"

#include <iterator>

namespace cpscope {
namespace {

std::vector<Fault> gather() {
  std::vector<Fault> all;
  for (auto* part :
       {movement_faults, backward_faults, length_faults, mask_faults, hand_over_faults,
        executor_faults, message_faults, partial_faults, term_faults, fp8_faults, group_faults}) {
    std::vector<Fault> faults = part();
    all.insert(all.end(), std::make_move_iterator(faults.begin()),
               std::make_move_iterator(faults.end()));
  }
  return all;
}

const OutOfScope kOutOfScope[] = {
    {"3", "rank order of NCCL's all-gather (NVIDIA/nccl#1906)",
     "a fault inside the collective; what it does to attention is gathered_rows_swapped"},
    {"21", "labels lost at shard edges (huggingface/accelerate shift rule)",
     "labels and loss are outside attention"},
    {"22", "labels rolled across packed documents (NVIDIA/Megatron-LM PR#4495)",
     "labels and loss are outside attention"},
    {"23", "loss or gradient scaled by the wrong group (NVIDIA/Megatron-LM#673)",
     "the loss is outside attention"},
    {"36", "linear attention and convolutions take a shard for a sequence (fla-org FLA PR#1221)",
     "no softmax attention"},
    {"39",
     "tokens of several context-parallel ranks summed by a tensor-parallel all-reduce "
     "(sgl-project/sglang PR#38078)",
     "tensor parallelism is outside attention"},
};

}  // namespace

std::string scenario_text(const SmallScenario& parts) {
  return "schema = 1\n[attention]\n" + parts.heads + "\n" + parts.attention + "\n[batch]\n" +
         parts.batch + "\n[parallel]\n" + parts.parallel + "\n[numerics]\n" + parts.numerics + "\n";
}

FaultSite forward_site(StageKind kind, RankId rank, StepId step, int64_t item) {
  return {{Direction::forward, kind, item}, rank, step};
}

FaultSite backward_site(StageKind kind, RankId rank, StepId step, int64_t item) {
  return {{Direction::backward, kind, item}, rank, step};
}

std::span<const Fault> fault_catalogue() {
  static const std::vector<Fault> kFaults = gather();
  return kFaults;
}

std::span<const OutOfScope> out_of_scope() { return kOutOfScope; }

}  // namespace cpscope
