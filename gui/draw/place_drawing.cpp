#include "gui/draw/place_drawing.h"

#include <utility>
#include <variant>

namespace cpscope::gui {
namespace {

void move(Point& point, Point by) {
  point.x += by.x;
  point.y += by.y;
}

void move(Box& box, Point by) {
  box.x0 += by.x;
  box.x1 += by.x;
  box.y0 += by.y;
  box.y1 += by.y;
}

struct Mover {
  Point by;

  void operator()(FilledBox& mark) const { move(mark.box, by); }
  void operator()(OutlinedBox& mark) const { move(mark.box, by); }
  void operator()(Line& mark) const {
    move(mark.from, by);
    move(mark.to, by);
  }
  void operator()(Polygon& mark) const {
    for (Point& point : mark.points) move(point, by);
  }
  void operator()(Ribbon& mark) const {
    mark.top_x0 += by.x;
    mark.top_x1 += by.x;
    mark.top += by.y;
    mark.bottom_x0 += by.x;
    mark.bottom_x1 += by.x;
    mark.bottom += by.y;
  }
  void operator()(Label& mark) const { move(mark.at, by); }
  void operator()(Pixels& mark) const { move(mark.box, by); }
  void operator()(PushClip& mark) const { move(mark.box, by); }
  void operator()(PopClip&) const {}
};

}  // namespace

void place_drawing(Drawing& page, Drawing part, Point at, Size size) {
  page.add(PushClip{{at.x, at.y, at.x + size.width, at.y + size.height}});
  for (Mark& mark : part.marks) {
    std::visit(Mover{at}, mark);
    page.marks.push_back(std::move(mark));
  }
  page.add(PopClip{});
}

}  // namespace cpscope::gui
