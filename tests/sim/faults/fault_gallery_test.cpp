// Every fault of the catalogue, planted once: its detector raises an alarm, at the place where it
// was planted, and the clean twin raises none.

#include "reference/dense_oracle.h"
#include "reference/faulty_walker.h"
#include "reference/mask_predicate.h"
#include "sim/faults/gallery.h"

#include <set>
#include <sstream>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

Toolbox gallery_toolbox() {
  Toolbox toolbox;
  toolbox.oracle = reference::dense_oracle();
  toolbox.watched_walker = reference::make_watched_walker;
  return toolbox;
}

std::string describe_outcome(const FaultOutcome& outcome) {
  std::string text = outcome.fault->name + ": " + outcome.what + "\n";
  if (!outcome.error.empty()) text += "error: " + outcome.error + "\n";
  if (outcome.planted) text += "planted at " + cpscope::describe(*outcome.planted) + "\n";
  if (outcome.where) text += "found at " + cpscope::describe(outcome.where->site) + "\n";
  for (const Alarm& alarm : outcome.alarms)
    text += std::string(to_name(alarm.detector)) + ": " + alarm.text + "\n";
  return text;
}

// One test, because the gallery runs only once.
TEST(FaultGallery, CatchesEveryFaultWhereItWasPlantedAndNeverCriesWolf) {
  const GalleryReport gallery = run_gallery(fault_catalogue(), gallery_toolbox(), {});
  EXPECT_GE(gallery.outcomes.size(), 69u);
  for (const FaultOutcome& outcome : gallery.outcomes) {
    EXPECT_TRUE(outcome.error.empty() && outcome.caught) << describe_outcome(outcome);
    EXPECT_TRUE(outcome.localised) << describe_outcome(outcome);
    EXPECT_GT(outcome.cells_exercised, 0) << describe_outcome(outcome);
    for (const Alarm& alarm : outcome.false_alarms)
      ADD_FAILURE() << outcome.fault->name << ": " << to_name(alarm.detector) << ": " << alarm.text;
    if (!outcome.blind) continue;
    EXPECT_EQ(outcome.blind->cells_exercised, 0) << outcome.fault->name;
    EXPECT_TRUE(outcome.blind->is_silent) << outcome.fault->name;
  }
  EXPECT_TRUE(gallery.passed());
}

TEST(FaultGallery, CallsAFaultMissedThatItsDetectorDoesNotSee) {
  Fault unseen = fault_catalogue().front();
  ASSERT_EQ(unseen.detector, Detector::balance) << "right numbers, badly balanced";
  unseen.detector = Detector::count;
  unseen.blind.reset();
  const GalleryReport gallery = run_gallery({&unseen, 1}, gallery_toolbox(), {});
  EXPECT_EQ(gallery.caught(), 0);
  EXPECT_FALSE(gallery.passed());
}

TEST(FaultGallery, DoesNotCallAScenarioBlindInWhichTheFaultDoesSomething) {
  Fault seen = fault_catalogue().front();
  seen.blind = BlindScenario{seen.scenario, "a lie"};
  const GalleryReport gallery = run_gallery({&seen, 1}, gallery_toolbox(), {});
  EXPECT_GT(gallery.outcomes.front().blind->cells_exercised, 0);
  EXPECT_FALSE(gallery.passed());
}

TEST(FaultGallery, HoldsEveryClassOfTheFieldAndEveryDefectOfTransformerEngine) {
  std::set<std::string> classes;
  for (const Fault& fault : fault_catalogue()) {
    std::stringstream words(fault.field_class);
    for (std::string word; std::getline(words, word, ',');)
      classes.insert(word.substr(word.find_first_not_of(' ')));
  }
  for (const OutOfScope& entry : out_of_scope()) classes.insert(entry.field_class);
  for (int number = 1; number <= 49; ++number)
    EXPECT_TRUE(classes.contains(std::to_string(number))) << "class " << number;
  for (int number = 1; number <= 12; ++number)
    EXPECT_TRUE(classes.contains("D" + std::to_string(number))) << "defect D" << number;
}

TEST(FaultGallery, UsesEveryDetector) {
  std::set<Detector> detectors;
  for (const Fault& fault : fault_catalogue()) detectors.insert(fault.detector);
  EXPECT_EQ(detectors.size(), 10u);
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
