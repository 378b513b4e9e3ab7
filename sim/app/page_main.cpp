#include "gui/web/web_page.h"
#include "reference/dense_oracle.h"
#include "reference/faulty_walker.h"
#include "reference/mask_predicate.h"
#include "reference/plan_walker.h"
#include "sim/faults/plan_mistakes.h"

/// The front door of the page: what main.cpp is to the program. With an executor and a record, one
/// of them empty, it works for a page instead.
int main(int argc, char** argv) {
  static cpscope::Toolbox toolbox;
  toolbox.executors.push_back(cpscope::reference::make_plan_walker());
  toolbox.watched_walker = cpscope::reference::make_watched_walker;
  toolbox.plan_mistakes = cpscope::visit_plan_mistakes;
  toolbox.oracle = cpscope::reference::dense_oracle();
  if (argc < 3) return cpscope::gui::open_page(toolbox);
  cpscope::gui::work_for_page(toolbox, argv[1], argv[2]);
  return 0;
}
