#pragma once

#include "gui/model/view.h"

namespace cpscope::gui {

/// Which rank owns which tokens: the packed order with sequences, padding and owners above, each
/// rank's local buffer below, ribbons between them; keys next to queries where they differ. If the
/// pass reorders rows (a2a), the two orders of that reorder and its progress.
/// Hits: "chunk/q/128" (first id; TokenRange), "band/q/0" (merged chunks), "comb/q/0" (merged
/// stripes), "sequence/q/2", "tail/q", "rank/3" ("rank/kv/3" for keys), "local/q/3/64" (rank, first
/// local row), "reorder/64" (row of the rank order).
View draw_layout(const ViewInput& input);

}  // namespace cpscope::gui
