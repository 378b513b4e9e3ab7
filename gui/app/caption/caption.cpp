#include "gui/app/caption/caption.h"

#include "gui/app/caption/caption_writer.h"
#include "gui/model/describe.h"
#include "gui/model/item_words.h"
#include "sim/plan/scaled_partials.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

std::string_view describe_comm_type(CommType type) {
  constexpr std::string_view kWords[] = {
      "ring",           "all-to-all",       "all-gather",  "all-to-all and ring",
      "group-cast",     "pass-Q ring",      "TokenRing",   "helper ring",
      "mesh",           "gathered queries", "double ring", "all-to-all and double ring",
      "custom schedule"};
  static_assert(std::size(kWords) == static_cast<size_t>(CommType::custom) + 1);
  return kWords[static_cast<size_t>(type)];
}

/// ", round 2 of 3" in a step of a plan with cp_sizes.
std::string name_round(const PlanIndex& index, const StepRef& step) {
  const int32_t round = round_of_step(index, step);
  if (round < 0) return "";
  return fmt::format(", round {} of {}", round + 1, index.plan().layout.rounds.size());
}

void tell_headline(CaptionWriter& writer, Moment moment) {
  const PlanIndex& index = writer.index();
  const StepTarget step{index.step_of_stage(moment.first_stage)};
  std::string words = fmt::format("{}, {}", capitalise(name_target(step, &index)),
                                  describe_comm_type(index.plan().scenario.parallel.comm_type));
  words += name_round(index, index.steps()[static_cast<size_t>(step.step)]);
  if (moment != index.moment_of_step(step.step)) {
    const StageRef& stage = index.stages()[static_cast<size_t>(moment.first_stage)];
    words += fmt::format(": {}, {}", to_name(stage.kind), name_stage(index, moment.first_stage));
  }
  writer.strong(words + ".", step);
}

/// Writes what the focus rank reorders in this stage, e.g. "queries", "keys and values".
void tell_reorders(CaptionWriter& writer, const StageRef& stage, int32_t focus_rank) {
  const Plan& plan = writer.plan();
  const std::vector<ReorderItem>& reorders = writer.index().pass(stage.direction).reorders;
  const std::vector<int64_t> own = writer.index().items_of(stage, focus_rank);
  if (!own.empty()) {
    const ReorderItem& first = reorders[static_cast<size_t>(own.front())];
    writer.say(
        plan.buffer(first.to).role == BufferRole::sequence_order
            ? "Rows arrived in rank order, all of one rank and then all of the next; sequence "
              "order makes the mask a plain one again. "
            : "Back to rank order, so that what belongs to one owner lies together and can be "
              "sent. ");
  }
  tell_each(
      writer, stage, focus_rank, reorders, " reorders nothing.", [&](const ReorderItem& item) {
        const auto runs = static_cast<int64_t>(plan.list(item.order).size());
        writer.say(fmt::format(" moves {} of {} in {}.", count_text(plan.rows(item.order), "row"),
                               name_rows(plan.buffer(item.to).kind), count_text(runs, "run")));
      });
}

/// `numbers`: "number 2" or "numbers 2 to 8", of parts that are merged one after the other.
std::string describe_forward_merge(const Plan& plan, const MergeItem& item,
                                   const std::string& numbers) {
  if (item.partial != kNoBuffer && plan.buffer(item.partial).kind == BufferKind::stats)
    return " scales its results to the lse that has arrived.";
  if (item.partial == kNoBuffer && adds_scaled_partials(plan))
    return " begins a result with output 0 and lse -inf.";
  if (item.partial == kNoBuffer)
    return " has seen no visible key: its output is 0 and its lse -inf.";
  if (item.order == 0)
    return " takes its first partial result as the running result: out and lse of each row and "
           "head.";
  return fmt::format(
      " merges its part {} into the running result: the larger of both maxima becomes the "
      "reference, both sums are rescaled to it, so nothing overflows and no weight is lost.",
      numbers);
}

std::string describe_backward_merge(const Plan& plan, const MergeItem& item,
                                    const std::string& numbers) {
  const BufferSpec& into = plan.buffer(item.into);
  const bool is_dq = into.kind == BufferKind::dq;
  if (item.partial == kNoBuffer)
    return is_dq ? " begins its dQ with 0." : " begins the sum of dK and dV with 0.";
  const bool is_of_ring = into.role == BufferRole::ring_a || into.role == BufferRole::ring_b;
  if (is_of_ring)
    return is_dq ? " adds its share to the dQ that is passed on with these queries."
                 : " adds its dK and dV to the sum that is passed on with these keys.";
  if (is_dq) return fmt::format(" adds share {} to its dQ.", numbers);
  return into.role == BufferRole::home ? " adds its dK and dV to those of its own keys."
                                       : " adds its dK and dV to its share.";
}

/// "scales its results to the lse of 3 ranks that have arrived", in place of a sentence for each.
bool tell_scales(CaptionWriter& writer, const StageRef& stage, int32_t focus_rank) {
  const Plan& plan = writer.plan();
  const std::vector<int64_t> own = writer.index().items_of(stage, focus_rank);
  const auto& merges = writer.index().pass(stage.direction).merges;
  const bool are_scales = std::all_of(own.begin(), own.end(), [&](int64_t i) {
    const MergeItem& item = merges[static_cast<size_t>(i)];
    return stage.direction == Direction::forward && item.partial != kNoBuffer &&
           plan.buffer(item.partial).kind == BufferKind::stats;
  });
  if (own.size() < 2 || !are_scales) return false;
  writer.rank(focus_rank, true)
      .say(fmt::format(" scales its results to the {} lse that have arrived, one after the other.",
                       own.size()));
  return true;
}

void tell_merges(CaptionWriter& writer, const StageRef& stage, int32_t focus_rank) {
  if (tell_scales(writer, stage, focus_rank)) return;
  const auto& merges = writer.index().pass(stage.direction).merges;
  const std::vector<int64_t> own = writer.index().items_of(stage, focus_rank);
  if (own.empty()) writer.rank(focus_rank, true).say(" has nothing to merge.");
  // One sentence for all merges of one kind.
  struct Kind {
    std::string words;
    const MergeItem *first = nullptr, *last = nullptr;
  };
  const auto describe = [&](const MergeItem& item, const std::string& numbers) {
    return stage.direction == Direction::backward
               ? describe_backward_merge(writer.plan(), item, numbers)
               : describe_forward_merge(writer.plan(), item, numbers);
  };
  std::vector<Kind> kinds;
  for (const int64_t i : own) {
    const MergeItem& item = merges[static_cast<size_t>(i)];
    const std::string words = describe(item, "");
    const auto known = std::find_if(kinds.begin(), kinds.end(),
                                    [&](const Kind& kind) { return kind.words == words; });
    if (known == kinds.end())
      kinds.push_back({words, &item, &item});
    else
      known->last = &item;
  }
  for (const Kind& kind : kinds) {
    if (&kind != &kinds.front()) writer.say(" ");
    const int32_t from = kind.first->order + 1, to = kind.last->order + 1;
    writer.rank(focus_rank, true)
        .say(describe(*kind.first, from == to ? fmt::format("number {}", from)
                                              : fmt::format("numbers {} to {}", from, to)));
  }
}

void tell_finishes(CaptionWriter& writer, const StageRef& stage, int32_t focus_rank) {
  tell_each(writer, stage, focus_rank, writer.index().pass(stage.direction).finishes,
            " has nothing to finish.", [&](const FinishItem& item) {
              const BufferSpec& buffer = writer.plan().buffer(item.buffer);
              writer.say(fmt::format(" finishes {} of {}: {}.", count_text(buffer.rows, "row"),
                                     name_rows(buffer.kind), describe_finish(writer.plan(), item)));
            });
}

void tell_stage(CaptionWriter& writer, const StageRef& stage, int32_t focus_rank) {
  switch (stage.kind) {
    case StageKind::transfer:
      return tell_transfers(writer, stage, focus_rank);
    case StageKind::reorder:
      return tell_reorders(writer, stage, focus_rank);
    case StageKind::compute:
      return tell_computes(writer, stage, focus_rank);
    case StageKind::merge:
      return tell_merges(writer, stage, focus_rank);
    case StageKind::finish:
      return tell_finishes(writer, stage, focus_rank);
  }
}

}  // namespace

Spans make_caption(const PlanIndex& plan, Moment moment, int32_t focus_rank) {
  CaptionWriter writer(plan);
  tell_headline(writer, moment);
  for (int32_t s = moment.first_stage; s < moment.end_stage; ++s) {
    writer.say(" ");
    tell_stage(writer, plan.stages()[static_cast<size_t>(s)], focus_rank);
  }
  return writer.take();
}

const Spans& CaptionMemo::find(const SharedPlan& plan, Moment moment, int32_t focus_rank) {
  if (plan != plan_ || moment != moment_ || focus_rank != focus_rank_) {
    caption_ = make_caption(*plan, moment, focus_rank);
    plan_ = plan;
    moment_ = moment;
    focus_rank_ = focus_rank;
  }
  return caption_;
}

std::string to_text(const Spans& spans) {
  std::string text;
  for (const Span& span : spans) text += span.text;
  return text;
}

}  // namespace cpscope::gui
