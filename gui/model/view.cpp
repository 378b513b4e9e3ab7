#include "gui/model/view.h"

#include "gui/model/balance_view.h"
#include "gui/model/layout_view.h"
#include "gui/model/mask_view.h"
#include "gui/model/numbers_view.h"
#include "gui/model/timeline_view.h"
#include "gui/model/traffic_view.h"

namespace cpscope::gui {

std::string_view to_name(ViewKind kind) {
  switch (kind) {
    case ViewKind::layout:
      return "layout";
    case ViewKind::mask:
      return "mask";
    case ViewKind::traffic:
      return "traffic";
    case ViewKind::timeline:
      return "timeline";
    case ViewKind::numbers:
      return "numbers";
    case ViewKind::balance:
      return "balance";
  }
  return "";
}

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
