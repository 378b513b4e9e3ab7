#pragma once

#include <cstdint>

namespace cpscope {

/// One device of the context-parallel group, 0 <= rank < cp_size.
enum class RankId : int32_t {};
/// One unit of the schedule. Forward and backward number their steps separately, from 0.
enum class StepId : int32_t {};
/// One buffer of one rank; dense over the whole plan.
enum class BufferId : int32_t {};
/// One list of token or row runs in the plan's run pool.
enum class RunListId : int32_t {};

template <class Id>
constexpr int32_t to_index(Id id) {
  return static_cast<int32_t>(id);
}

/// Half-open range of heads [begin, end).
struct HeadRange {
  int32_t begin = 0;
  int32_t end = 0;

  constexpr int32_t size() const { return end - begin; }
  friend constexpr bool operator==(const HeadRange&, const HeadRange&) = default;
};

}  // namespace cpscope
