#pragma once

#include "sim/base/id_vector.h"
#include "sim/base/ids.h"
#include "sim/plan/batch_slots.h"
#include "sim/plan/plan.h"
#include "sim/run/judge.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope {

/// Which keys each rank's forward computes see, and which queries see a key at all: read off the
/// bands of a plan.
struct Visibility {
  IdVector<RankId, std::vector<bool>> seen_by_rank;  // [packed padded kv id]
  std::vector<bool> seen;                            // [packed padded kv id] by any rank
  std::vector<bool> sees;                            // [packed padded q id]
  std::vector<RankId> kv_owner;                      // [packed padded kv id]
};

Visibility find_visibility(const Plan& plan);

/// The sequence that a packed padded id is a valid token of, -1 for padding and tail.
int64_t sequence_of_token(const BatchSlots& slots, int64_t token, Side side);

/// What a scenario can show at all. A pass of a scenario without these proves little.
struct Telling {
  bool has_full_tile = false;     // of kTellingTile x kTellingTile rows of a compute item's buffers
  bool has_partial_tile = false;  // some of its cells visible, not all; padding cells never are
  int64_t padding_rows = 0;       // q and kv
  int32_t ranks_with_remote_keys = 0;
  std::vector<std::string> notes;  // why a rank sees no remote key
  std::string contradiction;  // a rank that sees none although the mask shows it some: a wrong plan
};

inline constexpr int64_t kTellingTile = 8;

/// `witness` says, from its own reading of the mask, whether a rank without remote keys may have
/// none.
Telling find_telling(const Plan& plan, const Visibility& visibility, const MaskWitness& witness);

}  // namespace cpscope
