#include "gui/web/web_page.h"
#include "reference/dense_oracle.h"
#include "reference/mask_predicate.h"
#include "reference/plan_walker.h"

/// The front door of the page: what main.cpp is to the program.
int main() {
  static cpscope::Toolbox toolbox;
  toolbox.executors.push_back(cpscope::reference::make_plan_walker());
  toolbox.oracle = cpscope::reference::dense_oracle();
  return cpscope::gui::open_page(toolbox);
}
