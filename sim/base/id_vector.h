#pragma once

#include "sim/base/ids.h"

#include <cstddef>
#include <initializer_list>
#include <utility>
#include <vector>

namespace cpscope {

/// The ids 0, 1, ... of something, for range-for loops.
template <class Id>
class IdSequence {
 public:
  class Iterator {
   public:
    explicit Iterator(int32_t at) : at_(at) {}
    Id operator*() const { return Id{at_}; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    friend bool operator==(const Iterator&, const Iterator&) = default;

   private:
    int32_t at_;
  };

  explicit IdSequence(size_t count) : count_(static_cast<int32_t>(count)) {}
  Iterator begin() const { return Iterator(0); }
  Iterator end() const { return Iterator(count_); }
  int32_t size() const { return count_; }

 private:
  int32_t count_;
};

/// A vector with one element for each id, from id 0 on. Only an id of the right kind is an index.
template <class Id, class T>
class IdVector {
 public:
  using Values = std::vector<T>;
  using value_type = T;
  using reference = typename Values::reference;
  using const_reference = typename Values::const_reference;

  IdVector() = default;
  explicit IdVector(size_t count) : values_(count) {}
  IdVector(size_t count, const T& value) : values_(count, value) {}
  IdVector(std::initializer_list<T> values) : values_(values) {}
  explicit IdVector(Values values) : values_(std::move(values)) {}

  reference operator[](Id id) { return values_[static_cast<size_t>(to_index(id))]; }
  const_reference operator[](Id id) const { return values_[static_cast<size_t>(to_index(id))]; }
  reference at(Id id) { return values_.at(static_cast<size_t>(to_index(id))); }
  const_reference at(Id id) const { return values_.at(static_cast<size_t>(to_index(id))); }

  size_t size() const { return values_.size(); }
  bool empty() const { return values_.empty(); }
  /// The ids that have an element.
  IdSequence<Id> ids() const { return IdSequence<Id>(values_.size()); }
  /// True if the id has an element.
  bool has(Id id) const {
    return to_index(id) >= 0 && static_cast<size_t>(to_index(id)) < values_.size();
  }

  /// Adds an element and returns its id.
  Id push_back(T value) {
    values_.push_back(std::move(value));
    return Id{static_cast<int32_t>(values_.size()) - 1};
  }
  void assign(size_t count, const T& value) { values_.assign(count, value); }
  void resize(size_t count) { values_.resize(count); }
  void resize(size_t count, const T& value) { values_.resize(count, value); }
  void reserve(size_t count) { values_.reserve(count); }
  void clear() { values_.clear(); }
  void pop_back() { values_.pop_back(); }

  auto begin() { return values_.begin(); }
  auto end() { return values_.end(); }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }
  reference front() { return values_.front(); }
  reference back() { return values_.back(); }
  const_reference front() const { return values_.front(); }
  const_reference back() const { return values_.back(); }

  /// The elements in the order of their ids.
  const Values& values() const { return values_; }
  Values& values() { return values_; }

  friend bool operator==(const IdVector&, const IdVector&) = default;

 private:
  Values values_;
};

}  // namespace cpscope
