#pragma once

#include "gui/model/axis.h"
#include "gui/model/view.h"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace cpscope::gui {

/// A quantity of every rank as a bar of two parts, forward below, backward on top, and a line at
/// the mean: all bars would end there if all ranks had the same amount.
struct RankChart {
  std::string title;
  std::string empty;                       // text that is shown when all bars have height 0
  std::vector<int64_t> forward, backward;  // [rank]
  Role role{};
  Hatch hatch = Hatch::none;
  std::string mean_name;  // label of the line: "ideal"
  std::function<std::string(double)> print;
  bool is_binary = false;  // ticks at powers of 1024
  std::string hit;         // prefix of hit names: "rank" gives "rank/3"
  std::string unit;        // unit in tooltips: "pairs"
  std::vector<std::pair<int64_t, int64_t>> groups =
      {};  // ranks [first, end) that work together now
};

/// Draws the chart with the camera's x as ranks. Ranks with bars narrower than 2 pixels are merged:
/// solid up to the least of the ranks in a column, pale up to the most.
void add_rank_chart(const ViewInput& input, const RankChart& chart, const Box& box, View& view);

/// "950", "57.5 k", "8.39 M", "4.4 T".
std::string print_quantity(double value);

}  // namespace cpscope::gui
