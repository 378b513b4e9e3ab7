#pragma once

#include "gui/app/app_state.h"
#include "gui/app/caption/caption.h"

namespace cpscope::gui::words {

// The text of the lesson pages, one function a page. Every number comes from the open plan or run.

Spans tokens_are_split(const AppState& state);
Spans pairs_cross_ranks(const AppState& state);

Spans first_step_is_even(const AppState& state);
Spans later_steps_idle(const AppState& state);
Spans idle_costs(const AppState& state);

Spans zigzag_chunks(const AppState& state);
Spans zigzag_balance(const AppState& state);
Spans zigzag_undone(const AppState& state);

Spans stripes(const AppState& state);
Spans stripe_tiles(const AppState& state);

Spans ring_moves(const AppState& state);
Spans all_gather_moves(const AppState& state);
Spans all_to_all_moves(const AppState& state);
Spans group_cast_moves(const AppState& state);

Spans rows_arrive_by_rank(const AppState& state);
Spans rows_in_sequence(const AppState& state);
Spans rows_go_back(const AppState& state);

Spans padding_fills_slots(const AppState& state);
Spans padding_is_unseen(const AppState& state);
Spans padding_by_rank(const AppState& state);

Spans parts_begin(const AppState& state);
Spans parts_merge(const AppState& state);
Spans parts_finish(const AppState& state);

Spans run_something(const AppState& state);
Spans error_map(const AppState& state);
Spans error_of_lse(const AppState& state);

Spans window_on_ring(const AppState& state);
Spans window_apart(const AppState& state);
Spans window_contiguous(const AppState& state);
Spans chunks_on_ring(const AppState& state);

}  // namespace cpscope::gui::words
