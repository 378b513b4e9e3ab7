#include "kernels/group/group_watch.h"

#include <chrono>
#include <optional>
#include <string>

#include <gtest/gtest.h>

namespace cpscope::kernels {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr GroupWatch::Time kStart{};

SignOfLife at_step(Activity activity, int32_t step, int64_t moves, bool is_waiting = false,
                   const std::string& name = "rank 2") {
  return {.point = {.run = 0, .activity = activity, .step = step},
          .moves = moves,
          .is_waiting = is_waiting,
          .name = name};
}

/// Three watched processes. say() records a sign of one of them; stopped() describes the process
/// that stopped, or returns "".
class Group {
 public:
  GroupWatch watch{3, seconds{20}, kStart};

  void say(int32_t process, const SignOfLife& sign, int second) {
    watch.hear(process, sign, kStart + seconds{second});
  }
  std::string stopped(int second) const {
    const GroupWatch::Time now = kStart + seconds{second};
    std::optional<StoppedProcess> found = watch.find_stopped(now);
    if (!found) found = watch.find_stalled(now);
    return found ? found->what : "";
  }
};

TEST(GroupWatch, FindsNobodyAmongProcessesThatAdvance) {
  Group group;
  for (int second = 0; second < 100; ++second) {
    for (int32_t p = 0; p < 3; ++p)
      group.say(p, at_step(Activity::forward, second, second), second);
    EXPECT_EQ(group.stopped(second), "");
  }
}

TEST(GroupWatch, NamesProcessWhoseConnectionEnded) {
  Group group;
  group.say(2, at_step(Activity::backward, 3, 1), 1);
  group.watch.lose(2);
  EXPECT_EQ(group.stopped(1), "rank 2 stopped at backward step 3: its process ended");
}

TEST(GroupWatch, NamesSilentProcess) {
  Group group;
  group.say(2, at_step(Activity::forward, 5, 1), 1);
  for (int second = 2; second <= 22; ++second) {
    for (int32_t p = 0; p < 2; ++p)
      group.say(p, at_step(Activity::forward, second, second), second);
    EXPECT_EQ(
        group.stopped(second),
        second <= 21 ? "" : "rank 2 stopped at forward step 5: nothing was heard of it for 20 s");
  }
}

TEST(GroupWatch, TakesAnyBytesForASign) {
  Group group;
  for (int second = 1; second <= 60; ++second) {
    for (int32_t p = 0; p < 2; ++p)
      group.say(p, at_step(Activity::forward, second, second), second);
    group.watch.hear_bytes(2, kStart + seconds{second});
  }
  const std::string text = group.stopped(60);
  EXPECT_EQ(text.find("nothing was heard"), std::string::npos) << text;
}

TEST(GroupWatch, NamesProcessWhoseMainThreadDoesNotMove) {
  Group group;
  for (int second = 0; second <= 21; ++second) {
    for (int32_t p = 0; p < 2; ++p)
      group.say(p, at_step(Activity::forward, second, second), second);
    group.say(2, at_step(Activity::forward, 4, 7), second);
  }
  EXPECT_EQ(group.stopped(21),
            "rank 2 stopped at forward step 4: its main thread has not moved for 20 s");
}

TEST(GroupWatch, LetsUnwatchedAndWaitingProcessesRest) {
  Group group;
  for (int second = 0; second <= 200; ++second) {
    group.say(0, at_step(Activity::unwatched, 0, 1), second);
    group.say(1, at_step(Activity::preparing, 0, 1, true), second);
    group.say(2, at_step(Activity::preparing, 0, 1, true), second);
    EXPECT_EQ(group.stopped(second), "");
  }
}

TEST(GroupWatch, NamesTheLeastFarWhenNoWorkMoves) {
  Group group;
  // All main threads are alive and wait: one for its own device, the others for that rank.
  for (int second = 0; second <= 26; ++second) {
    group.say(0, at_step(Activity::backward, 4, second, false, "rank 0"), second);
    group.say(1, at_step(Activity::backward, 3, second, false, "rank 1"), second);
    group.say(2, at_step(Activity::backward, 4, second), second);
  }
  EXPECT_EQ(group.stopped(25), "");
  EXPECT_EQ(group.stopped(26),
            "rank 1 stopped at backward step 3: no work of the group has moved for 25 s, and it is "
            "least far");
}

TEST(GroupWatch, ExpectsNothingOfProcessesThatLeft) {
  Group group;
  for (int32_t p = 0; p < 3; ++p) group.watch.release(p);
  group.watch.lose(1);
  EXPECT_EQ(group.stopped(1000), "");
}

TEST(GroupWatch, SaysWhereAProcessStopped) {
  const auto text = [](Activity activity) { return stop_text(at_step(activity, 1, 0), "why"); };
  EXPECT_EQ(text(Activity::unwatched), "rank 2 stopped outside a run: why");
  EXPECT_EQ(text(Activity::preparing), "rank 2 stopped while preparing a run: why");
  EXPECT_EQ(text(Activity::forward), "rank 2 stopped at forward step 1: why");
  EXPECT_EQ(text(Activity::backward), "rank 2 stopped at backward step 1: why");
  EXPECT_EQ(text(Activity::finishing), "rank 2 stopped while handing over its answers: why");
}

}  // namespace
}  // namespace cpscope::kernels
