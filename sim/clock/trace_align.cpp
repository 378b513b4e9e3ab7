#include "sim/clock/trace_align.h"

#include <algorithm>
#include <array>
#include <optional>

namespace cpscope {
namespace {

/// A number of stages in a row, and the span behind the last one of theirs.
struct Fit {
  int64_t stages = 0, end = 0;
};

class Alignment {
 public:
  Alignment(const std::vector<AlignedSpan>& spans, const std::vector<AlignedStage>& stages)
      : spans_(spans),
        stages_(stages),
        num_spans_(static_cast<int64_t>(spans.size())),
        num_stages_(static_cast<int64_t>(stages.size())),
        width_(num_stages_ + 1),
        best_(static_cast<size_t>((num_spans_ + 1) * width_)) {
    for (int64_t i = num_spans_ - 1; i >= 0; --i) {
      for (int64_t e = num_stages_ - 1; e >= 0; --e) {
        int32_t most = std::max(best(i + 1, e), best(i, e + 1));
        for (const Fit& fit : fits(i, e)) {
          if (fit.stages > 0)
            most = std::max(most, static_cast<int32_t>(fit.stages) + best(fit.end, e + fit.stages));
        }
        best(i, e) = most;
      }
    }
  }

  /// The first alignment that finds the most stages, or the last one.
  std::vector<AlignedPlace> trace(bool is_first) {
    std::vector<AlignedPlace> places(static_cast<size_t>(num_stages_));
    int64_t i = 0, e = 0;
    while (i < num_spans_ && e < num_stages_) {
      const int32_t most = best(i, e);
      std::optional<Fit> chosen;
      for (const Fit& fit : fits(i, e)) {
        if (fit.stages > 0 && fit.stages + best(fit.end, e + fit.stages) == most && !chosen)
          chosen = fit;
      }
      const bool can_skip_span = best(i + 1, e) == most, can_skip_stage = best(i, e + 1) == most;
      if (chosen && (is_first || (!can_skip_span && !can_skip_stage))) {
        for (int64_t s = 0; s < chosen->stages; ++s)
          places[static_cast<size_t>(e + s)] = {i, chosen->end, false};
        i = chosen->end;
        e += chosen->stages;
      } else if (can_skip_span) {
        ++i;
      } else {
        ++e;
      }
    }
    return places;
  }

 private:
  int32_t& best(int64_t i, int64_t e) { return best_[static_cast<size_t>(i * width_ + e)]; }

  bool takes(const AlignedStage& stage, const AlignedSpan& span) const {
    return (stage.kinds & span.kind) != 0 && span.start_ns >= stage.earliest_ns &&
           span.end_ns <= stage.latest_ns;
  }

  /// How spans from i on carry out one stage from e on, or two.
  std::array<Fit, 2> fits(int64_t i, int64_t e) const {
    std::array<Fit, 2> found;
    const AlignedStage& stage = stages_[static_cast<size_t>(e)];
    if (!takes(stage, spans_[static_cast<size_t>(i)])) return found;
    if (spans_[static_cast<size_t>(i)].bytes < 0) {
      found[0] = {1, i + 1};
      return found;
    }
    const AlignedStage* next = e + 1 < num_stages_ ? &stages_[static_cast<size_t>(e + 1)] : nullptr;
    const int64_t one = stage.bytes, two = next != nullptr ? one + next->bytes : one;
    int64_t sum = 0;
    for (int64_t j = i; j < num_spans_ && sum < two; ++j) {
      const AlignedSpan& span = spans_[static_cast<size_t>(j)];
      if (span.bytes < 0 || !takes(stage, span)) break;
      sum += std::min(span.bytes, two + 1);
      if (sum == one) found[0] = {1, j + 1};
      if (sum == two && next != nullptr && j == i && takes(*next, span)) found[1] = {2, j + 1};
    }
    return found;
  }

  const std::vector<AlignedSpan>& spans_;
  const std::vector<AlignedStage>& stages_;
  const int64_t num_spans_, num_stages_, width_;
  std::vector<int32_t> best_;
};

}  // namespace

std::vector<AlignedPlace> align_stages(const std::vector<AlignedSpan>& spans,
                                       const std::vector<AlignedStage>& stages) {
  Alignment alignment(spans, stages);
  std::vector<AlignedPlace> first = alignment.trace(true);
  const std::vector<AlignedPlace> last = alignment.trace(false);
  for (size_t e = 0; e < first.size(); ++e) {
    if (first[e].first == last[e].first && first[e].end == last[e].end) continue;
    first[e] = {0, 0, true};
  }
  return first;
}

}  // namespace cpscope
