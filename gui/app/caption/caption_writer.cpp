#include "gui/app/caption/caption_writer.h"

#include "gui/model/axis.h"
#include "gui/model/describe.h"

#include <algorithm>
#include <numeric>
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

/// True if two runs have an id in common.
bool share_id(const TokenRun& a, const TokenRun& b) {
  const int64_t begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
  if (begin >= end || (b.begin - a.begin) % std::gcd(a.stride, b.stride) != 0) return false;
  // Of this many consecutive ids of `a`, exactly one fits the stride of `b`.
  const int64_t tries = b.stride / std::gcd(a.stride, b.stride);
  int64_t id = a.begin + (begin - a.begin + a.stride - 1) / a.stride * a.stride;
  for (int64_t i = 0; i < tries && id < end; ++i, id += a.stride) {
    if ((id - b.begin) % b.stride == 0) return true;
  }
  return false;
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

CaptionWriter& CaptionWriter::rank(int32_t rank, bool begins_sentence) {
  return word(fmt::format("{} {}", begins_sentence ? "Rank" : "rank", rank), RankTarget{rank});
}

CaptionWriter& CaptionWriter::ranks(const std::vector<int32_t>& ranks) {
  constexpr size_t kMostNamed = 8;
  if (ranks.size() > 2 && static_cast<int32_t>(ranks.size()) == index_.num_ranks())
    return say("all ranks");
  if (ranks.size() > kMostNamed) return say(count_text(static_cast<int64_t>(ranks.size()), "rank"));
  if (ranks.size() == 1) return rank(ranks.front());
  say("ranks ");
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) say(i + 1 == ranks.size() ? " and " : ", ");
    word(std::to_string(ranks[i]), RankTarget{ranks[i]});
  }
  return *this;
}

CaptionWriter& CaptionWriter::tokens(const TokenRun& run, Side side) {
  const int64_t end = run.count() == 0 ? run.begin : run.last() + 1;
  std::string words = fmt::format("[{}, {})", print_count(run.begin), print_count(end));
  if (run.stride > 1) words = fmt::format("every {} of {}", ordinal(run.stride), words);
  return word(std::move(words), TokenRange{side, run.begin, end});
}

CaptionWriter& CaptionWriter::runs(std::span<const TokenRun> runs, Side side) {
  constexpr size_t kMostNamed = 4;
  const size_t named = runs.size() > kMostNamed ? kMostNamed - 1 : runs.size();
  for (size_t i = 0; i < named; ++i) {
    if (i > 0) say(i + 1 == runs.size() ? " and " : ", ");
    tokens(runs[i], side);
  }
  if (named < runs.size())
    say(fmt::format(" and {} more", count_text(static_cast<int64_t>(runs.size() - named), "run")));
  return *this;
}

CaptionWriter& CaptionWriter::step(int32_t number) {
  const StepRef& ref = index_.steps()[static_cast<size_t>(number)];
  return word(fmt::format("step {}", ref.step + 1), StepTarget{number});
}

std::string name_heads(HeadRange heads, Side side) {
  const std::string_view kind = side == Side::kv ? "KV head" : "head";
  if (heads.size() == 1) return fmt::format("{} {}", kind, heads.begin);
  return fmt::format("{}s [{}, {})", kind, heads.begin, heads.end);
}

std::vector<int32_t> owners_of(const PlanIndex& index, std::span<const TokenRun> runs, Side side) {
  const auto owned = index.owned(side);
  std::vector<bool> owns(static_cast<size_t>(index.num_ranks()), false);
  for (const TokenRun& run : runs) {
    // Runs of unit stride are disjoint, so the first candidate is the last run that begins before
    // this one.
    auto it = owned.begin();
    if (!index.has_stripes(side)) {
      it = std::partition_point(owned.begin(), owned.end(),
                                [&](const OwnedRun& o) { return o.run.end <= run.begin; });
    }
    for (; it != owned.end() && it->run.begin < run.end; ++it) {
      if (!owns[static_cast<size_t>(it->rank)] && share_id(it->run, run))
        owns[static_cast<size_t>(it->rank)] = true;
    }
  }
  std::vector<int32_t> ranks;
  for (size_t r = 0; r < owns.size(); ++r) {
    if (owns[r]) ranks.push_back(static_cast<int32_t>(r));
  }
  return ranks;
}

}  // namespace cpscope::gui
