#include "sim/base/machine_memory.h"

#include <algorithm>
#include <fstream>

#include <sys/resource.h>
#include <unistd.h>

namespace cpscope {

int64_t machine_memory_bytes() {
  int64_t bytes =
      static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGE_SIZE));
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    bytes = std::min(bytes, static_cast<int64_t>(limit.rlim_cur));
  // The limit of the container; the file holds "max" when there is no limit.
  int64_t container = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> container && container > 0)
    bytes = std::min(bytes, container);
  return bytes;
}

}  // namespace cpscope
