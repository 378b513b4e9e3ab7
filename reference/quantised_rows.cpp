#include "reference/quantised_rows.h"

#include "sim/run/run_inputs.h"

#include <algorithm>
#include <cmath>

namespace cpscope::reference {
namespace {

std::vector<int32_t> sequences_of_tokens(const BatchSlots& slots, Side side) {
  std::vector<int32_t> sequences(static_cast<size_t>(slots.tokens_of(side)), -1);
  for (size_t s = 0; s < slots.sequences.size(); ++s) {
    const SlotSide ids = slots.sequences[s].side(side);
    std::fill_n(sequences.begin() + ids.valid_begin(), ids.valid, static_cast<int32_t>(s));
  }
  return sequences;
}

/// The largest |value| of the valid rows of one array of a home buffer.
float amax_of_rows(const Plan& plan, RunListId tokens, const std::vector<bool>& valid,
                   const AlignedVector<float>& values) {
  const int64_t rows = plan.rows(tokens);
  if (rows == 0) return 0;
  const int64_t width = static_cast<int64_t>(values.size()) / rows;
  float most = 0;
  int64_t row = 0;
  for (const TokenRun& run : plan.list(tokens)) {
    for (int64_t token = run.begin; token < run.end; token += run.stride, ++row) {
      for (int64_t i = row * width; valid[static_cast<size_t>(token)] && i < (row + 1) * width; ++i)
        most = std::max(most, std::abs(values[static_cast<size_t>(i)]));
    }
  }
  return most;
}

void cast_all(Fp8Type type, float scale, AlignedVector<float>& values) {
  const float descale = 1.0f / scale;
  for (float& value : values) value = quantise(type, value, scale, descale);
}

float scale_of(Fp8Type type, double amax) { return scale_for(type, static_cast<float>(amax)); }

}  // namespace

QuantisedRules make_quantised_rules(const Plan& plan, const RunInputs& inputs) {
  const Fp8& fp8 = plan.scenario.numerics.fp8.value();
  QuantisedRules rules;
  rules.is_on = true;
  rules.is_mx = fp8.recipe == Fp8Recipe::mxfp8;
  if (rules.is_mx) {
    rules.gradients = Fp8Type::e4m3;
    rules.weights = 16;
    rules.weights_back = 256;
    rules.q_sequences = sequences_of_tokens(plan.layout.slots, Side::q);
    rules.kv_sequences = sequences_of_tokens(plan.layout.slots, Side::kv);
    return rules;
  }
  if (fp8.format == Fp8Format::e4m3) rules.gradients = Fp8Type::e4m3;
  rules.amax_qkv = static_cast<float>(inputs.fp8.qkv);
  rules.amax_d_out = static_cast<float>(inputs.fp8.d_out);
  rules.d_logits = scale_of(rules.gradients, inputs.fp8.d_logits);
  if (fp8.recipe == Fp8Recipe::delayed) {
    rules.out = scale_of(Fp8Type::e4m3, inputs.fp8.out);
    rules.dq = scale_of(rules.gradients, inputs.fp8.dq);
    rules.dk = scale_of(rules.gradients, inputs.fp8.dk);
    rules.dv = scale_of(rules.gradients, inputs.fp8.dv);
  }
  return rules;
}

void quantise_home_rows(const Plan& plan, QuantisedRules& rules, RankMemory<float>& memory) {
  if (rules.is_mx) return;
  const std::vector<bool> queries = valid_ids(plan.layout.slots, Side::q),
                          keys = valid_ids(plan.layout.slots, Side::kv);
  const int32_t ranks = plan.layout.cp_size,
                group = rules.ranks_with_one_scale > 0 ? rules.ranks_with_one_scale : ranks;
  std::vector<float> amax_qkv(static_cast<size_t>((ranks + group - 1) / group), 0.0f);
  float amax_d_out = 0;
  for (const RankId rank : plan.home.ids()) {
    const HomeBuffers& home = plan.home[rank];
    float& amax = amax_qkv[static_cast<size_t>(to_index(rank) / group)];
    const BufferMemory<float>& kv = memory.at(home.kv);
    amax = std::max({amax, amax_of_rows(plan, plan.q_lists[rank], queries, memory.at(home.q).first),
                     amax_of_rows(plan, plan.kv_lists[rank], keys, kv.first),
                     amax_of_rows(plan, plan.kv_lists[rank], keys, kv.second)});
    if (home.d_out != kNoBuffer)
      amax_d_out = std::max(
          amax_d_out, amax_of_rows(plan, plan.q_lists[rank], queries, memory.at(home.d_out).first));
  }
  if (rules.amax_d_out > 0) amax_d_out = rules.amax_d_out;
  const float d_out_scale = scale_for(rules.gradients, amax_d_out);
  for (const RankId rank : plan.home.ids()) {
    const HomeBuffers& home = plan.home[rank];
    const float amax =
        rules.amax_qkv > 0 ? rules.amax_qkv : amax_qkv[static_cast<size_t>(to_index(rank) / group)];
    const float scale = scale_for(Fp8Type::e4m3, amax);
    rules.descales.push_back(1.0f / scale);
    cast_all(Fp8Type::e4m3, scale, memory.at(home.q).first);
    for (const BufferId id : {home.kv, home.replica}) {
      if (id == kNoBuffer) continue;
      cast_all(Fp8Type::e4m3, scale, memory.at(id).first);
      cast_all(Fp8Type::e4m3, scale, memory.at(id).second);
    }
    if (home.d_out != kNoBuffer)
      cast_all(rules.gradients, d_out_scale, memory.at(home.d_out).first);
  }
}

std::vector<int32_t> blocks_of_rows(const Plan& plan, RunListId tokens, Side side,
                                    const QuantisedRules& rules) {
  const std::vector<int32_t>& sequences = side == Side::q ? rules.q_sequences : rules.kv_sequences;
  std::vector<int32_t> blocks;
  blocks.reserve(static_cast<size_t>(plan.rows(tokens)));
  int32_t block = -1, sequence_before = -1;
  int64_t rows_in_block = 0;
  for (const TokenRun& run : plan.list(tokens)) {
    for (int64_t token = run.begin; token < run.end; token += run.stride) {
      if (rules.blocks_cross_documents) {
        blocks.push_back(static_cast<int32_t>(blocks.size()) / static_cast<int32_t>(kMxBlock));
        continue;
      }
      const int32_t sequence = sequences[static_cast<size_t>(token)];
      const bool continues = sequence == sequence_before && rows_in_block < kMxBlock;
      sequence_before = sequence;
      if (sequence < 0) {
        blocks.push_back(-1);
        continue;
      }
      if (!continues) {
        ++block;
        rows_in_block = 0;
      }
      ++rows_in_block;
      blocks.push_back(block);
    }
  }
  return blocks;
}

}  // namespace cpscope::reference
