#include "gui/app/glossary.h"

#include <array>

namespace cpscope::gui {
namespace {

constexpr std::array kTerms = {
    Term{"answer", "The final tensors of a pass: out and lse, or dq, dk and dv."},
    Term{"band",
         "The pairs of a slice that are visible: keys from lo to hi before or after a query."},
    Term{"budget", "The largest error that rounding in this dtype explains. More is a bug."},
    Term{"chunk", "A range of tokens that one rank owns as a whole."},
    Term{"critical path", "The work of a pass if every step waits for its busiest rank."},
    Term{"focus rank",
         "The rank whose local rows, items and sentences are shown; [ and ] change it."},
    Term{"head_dim", "The number of elements of one row of one head."},
    Term{"item",
         "One entry of the plan: a compute, transfer, reorder, merge or finish of one rank."},
    Term{"KV", "Keys and values, which travel together."},
    Term{"link", "Everything that one rank sends to one other."},
    Term{"lse", "The log of the sum of the weights of a row; partial results are merged by it."},
    Term{"oracle", "Attention of the whole batch in fp64, computed without any plan."},
    Term{"packet",
         "What travels on a link while a step runs: keys, values and queries are round, "
         "gradients square, results hollow; where there is room it has a name."},
    Term{"padding", "Rows of a slot that no token owns."},
    Term{"pair", "A query and a key of the same head, which the mask leaves or hides."},
    Term{"partial result", "out and lse of some of the keys of a query, not merged yet."},
    Term{"plan", "All that the ranks do, in order, proved before anything runs."},
    Term{"rank", "One device of the context-parallel group."},
    Term{"run", "An execution of the plan. A run of tokens is a range with a constant stride."},
    Term{"slice", "Queries and keys of two buffers that are computed together, with one band."},
    Term{"slot", "The rows that a sequence has in the packed batch, padding included."},
    Term{"stage", "A part of a step in which all items are of one kind."},
    Term{"step", "A unit of the schedule. Steps count from 1 here, from 0 in JSON."},
    Term{"stripe", "Tokens that one rank owns in a row before the next rank's begin."},
    Term{"tile", "A unit of kernel work: 128 queries and 128 keys."},
    Term{"token", "A position of the packed batch, padding included."},
    Term{"transfer", "Bytes that go from one rank to another."},
    Term{"triple", "A query, a key and a head: the unit of work of all heads together."},
};

constexpr std::array kLights = {
    LightColor{Role::hovered, 1, "under the mouse", "and all that belongs to it, in every view"},
    LightColor{Role::selected, 2, "selected", "by a click; the inspector is about it"},
    LightColor{Role::related, 1, "related",
               "what the selection touches: tokens, ranks, links, items"},
    LightColor{Role::accent, 2, "focus rank, focused view, playhead",
               "whose rows and sentences are shown, where keys go, and the current step"},
    LightColor{Role::error, 2, "wrong", "over the budget, or rejected"},
};

}  // namespace

std::span<const Term> glossary() { return kTerms; }

std::span<const LightColor> light_colors() { return kLights; }

}  // namespace cpscope::gui
