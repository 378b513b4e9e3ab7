#include "sim/plan/round_steps.h"

#include <algorithm>

namespace cpscope {

namespace {

/// The sequence of the first token of a list; the number of sequences if there is none.
size_t sequence_of(const Plan& plan, RunListId tokens, Side side) {
  const std::vector<SequenceSlot>& sequences = plan.layout.slots.sequences;
  if (plan.list(tokens).empty()) return sequences.size();
  const int64_t token = plan.list(tokens).front().begin;
  const auto after = std::partition_point(
      sequences.begin(), sequences.end(),
      [&](const SequenceSlot& slot) { return slot.side(side).end() <= token; });
  return static_cast<size_t>(after - sequences.begin());
}

}  // namespace

std::vector<int32_t> rounds_of_steps(const Plan& plan, Direction direction) {
  std::vector<int32_t> rounds;
  if (plan.layout.rounds.empty()) return rounds;
  const size_t sequences = plan.layout.slots.sequences.size();
  const std::vector<int32_t> round_of = round_of_sequences(plan.layout.rounds, sequences);
  rounds.assign(static_cast<size_t>(plan.pass(direction).num_steps), -1);
  for (const ComputeItem& item : plan.pass(direction).computes) {
    int32_t& round = rounds[static_cast<size_t>(to_index(item.step))];
    if (round >= 0) continue;
    size_t sequence = sequence_of(plan, item.q_tokens, Side::q);
    if (sequence == sequences) sequence = sequence_of(plan, item.kv_tokens, Side::kv);
    if (sequence < sequences) round = round_of[sequence];
  }
  int32_t before = 0;
  for (int32_t& round : rounds) before = round = round < 0 ? before : round;
  return rounds;
}

int32_t round_of_queries(const Plan& plan, RunListId queries) {
  const size_t sequences = plan.layout.slots.sequences.size();
  const size_t sequence = sequence_of(plan, queries, Side::q);
  if (sequence == sequences) return -1;
  return round_of_sequences(plan.layout.rounds, sequences)[sequence];
}

bool is_of_round(const Plan& plan, const TransferItem& item) {
  const BufferRole from = plan.buffer(item.from).role, to = plan.buffer(item.to).role;
  return item.src == item.dst && ((from == BufferRole::home && to == BufferRole::round) ||
                                  (from == BufferRole::round && to == BufferRole::home));
}

}  // namespace cpscope
