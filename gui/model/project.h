#pragma once

#include "gui/model/light.h"
#include "gui/model/view.h"

namespace cpscope::gui {

/// Computes what a target touches, from the plan.
///   tokens: the ids, as queries and as keys if both sides have the same owners; their owners; the
///           transfers, reorders, merges and finishes that carry them, the computes with a visible
///           pair of them, and the links and steps of those;
///   pairs:  the computes with a visible pair of the rectangle, their ranks and steps;
///   row:    one token and head of a result, on its own side and in its own pass;
///   rank:   its tokens, its items (sent and received ones, too), their links and steps;
///   link:   both ranks, the transfers over it, their steps, and the rows they carry;
///   item:   its rows (computes: its whole buffers), ranks, link and step;
///   step:   its items, their links, and the ranks that work, send or receive; no tokens, because
///           most steps touch all.
/// Computes without a visible pair touch no token. Exact, except that items beyond
/// Projection::kMostItems are left out, the later ones; then has_more_items is set.
Projection project(const Target& target, const PlanIndex& plan);

}  // namespace cpscope::gui
