#include "sim/app/matrix.h"

namespace cpscope {

int command_matrix(const CommandOptions&, Toolbox&) {
  return report(make_error(ErrorKind::unavailable, "the matrix is being built"));
}

}  // namespace cpscope
