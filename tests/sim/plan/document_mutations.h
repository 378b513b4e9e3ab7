#pragma once

#include "sim/plan/plan.h"

#include <cstdint>

namespace cpscope::tests {

/// What became of the documents of a plan with one item dropped, doubled or moved to another stage.
struct MutationCount {
  int64_t documents = 0, refused = 0, harmless = 0;
};

/// Makes such documents of the plan, every `every`-th one, and reads and proves each. Expects all
/// to be refused but those that are harmless:
/// - an idle compute (without slices) that is dropped, doubled or moved
/// - an item that is moved over no other item that reads what it writes, or writes what it reads or
///   writes; additions to one sum commute
/// - a transfer or reorder of the backward that brings what the forward has left in the same buffer
MutationCount refuse_mutations(const Plan& plan, int64_t every);

}  // namespace cpscope::tests
