#pragma once

#include "gui/app/lesson.h"
#include "gui/app/question.h"

namespace cpscope::gui {

// The questions of the lessons: the text of their pages, and how the plan answers them.

namespace words {
PageText ask_local_pairs, ask_idle_ranks, ask_contiguous_balance, ask_striped_owner;
PageText ask_bytes_of_heads, ask_heads_of_rank, ask_padding_of_rank, ask_merges;
PageText ask_bytes_needed, ask_keys_of_draft, ask_bytes_backward, ask_slowest_rank;
PageText ask_helping_ranks, ask_senders_of_queries, ask_ranks_of_document, ask_bytes_of_queries;
PageText ask_receivers_of_partials, ask_hops_between_hosts, ask_heads_for_a_kv_head;
PageText ask_percent_of_bf16;
}  // namespace words

extern const Question kLocalPairs, kIdleRanks, kContiguousBalance, kStripedOwner;
extern const Question kBytesOfHeads, kHeadsOfRank, kPaddingOfRank, kMerges;
extern const Question kBytesNeeded, kKeysOfDraft, kBytesBackward, kSlowestRank;
extern const Question kHelpingRanks, kSendersOfQueries, kRanksOfDocument, kBytesOfQueries;
extern const Question kReceiversOfPartials, kHopsBetweenHosts, kHeadsForAKvHead, kPercentOfBf16;

}  // namespace cpscope::gui
