#pragma once

#include "sim/base/result.h"
#include "sim/clock/candidates.h"
#include "sim/findings/picture_request.h"

#include <cstddef>

namespace cpscope::gui {

/// Draws the picture of `compare --out`: PNG or SVG by the file extension. Returns the number of
/// bytes. Errors: bad_input (an unknown extension or theme, a file that cannot be written),
/// unavailable (PNG in a build without it).
Result<size_t> write_comparison(const Candidates& comparison,
                                const ComparisonPictureRequest& request);

}  // namespace cpscope::gui
