#include "reference/sampled_oracle.h"

#include "reference/head_group.h"
#include "reference/mask_predicate.h"
#include "reference/rotary_table.h"
#include "reference/row_matrix.h"
#include "sim/base/parallel.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

namespace cpscope::reference {
namespace {

constexpr int64_t kKeysPerBlock = 256;

/// The valid position of a token, or nothing for padding.
struct Place {
  size_t sequence = 0;
  int64_t position = 0;
};

/// All that is wanted of one sequence.
struct SequenceWork {
  SequenceMask mask;
  std::vector<int64_t> queries;              // positions to compute, ascending, each once
  std::vector<std::vector<KeyRun>> visible;  // [query] keys that it sees
  std::vector<int64_t> keys;                 // positions whose gradients are wanted, ascending
};

/// Rows of one query head while the keys pass by.
struct RunningHead {
  Rows<double> queries, d_out;  // after RoPE; d_out is empty without backward
  Rows<double> out;             // sum of weights times values
  Rows<double> weighted_keys;   // sum of weight * cap gradient * key
  Rows<double> graded_keys;     // sum of weight * cap gradient * (d_out . value) * key
  Column<double> top;           // largest logit so far
  Column<double> total;         // sum of weights relative to `top`
  Column<double> lse;           // the rest is known when all keys have passed
  Column<double> out_dot;
};

/// What one (sequence, kv head) gives back, rows in the order of SequenceWork.
struct UnitAnswer {
  std::vector<RunningHead> heads;  // out is normalised, graded_keys holds dq
  Rows<double> dk, dv;             // [key]
};

struct Unit {
  const Scenario& scenario;
  const SampledInputs& inputs;
  const SequenceWork& work;
  const SequenceSlot& slot;
  int32_t kv_head = 0;
  RunWatch& watch;  // asked between blocks of keys; a cancelled unit leaves out the rest

  int32_t group_size() const { return scenario.attention.heads / scenario.attention.kv_heads; }
};

std::optional<Place> find_query(const BatchSlots& slots, int64_t token) {
  for (size_t sequence = 0; sequence < slots.sequences.size(); ++sequence) {
    const SequenceSlot& slot = slots.sequences[sequence];
    const int64_t position = token - slot.q_begin;
    if (position >= 0 && position < slot.q_valid) return Place{sequence, position};
  }
  return std::nullopt;
}

std::optional<Place> find_key(const BatchSlots& slots, int64_t token) {
  for (size_t sequence = 0; sequence < slots.sequences.size(); ++sequence) {
    const SequenceSlot& slot = slots.sequences[sequence];
    const int64_t position = token - slot.kv_begin;
    if (position >= 0 && position < slot.kv_valid) return Place{sequence, position};
  }
  return std::nullopt;
}

void sort_unique(std::vector<int64_t>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

Error too_many_queries(const RowSample& sample) {
  return make_error(ErrorKind::refused,
                    "The sampled rows need more queries than the sample's bound: " +
                        std::to_string(sample.max_queries),
                    "sample fewer tokens, or keys that fewer queries see");
}

Error outside_batch(const char* what, int64_t token, int64_t tokens) {
  return make_error(ErrorKind::refused,
                    std::string("A sampled ") + what + " lies outside the batch: " +
                        std::to_string(token) + " of " + std::to_string(tokens),
                    "ids count packed padded tokens from 0");
}

/// Adds to the queries of `work` all that see one of its keys, and sorts them. False when they are
/// more than `room`.
bool add_seeing_queries(SequenceWork& work, int64_t room) {
  std::vector<bool> is_needed(static_cast<size_t>(work.mask.num_queries), false);
  for (const int64_t i : work.queries) is_needed[static_cast<size_t>(i)] = true;
  for (const int64_t key : work.keys) {
    for (int64_t i = 0; i < work.mask.num_queries; ++i) {
      if (is_visible(work.mask, i, key)) is_needed[static_cast<size_t>(i)] = true;
    }
  }
  work.queries.clear();
  for (int64_t i = 0; i < work.mask.num_queries; ++i) {
    if (is_needed[static_cast<size_t>(i)]) work.queries.push_back(i);
  }
  return static_cast<int64_t>(work.queries.size()) <= room;
}

Result<std::vector<SequenceWork>> collect_work(const Scenario& scenario,
                                               const SampledInputs& inputs,
                                               const RowSample& sample) {
  const BatchSlots& slots = inputs.slots;
  std::vector<SequenceWork> works(slots.sequences.size());
  for (const int64_t token : sample.query_tokens) {
    if (token < 0 || token >= slots.tokens) return outside_batch("query", token, slots.tokens);
    if (const auto place = find_query(slots, token)) {
      works[place->sequence].queries.push_back(place->position);
    }
  }
  for (const int64_t token : sample.key_tokens) {
    if (token < 0 || token >= slots.kv_tokens) return outside_batch("key", token, slots.kv_tokens);
    const auto place = find_key(slots, token);
    if (place && scenario.numerics.backward) works[place->sequence].keys.push_back(place->position);
  }

  std::vector<SequenceMask> masks = sequence_masks(scenario);
  int64_t room = sample.max_queries;
  for (size_t sequence = 0; sequence < works.size(); ++sequence) {
    SequenceWork& work = works[sequence];
    if (work.queries.empty() && work.keys.empty()) continue;
    work.mask = std::move(masks[sequence]);
    sort_unique(work.keys);
    if (!add_seeing_queries(work, room)) return too_many_queries(sample);
    room -= static_cast<int64_t>(work.queries.size());
    work.visible.resize(work.queries.size());
    for_each_index(static_cast<int64_t>(work.queries.size()), [&](int64_t index) {
      const auto row = static_cast<size_t>(index);
      work.visible[row] = find_visible_keys(work.mask, work.queries[row]);
    });
  }
  return works;
}

/// Reads rows of one head at the given positions; q and k are turned by RoPE.
Rows<double> read_rows(const Unit& unit, InputTensor tensor, int32_t head,
                       std::span<const int64_t> positions) {
  const Attention& attention = unit.scenario.attention;
  const bool is_turned = tensor == InputTensor::q || tensor == InputTensor::k;
  const bool is_query = tensor == InputTensor::q || tensor == InputTensor::d_out;
  const int64_t first = is_query ? unit.slot.q_begin : unit.slot.kv_begin;
  const int32_t lanes = is_turned ? attention.head_dim_qk : attention.head_dim_v;
  Rows<double> rows(static_cast<int64_t>(positions.size()), lanes);
  // Neighbouring positions share one table.
  const bool is_block = !positions.empty() && positions.back() - positions.front() + 1 ==
                                                  static_cast<int64_t>(positions.size());
  RotaryTable rotary;
  if (is_turned && is_block) {
    rotary = make_rotary_table(attention.rope_theta, lanes, positions.front(), rows.rows());
  }
  for (int64_t row = 0; row < rows.rows(); ++row) {
    const int64_t position = positions[static_cast<size_t>(row)];
    unit.inputs.read_row(tensor, first + position, head,
                         std::span(&rows(row, 0), static_cast<size_t>(lanes)));
    if (!is_turned) continue;
    if (!is_block) rotary = make_rotary_table(attention.rope_theta, lanes, position, 1);
    rotate_row(rotary, position, +1, &rows(row, 0));
  }
  return rows;
}

RunningHead start_head(const Unit& unit, int32_t head) {
  const Attention& attention = unit.scenario.attention;
  RunningHead running;
  running.queries = read_rows(unit, InputTensor::q, head, unit.work.queries);
  const int64_t rows = running.queries.rows();
  running.out.setZero(rows, attention.head_dim_v);
  running.top.setConstant(rows, no_logit());
  running.total.setZero(rows);
  running.lse.setConstant(rows, no_logit());
  if (!unit.scenario.numerics.backward) return running;
  running.d_out = read_rows(unit, InputTensor::d_out, head, unit.work.queries);
  running.weighted_keys.setZero(rows, attention.head_dim_qk);
  running.graded_keys.setZero(rows, attention.head_dim_qk);
  return running;
}

/// The row's visible keys inside a block.
std::vector<KeyRun> clip_runs(std::span<const KeyRun> runs, const KeyRun& block) {
  std::vector<KeyRun> clipped;
  for (const KeyRun& run : runs) {
    const KeyRun part{std::max(run.begin, block.begin), std::min(run.end, block.end)};
    if (part.begin < part.end) clipped.push_back(part);
  }
  return clipped;
}

void cap_logits(double softcap, double* logits, int64_t count) {
  for (int64_t index = 0; softcap != 0.0 && index < count; ++index) {
    logits[index] = softcap * std::tanh(logits[index] / softcap);
  }
}

/// Turns the visible logits of one row into weights relative to the row's new top, and rescales
/// what the row has summed so far.
void weigh_row(const Unit& unit, const std::vector<KeyRun>& runs, const KeyRun& block, int64_t row,
               Rows<double>& logits, Rows<double>& weights, RunningHead& running) {
  double top = running.top(row);
  for (const KeyRun& run : runs) {
    const int64_t first = run.begin - block.begin;
    cap_logits(unit.scenario.attention.softcap, &logits(row, first), run.end - run.begin);
    top = std::max(top, logits.row(row).segment(first, run.end - run.begin).maxCoeff());
  }
  if (running.top(row) != no_logit()) {
    const double rescale = std::exp(running.top(row) - top);
    running.out.row(row) *= rescale;
    running.total(row) *= rescale;
    if (running.d_out.size() > 0) {
      running.weighted_keys.row(row) *= rescale;
      running.graded_keys.row(row) *= rescale;
    }
  }
  running.top(row) = top;
  for (const KeyRun& run : runs) {
    const int64_t first = run.begin - block.begin;
    const int64_t count = run.end - run.begin;
    weights.row(row).segment(first, count) = logits.row(row).segment(first, count).array() - top;
    exponentiate(&weights(row, first), count);
    running.total(row) += weights.row(row).segment(first, count).sum();
  }
}

void pass_block(const Unit& unit, const KeyRun& block, const Rows<double>& keys,
                const Rows<double>& values, RunningHead& running) {
  const Attention& attention = unit.scenario.attention;
  Rows<double> logits = running.queries * keys.transpose();
  logits *= logit_scale(attention);
  Rows<double> weights = Rows<double>::Zero(logits.rows(), logits.cols());
  for (int64_t row = 0; row < logits.rows(); ++row) {
    const std::vector<KeyRun> runs = clip_runs(unit.work.visible[static_cast<size_t>(row)], block);
    if (!runs.empty()) weigh_row(unit, runs, block, row, logits, weights, running);
  }
  running.out.noalias() += weights * values;
  if (running.d_out.size() == 0) return;
  if (attention.softcap != 0.0) {
    weights.array() *= 1.0 - (logits.array() / attention.softcap).square();
  }
  running.weighted_keys.noalias() += weights * keys;
  const Rows<double> d_weights = running.d_out * values.transpose();
  weights.array() *= d_weights.array();
  running.graded_keys.noalias() += weights * keys;
}

/// All keys have passed: normalises, lets the sink in, and turns the two key sums into dq.
void finish_head(const Unit& unit, int32_t head, RunningHead& running) {
  const Attention& attention = unit.scenario.attention;
  const int64_t num_rows = running.queries.rows();
  running.out_dot.setZero(num_rows);
  for (int64_t row = 0; row < num_rows; ++row) {
    if (running.top(row) == no_logit()) continue;
    double top = running.top(row);
    double total = running.total(row);
    if (attention.softmax_type != SoftmaxType::vanilla) {
      const double sink = sink_logit(attention, unit.inputs.sink, head);
      const double joint = std::max(top, sink);
      total = total * std::exp(top - joint) + std::exp(sink - joint);
      top = joint;
    }
    running.lse(row) = top + std::log(total);
    const double share = std::exp(running.top(row) - running.lse(row));
    running.out.row(row) *= share;
    if (running.d_out.size() == 0) continue;
    running.out_dot(row) = running.d_out.row(row).dot(running.out.row(row));
    running.graded_keys.row(row) -= running.out_dot(row) * running.weighted_keys.row(row);
    running.graded_keys.row(row) *= share * logit_scale(attention);
    const int64_t position = unit.work.queries[static_cast<size_t>(row)];
    const RotaryTable rotary =
        make_rotary_table(attention.rope_theta, attention.head_dim_qk, position, 1);
    rotate_row(rotary, position, -1, &running.graded_keys(row, 0));
  }
}

bool is_seen(std::span<const KeyRun> runs, int64_t key) {
  return std::any_of(runs.begin(), runs.end(),
                     [&](const KeyRun& run) { return run.begin <= key && key < run.end; });
}

/// Gradients of one sampled key and value: every query that sees it is among the computed rows.
void grade_key(const Unit& unit, int64_t index, UnitAnswer& answer) {
  const Attention& attention = unit.scenario.attention;
  const int64_t position = unit.work.keys[static_cast<size_t>(index)];
  const Rows<double> key = read_rows(unit, InputTensor::k, unit.kv_head, {&position, 1});
  const Rows<double> value = read_rows(unit, InputTensor::v, unit.kv_head, {&position, 1});
  const double scale = logit_scale(attention);
  for (const RunningHead& head : answer.heads) {
    for (int64_t row = 0; row < head.queries.rows(); ++row) {
      if (!is_seen(unit.work.visible[static_cast<size_t>(row)], position)) continue;
      double logit = scale * head.queries.row(row).dot(key.row(0));
      cap_logits(attention.softcap, &logit, 1);
      const double weight = std::exp(logit - head.lse(row));
      double d_logit = weight * (head.d_out.row(row).dot(value.row(0)) - head.out_dot(row));
      if (attention.softcap != 0.0) {
        d_logit *= 1.0 - (logit / attention.softcap) * (logit / attention.softcap);
      }
      answer.dk.row(index) += scale * d_logit * head.queries.row(row);
      answer.dv.row(index) += weight * head.d_out.row(row);
    }
  }
  const RotaryTable rotary =
      make_rotary_table(attention.rope_theta, attention.head_dim_qk, position, 1);
  rotate_row(rotary, position, -1, &answer.dk(index, 0));
}

UnitAnswer compute_unit(const Unit& unit) {
  const Attention& attention = unit.scenario.attention;
  const int32_t first_head = unit.kv_head * unit.group_size();
  UnitAnswer answer;
  for (int32_t member = 0; member < unit.group_size(); ++member) {
    answer.heads.push_back(start_head(unit, first_head + member));
  }
  for (int64_t begin = 0; begin < unit.slot.kv_valid && !unit.watch.is_cancelled();
       begin += kKeysPerBlock) {
    const KeyRun block{begin, std::min(unit.slot.kv_valid, begin + kKeysPerBlock)};
    const bool is_wanted =
        std::any_of(unit.work.visible.begin(), unit.work.visible.end(),
                    [&](const auto& runs) { return !clip_runs(runs, block).empty(); });
    if (!is_wanted) continue;
    std::vector<int64_t> positions;
    for (int64_t key = block.begin; key < block.end; ++key) positions.push_back(key);
    const Rows<double> keys = read_rows(unit, InputTensor::k, unit.kv_head, positions);
    const Rows<double> values = read_rows(unit, InputTensor::v, unit.kv_head, positions);
    for (RunningHead& head : answer.heads) pass_block(unit, block, keys, values, head);
  }
  for (int32_t member = 0; member < unit.group_size(); ++member) {
    finish_head(unit, first_head + member, answer.heads[static_cast<size_t>(member)]);
  }
  const auto num_keys = static_cast<int64_t>(unit.work.keys.size());
  answer.dk.setZero(num_keys, attention.head_dim_qk);
  answer.dv.setZero(num_keys, attention.head_dim_v);
  for (int64_t index = 0; index < num_keys; ++index) grade_key(unit, index, answer);
  // Only the answer stays: units are kept until the last one is done.
  for (RunningHead& head : answer.heads) {
    for (Rows<double>* rows : {&head.queries, &head.d_out, &head.weighted_keys}) rows->resize(0, 0);
  }
  return answer;
}

int64_t index_of(const std::vector<int64_t>& sorted, int64_t value) {
  return std::lower_bound(sorted.begin(), sorted.end(), value) - sorted.begin();
}

/// The rows in the order in which they were asked for.
Answer assemble(const Scenario& scenario, const BatchSlots& slots, const RowSample& sample,
                const std::vector<SequenceWork>& works, const std::vector<UnitAnswer>& units) {
  const Attention& attention = scenario.attention;
  const bool has_backward = scenario.numerics.backward;
  const auto num_rows = static_cast<int64_t>(sample.query_tokens.size());
  const auto num_keys = static_cast<int64_t>(sample.key_tokens.size());
  Answer answer;
  answer.out = make_filled_tensor("out", {num_rows, attention.heads, attention.head_dim_v},
                                  Dtype::fp64, 0.0);
  answer.lse = make_filled_tensor("lse", {num_rows, attention.heads}, Dtype::fp64, no_logit());
  if (has_backward) {
    answer.dq = make_filled_tensor("dq", {num_rows, attention.heads, attention.head_dim_qk},
                                   Dtype::fp64, 0.0);
    answer.dk = make_filled_tensor("dk", {num_keys, attention.kv_heads, attention.head_dim_qk},
                                   Dtype::fp64, 0.0);
    answer.dv = make_filled_tensor("dv", {num_keys, attention.kv_heads, attention.head_dim_v},
                                   Dtype::fp64, 0.0);
  }
  const auto unit_of = [&](size_t sequence, int32_t kv_head) -> const UnitAnswer& {
    return units[sequence * static_cast<size_t>(attention.kv_heads) + static_cast<size_t>(kv_head)];
  };
  const int32_t group_size = attention.heads / attention.kv_heads;
  for (int64_t row = 0; row < num_rows; ++row) {
    const auto place = find_query(slots, sample.query_tokens[static_cast<size_t>(row)]);
    if (!place) continue;
    const int64_t index = index_of(works[place->sequence].queries, place->position);
    for (int32_t head = 0; head < attention.heads; ++head) {
      const RunningHead& running =
          unit_of(place->sequence, head / group_size).heads[static_cast<size_t>(head % group_size)];
      scatter_row(&running.out(index, 0), row, head, answer.out);
      answer.lse.values[static_cast<size_t>(row * attention.heads + head)] = running.lse(index);
      if (has_backward) scatter_row(&running.graded_keys(index, 0), row, head, answer.dq);
    }
  }
  for (int64_t row = 0; has_backward && row < num_keys; ++row) {
    const auto place = find_key(slots, sample.key_tokens[static_cast<size_t>(row)]);
    if (!place) continue;
    const int64_t index = index_of(works[place->sequence].keys, place->position);
    for (int32_t kv_head = 0; kv_head < attention.kv_heads; ++kv_head) {
      const UnitAnswer& unit = unit_of(place->sequence, kv_head);
      scatter_row(&unit.dk(index, 0), row, kv_head, answer.dk);
      scatter_row(&unit.dv(index, 0), row, kv_head, answer.dv);
    }
  }
  return answer;
}

}  // namespace

Result<Answer> sampled_rows(const Scenario& scenario, const SampledInputs& inputs,
                            const RowSample& sample, const RunControl& control) {
  const Result<std::vector<SequenceWork>> collected = collect_work(scenario, inputs, sample);
  if (!collected) return collected.error();
  const std::vector<SequenceWork>& works = collected.value();
  const int64_t kv_heads = scenario.attention.kv_heads;
  std::vector<UnitAnswer> units(works.size() * static_cast<size_t>(kv_heads));
  RunWatch watch(control, static_cast<int64_t>(units.size()));
  for_each_index(static_cast<int64_t>(units.size()), [&](int64_t index) {
    if (watch.is_cancelled()) return;
    const auto sequence = static_cast<size_t>(index / kv_heads);
    if (!works[sequence].queries.empty() || !works[sequence].keys.empty()) {
      units[static_cast<size_t>(index)] =
          compute_unit({scenario, inputs, works[sequence], inputs.slots.sequences[sequence],
                        static_cast<int32_t>(index % kv_heads), watch});
    }
    if (!watch.was_cancelled()) watch.advance();
  });
  if (watch.was_cancelled()) return watch.error("the judgement", "parts");
  return assemble(scenario, inputs.slots, sample, works, units);
}

}  // namespace cpscope::reference
