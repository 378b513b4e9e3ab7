#include "sim/app/matrix.h"

namespace cpscope {

int command_matrix(const CommandOptions&, Toolbox&) { return 1; }

}  // namespace cpscope
