#pragma once

#include "gui/app/app_state.h"

namespace cpscope::gui {

/// More tokens than this are not moved by hand: their order would be a file of many megabytes.
inline constexpr int64_t kMostMovedTokens = 1 << 18;

/// Gives tokens to a rank: the layout becomes an order of its own ("indices"), in which each rank
/// holds what it held, ascending. Keys move with queries under self attention. One change for undo.
/// Returns false, with a message, when the plan is too large or has groups of ranks.
bool move_tokens(AppState& state, const TokenRange& tokens, int32_t rank);

}  // namespace cpscope::gui
