#pragma once

#include "gui/model/axis.h"
#include "gui/model/mask/mask_picture.h"
#include "gui/model/view.h"

#include <array>
#include <cstdint>

namespace cpscope::gui {

/// Steps [now_begin, now_end) of a pass compute in the moment; earlier steps are done.
struct StepWindow {
  int32_t now_begin = 0, now_end = 0;
  int32_t num_steps = 1;
};

enum class PaintWhen : uint8_t { later, done, now };
inline constexpr size_t kPaintWhens = 3;

/// Colours of cells by look and time.
class MaskPaint {
 public:
  explicit MaskPaint(const Theme& theme);

  Color of(CellLook look, PaintWhen when) const {
    return colors_[static_cast<size_t>(look)][static_cast<size_t>(when)];
  }
  /// Colour of a cell with work of many steps, of which a share is done.
  Color of_share(CellLook look, float done) const {
    return shares_[static_cast<size_t>(look)][static_cast<size_t>(done * kShares)];
  }
  /// Colour of hatch lines over that colour.
  Color hatch_of(CellLook look, PaintWhen when) const {
    return hatches_[static_cast<size_t>(look)][static_cast<size_t>(when)];
  }

 private:
  static constexpr int32_t kShares = 63;
  std::array<std::array<Color, kShares + 1>, kCellLooks> shares_;
  std::array<std::array<Color, kPaintWhens>, kCellLooks> colors_;
  std::array<std::array<Color, kPaintWhens>, kCellLooks> hatches_;
};

/// The input and geometry of the picture.
struct MaskScene {
  const ViewInput& input;
  const MaskPicture& picture;
  const MaskPaint& paint;
  const Axis &q, &k;
  Box square;
  Direction direction = Direction::forward;
  StepWindow window;

  const Axis& axis(Side side) const { return side == Side::q ? q : k; }
};

/// When the work of a cell is done. Work of many steps becomes solid gradually.
struct CellTime {
  PaintWhen when = PaintWhen::later;
  float done_share = 0;  // for `later`: the share of the work that is done, 0 to 1
};
CellTime time_of(const CellWork& work, const StepWindow& window);
/// The same while the moment runs: work of now goes through the rows of a part from its first to
/// its last one. `row_share` is the row's place in its part, `progress` that of the moment, 0 to 1.
CellTime time_in_motion(const CellWork& work, const StepWindow& window, double row_share,
                        double progress);

/// The colour of a cell by ViewInput::mask_colors. Cells without a visible pair look alike in all.
Color color_of_cell(const ViewInput& input, const MaskPaint& paint, const StepWindow& window,
                    CellLook look, const CellWork& work, const CellTime& time, int32_t owner);

/// The work of the focus rank in the moment.
struct FocusWork {
  int64_t items = 0;
  int64_t pairs = 0;        // pairs of one head
  int64_t drawn = 0;        // number of drawn bands
  bool is_complete = true;  // all bands inside the shown part are drawn
};

/// Adds cells as one picture, hatches, padding.
void add_mask_cells(Drawing& drawing, const MaskScene& scene);
/// Adds borders of tokens, tiles, chunks and sequences where they are far enough apart.
void add_mask_lines(Drawing& drawing, const MaskScene& scene);
/// Adds step or rank labels in chunk pairs that have room, and outlines of those that are computed
/// now. Returns the number of labels.
int64_t add_mask_labels(Drawing& drawing, const MaskScene& scene);
/// Adds the outlines of the bands that the focus rank computes now.
FocusWork add_focus_work(Drawing& drawing, const MaskScene& scene);
/// Adds outlines of the selection and the hovered target.
void add_mask_lights(Drawing& drawing, const MaskScene& scene);
/// Adds the owners of the ids along an edge of the square.
void add_owner_strip(Drawing& drawing, const MaskScene& scene, Side side, const Box& strip);

}  // namespace cpscope::gui
