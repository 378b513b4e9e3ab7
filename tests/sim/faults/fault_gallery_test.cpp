// Every fault of the field, planted once: its detector goes off, at the place where it was planted,
// and the clean twin is silent.

#include "reference/dense_oracle.h"
#include "reference/faulty_walker.h"
#include "reference/mask_predicate.h"
#include "sim/faults/gallery.h"

#include <set>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

Toolbox gallery_toolbox() {
  Toolbox toolbox;
  toolbox.judge = reference::judge;
  toolbox.witness = reference::mask_witness();
  toolbox.watched_walker = reference::make_watched_walker;
  return toolbox;
}

/// One run of the whole gallery serves all tests of this file.
const GalleryReport& gallery() {
  static const Toolbox kToolbox = gallery_toolbox();
  static const GalleryReport kReport = run_gallery(fault_catalogue(), kToolbox, {});
  return kReport;
}

std::string describe(const FaultOutcome& outcome) {
  std::string text = outcome.fault->name + ": " + outcome.what + "\n";
  if (!outcome.error.empty()) text += "error: " + outcome.error + "\n";
  if (outcome.planted) text += "planted at " + cpscope::describe(*outcome.planted) + "\n";
  if (outcome.where) text += "found at " + cpscope::describe(outcome.where->site) + "\n";
  for (const Alarm& alarm : outcome.alarms)
    text += std::string(to_name(alarm.detector)) + ": " + alarm.text + "\n";
  return text;
}

TEST(FaultGallery, CatchesEveryFaultByItsNamedDetector) {
  for (const FaultOutcome& outcome : gallery().outcomes)
    EXPECT_TRUE(outcome.error.empty() && outcome.caught) << describe(outcome);
}

TEST(FaultGallery, FindsEveryFaultWhereItWasPlanted) {
  for (const FaultOutcome& outcome : gallery().outcomes)
    EXPECT_TRUE(outcome.localised) << describe(outcome);
}

TEST(FaultGallery, NeverCriesWolfOverACleanTwin) {
  for (const FaultOutcome& outcome : gallery().outcomes) {
    for (const Alarm& alarm : outcome.false_alarms)
      ADD_FAILURE() << outcome.fault->name << ": " << to_name(alarm.detector) << ": " << alarm.text;
  }
}

TEST(FaultGallery, CallsAScenarioBlindOnlyWhereTheFaultTouchesNothing) {
  for (const FaultOutcome& outcome : gallery().outcomes) {
    EXPECT_GT(outcome.cells_exercised, 0) << describe(outcome);
    if (!outcome.blind) continue;
    EXPECT_EQ(outcome.blind->cells_exercised, 0) << outcome.fault->name;
    EXPECT_TRUE(outcome.blind->is_silent) << outcome.fault->name;
  }
}

TEST(FaultGallery, NamesEachFaultOnceWithItsSource) {
  std::set<std::string> names;
  for (const Fault& fault : fault_catalogue()) {
    EXPECT_TRUE(names.insert(fault.name).second) << fault.name << " is there twice";
    EXPECT_FALSE(fault.source.empty() || fault.wild.empty() || fault.field_class.empty())
        << fault.name;
  }
}

}  // namespace
}  // namespace cpscope::tests
