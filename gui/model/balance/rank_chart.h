#pragma once

#include "gui/model/axis.h"
#include "gui/model/view.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cpscope::gui {

/// A quantity of every rank as a bar of two parts, forward below, backward on top, and a line where
/// all bars would end if all ranks had the same.
struct RankChart {
  std::string title;
  std::string empty;                       // sentence in the place of bars of height 0
  std::vector<int64_t> forward, backward;  // [rank]
  Role role{};
  Hatch hatch = Hatch::none;
  std::string mean_name;  // beside the line: "ideal"
  std::function<std::string(double)> print;
  bool is_binary = false;  // ticks at powers of 1024
  std::string hit;         // prefix of names: "rank" gives "rank/3"
  std::string unit;        // in tooltips: "pairs"
};

/// Draws the chart with the camera's x as ranks; bars narrower than 2 pixels are folded: solid up
/// to the least of the ranks that share a place, pale up to the most.
void add_rank_chart(const ViewInput& input, const RankChart& chart, const Box& box, View& view);

/// "950", "57.5 k", "8.39 M", "4.4 T".
std::string print_quantity(double value);

}  // namespace cpscope::gui
