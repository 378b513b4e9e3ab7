#include "kernels/group/group_watch.h"

#include <utility>

#include <fmt/format.h>

namespace cpscope::kernels {

std::string stop_text(const SignOfLife& sign, const std::string& why) {
  const WorkPoint& point = sign.point;
  std::string where;
  switch (point.activity) {
    case Activity::unwatched:
      where = "outside a run";
      break;
    case Activity::preparing:
      where = "while preparing a run";
      break;
    case Activity::forward:
      where = fmt::format("at forward step {}", point.step);
      break;
    case Activity::backward:
      where = fmt::format("at backward step {}", point.step);
      break;
    case Activity::finishing:
      where = "while handing over its answers";
      break;
  }
  return fmt::format("{} stopped {}: {}", sign.name, where, why);
}

GroupWatch::GroupWatch(int32_t num_processes, std::chrono::milliseconds hang_after, Time now)
    : hang_after_(hang_after), members_(static_cast<size_t>(num_processes)), advanced_(now) {
  for (int32_t process = 0; process < num_processes; ++process) {
    at(process).sign.name = fmt::format("rank {}", process);
    at(process).heard = at(process).moved = now;
  }
}

void GroupWatch::hear(int32_t process, const SignOfLife& sign, Time now) {
  Member& member = at(process);
  member.heard = now;
  // A process that waits for others, or is not watched, is not expected to move.
  const bool may_rest = sign.is_waiting || sign.point.activity == Activity::unwatched;
  if (may_rest || sign.moves != member.sign.moves) member.moved = now;
  if (sign.point != member.sign.point || sign.is_waiting != member.sign.is_waiting) advanced_ = now;
  member.sign = sign;
}

void GroupWatch::hear_bytes(int32_t process, Time now) { at(process).heard = now; }

void GroupWatch::lose(int32_t process) { at(process).is_lost = true; }

void GroupWatch::release(int32_t process) { at(process).has_left = true; }

std::optional<StoppedProcess> GroupWatch::find_stopped(Time now) const {
  const auto find = [&](auto has_stopped, const std::string& why) -> std::optional<StoppedProcess> {
    for (size_t m = 0; m < members_.size(); ++m) {
      const Member& member = members_[m];
      if (member.has_left || !has_stopped(member)) continue;
      return StoppedProcess{static_cast<int32_t>(m), stop_text(member.sign, why)};
    }
    return std::nullopt;
  };
  const double seconds = std::chrono::duration<double>(hang_after_).count();
  if (auto stopped = find([](const Member& m) { return m.is_lost; }, "its process ended")) {
    return stopped;
  }
  if (auto stopped = find([&](const Member& m) { return now - m.heard > hang_after_; },
                          fmt::format("nothing was heard of it for {:.3g} s", seconds))) {
    return stopped;
  }
  // For a silent process it is unknown whether it moves.
  return find([&](const Member& m) { return m.heard - m.moved > hang_after_; },
              fmt::format("its main thread has not moved for {:.3g} s", seconds));
}

std::optional<StoppedProcess> GroupWatch::find_stalled(Time now) const {
  // A hanging main thread also keeps the others from advancing; it should be reported first.
  const std::chrono::milliseconds patience = hang_after_ + hang_after_ / 4;
  if (now - advanced_ <= patience) return std::nullopt;
  std::optional<size_t> last;
  for (size_t m = 0; m < members_.size(); ++m) {
    const Member& member = members_[m];
    if (member.has_left || member.sign.is_waiting) continue;
    if (member.sign.point.activity == Activity::unwatched) continue;
    if (!last || member.sign.point < members_[*last].sign.point) last = m;
  }
  if (!last) return std::nullopt;
  return StoppedProcess{
      static_cast<int32_t>(*last),
      stop_text(members_[*last].sign,
                fmt::format("no work of the group has moved for {:.3g} s, and it is least far",
                            std::chrono::duration<double>(patience).count()))};
}

}  // namespace cpscope::kernels
