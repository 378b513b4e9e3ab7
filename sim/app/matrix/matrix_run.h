#pragma once

#include "sim/app/matrix/matrix_cells.h"
#include "sim/app/matrix/matrix_faults.h"
#include "sim/run/toolbox.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope {

enum class CellStatus {
  pass,     // graded well, tells something, and a planted fault failed
  refused,  // a rule or the executor rejects it with a reason
  blind,    // graded well, but its pass would prove too little
  fail      // graded badly, or planned wrongly
};
std::string_view to_name(CellStatus value);

struct CellResult {
  MatrixCell cell;
  CellStatus status = CellStatus::fail;
  std::string reason;              // why it is no pass
  std::vector<std::string> notes;  // what a passed cell cannot show, and why
  bool has_fault = false;          // a fault was planted
  FaultKind fault_kind{};
  std::string fault;       // what was planted
  bool is_caught = false;  // the judge failed it
  std::string plan_check;  // the proof that the faulty plan breaks; empty when it breaks none
};

/// Plans, proves, runs and grades a scenario, weighs whether it tells anything, plants one fault
/// and grades again. `index` picks the kind of fault and its place. `cell.feature` may be null.
CellResult run_cell(Executor& executor, const Toolbox& toolbox, const MatrixCell& cell,
                    const Scenario& scenario, int64_t index);

/// All cells, on `threads` threads (0 = all cores). Results are in the order of the cells and do
/// not depend on the threads. `progress` may be empty.
std::vector<CellResult> run_matrix(Executor& executor, const Toolbox& toolbox,
                                   std::span<const MatrixCell> cells, int threads,
                                   const Progress& progress);

}  // namespace cpscope
