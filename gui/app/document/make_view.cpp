#include "gui/app/document/make_view.h"

#include "gui/model/balance/balance_view.h"
#include "gui/model/layout/layout_view.h"
#include "gui/model/mask/mask_view.h"
#include "gui/model/numbers/numbers_view.h"
#include "gui/model/timeline/timeline_view.h"
#include "gui/model/traffic/traffic_view.h"

namespace cpscope::gui {

View make_view(ViewKind kind, const ViewInput& input) {
  switch (kind) {
    case ViewKind::layout:
      return draw_layout(input);
    case ViewKind::mask:
      return draw_mask(input);
    case ViewKind::traffic:
      return draw_traffic(input);
    case ViewKind::timeline:
      return draw_timeline(input);
    case ViewKind::numbers:
      return draw_numbers(input);
    case ViewKind::balance:
      return draw_balance(input);
  }
  return {};
}

}  // namespace cpscope::gui
