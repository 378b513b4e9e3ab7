#include "gui/model/view.h"

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

std::string_view to_name(MaskColors colors) {
  switch (colors) {
    case MaskColors::classes:
      return "class";
    case MaskColors::owners:
      return "owner";
    case MaskColors::steps:
      return "step";
  }
  return "";
}

}  // namespace cpscope::gui
