#pragma once

#include "gui/draw/drawing.h"

namespace cpscope::gui {

/// The start of a label's text on its baseline, for a text of `width`, in logical pixels. A line's
/// ink (capitals to descenders) fits into `size`; middle anchors refer to the middle of capitals
/// and figures, so that text next to a box is vertically centred. `capital`: the height of
/// capitals, in units of the em.
Point baseline_of(const Label& label, float width, float capital = 0.73F);

}  // namespace cpscope::gui
