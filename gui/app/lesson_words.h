#pragma once

#include "gui/app/lesson.h"

namespace cpscope::gui::words {

// The text of the lesson pages, one function a page. Every number comes from the open plan or run.

PageText tokens_are_split, pairs_cross_ranks;
PageText first_step_is_even, later_steps_idle, idle_costs;
PageText zigzag_chunks, zigzag_balance, zigzag_undone;
PageText stripes, stripe_tiles;
PageText ring_moves, all_gather_moves, all_to_all_moves, group_cast_moves;
PageText rows_arrive_by_rank, rows_in_sequence, rows_go_back;
PageText padding_fills_slots, padding_is_unseen, padding_by_rank;
PageText parts_begin, parts_merge, parts_finish;
PageText run_something, error_map, error_of_lse;
PageText sizes_follow_lengths, groups_work_alone, rounds_wait;
PageText decoder_sends, drafts_see, lse_of_base_two;
PageText queries_travel, queries_or_keys, queries_go_down, one_chunk_goes_on;
PageText helpers_take_queries, helpers_return, tiles_of_ranks, every_mesh;
PageText rings_of_rings, hop_of_hosts, forward_sends_keys, gradients_travel;
PageText kv_heads_travel, latent_travels, documents_are_apart, steps_wait;
PageText one_scale, even_row;
PageText window_on_ring, window_apart, window_contiguous, chunks_on_ring;

}  // namespace cpscope::gui::words
