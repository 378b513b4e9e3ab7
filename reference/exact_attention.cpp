#include "reference/head_group.h"
#include "reference/row_matrix.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace cpscope::reference {
namespace {

constexpr int64_t kExactRowsPerBlock = 128;

/// One query head of a unit, with everything that its row blocks share.
struct ExactHead {
  const HeadGroup& group;
  int32_t head = 0;
  const Rows<double>& keys;    // [num_keys, head_dim_qk] after RoPE
  const Rows<double>& values;  // [num_keys, head_dim_v]
  Rows<double> queries;        // [num_queries, head_dim_qk] after RoPE
  Rows<double> d_out;          // [num_queries, head_dim_v], empty without backward
};

/// Gradients of the unit's keys and values, summed over its query heads.
struct KeyGradients {
  Rows<double> dk, dv;
};

/// One row block: logits, weights and what the softmax says of each row.
struct ExactBlock {
  RowBlock range;
  Rows<double> logits;     // [rows, keys] scaled and capped; only visible entries mean anything
  Rows<double> weights;    // [rows, keys] softmax, 0 where not visible
  Column<double> lse;      // [rows] -inf if nothing is visible
  Column<double> out_dot;  // [rows] rowsum(d_out * out)
};

std::span<const KeyRun> visible_runs(const ExactHead& head, const ExactBlock& block, int64_t row) {
  return head.group.visible.of_row(block.range.row_begin + row);
}

void compute_exact_logits(const ExactHead& head, ExactBlock& block) {
  const Attention& attention = head.group.scenario.attention;
  const RowBlock& range = block.range;
  block.logits.resize(range.rows(), range.keys());
  block.logits.noalias() = head.queries.middleRows(range.row_begin, range.rows()) *
                           head.keys.middleRows(range.key_begin, range.keys()).transpose();
  block.logits *= logit_scale(attention);
  if (attention.softcap == 0.0) return;
  for (int64_t row = 0; row < range.rows(); ++row) {
    for (const KeyRun& run : visible_runs(head, block, row)) {
      for (int64_t key = run.begin - range.key_begin; key < run.end - range.key_begin; ++key) {
        double& logit = block.logits(row, key);
        logit = attention.softcap * std::tanh(logit / attention.softcap);
      }
    }
  }
}

/// Log-sum-exp of the row's visible logits and the sink.
double lse_with_sink(const ExactHead& head, double row_max, double row_sum) {
  const Attention& attention = head.group.scenario.attention;
  if (attention.softmax_type == SoftmaxType::vanilla) return row_max + std::log(row_sum);
  const double sink = sink_logit(attention, head.group.inputs.sink, head.head);
  const double top = std::max(row_max, sink);
  return top + std::log(std::exp(row_max - top) * row_sum + std::exp(sink - top));
}

void compute_softmax(const ExactHead& head, ExactBlock& block, HeadSums& sums) {
  const RowBlock& range = block.range;
  block.weights.setZero(range.rows(), range.keys());
  block.lse.setConstant(range.rows(), no_logit());
  for (int64_t row = 0; row < range.rows(); ++row) {
    const std::span<const KeyRun> runs = visible_runs(head, block, row);
    if (runs.empty()) continue;
    double row_max = no_logit();
    for (const KeyRun& run : runs) {
      const auto visible =
          block.logits.row(row).segment(run.begin - range.key_begin, run.end - run.begin);
      row_max = std::max(row_max, visible.maxCoeff());
    }
    double row_sum = 0.0;
    for (const KeyRun& run : runs) {
      const int64_t first = run.begin - range.key_begin;
      const int64_t count = run.end - run.begin;
      auto weights = block.weights.row(row).segment(first, count);
      weights = block.logits.row(row).segment(first, count).array() - row_max;
      exponentiate(&block.weights(row, first), count);
      row_sum += weights.sum();
    }
    block.lse(row) = lse_with_sink(head, row_max, row_sum);
    block.weights.row(row) *= std::exp(row_max - block.lse(row));
    sums.max_logit = std::max(sums.max_logit, row_max);
  }
}

void write_out(const ExactHead& head, ExactBlock& block, Answer& answer) {
  const RowBlock& range = block.range;
  Rows<double> out(range.rows(), head.values.cols());
  out.noalias() = block.weights * head.values.middleRows(range.key_begin, range.keys());
  for (int64_t row = 0; row < range.rows(); ++row) {
    const int64_t token = head.group.slot().q_begin + range.row_begin + row;
    scatter_row(&out(row, 0), token, head.head, answer.out);
    const auto index = static_cast<size_t>(token * answer.lse.shape[1] + head.head);
    answer.lse.values[index] = block.lse(row);
  }
  if (head.d_out.size() == 0) return;
  const auto d_out = head.d_out.middleRows(range.row_begin, range.rows());
  block.out_dot = (d_out.array() * out.array()).rowwise().sum();
}

/// Gradient of the sink logit: its share of each row times -rowsum(d_out * out).
void add_sink_gradient(const ExactHead& head, const ExactBlock& block, HeadSums& sums) {
  const Attention& attention = head.group.scenario.attention;
  if (attention.softmax_type != SoftmaxType::learnable) return;
  const double sink = sink_logit(attention, head.group.inputs.sink, head.head);
  for (int64_t row = 0; row < block.range.rows(); ++row) {
    if (visible_runs(head, block, row).empty()) continue;
    sums.d_sink -= std::exp(sink - block.lse(row)) * block.out_dot(row);
  }
}

void run_exact_backward(const ExactHead& head, ExactBlock& block, KeyGradients& gradients,
                        Answer& answer) {
  const Attention& attention = head.group.scenario.attention;
  const RowBlock& range = block.range;
  const auto d_out = head.d_out.middleRows(range.row_begin, range.rows());
  const auto keys = head.keys.middleRows(range.key_begin, range.keys());
  const auto values = head.values.middleRows(range.key_begin, range.keys());
  gradients.dv.middleRows(range.key_begin, range.keys()).noalias() +=
      block.weights.transpose() * d_out;

  Rows<double> d_logits(range.rows(), range.keys());
  d_logits.noalias() = d_out * values.transpose();
  d_logits.array().colwise() -= block.out_dot;
  d_logits.array() *= block.weights.array();
  if (attention.softcap != 0.0) {
    d_logits.array() *= 1.0 - (block.logits.array() / attention.softcap).square();
  }
  d_logits *= logit_scale(attention);

  Rows<double> dq(range.rows(), head.keys.cols());
  dq.noalias() = d_logits * keys;
  gradients.dk.middleRows(range.key_begin, range.keys()).noalias() +=
      d_logits.transpose() * head.queries.middleRows(range.row_begin, range.rows());
  for (int64_t row = 0; row < range.rows(); ++row) {
    const int64_t position = range.row_begin + row;
    rotate_row(head.group.rotary, position, -1, &dq(row, 0));
    scatter_row(&dq(row, 0), head.group.slot().q_begin + position, head.head, answer.dq);
  }
}

HeadSums run_head(const ExactHead& head, KeyGradients& gradients, Answer& answer) {
  HeadSums sums{no_logit()};
  const int64_t num_rows = head.queries.rows();
  for (int64_t begin = 0; begin < num_rows && !head.group.watch.is_cancelled();
       begin += kExactRowsPerBlock) {
    const int64_t end = std::min(num_rows, begin + kExactRowsPerBlock);
    ExactBlock block;
    block.range = find_row_block(head.group.visible, begin, end);
    // Rows that see nothing keep the answer's initial values.
    if (block.range.keys() == 0) continue;
    compute_exact_logits(head, block);
    compute_softmax(head, block, sums);
    write_out(head, block, answer);
    if (head.d_out.size() == 0) continue;
    add_sink_gradient(head, block, sums);
    run_exact_backward(head, block, gradients, answer);
  }
  return sums;
}

void rotate_head_rows(const RotaryTable& rotary, int direction, Rows<double>& rows) {
  for (int64_t position = 0; position < rows.rows(); ++position) {
    rotate_row(rotary, position, direction, &rows(position, 0));
  }
}

}  // namespace

std::vector<HeadSums> compute_exact_group(const HeadGroup& group, Answer& answer) {
  const SequenceSlot& slot = group.slot();
  const RunInputs& inputs = group.inputs;
  const bool has_backward = group.scenario.numerics.backward;
  Rows<double> keys = gather_rows<double>(inputs.k, slot.kv_begin, slot.kv_valid, group.kv_head);
  const Rows<double> values =
      gather_rows<double>(inputs.v, slot.kv_begin, slot.kv_valid, group.kv_head);
  rotate_head_rows(group.rotary, +1, keys);
  KeyGradients gradients;
  if (has_backward) {
    gradients.dk.setZero(keys.rows(), keys.cols());
    gradients.dv.setZero(values.rows(), values.cols());
  }

  std::vector<HeadSums> sums;
  const int32_t first_head = group.kv_head * group.heads_per_group();
  for (int32_t member = 0; member < group.heads_per_group(); ++member) {
    ExactHead head{group, first_head + member, keys, values, {}, {}};
    head.queries = gather_rows<double>(inputs.q, slot.q_begin, slot.q_valid, head.head);
    rotate_head_rows(group.rotary, +1, head.queries);
    if (has_backward) {
      head.d_out = gather_rows<double>(inputs.d_out, slot.q_begin, slot.q_valid, head.head);
    }
    sums.push_back(run_head(head, gradients, answer));
  }

  for (int64_t key = 0; has_backward && key < slot.kv_valid; ++key) {
    rotate_row(group.rotary, key, -1, &gradients.dk(key, 0));
    scatter_row(&gradients.dk(key, 0), slot.kv_begin + key, group.kv_head, answer.dk);
    scatter_row(&gradients.dv(key, 0), slot.kv_begin + key, group.kv_head, answer.dv);
  }
  return sums;
}

}  // namespace cpscope::reference
