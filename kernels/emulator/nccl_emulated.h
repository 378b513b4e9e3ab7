#pragma once

#include "kernels/run/nccl_library.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cpscope::kernels::emulator {

/// Faults of an emulated NCCL.
struct NcclFault {
  enum class Kind {
    none,
    asynchronous_error,  // the communicator reports a remote error
    hang,                // the group of the communicator never settles
    throws               // ncclGroupEnd throws the error of a broken driver
  };
  Kind kind = Kind::none;
  int32_t rank = 0;
  int64_t group = 0;  // index of the rank's group, from 0
};

/// NCCL for the emulated device: communicators of ranks in one process, driven by one or several
/// threads. Stricter than the real one: a group settles only when each of its sends has met its
/// receive; a send that meets none in time, and different byte counts, are errors. Transfers are
/// done immediately, in the order of the calls.
class NcclEmulated {
 public:
  /// `patience`: longest time that a send or receive waits for its other half before it is an
  /// error.
  explicit NcclEmulated(std::chrono::milliseconds patience = std::chrono::seconds{10});

  /// All processes (threads) of one communicator must use the functions of one object.
  NcclFunctions functions() const;
  void plant(const NcclFault& fault);

  struct Counts {
    int64_t communicators = 0;  // made in total
    int64_t groups = 0;         // of sends and receives, by rank
    int64_t messages = 0;       // sends that met their receives
    int64_t bytes = 0;
    int64_t aborts = 0;
    int64_t open = 0;  // communicators neither destroyed nor aborted
  };
  Counts counts() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace cpscope::kernels::emulator
