#include "reference/sequence_part.h"

#include <algorithm>
#include <numeric>

namespace cpscope::reference {
namespace {

/// Number of cells of one block of rows by keys: 64 MiB of doubles.
constexpr int64_t kMostCells = int64_t{1} << 23;

std::vector<int64_t> count_up(int64_t first, int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

/// Converts the tokens in [begin, begin + valid) to positions, with their places in the list;
/// without a list, all of them with their ids.
void choose(const std::vector<int64_t>* tokens, int64_t begin, int64_t valid,
            std::vector<int64_t>& positions, std::vector<int64_t>& rows) {
  if (tokens == nullptr) {
    positions = count_up(0, valid);
    rows = count_up(begin, valid);
    return;
  }
  const auto first = std::lower_bound(tokens->begin(), tokens->end(), begin);
  for (auto token = first; token != tokens->end() && *token < begin + valid; ++token) {
    positions.push_back(*token - begin);
    rows.push_back(token - tokens->begin());
  }
}

/// The rotary positions of queries, or of keys, of one sequence (contract, keys rope_q_position and
/// positions_file). `first`: valid tokens of the sequences before.
std::vector<int64_t> turned_by(const std::vector<int64_t>& positions, int64_t first,
                               const std::vector<int64_t>& given, int64_t offset) {
  std::vector<int64_t> turned;
  for (const int64_t position : positions)
    turned.push_back(given.empty() ? position + offset
                                   : given[static_cast<size_t>(first + position)]);
  return turned;
}

/// The position of a sequence's first query under RoPE.
int64_t query_offset(const Attention& attention, const SequenceMask& mask) {
  const bool is_bottom_right = mask.type == MaskType::causal_bottom_right ||
                               mask.type == MaskType::padding_causal_bottom_right;
  const bool ends_with_keys =
      attention.rope_q_position == RopeQPosition::end ||
      (attention.rope_q_position == RopeQPosition::automatic && is_bottom_right);
  return ends_with_keys ? mask.num_keys - mask.num_queries : 0;
}

/// Computes the members that follow from the chosen positions.
void look_at_mask(const Scenario& scenario, const SequenceMask& mask, SequencePart& part) {
  part.visible = find_visible_keys(mask, part.queries, part.keys);
  part.query_turns = turns_of(scenario, mask, Side::q, part.queries);
  part.key_turns = turns_of(scenario, mask, Side::kv, part.keys);
}

}  // namespace

SequencePart choose_part(const Scenario& scenario, const SequenceMask& mask,
                         const SequenceSlot& slot, const ChosenTokens& chosen) {
  SequencePart part;
  choose(chosen.queries, slot.q_valid_begin(), slot.q_valid, part.queries, part.query_rows);
  choose(chosen.keys, slot.kv_valid_begin(), slot.kv_valid, part.keys, part.key_rows);
  if (!part.is_empty()) look_at_mask(scenario, mask, part);
  return part;
}

RotaryTable turns_of(const Scenario& scenario, const SequenceMask& mask, Side side,
                     const std::vector<int64_t>& positions) {
  const Attention& attention = scenario.attention;
  if (attention.rope_theta == 0.0) return {};
  const bool is_query = side == Side::q;
  return make_rotary_table(
      attention.rope_theta, attention.head_dim_qk,
      turned_by(positions, is_query ? mask.first_query : mask.first_key,
                is_query ? scenario.batch.q_positions : scenario.batch.kv_positions,
                is_query ? query_offset(attention, mask) : 0),
      is_query ? attention.first_rotated_of_q() : attention.first_rotated_of_k());
}

double pairs_of_rows(const SequencePart& part, int64_t begin, int64_t end) {
  if (part.is_empty()) return 0;
  int64_t pairs = 0;
  for (int64_t i = begin; i < end; ++i)
    for (const KeyRun& run : part.visible.of_row(i)) pairs += run.end - run.begin;
  return static_cast<double>(pairs);
}

int64_t end_of_block(const SequencePart& part, int64_t begin, int64_t end, int64_t most_rows) {
  int64_t first_key = 0, last_key = 0, widest = 0;
  for (int64_t i = begin; i < std::min(end, begin + most_rows); ++i) {
    const auto runs = part.visible.of_row(i);
    if (runs.empty()) continue;
    const int64_t width = runs.back().end - runs.front().begin;
    const bool is_first = widest == 0;
    const int64_t from = is_first ? runs.front().begin : std::min(first_key, runs.front().begin);
    const int64_t to = is_first ? runs.back().end : std::max(last_key, runs.back().end);
    // Neighbouring rows of a sequence see almost the same keys; rows of a sample may not.
    const bool is_neighbour = i > begin && part.queries[static_cast<size_t>(i)] ==
                                               part.queries[static_cast<size_t>(i - 1)] + 1;
    const bool lies_apart = !is_neighbour && to - from > 2 * std::max(widest, width);
    if (!is_first && (lies_apart || (i + 1 - begin) * (to - from) > kMostCells)) return i;
    first_key = from;
    last_key = to;
    widest = std::max(widest, width);
  }
  return std::min(end, begin + most_rows);
}

}  // namespace cpscope::reference
