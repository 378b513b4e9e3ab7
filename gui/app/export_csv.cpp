#include "gui/app/export_csv.h"

#include "gui/app/prediction.h"
#include "gui/model/describe.h"
#include "gui/model/error_field.h"
#include "gui/model/token_parts.h"
#include "sim/base/id_vector.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

/// Collects lines in a buffer, because writing them to a stream one by one is slow.
class CsvWriter {
 public:
  /// `lines`: the approximate number of lines. `control` may be null.
  CsvWriter(std::ostream& out, int64_t lines, TaskControl* control)
      : out_(out), lines_(lines), control_(control) {}
  ~CsvWriter() { flush(); }
  CsvWriter(const CsvWriter&) = delete;
  CsvWriter& operator=(const CsvWriter&) = delete;

  template <class... Fields>
  void line(const Fields&... fields) {
    (put(fields), ...);
    end_line();
  }
  template <class Field>
  void put(const Field& field) {
    if (has_field_) text_.push_back(',');
    has_field_ = true;
    add(field);
  }
  void put_empty() { put(std::string_view()); }
  void end_line() {
    text_.push_back('\n');
    has_field_ = false;
    ++written_;
    if (text_.size() > size_t{1} << 18) flush();
  }
  /// True when the export was cancelled.
  bool is_stopped() const { return control_ != nullptr && control_->is_stopped; }

 private:
  void add(std::string_view field) {
    if (field.find_first_of(",\"\n\r") == std::string_view::npos) {
      text_ += field;
      return;
    }
    text_.push_back('"');
    for (const char c : field) {
      if (c == '"') text_.push_back('"');
      text_.push_back(c);
    }
    text_.push_back('"');
  }
  void add(const char* field) { add(std::string_view(field)); }
  void add(const std::string& field) { add(std::string_view(field)); }
  void add(double value) { fmt::format_to(std::back_inserter(text_), "{:.9g}", value); }
  void add(int64_t value) {
    const fmt::format_int digits(value);
    text_.append(digits.data(), digits.size());
  }
  void add(int32_t value) { add(int64_t{value}); }
  void flush() {
    out_ << text_;
    text_.clear();
    if (control_ != nullptr && lines_ > 0)
      control_->progress =
          std::min(1.0, static_cast<double>(written_) / static_cast<double>(lines_));
  }

  std::ostream& out_;
  int64_t lines_ = 0, written_ = 0;
  TaskControl* control_ = nullptr;
  std::string text_;
  bool has_field_ = false;
};

void write_layout(const PlanIndex& plan, CsvWriter& csv) {
  csv.line("side", "rank", "row_begin", "row_end", "token_begin", "token_end", "token_stride",
           "tokens", "valid_tokens", "padding_tokens");
  for (const Side side : {Side::q, Side::kv}) {
    const auto& by_rank = plan.plan().layout.runs(side);
    for (const RankId rank : by_rank.ids()) {
      if (csv.is_stopped()) break;
      int64_t row = 0;
      for (const TokenRun& run : by_rank[rank]) {
        const int64_t count = run.count(), valid = count_valid(plan, side, run);
        csv.line(side == Side::q ? "query" : "key", to_index(rank), row, row + count, run.begin,
                 run.end, run.stride, count, valid, count - valid);
        row += count;
      }
    }
  }
}

/// Lowest and highest id in rows [begin, end) of a list.
struct Extent {
  int64_t begin, end;
};
Extent extent_of(std::span<const TokenRun> list, int64_t begin, int64_t end) {
  Extent extent{INT64_MAX, 0};
  for (const TokenRun& run : slice_rows(list, begin, end)) {
    if (run.count() == 0) continue;
    extent.begin = std::min(extent.begin, run.begin);
    extent.end = std::max(extent.end, run.last() + 1);
  }
  return extent;
}

void write_mask(const PlanIndex& plan, CsvWriter& csv) {
  csv.line("pass", "item", "step", "rank", "head_begin", "head_end", "slice", "query_row_begin",
           "query_row_end", "key_row_begin", "key_row_end", "lowest_key_minus_query_row",
           "highest_key_minus_query_row", "first_query_token", "last_query_token",
           "first_key_token", "last_key_token", "visible_pairs_per_head", "visible_pairs");
  for (const Direction direction : kDirections) {
    const Pass& pass = plan.pass(direction);
    for (size_t i = 0; i < pass.computes.size() && !csv.is_stopped(); ++i) {
      const ComputeItem& item = pass.computes[i];
      const auto q = plan.plan().list(item.q_tokens), k = plan.plan().list(item.kv_tokens);
      int64_t number = 0;
      for (const BandSlice& slice : plan.plan().slices_of(item)) {
        const Extent queries = extent_of(q, slice.q0, slice.q1);
        const Extent keys = extent_of(k, slice.k0, slice.k1);
        const int64_t pairs = count_pairs(slice);
        // The band's bounds are relative to the slice's corner; here they are relative to row 0 of
        // both buffers.
        const int64_t shift = int64_t{slice.k0} - slice.q0;
        csv.line(to_name(direction), static_cast<int64_t>(i), to_index(item.step) + 1,
                 to_index(item.rank), item.heads.begin, item.heads.end, number++, slice.q0,
                 slice.q1, slice.k0, slice.k1, slice.lo + shift, slice.hi + shift, queries.begin,
                 queries.end - 1, keys.begin, keys.end - 1, pairs, pairs * item.heads.size());
      }
    }
  }
}

void write_traffic(const PlanIndex& plan, CsvWriter& csv) {
  csv.line("pass", "item", "step", "stage_of_step", "source_rank", "destination_rank", "payload",
           "link", "landing", "rows", "head_begin", "head_end", "wire_bytes");
  for (int32_t s = 0; s < static_cast<int32_t>(plan.stages().size()); ++s) {
    const StageRef& stage = plan.stages()[static_cast<size_t>(s)];
    if (stage.kind != StageKind::transfer) continue;
    const int32_t first = plan.steps()[static_cast<size_t>(plan.step_of_stage(s))].first_stage;
    for (int64_t i = stage.begin; i < stage.end && !csv.is_stopped(); ++i) {
      const TransferItem& item = plan.pass(stage.direction).transfers[static_cast<size_t>(i)];
      csv.line(to_name(stage.direction), i, stage.step + 1, s - first + 1, to_index(item.src),
               to_index(item.dst), to_name(item.payload), to_name(item.link),
               item.landing == Landing::add ? "add" : "replace", plan.plan().rows_of(item),
               item.heads.begin, item.heads.end, item.bytes);
    }
  }
}

/// Events of a run, by item.
class EventTable {
 public:
  EventTable(const PlanIndex& plan, const RunView& run) {
    for (const Direction direction : kDirections) {
      for (const StageKind kind : kStageKinds)
        events_[direction][static_cast<size_t>(kind)].resize(
            static_cast<size_t>(count_items(plan.pass(direction), kind)));
    }
    for (const ItemEvent& event : run.events) {
      auto& table = events_[event.item.direction][static_cast<size_t>(event.item.kind)];
      const auto i = static_cast<size_t>(event.item.index);
      if (event.item.index >= 0 && i < table.size()) table[i] = &event;
    }
  }
  const ItemEvent* find(const ItemId& item) const {
    return events_[item.direction][static_cast<size_t>(item.kind)][static_cast<size_t>(item.index)];
  }

 private:
  ByDirection<std::array<std::vector<const ItemEvent*>, kStageKinds.size()>> events_;  // [index]
};

/// Writes one item, without its times and without the end of the line.
void put_item(const PlanIndex& plan, const ItemId& item, int32_t stage, int32_t stage_of_step,
              CsvWriter& csv) {
  const ItemColumns& columns = plan.columns(item.direction, item.kind);
  const Pass& pass = plan.pass(item.direction);
  const auto i = static_cast<size_t>(item.index);
  csv.put(to_name(item.direction));
  csv.put(plan.stages()[static_cast<size_t>(stage)].step + 1);
  csv.put(stage_of_step);
  csv.put(to_name(item.kind));
  csv.put(item.index);
  csv.put(columns.rank[i]);
  if (item.kind == StageKind::transfer)
    csv.put(columns.other_rank[i]);
  else
    csv.put_empty();
  if (item.kind == StageKind::compute) {
    csv.put(pass.computes[i].visible_pairs);
    csv.put(flops_of(plan, item.direction, pass.computes[i].visible_pairs));
  } else {
    csv.put_empty();
    csv.put_empty();
  }
  if (item.kind == StageKind::transfer)
    csv.put(pass.transfers[i].bytes);
  else
    csv.put_empty();
}

void write_timeline(const PlanIndex& plan, const RunView* run_a, const RunView* run_b,
                    CsvWriter& csv) {
  std::vector<EventTable> tables;
  for (const char* name :
       {"pass", "step", "stage_of_step", "kind", "item", "rank", "destination_rank",
        "visible_pairs", "floating_point_operations", "wire_bytes"})
    csv.put(name);
  for (const RunView* run : {run_a, run_b}) {
    if (run == nullptr || run->events.empty()) continue;
    tables.emplace_back(plan, *run);
    const std::string name =
        fmt::format("run_{}_{}", run == run_a ? "a" : "b", run->is_simulated ? "predicted_" : "");
    csv.put(name + "start_ns");
    csv.put(name + "end_ns");
  }
  csv.end_line();
  for (int32_t s = 0; s < static_cast<int32_t>(plan.stages().size()); ++s) {
    const StageRef& stage = plan.stages()[static_cast<size_t>(s)];
    const int32_t first = plan.steps()[static_cast<size_t>(plan.step_of_stage(s))].first_stage;
    for (int64_t i = stage.begin; i < stage.end && !csv.is_stopped(); ++i) {
      const ItemId item{stage.direction, stage.kind, i};
      put_item(plan, item, s, s - first + 1, csv);
      for (const EventTable& table : tables) {
        const ItemEvent* event = table.find(item);
        for (const bool is_end : {false, true}) {
          if (event == nullptr)
            csv.put_empty();
          else
            csv.put(is_end ? event->end_ns : event->start_ns);
        }
      }
      csv.end_line();
    }
  }
}

/// Writes the worst row of each block and head.
void write_blocks(const std::string& run, const ErrorField& field, CsvWriter& csv) {
  for (int64_t begin = 0; begin < field.tokens && !csv.is_stopped(); begin += kCsvBlock) {
    const int64_t end = std::min(field.tokens, begin + kCsvBlock);
    for (int32_t head = 0; head < field.heads; ++head) {
      int64_t worst = -1;
      float most = MaxPyramid::kNothing;
      for (int64_t token = begin; token < end; ++token) {
        const float share = field.shares.at(token, head);
        if (share == MaxPyramid::kNothing) continue;
        const bool is_worse = std::isnan(share) ? !std::isnan(most) : share > most;
        if (worst >= 0 && !is_worse) continue;
        worst = token;
        most = share;
      }
      if (worst < 0) continue;
      const auto row = static_cast<size_t>(worst * field.heads + head);
      csv.line(
          run, field.name, "block", begin, end, head, worst, "", "", "",
          static_cast<double>(field.row_errors[row]),
          field.has_row_budgets() ? fmt::format("{:.9g}", field.row_budgets[row]) : std::string(),
          field.share_of(worst, head), field.is_over(field.share_of(worst, head)) ? 1 : 0);
    }
  }
}

void write_numbers(const RunView* run_a, const RunView* run_b, CsvWriter& csv) {
  csv.line("run", "tensor", "table", "token_begin", "token_end", "head", "worst_token",
           "worst_lane", "seen", "expected", "error_l2", "budget_l2", "error_over_budget",
           "is_over_budget");
  for (const RunView* run : {run_a, run_b}) {
    if (run == nullptr) continue;
    for (const ErrorField& field : run->errors) {
      for (const WorstRow& w : field.worst) {
        const auto row = static_cast<size_t>(w.token * field.heads + w.head);
        csv.line(
            run->name, field.name, "worst_row", w.token, w.token + 1, w.head, w.token, w.lane,
            w.seen, w.expected, w.error_l2,
            field.has_row_budgets() ? fmt::format("{:.9g}", field.row_budgets[row]) : std::string(),
            w.share, field.is_over(w.share) ? 1 : 0);
      }
      write_blocks(run->name, field, csv);
    }
  }
}

/// Sums of one rank over one pass.
struct RankSums {
  int64_t pairs = 0, sent = 0, received = 0, idle_items = 0;
};

IdVector<RankId, RankSums> sums_of(const Plan& plan, Direction direction) {
  IdVector<RankId, RankSums> sums(static_cast<size_t>(plan.layout.cp_size));
  const Pass& pass = plan.pass(direction);
  for (const ComputeItem& item : pass.computes) {
    RankSums& rank = sums[item.rank];
    rank.pairs += item.visible_pairs;
    rank.idle_items += item.num_slices == 0 ? 1 : 0;
  }
  for (const TransferItem& item : pass.transfers) {
    sums[item.src].sent += item.bytes;
    sums[item.dst].received += item.bytes;
  }
  return sums;
}

void write_balance(const PlanIndex& plan, CsvWriter& csv) {
  csv.line("rank", "query_tokens", "valid_query_tokens", "key_tokens", "valid_key_tokens",
           "forward_visible_pairs", "forward_pairs_over_mean", "forward_floating_point_operations",
           "forward_idle_compute_items", "forward_sent_bytes", "forward_received_bytes",
           "backward_visible_pairs", "backward_floating_point_operations",
           "backward_idle_compute_items", "backward_sent_bytes", "backward_received_bytes");
  const auto forward = sums_of(plan.plan(), Direction::forward);
  const auto backward = sums_of(plan.plan(), Direction::backward);
  const Layout& layout = plan.plan().layout;
  int64_t all_pairs = 0;
  for (const RankSums& rank : forward) all_pairs += rank.pairs;
  for (const RankId r : forward.ids()) {
    if (csv.is_stopped()) break;
    int64_t q_valid = 0, kv_valid = 0;
    for (const TokenRun& run : layout.q_runs[r]) q_valid += count_valid(plan, Side::q, run);
    for (const TokenRun& run : layout.kv_runs[r]) kv_valid += count_valid(plan, Side::kv, run);
    const double mean = static_cast<double>(all_pairs) / static_cast<double>(forward.size());
    csv.line(to_index(r), count_ids(layout.q_runs[r]), q_valid, count_ids(layout.kv_runs[r]),
             kv_valid, forward[r].pairs,
             mean > 0 ? static_cast<double>(forward[r].pairs) / mean : 0.0,
             flops_of(plan, Direction::forward, forward[r].pairs), forward[r].idle_items,
             forward[r].sent, forward[r].received, backward[r].pairs,
             flops_of(plan, Direction::backward, backward[r].pairs), backward[r].idle_items,
             backward[r].sent, backward[r].received);
  }
}

/// The approximate number of lines of a view's table.
int64_t count_lines(ViewKind kind, const PlanIndex& index, const RunView* run_a,
                    const RunView* run_b) {
  const Plan& plan = index.plan();
  switch (kind) {
    case ViewKind::layout: {
      int64_t runs = 0;
      for (const Side side : {Side::q, Side::kv})
        for (const auto& list : plan.layout.runs(side)) runs += static_cast<int64_t>(list.size());
      return runs;
    }
    case ViewKind::mask: {
      int64_t slices = 0;
      for (const Direction direction : kDirections)
        for (const ComputeItem& item : index.pass(direction).computes) slices += item.num_slices;
      return slices;
    }
    case ViewKind::traffic:
      return static_cast<int64_t>(plan.forward.transfers.size() + plan.backward.transfers.size());
    case ViewKind::timeline:
      return plan.forward.num_items() + plan.backward.num_items();
    case ViewKind::numbers: {
      int64_t blocks = 0;
      for (const RunView* run : {run_a, run_b}) {
        if (run == nullptr) continue;
        for (const ErrorField& field : run->errors)
          blocks += (field.tokens / kCsvBlock + 1) * field.heads;
      }
      return blocks;
    }
    case ViewKind::balance:
      return index.num_ranks();
  }
  return 0;
}

}  // namespace

void write_csv(ViewKind kind, const PlanIndex& plan, const RunView* run_a, const RunView* run_b,
               std::ostream& out, TaskControl* control) {
  CsvWriter csv(out, count_lines(kind, plan, run_a, run_b), control);
  switch (kind) {
    case ViewKind::layout:
      return write_layout(plan, csv);
    case ViewKind::mask:
      return write_mask(plan, csv);
    case ViewKind::traffic:
      return write_traffic(plan, csv);
    case ViewKind::timeline:
      return write_timeline(plan, run_a, run_b, csv);
    case ViewKind::numbers:
      return write_numbers(run_a, run_b, csv);
    case ViewKind::balance:
      return write_balance(plan, csv);
  }
}

CsvSource csv_source(const AppState& state) {
  const SharedPlan& plan = state.document.plan();
  return {plan, state.run_a_plan == plan ? state.run_a : nullptr,
          state.run_b_plan == plan ? state.run_b : nullptr};
}

std::optional<Error> save_csv(ViewKind kind, const CsvSource& source, const std::string& path,
                              TaskControl& control) {
  if (!source.plan)
    return make_error(ErrorKind::unavailable, "There is no plan whose figures could be written",
                      "open a scenario first", path);
  const std::string unfinished = path + ".unfinished";
  const auto fail = [&](ErrorKind kind_of_error, const char* what, const char* hint) {
    std::error_code ignored;
    std::filesystem::remove(unfinished, ignored);
    return make_error(kind_of_error, what, hint, path);
  };
  constexpr const char* kUnwritten = "The file cannot be written";
  constexpr const char* kHint = "choose a folder that can be written to";
  {
    std::ofstream out(unfinished, std::ios::binary);
    write_csv(kind, *source.plan, source.run_a.get(), source.run_b.get(), out, &control);
    if (!out.flush()) return fail(ErrorKind::bad_input, kUnwritten, kHint);
  }
  if (control.is_stopped) return fail(ErrorKind::unavailable, "The export was stopped", "");
  std::error_code failed;
  std::filesystem::rename(unfinished, path, failed);
  if (failed) return fail(ErrorKind::bad_input, kUnwritten, kHint);
  return std::nullopt;
}

void start_saving_csv(AppState& state, ViewKind kind, const std::string& path) {
  if (state.saving.task.is_running())
    return tell(state, "Another file is still being written: " + state.saving.path, true);
  state.saving.path = path;
  CsvSource source = csv_source(state);
  if (kind == ViewKind::timeline) {
    const TimedRuns runs = timed_runs(state, source.plan);
    source.run_a = runs.a;
    source.run_b = runs.b;
  }
  state.saving.task.start([kind, path, source = std::move(source)](TaskControl& control) {
    return save_csv(kind, source, path, control);
  });
}

}  // namespace cpscope::gui
