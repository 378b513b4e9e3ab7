#pragma once

#include "kernels/lower/narrow_buffers.h"

#include <functional>
#include <vector>

namespace cpscope::kernels {

// Gradients of keys and values that several ranks send to one, which adds them up when all are
// there: one pass over memory instead of one for every sender. Order and numbers are those of
// additions one by one.

/// [transfer item] Is it a share of a sum that all shares come to in one stage, and nothing else?
std::vector<bool> find_gradient_shares(const GradientPass& pass);

/// [buffer] Gradients that a kernel writes once and nothing but transfers read: in fp32, because
/// some stay on their rank unrounded, of which a wire takes others in the dtype. A kernel that
/// writes each row as it is wanted leaves nothing to convert.
std::vector<bool> find_wire_copies(const GradientPass& pass,
                                   const std::function<bool(const ComputeItem&)>& writes_dtype,
                                   const std::vector<bool>& is_narrow);

}  // namespace cpscope::kernels
