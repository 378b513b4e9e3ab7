#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace cpscope::gui {

/// A value that another thread is making.
struct LaterValue {
  std::string key;
  std::shared_ptr<const void> value;  // written before is_done, read after it
  std::atomic<bool> is_done{false};
};

/// Keeps expensive values while their keys stay the same. One for each view.
struct ViewMemo {
  std::string key;
  std::shared_ptr<const void> value;
  /// Runs a job on another thread; empty: values are made at once.
  std::function<void(std::function<void()> job)> post = {};
  std::shared_ptr<LaterValue> later = {};  // being made, or made and not yet taken

  bool is_waiting() const { return later != nullptr; }
  /// True if a value is ready that was not taken yet.
  bool has_news() const { return later != nullptr && later->is_done; }
  void take_news() {
    if (!has_news()) return;
    key = std::move(later->key);
    value = std::move(later->value);
    later.reset();
  }
};

/// The value of a key: the kept one, or a new one from `make`, a function without arguments that
/// returns std::shared_ptr<const T>. If the memo can post jobs, a long one is posted and the answer
/// is null until it is done: call again once the memo has news. The job may outlive the call, so it
/// must own all that it needs; the owner of `post` keeps the plan and its runs alive.
template <class T, class Make>
std::shared_ptr<const T> remember(ViewMemo* memo, const std::string& key, bool is_long, Make make) {
  if (memo == nullptr) return make();
  memo->take_news();
  if (memo->value == nullptr || memo->key != key) {
    if (is_long && memo->post) {
      if (memo->is_waiting()) return nullptr;
      auto later = std::make_shared<LaterValue>();
      later->key = key;
      memo->later = later;
      memo->post([later, make = std::move(make)] {
        later->value = make();
        later->is_done = true;
      });
      return nullptr;
    }
    memo->value = make();
    memo->key = key;
  }
  return std::static_pointer_cast<const T>(memo->value);
}

}  // namespace cpscope::gui
