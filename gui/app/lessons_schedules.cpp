#include "gui/app/command.h"
#include "gui/app/lesson_parts.h"
#include "gui/app/lesson_questions.h"
#include "gui/app/lesson_words.h"

#include <algorithm>

// Lessons of schedules in which queries or partial results travel, of the backward, and of what
// changes the bytes: grouped heads, packed documents, 8-bit numbers.

namespace cpscope::gui {
namespace {

void begin_anew(AppState& state) {
  state.playhead = {};
  select(state, Target{});
}

bool is_forward_over(const AppState& state) {
  const auto step = static_cast<size_t>(step_of(*state.plan(), state.playhead));
  return state.plan()->steps()[step].direction == Direction::backward;
}

/// True if partial results travel in the stages under the playhead.
bool sends_partials(const AppState& state) {
  const Moment moment = moment_of(*state.plan(), state.playhead);
  const auto stages = state.plan()->stages();
  for (int32_t s = moment.first_stage; s < moment.end_stage; ++s) {
    const StageRef& stage = stages[static_cast<size_t>(s)];
    if (stage.kind != StageKind::transfer) continue;
    const auto& items = state.plan()->pass(stage.direction).transfers;
    if (std::any_of(items.begin() + stage.begin, items.begin() + stage.end,
                    [](const TransferItem& item) { return item.payload == Payload::partial; }))
      return true;
  }
  return false;
}

void set_mesh_queries(AppState& state, int32_t mesh_q) {
  Scenario scenario = state.document.scenario();
  scenario.parallel.mesh_q = mesh_q;
  edit_scenario(state, std::move(scenario), "parallel.mesh_q");
  settle(state);
}

void set_kv_heads(AppState& state, int32_t kv_heads) {
  Scenario scenario = state.document.scenario();
  scenario.attention.kv_heads = kv_heads;
  edit_scenario(state, std::move(scenario), "attention.kv_heads");
  settle(state);
}

bool has_one_kv_head(const AppState& state) {
  return state.document.is_current() && state.document.scenario().attention.kv_heads == 1;
}

bool has_one_row_of_tiles(const AppState& state) {
  return state.document.is_current() && state.document.scenario().parallel.mesh_q == 1;
}

}  // namespace

Lesson lesson_few_queries() {
  return {"Few queries, many keys",
          "When is it cheaper to send queries than keys?",
          {{.scenario = "pass_q",
            .prepare = begin_anew,
            .view = ViewKind::traffic,
            .text = words::queries_travel,
            .ask = "Click a link: which rows travel?",
            .is_done = has_link,
            .perform =
                [](AppState& s) {
                  select(s, LinkTarget{0, 1});
                }},
           {.scenario = "pass_q",
            .prepare = begin_anew,
            .view = ViewKind::layout,
            .text = words::ask_bytes_of_queries,
            .question = &kBytesOfQueries},
           {.scenario = "pass_q", .view = ViewKind::numbers, .text = words::queries_or_keys}}};
}

Lesson lesson_two_directions() {
  return {"Queries one way, results the other",
          "What does a link carry while the next tile is computed?",
          {{.scenario = "token_ring",
            .prepare = begin_anew,
            .view = ViewKind::traffic,
            .text = words::queries_go_down,
            .ask = "Press Right until a partial result is on its way",
            .is_done = sends_partials,
            .perform = [](AppState& s) { press_right_until(s, sends_partials); }},
           {.scenario = "token_ring",
            .prepare = begin_anew,
            .view = ViewKind::layout,
            .text = words::ask_receivers_of_partials,
            .question = &kReceiversOfPartials},
           {.scenario = "token_ring", .view = ViewKind::mask, .text = words::one_chunk_goes_on}}};
}

Lesson lesson_helpers() {
  return {"Ranks that help",
          "Who computes for whom when a rank has no key left to see?",
          {{.scenario = "helper_ring",
            .prepare = begin_anew,
            .view = ViewKind::balance,
            .text = words::helpers_take_queries,
            .ask = "Press Right until the last step of the forward",
            .is_done = is_in_last_forward_step,
            .perform = [](AppState& s) { press_right_until(s, is_in_last_forward_step); }},
           {.scenario = "helper_ring",
            .prepare = begin_anew,
            .view = ViewKind::layout,
            .text = words::ask_helping_ranks,
            .question = &kHelpingRanks},
           {.scenario = "helper_ring", .view = ViewKind::traffic, .text = words::helpers_return}}};
}

Lesson lesson_mesh() {
  return {"A tile of queries and keys on every rank",
          "How many bytes does a mesh of ranks save, and which mesh saves most?",
          {{.scenario = "mesh",
            .prepare = begin_anew,
            .view = ViewKind::traffic,
            .text = words::tiles_of_ranks,
            .ask = "Set mesh_q to one: no query travels",
            .is_done = has_one_row_of_tiles,
            .perform = [](AppState& s) { set_mesh_queries(s, 1); }},
           {.scenario = "mesh",
            .prepare = begin_anew,
            .view = ViewKind::traffic,
            .text = words::ask_senders_of_queries,
            .question = &kSendersOfQueries},
           {.scenario = "mesh", .view = ViewKind::numbers, .text = words::every_mesh}}};
}

Lesson lesson_double_ring() {
  return {"Rings inside hosts, and a ring of hosts",
          "Which hop crosses the hosts, and what hides it?",
          {{.scenario = "double_ring",
            .prepare = begin_anew,
            .view = ViewKind::traffic,
            .text = words::rings_of_rings,
            .ask = "Click a link: inside a host, or between two?",
            .is_done = has_link,
            .perform =
                [](AppState& s) {
                  select(s, LinkTarget{0, 1});
                }},
           {.scenario = "double_ring",
            .prepare = begin_anew,
            .view = ViewKind::layout,
            .text = words::ask_hops_between_hosts,
            .question = &kHopsBetweenHosts},
           {.scenario = "double_ring", .view = ViewKind::timeline, .text = words::hop_of_hosts}}};
}

Lesson lesson_backward() {
  return {"The way back",
          "What does the backward send that the forward does not?",
          {{.scenario = "zigzag",
            .prepare = begin_anew,
            .view = ViewKind::traffic,
            .text = words::forward_sends_keys,
            .ask = "Press Right until the backward begins",
            .is_done = is_forward_over,
            .perform = [](AppState& s) { press_right_until(s, is_forward_over); }},
           {.scenario = "zigzag",
            .prepare = begin_anew,
            .view = ViewKind::layout,
            .text = words::ask_bytes_backward,
            .question = &kBytesBackward},
           {.scenario = "zigzag",
            .prepare = [](AppState& s) { press_right_until(s, is_forward_over); },
            .view = ViewKind::traffic,
            .text = words::gradients_travel}}};
}

Lesson lesson_grouped_heads() {
  return {"Grouped heads, and one latent row",
          "Which heads travel, and what does a token cost on the wire?",
          {{.scenario = "pass_q",
            .change = [](Scenario& s) { s.parallel.comm_type = CommType::p2p; },
            .prepare = begin_anew,
            .view = ViewKind::numbers,
            .text = words::kv_heads_travel,
            .ask = "Set kv_heads to one: all query heads read it",
            .is_done = has_one_kv_head,
            .perform = [](AppState& s) { set_kv_heads(s, 1); }},
           {.scenario = "pass_q",
            .change = [](Scenario& s) { s.parallel.comm_type = CommType::p2p; },
            .prepare = begin_anew,
            .view = ViewKind::layout,
            .text = words::ask_heads_for_a_kv_head,
            .question = &kHeadsForAKvHead},
           {.scenario = "latent_mla", .view = ViewKind::traffic, .text = words::latent_travels}}};
}

Lesson lesson_packed() {
  return {
      "Packed documents",
      "Why is a balanced ring still slow?",
      {{.scenario = "one_long_many_short",
        .prepare = begin_anew,
        .view = ViewKind::mask,
        .text = words::documents_are_apart,
        .ask = "Press Right until the last step of the forward",
        .is_done = is_in_last_forward_step,
        .perform = [](AppState& s) { press_right_until(s, is_in_last_forward_step); }},
       {.scenario = "one_long_many_short",
        .prepare = begin_anew,
        .view = ViewKind::layout,
        .text = words::ask_slowest_rank,
        .question = &kSlowestRank},
       {.scenario = "one_long_many_short", .view = ViewKind::balance, .text = words::steps_wait}}};
}

Lesson lesson_fp8() {
  return {"Numbers of one byte",
          "Why must ranks agree on a scale, and when does a weight get lost?",
          {{.scenario = "fp8_ring",
            .prepare = begin_anew,
            .view = ViewKind::traffic,
            .text = words::one_scale,
            .ask = "Click a link: one byte an element",
            .is_done = has_link,
            .perform =
                [](AppState& s) {
                  select(s, LinkTarget{0, 1});
                }},
           {.scenario = "fp8_ring",
            .prepare = begin_anew,
            .view = ViewKind::layout,
            .text = words::ask_percent_of_bf16,
            .question = &kPercentOfBf16},
           {.scenario = "fp8_even_row", .view = ViewKind::numbers, .text = words::even_row}}};
}

}  // namespace cpscope::gui
