#pragma once

#include "sim/scenario/complaints.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope {

/// Collects what is wrong with the entries of one list. Each kind of fault becomes one complaint,
/// however many entries have it: "batch.lengths[0..63]: 64 values are below 0, first -3".
class EntryFaults {
 public:
  /// What is said of the first entry with a fault.
  struct Wording {
    SourcePosition position;
    std::string one;    // "must be an integer from 0 to 9", after the name of a single entry
    std::string many;   // "values are below 0", after a number of entries
    std::string shown;  // the entry
    std::string hint;
  };

  /// `kind` is a small number of the caller. `make()`, the Wording, is called for the first entry
  /// of a kind only, because a list can have millions.
  template <class Make>
  void add(size_t kind, int64_t index, Make make) {
    if (faults_.size() <= kind) faults_.resize(kind + 1);
    Fault& fault = faults_[kind];
    if (fault.count++ == 0) {
      fault.first = index;
      fault.wording = make();
    }
    fault.last = index;
  }

  bool is_empty() const { return faults_.empty(); }
  /// `list` is the full name of the key.
  void report_to(Complaints& complaints, const std::string& list) const;

 private:
  struct Fault {
    int64_t count = 0, first = 0, last = 0;
    Wording wording;
  };
  std::vector<Fault> faults_;  // [kind]
};

}  // namespace cpscope
