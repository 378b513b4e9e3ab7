#pragma once

#include "gui/draw/drawing.h"

#include <map>
#include <string>
#include <string_view>

namespace cpscope::gui {

/// Positions of the named widgets of a frame, in screen pixels. Tests click by name, and look the
/// name up again after every change. "play.toggle", "edit/parallel.cp_size", "layout/chunk/q/128".
class HitMap {
 public:
  void clear() { boxes_.clear(); }
  void add(std::string name, const Box& box) { boxes_.insert_or_assign(std::move(name), box); }
  /// Returns null when the last frame did not show the widget.
  const Box* find(std::string_view name) const {
    const auto it = boxes_.find(name);
    return it == boxes_.end() ? nullptr : &it->second;
  }
  const std::map<std::string, Box, std::less<>>& all() const { return boxes_; }

 private:
  std::map<std::string, Box, std::less<>> boxes_;
};

}  // namespace cpscope::gui
