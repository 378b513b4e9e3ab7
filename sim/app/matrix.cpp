#include "sim/app/matrix.h"

#include "sim/app/junit.h"
#include "sim/app/matrix_run.h"
#include "sim/app/matrix_table.h"
#include "sim/app/progress_bar.h"

#include <iostream>

namespace cpscope {

int command_matrix(const CommandOptions& options, Toolbox& toolbox) {
  const Result<Executor*> executor = find_executor(toolbox, options.executor);
  if (!executor) return report(executor.error());
  ProgressBar bar(true);
  // An executor that owns a device runs one plan at a time.
  const int threads = executor.value()->name() == "cpu" ? 0 : 1;
  const std::vector<MatrixCell> cells = full_matrix();
  const MatrixReport matrix =
      summarise_matrix(run_matrix(*executor.value(), toolbox, cells, threads, bar.phase("matrix")));
  if (!options.markdown_path.empty()) {
    const Result<std::string> written =
        write_text_file(matrix_markdown(matrix), options.markdown_path);
    if (!written) return report(written.error());
  }
  std::cout << (options.json ? matrix_json(matrix).dump() + "\n" : matrix_text(matrix));
  if (matrix.total.fail > 0 || matrix.total.blind > 0) return 1;
  // Nothing ran: the executor is here, but can do none of it.
  return matrix.total.pass > 0 ? 0 : 3;
}

}  // namespace cpscope
