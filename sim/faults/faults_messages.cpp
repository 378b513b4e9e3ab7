#include "sim/faults/catalogue_parts.h"

namespace cpscope {
std::vector<Fault> message_faults() { return {}; }
}  // namespace cpscope
