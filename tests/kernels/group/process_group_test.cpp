#include "kernels/group/process_group.h"

#include "kernels/group/group_message.h"
#include "tests/kernels/group/group_cases.h"

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

namespace cpscope::kernels {
namespace {

using tests::find_free_port;
using tests::ForkedMember;
using tests::hang;
using tests::place_of;
using tests::run_in_threads;
using tests::say;
using tests::take_part;

template <class T>
std::string text_of(const Result<T>& result) {
  return result ? "fine" : to_text(result.error());
}

// ---- all is well ----

TEST(ProcessGroup, NeedsNoNetworkAlone) {
  const Result<std::unique_ptr<ProcessGroup>> group = ProcessGroup::join({}, {}, {});
  ASSERT_TRUE(group);
  EXPECT_EQ(group.value()->broadcast({1, 2}).value(), (Bytes{1, 2}));
  EXPECT_EQ(group.value()->gather({3}).value(), (std::vector<Bytes>{{3}}));
  EXPECT_TRUE(group.value()->barrier());
  EXPECT_EQ(group.value()->why_stopped(), std::nullopt);
}

TEST(ProcessGroup, CarriesBytesFromFirstToAllAndBack) {
  const std::vector<std::string> reports = run_in_threads(4, [](ProcessGroup& group) {
    const std::string mine = fmt::format("from {}", group.process());
    const Result<Bytes> word = group.broadcast(to_bytes(mine));
    if (!word || to_string(word.value()) != "from 0") return text_of(word) + " broadcast";
    const Result<std::vector<Bytes>> all = group.gather(to_bytes(mine));
    std::string heard;
    if (!all) return text_of(all);
    for (const Bytes& bytes : all.value()) heard += to_string(bytes) + ";";
    if (const Result<bool> done = group.barrier(); !done) return text_of(done);
    return heard;
  });
  EXPECT_EQ(reports, (std::vector<std::string>{"from 0;from 1;from 2;from 3;", "", "", ""}));
}

TEST(ProcessGroup, GathersAnswersOfManyMebibytes) {
  constexpr size_t kStep = 997;  // sets and looks at one byte in so many
  const std::vector<std::string> reports = run_in_threads(3, [](ProcessGroup& group) {
    Bytes mine(static_cast<size_t>(group.process()) * 4'000'001);
    for (size_t i = 0; i < mine.size(); i += kStep)
      mine[i] = static_cast<uint8_t>(group.process() + i);
    const Result<std::vector<Bytes>> all = group.gather(mine);
    if (!all) return text_of(all);
    for (size_t p = 0; p < all.value().size(); ++p) {
      const Bytes& bytes = all.value()[p];
      if (bytes.size() != p * 4'000'001) return std::string("wrong size");
      for (size_t i = 0; i < bytes.size(); i += kStep) {
        if (bytes[i] != static_cast<uint8_t>(p + i)) return std::string("wrong byte");
      }
    }
    return text_of(group.barrier());
  });
  EXPECT_EQ(reports, (std::vector<std::string>{"fine", "fine", "fine"}));
}

TEST(ProcessGroup, LetsAProcessLeaveAfterTheLastBarrier) {
  const std::vector<std::string> reports = run_in_threads(3, [](ProcessGroup& group) {
    group.publish({.run = 0, .activity = Activity::backward, .step = 1});
    const std::string barrier = text_of(group.barrier());
    return barrier + group.why_stopped().value_or("");
  });
  EXPECT_EQ(reports, (std::vector<std::string>{"fine", "fine", "fine"}));
}

TEST(ProcessGroup, JoinsOverIpv6) {
  const int32_t port = find_free_port();
  std::vector<std::string> reports(2);
  {
    std::vector<std::jthread> threads;
    for (int32_t p = 0; p < 2; ++p) {
      threads.emplace_back([&, p] {
        LaunchPlace place = place_of(p, 2, port);
        place.host = "::1";
        reports[static_cast<size_t>(p)] =
            take_part(place, [](ProcessGroup& group) { return text_of(group.barrier()); });
      });
    }
  }
  if (reports[0].find("cannot listen") != std::string::npos) {
    GTEST_SKIP() << "requires ipv6: " << reports[0];
  }
  EXPECT_EQ(reports, (std::vector<std::string>{"fine", "fine"}));
}

// ---- a process stops ----

/// Members 1 and 2 of three run in other processes; all wait in a barrier that `broken` never
/// enters. Reports of the other two.
struct BrokenGroup {
  std::vector<std::string> reports;
  double seconds = 0.0;
};

BrokenGroup run_broken(int32_t broken, int signal) {
  const int32_t port = find_free_port();
  const auto member = [&](ProcessGroup& group) {
    const bool is_broken = group.process() == broken;
    if (is_broken) group.set_name("ranks 8 to 15");
    group.publish({.run = 0, .activity = Activity::backward, .step = is_broken ? 3 : 5});
    // After two rounds every process knows the position of all.
    for (int round = 0; round < 2; ++round) {
      if (const Result<bool> done = group.barrier(); !done) return text_of(done);
    }
    if (!is_broken) return text_of(group.barrier());
    say("here");
    // It keeps moving until it is stopped, however long a busy machine takes to stop it.
    while (signal == SIGSTOP) {
      group.move();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    hang();
    return std::string();
  };
  std::vector<ForkedMember> members;
  for (int32_t p = 0; p < 3; ++p) members.emplace_back(place_of(p, 3, port), member);
  EXPECT_TRUE(members[static_cast<size_t>(broken)].wait_for("here"));
  const auto start = std::chrono::steady_clock::now();
  if (signal != 0) members[static_cast<size_t>(broken)].send_signal(signal);
  BrokenGroup group;
  for (int32_t p = 0; p < 3; ++p) {
    if (p != broken) group.reports.push_back(members[static_cast<size_t>(p)].finish());
  }
  group.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return group;
}

void expect_all_say(const BrokenGroup& group, const std::string& why) {
  EXPECT_EQ(group.reports.size(), 2u);
  for (const std::string& report : group.reports) {
    EXPECT_EQ(report, "ranks 8 to 15 stopped at backward step 3: " + why +
                          "; the other processes stopped with it");
  }
}

TEST(ProcessGroup, NamesProcessThatWasKilled) {
  for (const int32_t broken : {2, 0}) {
    const BrokenGroup group = run_broken(broken, SIGKILL);
    expect_all_say(group, "its process ended");
    EXPECT_LT(group.seconds, 5.0);
  }
}

TEST(ProcessGroup, NamesProcessThatIsHeld) {
  expect_all_say(run_broken(1, SIGSTOP), "nothing was heard of it for 1.5 s");
}

TEST(ProcessGroup, NamesProcessWhoseMainThreadHangs) {
  for (const int32_t broken : {2, 0}) {
    expect_all_say(run_broken(broken, 0), "its main thread has not moved for 1.5 s");
  }
}

TEST(ProcessGroup, NamesTheLeastFarWhenAllAreAliveButNothingAdvances) {
  const auto wait_alive = [](ProcessGroup& group, int32_t step) {
    group.publish({.run = 0, .activity = Activity::forward, .step = step});
    while (true) {
      if (const std::optional<std::string> why = group.why_stopped()) return *why;
      group.move();
      std::this_thread::yield();
    }
  };
  const std::vector<std::string> reports = run_in_threads(
      3, [&](ProcessGroup& group) { return wait_alive(group, group.process() == 1 ? 2 : 3); });
  for (const std::string& report : reports) {
    EXPECT_EQ(
        report,
        "rank 1 stopped at forward step 2: no work of the group has moved for 1.88 s, and it is "
        "least far");
  }
}

TEST(ProcessGroup, TellsAllWhyOneFailed) {
  for (const int32_t broken : {2, 0}) {
    const std::vector<std::string> reports = run_in_threads(3, [&](ProcessGroup& group) {
      group.publish({.run = 0, .activity = Activity::backward, .step = 3});
      if (group.process() == broken) {
        group.fail("no memory left");
        return text_of(group.barrier());
      }
      return text_of(group.barrier());
    });
    for (const std::string& report : reports) {
      EXPECT_EQ(report, fmt::format("rank {} stopped at backward step 3: no memory left; the other "
                                    "processes stopped with it",
                                    broken));
    }
  }
}

TEST(ProcessGroup, CallsForHelpWhenMainThreadDoesNotNotice) {
  const int32_t port = find_free_port();
  std::atomic<bool> was_called = false;
  std::jthread failing([&] {
    take_part(place_of(1, 2, port), [](ProcessGroup& group) {
      group.fail("broken");
      return std::string();
    });
  });
  const Result<std::unique_ptr<ProcessGroup>> group =
      ProcessGroup::join(place_of(0, 2, port), tests::short_limits(), [&] {
        was_called = true;
        was_called.notify_all();
      });
  ASSERT_TRUE(group) << to_text(group.error());
  was_called.wait(false);
  EXPECT_EQ(group.value()->why_stopped(), "rank 1 stopped outside a run: broken");
}

TEST(ProcessGroup, NoticesCollectivesThatDoNotMatch) {
  const std::vector<std::string> reports = run_in_threads(2, [](ProcessGroup& group) {
    if (group.process() == 1) {
      const std::string first = text_of(group.gather({1}));
      return text_of(group.broadcast({}));
    }
    const std::string first = text_of(group.broadcast({}));
    return text_of(group.gather({}));
  });
  EXPECT_NE(reports[0].find("it is at another collective"), std::string::npos) << reports[0];
  EXPECT_NE(reports[1].find("it is at another collective"), std::string::npos) << reports[1];
}

// ---- joining fails ----

TEST(ProcessGroup, SaysWhoIsMissing) {
  GroupLimits limits = tests::short_limits();
  limits.join_within = std::chrono::milliseconds{100};
  const int32_t port = find_free_port();
  EXPECT_EQ(
      text_of(ProcessGroup::join(place_of(0, 3, port), limits, {})),
      fmt::format("not all 3 processes came to port {} of 127.0.0.1 within 0.1 s: 1, 2 missing; "
                  "start all of them, with the same MASTER_ADDR and MASTER_PORT",
                  port));
  const std::string text = text_of(ProcessGroup::join(place_of(1, 3, port), limits, {}));
  EXPECT_TRUE(text.starts_with(fmt::format(
      "process 1 did not reach process 0 at port {} of 127.0.0.1 within 0.1 s: ", port)))
      << text;
  LaunchPlace nowhere = place_of(1, 3, port);
  nowhere.host = "no-such-host.invalid";
  const std::string unknown = text_of(ProcessGroup::join(nowhere, limits, {}));
  EXPECT_NE(unknown.find("no-such-host.invalid"), std::string::npos) << unknown;
}

TEST(ProcessGroup, TurnsAwayWhoeverCountsDifferently) {
  const int32_t port = find_free_port();
  std::string first;
  std::jthread hub([&] {
    first = take_part(place_of(0, 2, port),
                      [](ProcessGroup& group) { return text_of(group.barrier()); });
  });
  const std::string wrong = take_part(place_of(1, 3, port), {});
  EXPECT_NE(wrong.find("process 1 counts 3 processes, process 0 counts 2"), std::string::npos)
      << wrong;
  LaunchPlace foreign = place_of(1, 2, port);
  foreign.job = "another job";
  const std::string other = take_part(foreign, {});
  EXPECT_NE(other.find("belongs to another job: \"another job\""), std::string::npos) << other;
  // The group itself is not disturbed.
  EXPECT_EQ(
      take_part(place_of(1, 2, port), [](ProcessGroup& group) { return text_of(group.barrier()); }),
      "fine");
  hub.join();
  EXPECT_EQ(first, "fine");
}

TEST(ProcessGroup, KeepsTwoGroupsOnOnePortApart) {
  const int32_t port = find_free_port();
  const auto enter = [&](int32_t process) {
    return take_part(place_of(process, 3, port),
                     [](ProcessGroup& group) { return text_of(group.barrier()); });
  };
  std::array<std::string, 4> reports;
  std::atomic<bool> was_one_refused = false;
  std::jthread first([&] { reports[0] = enter(0); });
  // Both claim to be process 1, of the first and the second group; either may come first.
  const auto enter_twin = [&](size_t twin) {
    reports[twin] = enter(1);
    was_one_refused = true;
    was_one_refused.notify_all();
  };
  std::jthread one([&] { enter_twin(1); }), other([&] { enter_twin(2); });
  was_one_refused.wait(false);
  EXPECT_EQ(enter(0),
            fmt::format("port {} of 127.0.0.1 is in use; set MASTER_PORT to a free port", port));
  reports[3] = enter(2);
  for (std::jthread* thread : {&first, &one, &other}) thread->join();
  EXPECT_EQ(reports[0], "fine");
  EXPECT_EQ(reports[3], "fine");
  const std::string& refused = reports[1] == "fine" ? reports[2] : reports[1];
  EXPECT_EQ(refused,
            fmt::format("process 1 cannot join the group at port {} of 127.0.0.1: process 1 "
                        "is here already; does a second group use port {}?; set "
                        "MASTER_PORT to an unused port",
                        port, port));
  EXPECT_TRUE(reports[1] == "fine" || reports[2] == "fine");
}

TEST(ProcessGroup, IsNotDisturbedByStrangers) {
  const int32_t port = find_free_port();
  std::string first;
  std::jthread hub([&] {
    first = take_part(place_of(0, 2, port),
                      [](ProcessGroup& group) { return text_of(group.barrier()); });
  });
  const auto connect = [&] {
    while (true) {
      Attempt attempt = connect_once("127.0.0.1", port, std::chrono::milliseconds{1000});
      if (attempt.socket.is_open()) return std::move(attempt.socket);
      std::this_thread::yield();
    }
  };
  Socket garbage = connect(), silent = connect(), endless = connect(), half = connect();
  const Bytes words = to_bytes("GET / HTTP/1.1\r\n\r\n");
  garbage.send_some(words);
  // A header with a longer length than a hello may have, and a message that ends in its middle.
  Bytes long_one = frame_message(MessageKind::hello, Bytes(5000, 7));
  endless.send_some(long_one);
  half.send_some(Bytes{'c', 'p', 's', 'g', 0});
  EXPECT_EQ(
      take_part(place_of(1, 2, port), [](ProcessGroup& group) { return text_of(group.barrier()); }),
      "fine");
  hub.join();
  EXPECT_EQ(first, "fine");
}

TEST(ProcessGroup, RecognisesThatSomethingElseListens) {
  const int32_t port = find_free_port();
  Result<std::vector<Socket>> listeners = listen_at("127.0.0.1", port);
  ASSERT_TRUE(listeners);
  std::jthread server([&] {
    const PollRequest request{.descriptor = listeners.value()[0].descriptor()};
    wait_for_sockets({&request, 1}, std::chrono::milliseconds{10'000});
    Socket guest = accept_one(listeners.value()[0]);
    guest.send_some(to_bytes("220 mail.example ESMTP\r\n"));
    const PollRequest farewell{.descriptor = guest.descriptor()};
    Bytes room(4096);
    while (guest.receive_some(room))
      wait_for_sockets({&farewell, 1}, std::chrono::milliseconds{10'000});
  });
  const std::string text = take_part(place_of(1, 2, port), {});
  EXPECT_NE(text.find("what listens there is no process of cpscope"), std::string::npos) << text;
}

}  // namespace
}  // namespace cpscope::kernels
