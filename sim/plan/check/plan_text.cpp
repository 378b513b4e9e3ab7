#include "sim/plan/check/plan_text.h"

#include "sim/plan/plan_summary.h"
#include "sim/plan/scale_reductions.h"
#include "sim/plan/visit_items.h"

#include <map>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// "11 valid in [0, 16) from 5 on"; the last words only if padding comes before them.
std::string describe_slot_side(const SlotSide& slot) {
  std::string text = fmt::format("{} valid in [{}, {})", slot.valid, slot.begin, slot.end());
  if (slot.front > 0 && slot.valid > 0) text += fmt::format(" from {} on", slot.valid_begin());
  return text;
}

/// Writes lines up to the limit, then only counts them.
class LineWriter {
 public:
  LineWriter(std::ostream& out, int64_t max_lines) : out_(out), max_lines_(max_lines) {}
  ~LineWriter() {
    if (left_out_ > 0) out_ << fmt::format("... {} more lines\n", left_out_);
  }
  void line(const std::string& text) {
    if (max_lines_ > 0 && written_ >= max_lines_) {
      ++left_out_;
      return;
    }
    ++written_;
    out_ << text << '\n';
  }
  bool is_full() const { return max_lines_ > 0 && written_ >= max_lines_; }

 private:
  std::ostream& out_;
  int64_t max_lines_;
  int64_t written_ = 0;
  int64_t left_out_ = 0;
};

std::string buffer_name(const Plan& plan, BufferId id) {
  const BufferSpec& spec = plan.buffer(id);
  return fmt::format("{}.{}", to_name(spec.kind), to_name(spec.role));
}

std::string heads_text(HeadRange heads) {
  return fmt::format("heads [{}, {})", heads.begin, heads.end);
}

void write_header(const CheckedPlan& checked, LineWriter& out) {
  const Plan& plan = checked.plan();
  const Scenario& scenario = plan.scenario;
  const PlanSummary summary = summarise(plan);
  if (!scenario.title.empty()) out.line(scenario.title);
  if (!scenario.question.empty()) out.line("question: " + scenario.question);
  out.line(fmt::format("{} over {} ranks, layout {}, mask {}, {}; plan {}",
                       to_name(scenario.parallel.comm_type), plan.layout.cp_size,
                       to_name(scenario.parallel.layout), describe_mask(scenario.attention),
                       to_name(scenario.batch.qkv_format), to_hex(plan.hash)));
  out.line(
      fmt::format("{} query tokens, {} key tokens, {} query heads, {} KV heads, {} visible (query, "
                  "key, head) triples",
                  plan.layout.slots.tokens, plan.layout.slots.kv_tokens, scenario.attention.heads,
                  scenario.attention.kv_heads, summary.visible_pairs));
  out.line(
      fmt::format("balance: busiest rank {:.3f} x mean, critical path {:.3f} x ideal; KV bytes "
                  "necessary {}, moved {}",
                  summary.rank_max_over_mean, summary.critical_path_over_ideal,
                  summary.kv_bytes_necessary, summary.kv_bytes_moved));
  for (const ScaleReduction& one : scale_reductions(scenario))
    out.line("scale: " + describe(one, scenario));
  for (const CheckResult& check : checked.checks())
    out.line(fmt::format("{} {}: {}", check.ok ? "proved" : "BROKEN", check.name, check.detail));
  for (size_t s = 0; s < plan.layout.slots.sequences.size(); ++s) {
    const SequenceSlot& slot = plan.layout.slots.sequences[s];
    out.line(fmt::format("sequence {}: q {}, kv {}", s, describe_slot_side(slot.side(Side::q)),
                         describe_slot_side(slot.side(Side::kv))));
  }
  for (size_t k = 0; k < plan.layout.rounds.size(); ++k) out.line(describe_round(plan.layout, k));
  for (const RankId rank : plan.q_lists.ids()) {
    std::string text = fmt::format("rank {} owns q {}", to_index(rank),
                                   describe_runs(plan.list(plan.q_lists[rank])));
    if (plan.layout.q_heads.has(rank))
      text += fmt::format(", {}", heads_text(plan.layout.q_heads[rank]));
    if (!plan.layout.same_kv) text += " and kv " + describe_runs(plan.list(plan.kv_lists[rank]));
    out.line(text);
  }
}

std::string describe_transfer(const Plan& plan, const TransferItem& item, bool names_rows) {
  std::string text = fmt::format("{} {}, {} -> {}", to_name(item.payload), heads_text(item.heads),
                                 buffer_name(plan, item.from), buffer_name(plan, item.to));
  if (names_rows && item.from_rows != kAllRows)
    text += ", rows " + describe_runs(plan.list(item.from_rows));
  if (names_rows && item.to_rows != kAllRows)
    text += ", into rows " + describe_runs(plan.list(item.to_rows));
  text += item.link == LinkClass::self ? ", stays here" : fmt::format(", {} bytes", item.bytes);
  if (item.landing == Landing::add) text += ", added";
  return text;
}

std::string describe_compute(const Plan& plan, const ComputeItem& item) {
  if (item.num_slices == 0)
    return fmt::format("idle, no key of {} is visible", buffer_name(plan, item.kv));
  return fmt::format("{} x {}, {}, {} (query, key, head) triples", buffer_name(plan, item.q),
                     buffer_name(plan, item.kv), heads_text(item.heads), item.visible_pairs);
}

std::string describe_merge(const Plan& plan, const MergeItem& item) {
  return fmt::format(
      "{} into {}, number {}",
      item.partial == kNoBuffer ? std::string("nothing") : buffer_name(plan, item.partial),
      buffer_name(plan, item.into), item.order);
}

void write_pass(const Plan& plan, Direction direction, LineWriter& out) {
  const auto line = [&](RankId rank, const std::string& text) {
    out.line(fmt::format("    rank {}: {}", to_index(rank), text));
  };
  const Overload write_item{
      [&](const ItemId&, const TransferItem& item) {
        out.line(fmt::format("    {} -> {}: {}", to_index(item.src), to_index(item.dst),
                             describe_transfer(plan, item, true)));
      },
      [&](const ItemId&, const ComputeItem& item) {
        line(item.rank, describe_compute(plan, item));
        for (const BandSlice& band : plan.slices_of(item)) out.line("      " + describe_band(band));
      },
      [&](const ItemId&, const ReorderItem& item) {
        line(item.rank,
             fmt::format("{} -> {}, rows {}", buffer_name(plan, item.from),
                         buffer_name(plan, item.to), describe_runs(plan.list(item.order))));
      },
      [&](const ItemId&, const MergeItem& item) { line(item.rank, describe_merge(plan, item)); },
      [&](const ItemId&, const FinishItem& item) {
        line(item.rank, buffer_name(plan, item.buffer));
      }};
  const Pass& pass = plan.pass(direction);
  int32_t step = -1;
  for (const Stage& stage : pass.stages) {
    if (to_index(stage.step) != step) {
      step = to_index(stage.step);
      out.line(fmt::format("{} step {}", to_name(direction), step));
    }
    out.line(fmt::format("  {} ({})", to_name(stage.kind), stage.end - stage.begin));
    for_each_item(pass, direction, stage, write_item);
  }
}

}  // namespace

std::string describe_runs(std::span<const TokenRun> runs, size_t max_runs) {
  std::string text;
  for (size_t i = 0; i < runs.size() && i < max_runs; ++i) {
    if (i > 0) text += ' ';
    text += runs[i].stride == 1
                ? fmt::format("[{}, {})", runs[i].begin, runs[i].end)
                : fmt::format("[{}, {}) by {}", runs[i].begin, runs[i].end, runs[i].stride);
  }
  if (runs.size() > max_runs) text += fmt::format(" and {} more runs", runs.size() - max_runs);
  return runs.empty() ? "nothing" : text;
}

std::string describe_band(const BandSlice& band) {
  const int32_t rows = band.q1 - band.q0, columns = band.k1 - band.k0;
  std::string shape;
  if (is_full(band)) {
    shape = "full";
  } else if (band.lo <= -(rows - 1)) {
    shape = band.hi == 0 ? "causal" : fmt::format("k - q <= {}", band.hi);
  } else if (band.hi >= columns - 1) {
    shape = fmt::format("k - q >= {}", band.lo);
  } else {
    shape = fmt::format("{} <= k - q <= {}", band.lo, band.hi);
  }
  return fmt::format("q[{}, {}) x k[{}, {}) {}", band.q0, band.q1, band.k0, band.k1, shape);
}

std::string describe_item(const Plan& plan, const ItemId& id) {
  return visit_item(
      plan, id,
      Overload{[&](const TransferItem& item) { return describe_transfer(plan, item, false); },
               [&](const ReorderItem& item) {
                 return fmt::format("{} -> {}, {} rows", buffer_name(plan, item.from),
                                    buffer_name(plan, item.to), plan.rows(item.order));
               },
               [&](const ComputeItem& item) { return describe_compute(plan, item); },
               [&](const MergeItem& item) { return describe_merge(plan, item); },
               [&](const FinishItem& item) { return buffer_name(plan, item.buffer); }});
}

void write_plan_text(const CheckedPlan& checked, int64_t max_lines, std::ostream& out) {
  LineWriter lines(out, max_lines);
  write_header(checked, lines);
  write_pass(checked.plan(), Direction::forward, lines);
  if (checked.plan().scenario.numerics.backward)
    write_pass(checked.plan(), Direction::backward, lines);
}

}  // namespace cpscope
