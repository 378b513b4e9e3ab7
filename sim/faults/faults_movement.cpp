#include "sim/faults/catalogue_parts.h"

namespace cpscope {
std::vector<Fault> movement_faults() { return {}; }
}  // namespace cpscope
