#include "sim/base/version.h"

namespace cpscope {

std::string program_version() { return CPSCOPE_VERSION; }

}  // namespace cpscope
