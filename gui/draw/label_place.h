#pragma once

#include "gui/draw/drawing.h"

namespace cpscope::gui {

/// Where a label's first letter begins on its baseline, for a text of `width`, in logical pixels.
/// A line's ink (capitals to descenders) fits into `size`; middle anchors name the middle of
/// capitals and figures, so that text beside a box stands in its middle. `capital`: their height,
/// of the em.
Point baseline_of(const Label& label, float width, float capital = 0.73F);

}  // namespace cpscope::gui
