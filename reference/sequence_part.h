#pragma once

#include "reference/mask_predicate.h"
#include "reference/rotary_table.h"
#include "sim/plan/batch_slots.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <vector>

namespace cpscope::reference {

/// The queries and keys of one sequence that an evaluation covers: all of them, or a few.
struct SequencePart {
  std::vector<int64_t> queries, keys;         // valid positions, ascending
  std::vector<int64_t> query_rows, key_rows;  // [query], [key] its row in the answer
  VisibleKeys visible;                        // [query] runs of indices into `keys`
  RotaryTable query_turns, key_turns;         // [query], [key]

  int64_t num_queries() const { return static_cast<int64_t>(queries.size()); }
  int64_t num_keys() const { return static_cast<int64_t>(keys.size()); }
  bool is_empty() const { return queries.empty() || keys.empty(); }
};

/// Some tokens, packed padded ids, ascending; ids of other sequences and of padding are ignored.
/// Null: all tokens.
struct ChosenTokens {
  const std::vector<int64_t>* queries = nullptr;
  const std::vector<int64_t>* keys = nullptr;
};

/// Selects the tokens of a sequence. A chosen token's row in the answer is its place in the list;
/// without a list it is its packed padded id.
SequencePart choose_part(const Scenario& scenario, const SequenceMask& mask,
                         const SequenceSlot& slot, const ChosenTokens& chosen = {});

/// The angles of queries, or of keys, at these positions of a sequence; an empty table without
/// RoPE.
RotaryTable turns_of(const Scenario& scenario, const SequenceMask& mask, Side side,
                     const std::vector<int64_t>& positions);

/// Number of visible pairs of the queries [begin, end) in one head.
double pairs_of_rows(const SequencePart& part, int64_t begin, int64_t end);

/// End of the block of queries that begins at `begin`: at most `most_rows`, fewer if the hull of
/// the keys that they see is much larger than the number of keys that one of them sees.
int64_t end_of_block(const SequencePart& part, int64_t begin, int64_t end, int64_t most_rows);

}  // namespace cpscope::reference
