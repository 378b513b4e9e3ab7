#pragma once

#include "sim/app/matrix/matrix_run.h"
#include "sim/documents/json_text.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace cpscope {

/// Cells by status.
struct MatrixCounts {
  int64_t pass = 0, refused = 0, blind = 0, fail = 0;

  void add(CellStatus status);
  int64_t run() const { return pass + blind + fail; }
  int64_t all() const { return run() + refused; }
};

/// Counts in rows of one axis and columns of communication.
struct MatrixTable {
  std::string name;
  std::vector<std::string> columns;
  std::vector<std::pair<std::string, std::vector<MatrixCounts>>> rows;
};

/// Something said of several cells, once, with the first of them.
struct MatrixRemark {
  std::string text;
  int64_t count = 0;
  std::string example;
};

/// What became of the planted faults of one kind.
struct MatrixFaults {
  int64_t planted = 0;
  int64_t caught = 0;                       // by the judge
  std::map<std::string, int64_t> by_proof;  // plan check that also objects, empty name for none
};

struct MatrixReport {
  MatrixCounts total;
  std::vector<MatrixTable> tables;  // mask, layout, format and padding, feature; then mask groups
  std::vector<MatrixRemark> refusals, notes;
  std::map<std::string, MatrixFaults> faults;  // by kind
  std::vector<CellResult> failures;            // failed and blind cells
};

MatrixReport summarise_matrix(const std::vector<CellResult>& results);

/// "42/42" passed of run, "refused" when nothing ran.
std::string counts_text(const MatrixCounts& counts);

std::string matrix_text(const MatrixReport& report);
Json matrix_json(const MatrixReport& report);

/// The tables for a README: cpscope's own beside what others offer.
std::string matrix_markdown(const MatrixReport& report);

}  // namespace cpscope
