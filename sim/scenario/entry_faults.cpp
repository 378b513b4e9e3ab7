#include "sim/scenario/entry_faults.h"

#include <fmt/format.h>

namespace cpscope {

void EntryFaults::report_to(Complaints& complaints, const std::string& list) const {
  for (const Fault& fault : faults_) {
    if (fault.count == 0) continue;
    const Wording& wording = fault.wording;
    std::string what =
        fault.count == 1
            ? fmt::format("{}[{}] {}: {}", list, fault.first, wording.one, wording.shown)
            : fmt::format("{}[{}..{}]: {} {}, first {}", list, fault.first, fault.last, fault.count,
                          wording.many, wording.shown);
    complaints.add(wording.position, std::move(what), wording.hint);
  }
}

}  // namespace cpscope
