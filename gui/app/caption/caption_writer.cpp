#include "gui/app/caption/caption_writer.h"

#include "gui/model/axis.h"
#include "gui/model/describe.h"

#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

/// 1st, 2nd, 3rd, 4th, ...
std::string ordinal(int64_t number) {
  const int64_t ten = number % 100 / 10, one = number % 10;
  const char* ending = ten == 1 ? "th" : one == 1 ? "st" : one == 2 ? "nd" : one == 3 ? "rd" : "th";
  return print_count(number) + ending;
}

}  // namespace

CaptionWriter& CaptionWriter::say(std::string_view words) {
  if (words.empty()) return *this;
  // Neighbouring words without a target are one span.
  if (!spans_.empty() && !spans_.back().is_strong && spans_.back().target == Target{})
    spans_.back().text += words;
  else
    spans_.push_back({std::string(words), {}, false});
  return *this;
}

CaptionWriter& CaptionWriter::strong(std::string_view words, const Target& target) {
  spans_.push_back({std::string(words), target, true});
  return *this;
}

CaptionWriter& CaptionWriter::word(std::string words, const Target& target) {
  spans_.push_back({std::move(words), target, false});
  return *this;
}

CaptionWriter& CaptionWriter::name(const Target& target) {
  return word(name_target(target, &index_), target);
}

CaptionWriter& CaptionWriter::rank(int32_t rank, bool begins_sentence) {
  return word(fmt::format("{} {}", begins_sentence ? "Rank" : "rank", rank), RankTarget{rank});
}

CaptionWriter& CaptionWriter::ranks(const std::vector<int32_t>& ranks) {
  constexpr size_t kMostNamed = 8;
  if (ranks.size() > 2 && static_cast<int32_t>(ranks.size()) == index_.num_ranks())
    return say("all ranks");
  if (ranks.size() > kMostNamed) return say(count_text(static_cast<int64_t>(ranks.size()), "rank"));
  if (ranks.size() == 1) return rank(ranks.front());
  return say("ranks ").series(ranks.size(), ranks.size(), [&](size_t i) {
    word(std::to_string(ranks[i]), RankTarget{ranks[i]});
  });
}

CaptionWriter& CaptionWriter::tokens(const TokenRun& run, Side side) {
  const int64_t end = run.count() == 0 ? run.begin : run.last() + 1;
  std::string words = print_range(run.begin, end);
  if (run.stride > 1) words = fmt::format("every {} of {}", ordinal(run.stride), words);
  return word(std::move(words), TokenRange{side, run.begin, end});
}

CaptionWriter& CaptionWriter::runs(std::span<const TokenRun> runs, Side side) {
  constexpr size_t kMostNamed = 4;
  const size_t named = runs.size() > kMostNamed ? kMostNamed - 1 : runs.size();
  series(named, runs.size(), [&](size_t i) { tokens(runs[i], side); });
  if (named < runs.size())
    say(fmt::format(" and {} more", count_text(static_cast<int64_t>(runs.size() - named), "run")));
  return *this;
}

CaptionWriter& CaptionWriter::step(int32_t number) {
  const StepRef& ref = index_.steps()[static_cast<size_t>(number)];
  return word(fmt::format("step {}", ref.step + 1), StepTarget{number});
}

CaptionWriter& CaptionWriter::more(int64_t left, bool has_more) {
  if (left <= 0 && !has_more) return *this;
  return say(fmt::format(" ... and {}{} more", has_more ? "at least " : "", print_count(left)));
}

}  // namespace cpscope::gui
