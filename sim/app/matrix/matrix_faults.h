#pragma once

#include "sim/app/matrix/matrix_telling.h"
#include "sim/plan/plan.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cpscope {

/// What a planted fault breaks.
enum class FaultKind {
  comm,      // KV that somebody needs does not travel, or an older KV travels in its place
  mask,      // one band is off by one, or missing
  layout,    // two tokens of different sequences stand in each other's row
  merge,     // one partial result is never merged
  gradient,  // one dK, dV share never comes home
  padding,   // one padding key is visible
  feature    // the executor forgets the cell's feature
};
std::string_view to_name(FaultKind value);
/// The kinds that any plan may have a place for: all but `feature`.
std::span<const FaultKind> fault_kinds();

/// A healthy plan with one thing broken. It never makes an executor read or write outside a buffer.
struct CellFault {
  FaultKind kind{};
  std::string what;
  Plan plan;
};

/// Plants a fault of this kind where it must show. `variant` >= 0 picks among the places. Nothing
/// when the plan has no such place (no padding, no backward pass, one sequence, ...).
std::optional<CellFault> plant_fault(const Plan& plan, const Visibility& visibility, FaultKind kind,
                                     int64_t variant, void (*switch_off)(Attention&));

}  // namespace cpscope
