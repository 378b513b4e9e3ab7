#pragma once

#include "sim/documents/json_text.h"
#include "sim/plan/te/te_view.h"

#include <ostream>

namespace cpscope {

/// The document of `plan --te`: what TransformerEngine passes to its kernels, tile by tile.
Json te_json(const TeView& view, const Plan& plan);

/// The same for people: a line a tile, and a line where it computes something else.
void write_te_text(const TeView& view, const Plan& plan, std::ostream& out);

}  // namespace cpscope
