#include "tests/support/hand.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

namespace cpscope::tests {

using gui::Box;
using gui::Point;

Hand::Hand(gui::AppState& state) : Hand(state, Options{}) {}

Hand::Hand(gui::AppState& state, const Options& options)
    : state_(state),
      offscreen_(std::make_unique<gui::Offscreen>(gui::OffscreenOptions{
          .size = options.size, .scale = options.scale, .fonts = options.fonts})),
      screen_(options.in_background),
      in_background_(options.in_background) {
  settle();
}

void Hand::build() {
  now_s_ += 1.0 / 60;
  screen_.build(state_, offscreen_->fonts(), offscreen_->textures(), now_s_);
}

void Hand::frames(int32_t count) {
  for (int32_t i = 0; i < count; ++i) offscreen_->frame([this] { build(); });
}

void Hand::settle(int32_t most) {
  frames(3);
  for (int32_t i = 0; i < most && (offscreen_->has_events() || screen_.is_busy(state_)); ++i) {
    if (state_.player.is_playing && !offscreen_->has_events()) return;
    // Work on other threads needs time, not frames.
    if (in_background_) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    frames(1);
  }
  EXPECT_FALSE(offscreen_->has_events()) << "events left after " << most << " frames";
}

std::optional<Box> Hand::find(const std::string& name) {
  const Box* box = screen_.hits().find(name);
  if (box != nullptr) return *box;
  std::string near;
  const std::string begin = name.substr(0, name.find('/'));
  for (const auto& [known, where] : screen_.hits().all())
    if (known.starts_with(begin) && near.size() < 600) near += " " + known;
  ADD_FAILURE() << "the window shows no \"" << name << "\"; it shows" << near;
  return std::nullopt;
}

void Hand::click(const std::string& name) {
  if (const auto box = find(name)) click_at(box->center());
}

void Hand::right_click(const std::string& name) {
  if (const auto box = find(name)) click_at(box->center(), 1);
}

void Hand::double_click(const std::string& name) {
  const auto box = find(name);
  if (!box) return;
  offscreen_->move_mouse(box->center());
  offscreen_->wait(3);
  for (int32_t n = 0; n < 2; ++n) {
    offscreen_->press();
    offscreen_->release();
  }
  settle();
}

void Hand::move_to(const std::string& name) {
  const auto box = find(name);
  if (!box) return;
  offscreen_->move_mouse(box->center());
  offscreen_->wait(3);
  settle();
}

void Hand::click_at(Point at, int32_t button) {
  offscreen_->click(at, button);
  settle();
}

void Hand::drag(Point from, Point to, gui::compat::Mods mods) {
  offscreen_->hold(mods);
  offscreen_->move_mouse(from);
  offscreen_->wait(2);
  offscreen_->press();
  for (int i = 1; i <= 4; ++i) {
    const float share = static_cast<float>(i) / 4;
    offscreen_->move_mouse({from.x + (to.x - from.x) * share, from.y + (to.y - from.y) * share});
  }
  offscreen_->release();
  offscreen_->wait(2);
  offscreen_->hold({});
  settle();
}

void Hand::wheel_at(Point at, float turns) {
  offscreen_->move_mouse(at);
  offscreen_->wait(2);
  offscreen_->turn_wheel(turns);
  settle();
}

void Hand::wheel(const std::string& name, float turns) {
  if (const std::optional<gui::Box> box = find(name)) wheel_at(box->center(), turns);
}

void Hand::key(gui::compat::Key key, gui::compat::Mods mods) {
  offscreen_->press_key(key, mods);
  offscreen_->release_key(key);
  settle();
}

void Hand::type(const std::string& text) {
  offscreen_->type(text);
  settle();
}

bool Hand::wait_until(const std::function<bool()>& holds, int32_t most) {
  for (int32_t i = 0; i < most; ++i) {
    if (holds()) return true;
    frames(1);
  }
  return holds();
}

gui::Image Hand::picture() {
  offscreen_->move_mouse({-1000, -1000});
  settle();
  return offscreen_->draw();
}

}  // namespace cpscope::tests
