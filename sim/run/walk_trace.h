#pragma once

#include "sim/base/id_vector.h"
#include "sim/base/ids.h"
#include "sim/plan/direction.h"
#include "sim/run/executor.h"

#include <cstdint>
#include <vector>

namespace cpscope {

/// Fingerprints of every row of every buffer at one moment of a run: after the inputs were loaded
/// (stage -1), or after a stage.
struct StateFrame {
  Direction direction = Direction::forward;
  int64_t stage = -1;  // index into the stages of the pass that was run
  StepId step{};
  StageKind kind{};
  IdVector<BufferId, std::vector<uint64_t>> rows;  // [row]
};

/// Work that an item really did: bytes sent over a wire, (query, key, head) triples computed.
struct ItemWork {
  ItemId item;
  RankId rank{};  // sender, or rank that computed
  RankId peer{};  // receiver
  StepId step{};
  Payload payload{};
  int64_t bytes = 0;
  int64_t pairs = 0;
};

/// The actions of a watched walk, in plan order.
struct WalkTrace {
  std::vector<StateFrame> frames;
  std::vector<ItemWork> work;
};

}  // namespace cpscope
