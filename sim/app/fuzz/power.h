#pragma once

#include "sim/plan/direction.h"
#include "sim/run/toolbox.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope {

/// Which part of a tensor is wrong.
enum class SpoiledPart { row, head, rank, sequence };
std::string_view to_name(SpoiledPart value);

/// The smallest error that a verdict sees wherever it is planted: the part's values times 1 + error
/// in a right answer.
struct PowerFigure {
  SpoiledPart part = SpoiledPart::row;
  int64_t parts = 0;  // of the batch: rows, heads, ranks, sequences
  std::string dtype, comm_type;
  int64_t tokens = 0;
  int32_t ranks = 0;
  std::string tensor;
  int64_t sample_rows = 0;  // 0: judged whole
  double smallest = 0.0;    // infinite: not even twice the value is seen everywhere
};

/// Messages whose keys, or gradients, never came: how many of them a verdict sees.
struct LostMessages {
  std::string comm_type, dtype;
  int32_t ranks = 0;
  Direction direction = Direction::forward;  // backward: a share of dk and dv, not keys
  int64_t sample_rows = 0;
  int64_t planted = 0, seen = 0;
};

struct PowerReport {
  std::vector<PowerFigure> figures;
  std::vector<LostMessages> losses;
};

/// The power of the verdict as a test. `is_brief`: one size of each kind alone.
/// Errors: as running and judging.
Result<PowerReport> measure_power(Toolbox& toolbox, bool is_brief, const Progress& progress);

}  // namespace cpscope
