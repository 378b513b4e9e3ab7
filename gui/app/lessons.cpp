#include "gui/app/command.h"
#include "gui/app/lesson.h"
#include "gui/app/lesson_faults.h"
#include "gui/app/lesson_parts.h"
#include "gui/app/lesson_questions.h"
#include "gui/app/lesson_words.h"
#include "sim/plan/round_steps.h"

#include <algorithm>
#include <utility>

// The lessons as data: what is opened, what the reader should do, and how the window detects it.

namespace cpscope::gui {

void press_right(AppState& state) { apply_command(state, "step.next"); }
void press_right_until(AppState& state, bool (*is_there)(const AppState&)) {
  const int32_t places = count_places(*state.plan(), state.playhead.is_by_stage);
  for (int32_t i = 0; i < places && !is_there(state); ++i) press_right(state);
}

bool is_in_last_forward_step(const AppState& state) {
  return step_of(*state.plan(), state.playhead) + 1 ==
         state.plan()->pass(Direction::forward).num_steps;
}

bool has_link(const AppState& state) {
  return std::holds_alternative<LinkTarget>(state.selected());
}
void select_first_link(AppState& state) { select(state, LinkTarget{0, 1}); }

namespace {

/// Moves the playhead to the first stage of a kind at or after `from`; leaves it if there is none.
void seek_kind(AppState& state, StageKind kind, int32_t from) {
  const auto stages = state.plan()->stages();
  for (auto s = static_cast<size_t>(from); s < stages.size(); ++s) {
    if (stages[s].kind != kind) continue;
    state.playhead = {true, static_cast<int32_t>(s), 1.0};
    return;
  }
}

bool stands_on(const AppState& state, StageKind kind) {
  return state.playhead.is_by_stage &&
         state.plan()->stages()[static_cast<size_t>(state.playhead.index)].kind == kind;
}

void go_to_begin(AppState& state) { state.playhead = {}; }
void go_to_begin_unselected(AppState& state) {
  state.playhead = {};
  select(state, Target{});
}
void go_to_first_stage(AppState& state) { state.playhead = {true, 0, 1.0}; }
void clear_selection(AppState& state) { select(state, Target{}); }

/// Moves the focus to a rank with repeated "next rank" commands, like the keyboard does.
void turn_to_rank(AppState& state, int32_t rank) {
  for (int32_t i = 0; i < state.plan()->num_ranks() && state.focus_rank != rank; ++i)
    apply_command(state, "rank.next");
}

bool has_rank(const AppState& state) {
  return std::holds_alternative<RankTarget>(state.selected());
}
bool owns_first_token(const AppState& state) {
  const auto* rank = std::get_if<RankTarget>(&state.selected());
  return rank != nullptr && state.plan()->owner(Side::q, 0).rank == rank->rank;
}

/// The first range of padding on the query side; Nothing if there is no padding.
Target first_padding(const PlanIndex& plan) {
  for (const SequenceSlot& s : plan.plan().layout.slots.sequences) {
    const SlotSide ids = s.side(Side::q);
    if (ids.front > 0) return TokenRange{Side::q, ids.begin, ids.valid_begin()};
    if (ids.valid < ids.slot) return TokenRange{Side::q, ids.valid_end(), ids.end()};
  }
  return {};
}

bool has_padding_selected(const AppState& state) {
  const auto* tokens = std::get_if<TokenRange>(&state.selected());
  if (tokens == nullptr) return false;
  for (int64_t id = tokens->begin; id < tokens->end; ++id) {
    if (state.plan()->is_valid(tokens->side, id)) return false;
  }
  return true;
}

void set_layout(AppState& state, LayoutKind layout) {
  Scenario scenario = state.document.scenario();
  scenario.parallel.layout = layout;
  edit_scenario(state, std::move(scenario), "parallel.layout");
  settle(state);
}

bool is_contiguous(const AppState& state) {
  return state.document.is_current() &&
         state.document.scenario().parallel.layout == LayoutKind::contiguous;
}

void use_bf16(Scenario& scenario) { scenario.numerics.dtype = Dtype::bf16; }
void use_contiguous(Scenario& scenario) { scenario.parallel.layout = LayoutKind::contiguous; }
void use_comm_type(Scenario& scenario, CommType type) { scenario.parallel.comm_type = type; }

Lesson lesson_split() {
  return {"What is split",
          "What does a rank hold, and what does attention need?",
          {{.scenario = "contiguous_idle",
            .prepare = clear_selection,
            .view = ViewKind::layout,
            .text = words::tokens_are_split,
            .ask = "Click a rank in the layout",
            .is_done = has_rank,
            .perform = [](AppState& s) { select(s, RankTarget{}); }},
           {.scenario = "contiguous_idle",
            .prepare = clear_selection,
            .view = ViewKind::mask,
            .text = words::ask_local_pairs,
            .question = &kLocalPairs},
           {.scenario = "contiguous_idle",
            .view = ViewKind::layout,
            .text = words::pairs_cross_ranks,
            .ask = "Focus the mask view: menu View, Mask",
            .is_done = [](const AppState& s) { return s.focus_view == ViewKind::mask; },
            .perform = [](AppState& s) { apply_command(s, "view.focus.mask"); }}}};
}

Lesson lesson_idle() {
  return {"Why contiguous idles",
          "Which ranks wait, and in which step?",
          {{.scenario = "contiguous_idle",
            .prepare = go_to_begin,
            .view = ViewKind::mask,
            .text = words::first_step_is_even,
            .ask = "Press Right: the next step",
            .is_done = [](const AppState& s) { return step_of(*s.plan(), s.playhead) > 0; },
            .perform = press_right},
           {.scenario = "contiguous_idle",
            .prepare = [](AppState& s) { s.playhead = seek_step(*s.plan(), {}, 1); },
            .view = ViewKind::timeline,
            .text = words::later_steps_idle,
            .ask = "Press Right until the last step of the forward",
            .is_done = is_in_last_forward_step,
            .perform = [](AppState& s) { press_right_until(s, is_in_last_forward_step); }},
           {.scenario = "contiguous_idle",
            .prepare = go_to_begin_unselected,
            .view = ViewKind::layout,
            .text = words::ask_idle_ranks,
            .question = &kIdleRanks},
           {.scenario = "contiguous_idle",
            .prepare = [](AppState& s) { s.focus_rank = s.plan()->num_ranks() - 1; },
            .view = ViewKind::balance,
            .text = words::idle_costs,
            .ask = "Look at the first rank with the keys [ and ]",
            .is_done = [](const AppState& s) { return s.focus_rank == 0; },
            .perform = [](AppState& s) { turn_to_rank(s, 0); }}}};
}

Lesson lesson_zigzag() {
  return {
      "Zigzag: two chunks a rank",
      "How does one cut make every rank and every step equal?",
      {{.scenario = "zigzag",
        .prepare = clear_selection,
        .view = ViewKind::layout,
        .text = words::zigzag_chunks,
        .ask = "Click the rank that owns the first token",
        .is_done = owns_first_token,
        .perform = [](AppState& s) { select(s, RankTarget{s.plan()->owner(Side::q, 0).rank}); }},
       {.scenario = "zigzag",
        .prepare = go_to_begin,
        .view = ViewKind::balance,
        .text = words::zigzag_balance,
        .ask = "Press Right until the last step of the forward",
        .is_done = is_in_last_forward_step,
        .perform = [](AppState& s) { press_right_until(s, is_in_last_forward_step); }},
       {.scenario = "zigzag",
        .view = ViewKind::mask,
        .text = words::ask_contiguous_balance,
        .question = &kContiguousBalance},
       {.scenario = "zigzag",
        .view = ViewKind::balance,
        .text = words::zigzag_undone,
        .ask = "Set the layout to contiguous and watch the bars",
        .is_done = is_contiguous,
        .perform = [](AppState& s) { set_layout(s, LayoutKind::contiguous); }}}};
}

Lesson lesson_striped() {
  return {"Striped: tokens assigned round-robin",
          "What do stripes cost that zigzag does not?",
          {{.scenario = "striped",
            .prepare = clear_selection,
            .view = ViewKind::layout,
            .text = words::stripes,
            .ask = "Click a rank and see its comb",
            .is_done = has_rank,
            .perform = [](AppState& s) { select(s, RankTarget{1}); }},
           {.scenario = "striped",
            .prepare = clear_selection,
            .view = ViewKind::layout,
            .text = words::ask_striped_owner,
            .question = &kStripedOwner},
           {.scenario = "striped",
            .prepare = go_to_begin,
            .view = ViewKind::mask,
            .text = words::stripe_tiles,
            .ask = "Press Right and see the triangle of the next step",
            .is_done = [](const AppState& s) { return step_of(*s.plan(), s.playhead) > 0; },
            .perform = press_right}}};
}

Lesson lesson_moves() {
  return {"What moves",
          "Ring, all-gather, all-to-all, group-cast: which bytes, when, and who needs them?",
          {{.scenario = "zigzag",
            .prepare = clear_selection,
            .view = ViewKind::traffic,
            .text = words::ring_moves,
            .ask = "Click a link in the traffic",
            .is_done = has_link,
            .perform = select_first_link},
           {.scenario = "zigzag",
            .change = [](Scenario& s) { use_comm_type(s, CommType::all_gather); },
            .prepare = clear_selection,
            .view = ViewKind::traffic,
            .text = words::all_gather_moves,
            .ask = "Click a link: now every rank has one to every other",
            .is_done = has_link,
            .perform = select_first_link},
           {.scenario = "zigzag",
            .change = [](Scenario& s) { use_comm_type(s, CommType::a2a); },
            .prepare = clear_selection,
            .view = ViewKind::layout,
            .text = words::ask_bytes_of_heads,
            .question = &kBytesOfHeads},
           {.scenario = "zigzag",
            .change = [](Scenario& s) { use_comm_type(s, CommType::a2a); },
            .prepare = [](AppState& s) { s.is_cumulative = false; },
            .view = ViewKind::traffic,
            .text = words::all_to_all_moves,
            .ask = "Press C: bytes since the beginning",
            .is_done = [](const AppState& s) { return s.is_cumulative; },
            .perform = [](AppState& s) { apply_command(s, "traffic.cumulative"); }},
           {.scenario = "zigzag",
            .change = [](Scenario& s) { use_comm_type(s, CommType::group_cast); },
            .prepare = clear_selection,
            .view = ViewKind::traffic,
            .text = words::group_cast_moves,
            .ask = "Click a link and see which rows travel",
            .is_done = has_link,
            .perform = select_first_link}}};
}

Lesson lesson_reorders() {
  const auto is_after_compute = [](const AppState& s) {
    if (!stands_on(s, StageKind::reorder)) return false;
    for (int32_t i = 0; i < s.playhead.index; ++i) {
      if (s.plan()->stages()[static_cast<size_t>(i)].kind == StageKind::compute) return true;
    }
    return false;
  };
  return {"The two reorders of all-to-all",
          "Why do rows change places before and after attention?",
          {{.scenario = "thd_padding_a2a",
            .prepare = go_to_first_stage,
            .view = ViewKind::layout,
            .text = words::rows_arrive_by_rank,
            .ask = "Press Right: the first reorder",
            .is_done = [](const AppState& s) { return stands_on(s, StageKind::reorder); },
            .perform = press_right},
           {.scenario = "thd_padding_a2a",
            .prepare = [](AppState& s) { seek_kind(s, StageKind::reorder, 0); },
            .view = ViewKind::layout,
            .text = words::rows_in_sequence,
            .ask = "Press Right until the second reorder",
            .is_done = is_after_compute,
            .perform =
                [](AppState& s) {
                  press_right(s);
                  press_right_until(
                      s, [](const AppState& t) { return stands_on(t, StageKind::reorder); });
                }},
           {.scenario = "thd_padding_a2a",
            .view = ViewKind::mask,
            .text = words::ask_heads_of_rank,
            .question = &kHeadsOfRank},
           {.scenario = "thd_padding_a2a", .view = ViewKind::layout, .text = words::rows_go_back}}};
}

Lesson lesson_padding() {
  return {"Padding between sequences",
          "Which rows does no token own, and what may they hold?",
          {{.scenario = "thd_padding_p2p",
            .prepare = clear_selection,
            .view = ViewKind::layout,
            .text = words::padding_fills_slots,
            .ask = "Select padding: click the word above or Shift-drag over it in the layout",
            .is_done = has_padding_selected,
            .perform = [](AppState& s) { select(s, first_padding(*s.plan())); }},
           {.scenario = "thd_padding_p2p",
            .commands = {"view.frame"},
            .select = first_padding,
            .view = ViewKind::layout,
            .text = words::padding_is_unseen,
            .ask = "Focus the mask view: no slice covers the selection",
            .is_done = [](const AppState& s) { return s.focus_view == ViewKind::mask; },
            .perform = [](AppState& s) { apply_command(s, "view.focus.mask"); }},
           {.scenario = "thd_padding_p2p",
            .prepare = clear_selection,
            .view = ViewKind::layout,
            .text = words::ask_padding_of_rank,
            .question = &kPaddingOfRank},
           {.scenario = "thd_padding_p2p",
            .prepare = [](AppState& s) { s.focus_rank = 0; },
            .view = ViewKind::layout,
            .text = words::padding_by_rank,
            .ask = "Look at the next rank with the key ]",
            .is_done = [](const AppState& s) { return s.focus_rank > 0; },
            .perform = [](AppState& s) { apply_command(s, "rank.next"); }}}};
}

Lesson lesson_merging() {
  return {
      "Merging partial results",
      "How do parts of a softmax become one, without losing accuracy?",
      {{.scenario = "zigzag",
        .change = use_bf16,
        .prepare = [](AppState& s) { seek_kind(s, StageKind::compute, 0); },
        .view = ViewKind::timeline,
        .text = words::parts_begin,
        .ask = "Press Right: the merge",
        .is_done = [](const AppState& s) { return stands_on(s, StageKind::merge); },
        .perform = press_right},
       {.scenario = "zigzag",
        .change = use_bf16,
        .view = ViewKind::layout,
        .text = words::ask_merges,
        .question = &kMerges},
       {.scenario = "zigzag",
        .change = use_bf16,
        .prepare =
            [](AppState& s) { seek_kind(s, StageKind::merge, s.plan()->steps()[1].first_stage); },
        .view = ViewKind::timeline,
        .text = words::parts_merge,
        .ask = "Press Right until the results are finished",
        .is_done = [](const AppState& s) { return stands_on(s, StageKind::finish); },
        .perform =
            [](AppState& s) {
              press_right_until(s,
                                [](const AppState& t) { return stands_on(t, StageKind::finish); });
            }},
       {.scenario = "zigzag",
        .change = use_bf16,
        .view = ViewKind::timeline,
        .text = words::parts_finish}}};
}

Lesson lesson_errors() {
  const auto forget = [](AppState& s) {
    s.run_a = nullptr;
    s.run_a_plan = nullptr;
    s.tensor = 0;
  };
  const auto has_run = [](const AppState& s) {
    return view_input(s, ViewKind::numbers).run_a != nullptr;
  };
  return {"Reading an error map",
          "Is it rounding, or is it a bug, and where?",
          {{.scenario = "zigzag",
            .change = use_bf16,
            .prepare = forget,
            .view = ViewKind::numbers,
            .text = words::run_something,
            .ask = "Run the plan: menu Run, Run on cpu",
            .is_done = has_run,
            .perform = [](AppState& s) { apply_command(s, "run.cpu"); }},
           {.scenario = "zigzag",
            .change = use_bf16,
            .prepare = [](AppState& s) { s.tensor = 0; },
            .view = ViewKind::numbers,
            .text = words::error_map,
            .ask = "Press T: the next tensor",
            .is_done = [](const AppState& s) { return s.tensor > 0; },
            .perform = [](AppState& s) { apply_command(s, "numbers.tensor"); }},
           {.scenario = "zigzag",
            .change = use_bf16,
            .view = ViewKind::numbers,
            .text = words::error_of_lse}}};
}

Lesson lesson_windows() {
  return {"Windows and chunks on a ring",
          "How much of a ring's work and traffic does a narrow mask leave?",
          {{.scenario = "swa_thd_ring",
            .prepare = go_to_begin,
            .view = ViewKind::mask,
            .text = words::window_on_ring,
            .ask = "Press Right: little is left to compute",
            .is_done = [](const AppState& s) { return step_of(*s.plan(), s.playhead) > 0; },
            .perform = press_right},
           {.scenario = "swa_thd_ring",
            .view = ViewKind::mask,
            .text = words::window_apart,
            .ask = "Set the layout to contiguous and compare the figures",
            .is_done = is_contiguous,
            .perform = [](AppState& s) { set_layout(s, LayoutKind::contiguous); }},
           {.scenario = "swa_thd_ring",
            .change = use_contiguous,
            .view = ViewKind::mask,
            .text = words::window_contiguous},
           {.scenario = "chunked_thd_p2p",
            .prepare = go_to_begin,
            .view = ViewKind::mask,
            .text = words::ask_bytes_needed,
            .question = &kBytesNeeded},
           {.scenario = "chunked_thd_p2p",
            .prepare = go_to_begin,
            .view = ViewKind::mask,
            .text = words::chunks_on_ring,
            .ask = "Press Right: only tiles across a cut remain",
            .is_done = [](const AppState& s) { return step_of(*s.plan(), s.playhead) > 0; },
            .perform = press_right}}};
}

/// The round of cp_sizes at the playhead; 0 without rounds.
int32_t round_at(const AppState& state) {
  const std::vector<int32_t> rounds = rounds_of_steps(state.plan()->plan(), Direction::forward);
  const auto step = static_cast<size_t>(step_of(*state.plan(), state.playhead));
  return step < rounds.size() ? rounds[step] : 0;
}
bool is_in_a_later_round(const AppState& state) { return round_at(state) > 0; }

/// A rank that has no other rank in its group of the last round.
bool has_lone_rank(const AppState& state) {
  const auto* rank = std::get_if<RankTarget>(&state.selected());
  const std::vector<CpRound>& rounds = state.plan()->plan().layout.rounds;
  return rank != nullptr && !rounds.empty() &&
         std::any_of(rounds.back().groups.begin(), rounds.back().groups.end(),
                     [&](const CpGroup& group) {
                       return group.size == 1 && group.first_rank == rank->rank;
                     });
}

void select_lone_rank(AppState& state) {
  for (int32_t rank = 0; rank < state.plan()->num_ranks() && !has_lone_rank(state); ++rank)
    select(state, RankTarget{rank});
}

Lesson lesson_rounds() {
  return {"A CP size for each document",
          "Does it pay to cut short documents as finely as long ones?",
          {{.scenario = "hybrid_sizes",
            .prepare = go_to_begin,
            .view = ViewKind::layout,
            .text = words::sizes_follow_lengths,
            .ask = "Press Right until the second round",
            .is_done = is_in_a_later_round,
            .perform = [](AppState& s) { press_right_until(s, is_in_a_later_round); }},
           {.scenario = "hybrid_sizes",
            .prepare =
                [](AppState& s) {
                  go_to_begin(s);
                  press_right_until(s, is_in_a_later_round);
                  clear_selection(s);
                },
            .view = ViewKind::traffic,
            .text = words::groups_work_alone,
            .ask = "Click a rank that sends nothing",
            .is_done = has_lone_rank,
            .perform = select_lone_rank},
           {.scenario = "hybrid_sizes",
            .prepare = go_to_begin,
            .view = ViewKind::layout,
            .text = words::ask_ranks_of_document,
            .question = &kRanksOfDocument},
           {.scenario = "hybrid_sizes", .view = ViewKind::balance, .text = words::rounds_wait}}};
}

Lesson lesson_decoder() {
  return {
      "A decoder with its keys on many ranks",
      "What travels, which keys may a draft see, and how are results merged?",
      {{.scenario = "decode_drafts",
        .prepare = go_to_begin,
        .view = ViewKind::traffic,
        .text = words::decoder_sends,
        .ask = "Focus the mask view: menu View, Mask",
        .is_done = [](const AppState& s) { return s.focus_view == ViewKind::mask; },
        .perform = [](AppState& s) { apply_command(s, "view.focus.mask"); }},
       {.scenario = "decode_drafts",
        .view = ViewKind::mask,
        .text = words::ask_keys_of_draft,
        .question = &kKeysOfDraft},
       {.scenario = "decode_drafts", .view = ViewKind::mask, .text = words::drafts_see},
       {.scenario = "decode_drafts", .view = ViewKind::numbers, .text = words::lse_of_base_two}}};
}

}  // namespace

std::span<const Lesson> all_lessons() {
  static const std::vector<Lesson> kLessons = {
      lesson_split(),          lesson_idle(),    lesson_zigzag(),
      lesson_striped(),        lesson_moves(),   lesson_reorders(),
      lesson_padding(),        lesson_merging(), lesson_errors(),
      lesson_windows(),        lesson_rounds(),  lesson_decoder(),
      lesson_backward(),       lesson_overlap(), lesson_memory(),
      lesson_grouped_heads(),  lesson_packed(),  lesson_few_queries(),
      lesson_two_directions(), lesson_helpers(), lesson_mesh(),
      lesson_double_ring(),    lesson_fp8(),     lesson_faults()};
  return kLessons;
}

}  // namespace cpscope::gui
