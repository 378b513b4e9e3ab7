#pragma once

#include "sim/base/id_vector.h"

#include <cstdint>
#include <functional>

namespace cpscope {

/// Number of worker threads: the machine's cores, or CPSCOPE_THREADS when set. At least 1.
int default_thread_count();

/// Calls body(index) for every index in [0, count), from up to `threads` threads (0 =
/// default_thread_count()). Each index is called exactly once. The caller makes the bodies
/// independent, so results do not depend on `threads`. An exception of a body is rethrown here
/// after all threads have stopped. A nested call, made by a body, runs on the thread of that body.
void for_each_index(int64_t count, const std::function<void(int64_t)>& body, int threads = 0);

/// The same for ids: calls body(id).
template <class Id, class Body>
void for_each_id(IdSequence<Id> ids, Body body, int threads = 0) {
  for_each_index(
      ids.size(), [&](int64_t index) { body(Id{static_cast<int32_t>(index)}); }, threads);
}

}  // namespace cpscope
