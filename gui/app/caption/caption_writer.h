#pragma once

#include "gui/app/caption/caption.h"
#include "gui/model/describe.h"
#include "gui/model/plan_index.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope::gui {

/// Builds a caption from words, and from words that link to parts of the plan.
class CaptionWriter {
 public:
  explicit CaptionWriter(const PlanIndex& plan) : index_(plan) {}

  CaptionWriter& say(std::string_view words);
  CaptionWriter& strong(std::string_view words, const Target& target = {});
  CaptionWriter& word(std::string words, const Target& target);
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
  Spans take() { return std::move(spans_); }

  const PlanIndex& index() const { return index_; }
  const Plan& plan() const { return index_.plan(); }

 private:
  const PlanIndex& index_;
  Spans spans_;
};

/// "head 3" or "KV heads [4, 8)".
std::string name_heads(HeadRange heads, Side side);
/// Ranks that own the ids of a list, ascending.
std::vector<int32_t> owners_of(const PlanIndex& index, std::span<const TokenRun> runs, Side side);

// Sentences about one stage, from the focus rank's side. No text begins or ends with a blank.
void tell_transfers(CaptionWriter& writer, const StageRef& stage, int32_t focus_rank);
void tell_computes(CaptionWriter& writer, const StageRef& stage, int32_t focus_rank);

}  // namespace cpscope::gui
