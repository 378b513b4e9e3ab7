#pragma once

#include "kernels/lower/narrow_buffers.h"

#include <functional>
#include <vector>

namespace cpscope::kernels {

// Gradients of keys and values that several ranks send to one. That rank adds them up when all have
// arrived: one pass over memory instead of one for every sender. The order and the results are
// those of single additions.

/// [transfer item] True if it is a share of a sum that consists only of shares, all arriving in one
/// stage.
std::vector<bool> find_gradient_shares(const GradientPass& pass);

/// [buffer] Gradients that a kernel writes once and only transfers read. They are in fp32, because
/// some stay on their rank unrounded; others are sent in the dtype. A kernel that writes each row
/// in the form it is needed leaves nothing to convert.
std::vector<bool> find_wire_copies(const GradientPass& pass,
                                   const std::function<bool(const ComputeItem&)>& writes_dtype,
                                   const std::vector<bool>& is_narrow);

}  // namespace cpscope::kernels
