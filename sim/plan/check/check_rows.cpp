#include "sim/plan/check/check_rows.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// A run as an interval of indices inside one residue class of a common stride.
struct ClassInterval {
  int64_t residue, begin, end;
};

/// Common stride of all runs when every stride is 1 or that value; 0 when three strides meet.
template <class Runs, class RunOf>
int64_t common_stride_of(const Runs& runs, RunOf run_of) {
  int64_t stride = 1;
  for (const auto& entry : runs) {
    const TokenRun& run = std::invoke(run_of, entry);
    if (run.stride == 1 || run.count() == 1) continue;
    if (stride != 1 && stride != run.stride) return 0;
    stride = run.stride;
  }
  return stride;
}

void add_unit_run(const TokenRun& run, int64_t stride, std::vector<ClassInterval>& intervals) {
  if (run.count() < stride) {
    for (int64_t id = run.begin; id < run.end; ++id)
      intervals.push_back({id % stride, id / stride, id / stride + 1});
    return;
  }
  for (int64_t residue = 0; residue < stride; ++residue) {
    const int64_t first = run.begin + ((residue - run.begin) % stride + stride) % stride;
    if (first >= run.end) continue;
    const int64_t count = (run.end - first + stride - 1) / stride;
    intervals.push_back({residue, first / stride, first / stride + count});
  }
}

/// The run as intervals of residue classes; single ids when strides do not fit together.
void add_intervals(const TokenRun& run, int64_t stride, std::vector<ClassInterval>& intervals) {
  if (stride == 0) {
    for (int64_t i = 0; i < run.count(); ++i) intervals.push_back({0, run.at(i), run.at(i) + 1});
    return;
  }
  if (run.stride == stride || run.count() == 1) {
    const int64_t first = run.begin / stride;
    intervals.push_back({run.begin % stride, first, first + run.count()});
    return;
  }
  add_unit_run(run, stride, intervals);
}

int64_t id_of(int64_t residue, int64_t index, int64_t stride) {
  return stride == 0 ? index : index * stride + residue;
}

template <class Visit>
void for_each_interval(const std::vector<WeightedRun>& runs, int64_t stride, Visit visit) {
  std::vector<ClassInterval> intervals;
  for (const WeightedRun& weighted : runs) {
    if (stride == 1 && weighted.run.stride == 1) {
      // Stripes are millions of runs, each an interval.
      const TokenRun& run = weighted.run;
      if (run.end > run.begin) visit(ClassInterval{0, run.begin, run.end}, weighted.weight);
      continue;
    }
    intervals.clear();
    if (weighted.run.count() > 0) add_intervals(weighted.run, stride, intervals);
    for (const ClassInterval& interval : intervals) visit(interval, weighted.weight);
  }
}

/// Bounds and number of the intervals.
struct IntervalSpan {
  int64_t classes = 1;  // residues are below it
  int64_t width = 1;    // ends are below it
  int64_t count = 0;
  bool has_negative = false;

  /// True if there are so many intervals over so few indices that one sum per index is cheaper than
  /// sorting the intervals.
  bool is_crowded() const { return !has_negative && width <= 4 * count / classes; }
};

IntervalSpan span_of(const std::vector<WeightedRun>& runs, int64_t stride) {
  IntervalSpan span;
  for_each_interval(runs, stride, [&](const ClassInterval& interval, uint64_t) {
    span.classes = std::max(span.classes, interval.residue + 1);
    span.width = std::max(span.width, interval.end + 1);
    span.has_negative = span.has_negative || interval.residue < 0 || interval.begin < 0;
    ++span.count;
  });
  return span;
}

/// Cost: O(intervals + indices).
int64_t first_nonzero_of_sums(const std::vector<WeightedRun>& runs, int64_t stride,
                              const IntervalSpan& span) {
  std::vector<uint64_t> changes(static_cast<size_t>(span.classes * span.width), 0);
  for_each_interval(runs, stride, [&](const ClassInterval& interval, uint64_t weight) {
    uint64_t* of_class = changes.data() + interval.residue * span.width;
    of_class[interval.begin] += weight;
    of_class[interval.end] -= weight;
  });
  uint64_t sum = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    sum += changes[i];
    const auto place = static_cast<int64_t>(i);
    if (sum != 0) return id_of(place / span.width, place % span.width, stride);
  }
  return -1;
}

/// Cost: O(intervals log intervals).
int64_t first_nonzero_of_events(const std::vector<WeightedRun>& runs, int64_t stride,
                                const IntervalSpan& span) {
  struct Event {
    int64_t residue, index;
    uint64_t change;
  };
  std::vector<Event> events;
  events.reserve(static_cast<size_t>(2 * span.count));
  for_each_interval(runs, stride, [&](const ClassInterval& interval, uint64_t weight) {
    events.push_back({interval.residue, interval.begin, weight});
    events.push_back({interval.residue, interval.end, 0 - weight});
  });
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tie(a.residue, a.index) < std::tie(b.residue, b.index);
  });
  uint64_t sum = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    sum += events[i].change;
    const bool last_here = i + 1 == events.size() || events[i + 1].residue != events[i].residue ||
                           events[i + 1].index != events[i].index;
    if (last_here && sum != 0) return id_of(events[i].residue, events[i].index, stride);
  }
  return -1;
}

}  // namespace

RowReader::RowReader(const Plan& plan, RunListId list, Side side) : plan_(plan), side_(side) {
  series_.reserve(plan.list(list).size());
  int64_t row = 0, near = -1;
  for (const TokenRun& run : plan.list(list)) {
    // Cut the run where the sequence, or validity, changes.
    const int64_t count = run.count();
    int64_t index = 0;
    while (index < count) {
      const int64_t token = run.at(index);
      // Most runs begin in the sequence of the run before, and need no search.
      const bool is_near = near >= 0 &&
                           plan.layout.slots.sequences[near].side(side).begin <= token &&
                           token < plan.layout.slots.sequences[near].side(side).end();
      const int64_t sequence = near = is_near ? near : sequence_of(token);
      int64_t limit = plan.layout.slots.tokens_of(side);
      bool valid = false;
      int64_t position = -1;
      if (sequence >= 0) {
        const SlotSide slot = plan.layout.slots.sequences[sequence].side(side);
        valid = slot.is_valid(token);
        if (valid) position = token - slot.valid_begin();
        limit = valid                        ? slot.valid_end()
                : token < slot.valid_begin() ? slot.valid_begin()
                                             : slot.end();
      }
      const int64_t stop = limit >= run.end
                               ? count
                               : std::min(count, TokenRun{run.begin, limit, run.stride}.count());
      const int64_t owner = valid ? sequence : -1;
      const bool grows = !stretches_.empty() && stretches_.back().sequence == owner &&
                         (owner < 0 || series_.back().place(series_.back().end - 1).token < token);
      if (grows) {
        stretches_.back().row_end = row + stop;
      } else {
        stretches_.push_back({row + index, row + stop, owner});
      }
      series_.push_back({row + index,
                         row + stop,
                         run.stride,
                         {token, owner, position},
                         std::ssize(stretches_) - 1});
      index = stop;
    }
    row += count;
  }
  rows_ = row;
  series_index_.make(series_.size(), rows_, [&](size_t i) { return series_[i].end; });
}

int64_t RowReader::sequence_of(int64_t token) const {
  const auto& sequences = plan_.layout.slots.sequences;
  const auto after = std::upper_bound(
      sequences.begin(), sequences.end(), token,
      [&](int64_t id, const SequenceSlot& slot) { return id < slot.side(side_).begin; });
  // Of several sequences that begin at the same id only the last can hold it; the others have empty
  // slots.
  if (after == sequences.begin()) return -1;
  return token < (after - 1)->side(side_).end() ? (after - 1) - sequences.begin() : -1;
}

const RowSeries& RowReader::series(int64_t row) const {
  CPSCOPE_CHECK(row >= 0 && !series_.empty(), "a row lies before the first run", row, 0);
  const auto [first, last] = series_index_.near(row, series_.size());
  return *(std::upper_bound(series_.begin() + static_cast<int64_t>(first),
                            series_.begin() + static_cast<int64_t>(last) + 1, row,
                            [](int64_t r, const RowSeries& series) { return r < series.begin; }) -
           1);
}

std::pair<const Stretch*, const Stretch*> RowReader::stretches(int64_t begin, int64_t end) const {
  const Stretch* end_of_all = stretches_.data() + stretches_.size();
  if (begin < 0 || begin >= rows_) return {end_of_all, end_of_all};
  return stretches(series(begin), end);
}

std::pair<const Stretch*, const Stretch*> RowReader::stretches(const RowSeries& first,
                                                               int64_t end) const {
  const Stretch* from = stretches_.data() + first.stretch;
  const Stretch* end_of_all = stretches_.data() + stretches_.size();
  // Most bands lie in one stretch.
  const Stretch* to = from + 1;
  if (to != end_of_all && to->row_begin < end)
    to = std::partition_point(to, end_of_all, [&](const Stretch& s) { return s.row_begin < end; });
  return {from, to};
}

int64_t first_unbalanced(const std::vector<WeightedRun>& runs) {
  const int64_t stride = common_stride_of(runs, &WeightedRun::run);
  const IntervalSpan span = span_of(runs, stride);
  return span.is_crowded() ? first_nonzero_of_sums(runs, stride, span)
                           : first_nonzero_of_events(runs, stride, span);
}

int64_t first_shared(const std::vector<TokenRun>& runs) {
  const int64_t stride = common_stride_of(runs, std::identity{});
  std::vector<ClassInterval> intervals;
  for (const TokenRun& run : runs) {
    if (run.count() > 0) add_intervals(run, stride, intervals);
  }
  std::sort(intervals.begin(), intervals.end(), [](const ClassInterval& a, const ClassInterval& b) {
    return std::tie(a.residue, a.begin) < std::tie(b.residue, b.begin);
  });
  for (size_t i = 1; i < intervals.size(); ++i) {
    if (intervals[i].residue == intervals[i - 1].residue &&
        intervals[i].begin < intervals[i - 1].end) {
      return id_of(intervals[i].residue, intervals[i].begin, stride);
    }
  }
  return -1;
}

const std::vector<int64_t>& RowPicker::first_rows(RunListId list) {
  std::vector<int64_t>& first = first_rows_[list];
  if (first.empty()) {
    first.push_back(0);
    for (const TokenRun& run : plan_.list(list)) first.push_back(first.back() + run.count());
  }
  return first;
}

std::vector<TokenRun> RowPicker::pick(RunListId tokens, RunListId rows) {
  std::vector<TokenRun> picked;
  pick(tokens, rows, picked);
  return picked;
}

void RowPicker::pick(RunListId tokens, RunListId rows, std::vector<TokenRun>& into) {
  into.clear();
  const auto runs = plan_.list(tokens);
  if (rows == kAllRows) {
    into.assign(runs.begin(), runs.end());
    return;
  }
  const std::vector<int64_t>& first = first_rows(tokens);
  for (const TokenRun& row_run : plan_.list(rows)) {
    int64_t row = row_run.begin;
    size_t at =
        static_cast<size_t>(std::upper_bound(first.begin(), first.end(), row) - first.begin()) - 1;
    while (row < row_run.end) {
      while (at < runs.size() && first[at + 1] <= row) ++at;
      if (at >= runs.size()) return;
      // Strided row lists are picked id by id, contiguous ones run by run.
      const int64_t stop = row_run.stride == 1 ? std::min(row_run.end, first[at + 1]) : row + 1;
      append_run(into, {runs[at].at(row - first[at]), runs[at].at(stop - 1 - first[at]) + 1,
                        runs[at].stride});
      row = row_run.stride == 1 ? stop : row + row_run.stride;
    }
  }
}

CheckResult passed(std::string name, std::string detail) {
  return {std::move(name), true, std::move(detail)};
}
CheckResult broken(std::string name, std::string detail, std::optional<ItemId> item) {
  return {std::move(name), false, std::move(detail), item};
}

namespace {

/// Checks that the home buffers hold what the layout says, with the right kind and role.
std::optional<std::string> check_home(const Plan& plan) {
  for (const RankId rank : plan.home.ids()) {
    const HomeBuffers& home = plan.home[rank];
    const std::pair<BufferId, BufferKind> named[] = {
        {home.q, BufferKind::q},         {home.kv, BufferKind::kv}, {home.out, BufferKind::out},
        {home.d_out, BufferKind::d_out}, {home.dq, BufferKind::dq}, {home.dkv, BufferKind::dkv},
        {home.stats, BufferKind::stats}};
    for (const auto& [id, kind] : named) {
      if (id == kNoBuffer) continue;
      const BufferSpec& buffer = plan.buffer(id);
      const bool is_kv = kind == BufferKind::kv || kind == BufferKind::dkv;
      if (buffer.kind != kind || buffer.role != BufferRole::home || buffer.rank != rank ||
          buffer.tokens != plan.lists(is_kv ? Side::kv : Side::q)[rank]) {
        return fmt::format("the home {} buffer of rank {} is not its own", to_name(kind),
                           to_index(rank));
      }
    }
  }
  return std::nullopt;
}

/// Looks whether lists name tokens that are there.
class TokenJudge {
 public:
  explicit TokenJudge(const Plan& plan) : plan_(plan), last_(plan.run_lists.size(), -1) {
    for (const RunListId id : plan.run_lists.ids()) {
      for (const TokenRun& run : plan.list(id)) {
        if (run.count() > 0) last_[id] = std::max(last_[id], run.last());
      }
    }
  }

  std::optional<std::string> complaint(RunListId list, Side side) const {
    if (list == kNoTokens || last_[list] < plan_.layout.slots.tokens_of(side)) return std::nullopt;
    return fmt::format("names {} token {} of {}", side == Side::q ? "query" : "key", last_[list],
                       plan_.layout.slots.tokens_of(side));
  }

 private:
  const Plan& plan_;
  IdVector<RunListId, int64_t> last_;  // the largest id
};

Side side_of_kind(BufferKind kind) {
  return kind == BufferKind::kv || kind == BufferKind::dkv ? Side::kv : Side::q;
}

/// Checks that all token lists name tokens of the batch.
std::optional<std::string> check_tokens(const Plan& plan) {
  const TokenJudge judge(plan);
  for (const BufferId id : plan.buffers.ids()) {
    const BufferSpec& buffer = plan.buffer(id);
    if (auto text = judge.complaint(buffer.tokens, side_of_kind(buffer.kind)))
      return fmt::format("buffer {} {}", to_index(id), *text);
  }
  for (const Direction direction : kDirections) {
    const Pass& pass = plan.pass(direction);
    for (size_t i = 0; i < pass.computes.size(); ++i) {
      const ComputeItem& item = pass.computes[i];
      auto text = judge.complaint(item.q_tokens, Side::q);
      if (!text) text = judge.complaint(item.kv_tokens, Side::kv);
      if (text) return fmt::format("{}, compute {} {}", to_name(direction), i, *text);
    }
    for (size_t i = 0; i < pass.transfers.size(); ++i) {
      const TransferItem& item = pass.transfers[i];
      if (auto text = judge.complaint(item.tokens, side_of_kind(kind_of(item.payload))))
        return fmt::format("{}, transfer {} {}", to_name(direction), i, *text);
    }
  }
  return std::nullopt;
}

/// Checks that the rows that a rank has besides its own are those that every rank holds: valid keys
/// at the front of their sequence.
std::optional<std::string> check_replicas(const Plan& plan) {
  std::set<RunListId> checked;
  for (const RankId rank : plan.home.ids()) {
    if (plan.home[rank].replica == kNoBuffer) continue;
    const BufferSpec& buffer = plan.buffer(plan.home[rank].replica);
    if (buffer.kind != BufferKind::kv || buffer.role != BufferRole::home || buffer.rank != rank ||
        buffer.tokens == kNoTokens)
      return fmt::format("the buffer of replicated keys of rank {} is not its own", to_index(rank));
    if (!checked.insert(buffer.tokens).second) continue;
    const RowReader reader(plan, buffer.tokens, Side::kv);
    for (int64_t row = 0; row < reader.rows(); ++row) {
      const RowPlace place = reader.place(row);
      if (place.sequence < 0 || place.position >= plan.scenario.parallel.kv_replicated)
        return fmt::format("rank {} holds key token {}, which is not on every rank", to_index(rank),
                           place.token);
    }
  }
  return std::nullopt;
}

/// Checks that the memory of all buffers can be counted.
std::optional<std::string> check_sizes(const Plan& plan) {
  double bytes = 0;
  for (const BufferId id : plan.buffers.ids()) {
    const BufferSpec& buffer = plan.buffer(id);
    if (buffer.rows > kMaxTokens)
      return fmt::format("buffer {} has {} rows, the limit is {}", to_index(id), buffer.rows,
                         kMaxTokens);
    // Executors keep elements of up to 8 bytes, and 2 statistics a row.
    bytes += 8.0 * static_cast<double>(buffer.rows) * buffer.heads.size() *
             static_cast<double>(lanes_of(buffer.kind, plan.scenario.attention) + 2);
  }
  constexpr double kMostBytes = 1e17;
  if (bytes <= kMostBytes) return std::nullopt;
  return fmt::format("the buffers need {:.3g} bytes, the limit is {:.0e}", bytes, kMostBytes);
}

bool rows_fit(const Plan& plan, RunListId rows, int64_t capacity) {
  if (rows == kAllRows) return true;
  for (const TokenRun& run : plan.list(rows)) {
    if (run.begin < 0 || (run.count() > 0 && run.last() >= capacity)) return false;
  }
  return true;
}

/// Checks that the fields of a transfer agree with its two buffers.
std::optional<std::string> check_ends(const Plan& plan, const TransferItem& item) {
  const BufferSpec &from = plan.buffer(item.from), &to = plan.buffer(item.to);
  const BufferKind kind = kind_of(item.payload);
  if (from.kind != (item.payload == Payload::lse ? BufferKind::out : kind) || to.kind != kind) {
    return fmt::format("calls {} what goes from a {} to a {} buffer", to_name(item.payload),
                       to_name(from.kind), to_name(to.kind));
  }
  if ((item.link == LinkClass::self) != (item.src == item.dst))
    return "names a link that does not join its ranks";
  const bool may_add =
      item.payload == Payload::dkv || item.payload == Payload::dq ||
      (item.payload == Payload::out && (plan.scenario.parallel.comm_type == CommType::custom ||
                                        adds_scaled_partials(plan.scenario.parallel)));
  if (item.landing == Landing::add && !may_add)
    return "adds to rows that no other rank has a share of";
  // Of some of its heads a rank may be the owner.
  if (item.payload == Payload::partial && item.src == item.dst && item.heads == from.heads)
    return "sends a partial result to its own rank";
  if (!rows_fit(plan, item.from_rows, from.rows) || !rows_fit(plan, item.to_rows, to.rows))
    return "names rows that a side does not have";
  const int64_t named = item.tokens == kNoTokens ? -1 : plan.rows(item.tokens);
  const auto count = [&](RunListId rows, int64_t all) {
    return rows != kAllRows ? plan.rows(rows) : named >= 0 ? named : all;
  };
  if (count(item.from_rows, from.rows) != count(item.to_rows, to.rows)) {
    return fmt::format("sends {} rows and writes {}", count(item.from_rows, from.rows),
                       count(item.to_rows, to.rows));
  }
  return std::nullopt;
}

}  // namespace

CheckResult check_buffers(const Plan& plan) {
  if (auto text = check_home(plan)) return broken("buffers", *text);
  if (auto text = check_replicas(plan)) return broken("buffers", *text);
  for (const BufferId id : plan.buffers.ids()) {
    const BufferSpec& buffer = plan.buffer(id);
    const bool is_kv = buffer.kind == BufferKind::kv || buffer.kind == BufferKind::dkv;
    const int32_t heads = is_kv ? plan.scenario.attention.kv_heads : plan.scenario.attention.heads;
    if (buffer.heads.begin < 0 || buffer.heads.end > heads || buffer.heads.size() <= 0) {
      return broken("buffers", fmt::format("buffer {} of rank {} holds heads [{}, {}) of {}",
                                           to_index(id), to_index(buffer.rank), buffer.heads.begin,
                                           buffer.heads.end, heads));
    }
    if (buffer.tokens != kNoTokens && plan.rows(buffer.tokens) != buffer.rows) {
      return broken("buffers",
                    fmt::format("buffer {} of rank {} has {} rows for {} tokens", to_index(id),
                                to_index(buffer.rank), buffer.rows, plan.rows(buffer.tokens)));
    }
  }
  if (auto text = check_tokens(plan)) return broken("buffers", *text);
  if (auto text = check_sizes(plan)) return broken("buffers", *text);
  for (const Direction direction : kDirections) {
    const Pass* pass = &plan.pass(direction);
    for (size_t t = 0; t < pass->transfers.size(); ++t) {
      const TransferItem& item = pass->transfers[t];
      const ItemId id{direction, StageKind::transfer, static_cast<int64_t>(t)};
      const BufferSpec& to = plan.buffer(item.to);
      const BufferSpec& from = plan.buffer(item.from);
      if (from.rank != item.src || to.rank != item.dst) {
        return broken("buffers",
                      fmt::format("transfer {} of step {} names buffers of other ranks", t,
                                  to_index(item.step)),
                      id);
      }
      const int64_t named_rows = item.tokens == kNoTokens ? 0 : plan.rows(item.tokens);
      if (named_rows > std::min(from.rows, to.rows)) {
        return broken(
            "buffers",
            fmt::format("transfer {} of step {}: {} rows into a buffer of {} on rank {}", t,
                        to_index(item.step), plan.rows(item.tokens), to.rows, to_index(item.dst)),
            id);
      }
      if (item.heads.begin < std::max(from.heads.begin, to.heads.begin) ||
          item.heads.end > std::min(from.heads.end, to.heads.end)) {
        return broken(
            "buffers",
            fmt::format("transfer {} of step {} moves heads [{}, {}) that a side does not hold", t,
                        to_index(item.step), item.heads.begin, item.heads.end),
            id);
      }
      if (auto text = check_ends(plan, item)) {
        return broken(
            "buffers",
            fmt::format("transfer {} of step {} from rank {} to rank {} {}", t, to_index(item.step),
                        to_index(item.src), to_index(item.dst), *text),
            id);
      }
    }
  }
  return passed("buffers",
                fmt::format("{} buffers hold what is put into them", plan.buffers.size()));
}

}  // namespace cpscope
