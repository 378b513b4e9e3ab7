#include "gui/app/caption/caption.h"

#include "gui/app/caption/caption_writer.h"
#include "gui/model/axis.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

std::string_view describe_comm_type(CommType type) {
  switch (type) {
    case CommType::p2p:
      return "ring";
    case CommType::a2a:
      return "all-to-all";
    case CommType::all_gather:
      return "all-gather";
    case CommType::a2a_p2p:
      return "all-to-all and ring";
    case CommType::group_cast:
      return "group-cast";
  }
  return "";
}

void tell_headline(CaptionWriter& writer, Moment moment) {
  const PlanIndex& index = writer.index();
  const int32_t number = index.step_of_stage(moment.first_stage);
  const StepRef& step = index.steps()[static_cast<size_t>(number)];
  const bool is_whole = moment == index.moment_of_step(number);
  std::string words = fmt::format("Step {} of {}, {}, {}", step.step + 1,
                                  index.pass(step.direction).num_steps, to_name(step.direction),
                                  describe_comm_type(index.plan().scenario.parallel.comm_type));
  if (!is_whole) {
    const StageRef& stage = index.stages()[static_cast<size_t>(moment.first_stage)];
    words +=
        fmt::format(": {}, stage {} of {}", to_name(stage.kind),
                    moment.first_stage - step.first_stage + 1, step.end_stage - step.first_stage);
  }
  writer.strong(words + ".", StepTarget{number});
}

std::string_view describe_rows(BufferKind kind) {
  switch (kind) {
    case BufferKind::q:
      return "queries";
    case BufferKind::kv:
      return "keys and values";
    case BufferKind::out:
      return "outputs";
    case BufferKind::d_out:
      return "output gradients";
    case BufferKind::dq:
      return "dQ";
    case BufferKind::dkv:
      return "dK and dV";
  }
  return "";
}

/// Writes what the focus rank reorders in this stage, e.g. "queries", "keys and values".
void tell_reorders(CaptionWriter& writer, const StageRef& stage, int32_t focus_rank) {
  const Plan& plan = writer.plan();
  const Pass& pass = writer.index().pass(stage.direction);
  bool begins = true;
  for (const int64_t i : writer.index().items_of(stage, focus_rank)) {
    const ReorderItem& item = pass.reorders[static_cast<size_t>(i)];
    const BufferSpec& to = plan.buffer(item.to);
    const auto runs = static_cast<int64_t>(plan.list(item.order).size());
    const bool to_sequence = to.role == BufferRole::sequence_order;
    if (begins && to_sequence)
      writer.say(
          "Rows arrived in rank order, all of one rank and then all of the next; sequence order "
          "makes the mask a plain one again. ");
    if (begins && !to_sequence)
      writer.say(
          "Back to rank order, so that what belongs to one owner lies together and can be sent. ");
    if (!begins) writer.say(" ");
    begins = false;
    writer.rank(focus_rank, true)
        .say(fmt::format(" moves {} of {} in {}.", count_text(plan.rows(item.order), "row"),
                         describe_rows(to.kind), count_text(runs, "run")));
  }
  if (begins) writer.rank(focus_rank, true).say(" reorders nothing.");
}

void tell_forward_merge(CaptionWriter& writer, const MergeItem& item) {
  if (item.partial == kNoBuffer) {
    writer.rank(to_index(item.rank), true)
        .say(" has seen no visible key: its output is 0 and its lse -inf.");
  } else if (item.order == 0) {
    writer.rank(to_index(item.rank), true)
        .say(
            " takes its first partial result as the running result: out and lse of each row and "
            "head.");
  } else {
    writer.rank(to_index(item.rank), true)
        .say(fmt::format(
            " merges its part number {} into the running result: the larger of both maxima becomes "
            "the reference, both sums are rescaled to it, so nothing overflows and no weight is "
            "lost.",
            item.order + 1));
  }
}

void tell_backward_merge(CaptionWriter& writer, const MergeItem& item) {
  const BufferSpec& into = writer.plan().buffer(item.into);
  const bool is_dq = into.kind == BufferKind::dq;
  const bool travels = into.role == BufferRole::ring_a || into.role == BufferRole::ring_b;
  writer.rank(to_index(item.rank), true);
  if (item.partial == kNoBuffer) {
    writer.say(is_dq ? " begins its dQ with 0." : " begins the sum of dK and dV with 0.");
  } else if (is_dq) {
    writer.say(fmt::format(" adds share number {} to its dQ.", item.order + 1));
  } else if (travels) {
    writer.say(" adds its dK and dV to the sum that is passed on with these keys.");
  } else {
    writer.say(into.role == BufferRole::home ? " adds its dK and dV to those of its own keys."
                                             : " adds its dK and dV to its share.");
  }
}

void tell_merges(CaptionWriter& writer, const StageRef& stage, int32_t focus_rank) {
  const Pass& pass = writer.index().pass(stage.direction);
  bool begins = true;
  for (const int64_t i : writer.index().items_of(stage, focus_rank)) {
    const MergeItem& item = pass.merges[static_cast<size_t>(i)];
    if (!begins) writer.say(" ");
    begins = false;
    if (stage.direction == Direction::backward)
      tell_backward_merge(writer, item);
    else
      tell_forward_merge(writer, item);
  }
  if (begins) writer.rank(focus_rank, true).say(" has nothing to merge.");
}

void tell_finishes(CaptionWriter& writer, const StageRef& stage, int32_t focus_rank) {
  const Plan& plan = writer.plan();
  const Pass& pass = writer.index().pass(stage.direction);
  const bool has_sink = plan.scenario.attention.softmax_type != SoftmaxType::vanilla;
  bool begins = true;
  for (const int64_t i : writer.index().items_of(stage, focus_rank)) {
    const FinishItem& item = pass.finishes[static_cast<size_t>(i)];
    const BufferSpec& buffer = plan.buffer(item.buffer);
    if (!begins) writer.say(" ");
    begins = false;
    writer.rank(focus_rank, true)
        .say(fmt::format(" finishes {} of {}: ", count_text(buffer.rows, "row"),
                         describe_rows(buffer.kind)));
    if (buffer.kind == BufferKind::out && has_sink)
      writer.say("the sink enters each row's softmax, once, and ");
    writer.say(fmt::format("sums are rounded to {}.", to_name(plan.scenario.numerics.dtype)));
  }
  if (begins) writer.rank(focus_rank, true).say(" has nothing to finish.");
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
