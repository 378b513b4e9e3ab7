#include "sim/base/machine_memory.h"

#include <unistd.h>

namespace cpscope {

int64_t machine_memory_bytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<int64_t>(sysconf(_SC_PAGE_SIZE));
}

}  // namespace cpscope
