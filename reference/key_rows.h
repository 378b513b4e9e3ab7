#pragma once

#include "reference/head_group.h"
#include "reference/row_matrix.h"

#include <utility>

namespace cpscope::reference {

/// The keys [num_keys, head_dim_qk] before RoPE and values [num_keys, head_dim_v] of a unit's KV
/// head. Those that are made of latent rows are rounded to the dtype if `rounds`.
template <class Real>
std::pair<Rows<Real>, Rows<Real>> gather_keys(const HeadGroup& group, bool rounds);

}  // namespace cpscope::reference
