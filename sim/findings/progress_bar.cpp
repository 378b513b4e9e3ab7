#include "sim/findings/progress_bar.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

namespace cpscope {

ProgressBar::ProgressBar(bool is_wanted, std::string subject)
    : is_wanted_(is_wanted),
      is_terminal_(isatty(STDERR_FILENO) == 1),
      subject_(std::move(subject)),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

ProgressBar::~ProgressBar() {
  if (has_drawn_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::announce(const WorkEstimate& estimate) {
  if (!is_wanted_) return;
  if (const auto text = describe_long_work(estimate)) write_line(*text);
}

Progress ProgressBar::phase(std::string name) {
  if (!is_wanted_) return {};
  return [this, name = std::move(name)](int64_t done, int64_t total) {
    if (total > 0) show(name, static_cast<double>(done) / static_cast<double>(total));
  };
}

ShareDone ProgressBar::share(std::string name) {
  if (!is_wanted_) return {};
  return [this, name = std::move(name)](double share) { show(name, share); };
}

CaseProgress ProgressBar::phases() {
  if (!is_wanted_) return {};
  return [this](std::string_view name, int64_t done, int64_t total) {
    if (total > 0) show(name, static_cast<double>(done) / static_cast<double>(total));
  };
}

void ProgressBar::show(std::string_view name, double share) {
  if (is_terminal_) return draw(name, share);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
  if (const auto text = lines_.line(name, share, seconds.count())) write_line(*text);
}

void ProgressBar::draw(std::string_view name, double share) {
  using namespace std::chrono_literals;
  const auto now = std::chrono::steady_clock::now();
  if (now - start_ < 1s || now - last_ < 100ms) return;
  last_ = now;
  has_drawn_ = true;
  constexpr size_t kWidth = 40;
  const size_t filled = std::min(kWidth, static_cast<size_t>(kWidth * std::max(0.0, share)));
  std::fputs(fmt::format("\r\033[K{:>6} [{}{}] {:3.0f}%", name, std::string(filled, '#'),
                         std::string(kWidth - filled, '.'), 100 * share)
                 .c_str(),
             stderr);
  std::fflush(stderr);
}

void ProgressBar::write_line(const std::string& text) const {
  const std::string subject = subject_.empty() ? "" : subject_ + ": ";
  std::fputs((subject + text + "\n").c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace cpscope
