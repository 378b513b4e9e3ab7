#include "sim/findings/progress_bar.h"

#include <cstdio>

#include <fmt/format.h>
#include <unistd.h>

namespace cpscope {

ProgressBar::ProgressBar(bool is_wanted)
    : is_shown_(is_wanted && isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

ProgressBar::~ProgressBar() {
  if (has_drawn_) std::fputs("\r\033[K", stderr);
}

Progress ProgressBar::phase(std::string name) {
  if (!is_shown_) return {};
  return [this, name = std::move(name)](int64_t done, int64_t total) { draw(name, done, total); };
}

CaseProgress ProgressBar::phases() {
  if (!is_shown_) return {};
  return [this](std::string_view name, int64_t done, int64_t total) { draw(name, done, total); };
}

void ProgressBar::draw(std::string_view name, int64_t done, int64_t total) {
  using namespace std::chrono_literals;
  const auto now = std::chrono::steady_clock::now();
  if (now - start_ < 1s || now - last_ < 100ms || total <= 0) return;
  last_ = now;
  has_drawn_ = true;
  constexpr int64_t kWidth = 40;
  const int64_t filled = kWidth * done / total;
  std::fputs(
      fmt::format("\r\033[K{:>6} [{}{}] {:3}%", name, std::string(static_cast<size_t>(filled), '#'),
                  std::string(static_cast<size_t>(kWidth - filled), '.'), 100 * done / total)
          .c_str(),
      stderr);
  std::fflush(stderr);
}

}  // namespace cpscope
