#pragma once

// Private to the reference library: what a walk offers to a seam, and the seam of a healthy walk.

#include "reference/partial_merger.h"
#include "reference/rank_memory.h"
#include "sim/plan/plan.h"
#include "sim/run/judge.h"

#include <cstdint>

namespace cpscope::reference {

/// Parts of a walk that the fault gallery may read and change.
template <class T>
struct WalkParts {
  const Plan& plan;
  const RunInputs& inputs;
  RankMemory<T>& memory;
  PartialMerger<T>& merger;
};

/// How the gradient of a V that K stands for is added to that of K; a seam may change it.
template <class T>
struct LatentSum {
  T times = 1;
  int32_t first = 0;  // element of K, if V is a part of it
};

/// The seam of a walk that follows the plan: it has no hooks and no cost. The fault gallery's walk
/// has another seam (faulty_walker.cpp), which contains all intentional errors.
template <class T>
struct HealthySeam {
  static constexpr bool kIsOpen = false;
  struct Setup {};
  HealthySeam(const WalkParts<T>&, const Setup&) {}
};

}  // namespace cpscope::reference
