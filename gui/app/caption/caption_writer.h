#pragma once

#include "gui/app/caption/caption.h"
#include "gui/model/plan_index.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cpscope::gui {

/// Largest number of links in one list.
inline constexpr size_t kMostLinks = 6;

/// Builds a caption from words, and from words that link to parts of the plan.
class CaptionWriter {
 public:
  explicit CaptionWriter(const PlanIndex& plan) : index_(plan) {}

  CaptionWriter& say(std::string_view words);
  CaptionWriter& strong(std::string_view words, const Target& target = {});
  CaptionWriter& word(std::string words, const Target& target);
  /// Writes the name of a target: "forward compute 12", "step 3 of 7, forward", "link 1 -> 2".
  CaptionWriter& name(const Target& target);
  /// Writes "rank 3", or "Rank 3" at the start of a sentence.
  CaptionWriter& rank(int32_t rank, bool begins_sentence = false);
  /// Writes "rank 1", "ranks 1, 2 and 3", "15 ranks".
  CaptionWriter& ranks(const std::vector<int32_t>& ranks);
  /// Writes "[0, 32)", "every 4th of [1, 254)"; padded ids.
  CaptionWriter& tokens(const TokenRun& run, Side side);
  /// Writes up to four runs, then how many more: "[0, 32) and [224, 256)".
  CaptionWriter& runs(std::span<const TokenRun> runs, Side side);
  /// Writes "step 3"; `number` is an index in PlanIndex::steps.
  CaptionWriter& step(int32_t number);

  /// Calls say_one(i) for the first `named` of `total` words: "a, b and c".
  template <class Say>
  CaptionWriter& series(size_t named, size_t total, Say say_one) {
    for (size_t i = 0; i < named; ++i) {
      if (i > 0) say(i + 1 == total ? " and " : ", ");
      say_one(i);
    }
    return *this;
  }
  /// Calls say_one(writer, item) for the first items of a list, then writes how many of `total`
  /// (-1: of the list) are left: "a, b, c ... and 213 more".
  template <class Items, class Say>
  CaptionWriter& list(const Items& items, Say say_one, int64_t total = -1, bool has_more = false) {
    const size_t named = std::min(items.size(), kMostLinks);
    for (size_t i = 0; i < named; ++i) {
      if (i > 0) say(", ");
      say_one(*this, items[i]);
    }
    const auto all = total < 0 ? static_cast<int64_t>(items.size()) : total;
    return more(all - static_cast<int64_t>(named), has_more);
  }
  /// Writes "... and 213 more", or "... and at least 213 more", unless all were named.
  CaptionWriter& more(int64_t left, bool has_more = false);
  Spans take() { return std::move(spans_); }

  const PlanIndex& index() const { return index_; }
  const Plan& plan() const { return index_.plan(); }

 private:
  const PlanIndex& index_;
  Spans spans_;
};

/// Calls tell(item) after "Rank 3" for each item of the focus rank in a stage; writes `nothing`
/// after it if the rank has none.
template <class Item, class Tell>
void tell_each(CaptionWriter& writer, const StageRef& stage, int32_t focus_rank,
               const std::vector<Item>& items, std::string_view nothing, Tell tell) {
  const std::vector<int64_t> own = writer.index().items_of(stage, focus_rank);
  for (const int64_t i : own) {
    if (i != own.front()) writer.say(" ");
    writer.rank(focus_rank, true);
    tell(items[static_cast<size_t>(i)]);
  }
  if (own.empty() && !nothing.empty()) writer.rank(focus_rank, true).say(nothing);
}

// Sentences about one stage, from the focus rank's side. No text begins or ends with a blank.
void tell_transfers(CaptionWriter& writer, const StageRef& stage, int32_t focus_rank);
void tell_computes(CaptionWriter& writer, const StageRef& stage, int32_t focus_rank);

}  // namespace cpscope::gui
