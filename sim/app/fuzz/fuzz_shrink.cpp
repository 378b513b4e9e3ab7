#include "sim/app/fuzz/fuzz.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace cpscope {
namespace {

/// A simpler scenario, or the same one where the step has nothing left to simplify.
using Step = std::function<void(Scenario&)>;

void keep_sequences(Batch& batch, size_t begin, size_t end) {
  for (auto* list : {&batch.lengths, &batch.kv_lengths, &batch.slots, &batch.kv_slots}) {
    if (list->size() < end) continue;
    *list = std::vector<int64_t>(list->begin() + static_cast<std::ptrdiff_t>(begin),
                                 list->begin() + static_cast<std::ptrdiff_t>(end));
  }
}

void drop_sequence(Batch& batch, size_t n) {
  for (auto* list : {&batch.lengths, &batch.kv_lengths, &batch.slots, &batch.kv_slots})
    if (n < list->size()) list->erase(list->begin() + static_cast<std::ptrdiff_t>(n));
}

/// Slots as small as the format lets them be.
void refit_slots(Batch& batch) {
  batch.slots = batch.lengths;
  batch.kv_slots = batch.kv_lengths;
  if (batch.qkv_format == QkvFormat::thd) return;
  for (auto* slots : {&batch.slots, &batch.kv_slots}) {
    const int64_t longest = slots->empty() ? 0 : *std::max_element(slots->begin(), slots->end());
    std::fill(slots->begin(), slots->end(), longest);
  }
}

void settle_batch(Batch& batch) {
  batch.self_attention = batch.lengths == batch.kv_lengths && batch.slots == batch.kv_slots;
}

/// A shorter sequence: queries, keys, or both alike.
void shorten(Batch& batch, size_t n, int64_t length, bool queries, bool keys) {
  if (queries) batch.lengths[n] = std::min(batch.lengths[n], length);
  if (keys) batch.kv_lengths[n] = std::min(batch.kv_lengths[n], length);
  refit_slots(batch);
}

void add_batch_steps(const Scenario& scenario, std::vector<Step>& steps) {
  const Batch& batch = scenario.batch;
  if (scenario.parallel.layout == LayoutKind::indices)
    steps.push_back([](Scenario& s) {
      s.parallel.layout = LayoutKind::contiguous;
      s.parallel.imported = {};
      s.parallel.indices_file.clear();
    });
  // An order names the tokens that there are.
  const bool is_fixed = scenario.parallel.layout == LayoutKind::indices ||
                        scenario.attention.mask_type == MaskType::slices;
  if (is_fixed) return;
  const size_t count = batch.lengths.size();
  if (count > 1) {
    steps.push_back([count](Scenario& s) { keep_sequences(s.batch, 0, count / 2); });
    steps.push_back([count](Scenario& s) { keep_sequences(s.batch, count / 2, count); });
    for (size_t n = 0; n < count; ++n)
      steps.push_back([n](Scenario& s) { drop_sequence(s.batch, n); });
  }
  steps.push_back([](Scenario& s) { refit_slots(s.batch); });
  steps.push_back([](Scenario& s) { s.batch.pad_side = PadSide::right; });
  steps.push_back([](Scenario& s) {
    s.batch.kv_lengths = s.batch.lengths;
    refit_slots(s.batch);
  });
  for (size_t n = 0; n < count; ++n) {
    const int64_t longest = std::max(batch.lengths[n], batch.kv_lengths[n]);
    for (const int64_t length : {longest / 2, longest * 3 / 4, longest - 1}) {
      if (length < 0) continue;
      steps.push_back([n, length](Scenario& s) { shorten(s.batch, n, length, true, true); });
      if (batch.self_attention) continue;
      steps.push_back([n, length](Scenario& s) { shorten(s.batch, n, length, true, false); });
      steps.push_back([n, length](Scenario& s) { shorten(s.batch, n, length, false, true); });
    }
  }
}

/// Sets a member to its plainest value.
template <class Part, class T>
Step set(Part Scenario::*part, T Part::*member, T value) {
  return [=](Scenario& s) { s.*part.*member = value; };
}

void add_feature_steps(const Scenario& scenario, std::vector<Step>& steps) {
  const auto attention = [&](auto member, auto value) {
    steps.push_back(set(&Scenario::attention, member, value));
  };
  attention(&Attention::chunk_size, int64_t{0});
  attention(&Attention::softcap, 0.0);
  attention(&Attention::softmax_scale, 0.0);
  attention(&Attention::softmax_type, SoftmaxType::vanilla);
  attention(&Attention::rope_theta, 0.0);
  attention(&Attention::alibi, false);
  attention(&Attention::bias, BiasShape::none);
  attention(&Attention::dropout, 0.0);
  attention(&Attention::dropout_mode, DropoutMode::split_invariant);
  attention(&Attention::window_left, int64_t{-1});
  attention(&Attention::window_right, int64_t{-1});
  if (scenario.attention.mask_type != MaskType::slices) {
    attention(&Attention::mask_type, MaskType::no_mask);
    // Plainer ones only, so that shrinking ends.
    if (scenario.attention.mask_type != MaskType::no_mask)
      attention(&Attention::mask_type, MaskType::causal);
  }
  for (size_t n = 0; n < scenario.attention.slices.size(); ++n)
    steps.push_back([n](Scenario& s) {
      s.attention.generator.reset();
      s.attention.slices.erase(s.attention.slices.begin() + static_cast<std::ptrdiff_t>(n));
    });
  steps.push_back([](Scenario& s) { s.batch.qkv_format = QkvFormat::thd; });
  steps.push_back([](Scenario& s) { s.numerics.backward = false; });
  steps.push_back([](Scenario& s) { s.numerics.fp8.reset(); });
  steps.push_back([](Scenario& s) {
    if (!s.numerics.fp8) s.numerics.dtype = Dtype::fp64;
  });
  steps.push_back([](Scenario& s) { s.numerics.seed = 1; });
  steps.push_back([](Scenario& s) { s.numerics.inputs = InputKind::normal; });
  steps.push_back([](Scenario& s) {
    const Numerics plain;
    s.numerics.dkv_wire = plain.dkv_wire;
    s.numerics.dkv_hops = plain.dkv_hops;
    s.numerics.accumulate = plain.accumulate;
  });
}

void add_size_steps(const Scenario& scenario, std::vector<Step>& steps) {
  const Attention& attention = scenario.attention;
  const Parallel& parallel = scenario.parallel;
  const int32_t group = attention.heads / std::max(1, attention.kv_heads);
  for (const int32_t kv_heads : {1, attention.kv_heads / 2, attention.kv_heads - 1}) {
    if (kv_heads < 1 || kv_heads >= attention.kv_heads) continue;
    steps.push_back([=](Scenario& s) {
      s.attention.kv_heads = kv_heads;
      s.attention.heads = kv_heads * group;
    });
  }
  for (const int32_t wanted : {1, group / 2, group - 1}) {
    if (wanted < 1 || wanted >= group) continue;
    steps.push_back([=](Scenario& s) { s.attention.heads = s.attention.kv_heads * wanted; });
  }
  if (attention.expands_rows()) {
    steps.push_back([](Scenario& s) {  // the absorbed form
      s.attention.head_dim_qk = s.attention.key_dim();
      s.attention.head_dim_v = s.attention.latent_dim;
      s.attention.latent_nope_dim = 0;
    });
    steps.push_back([](Scenario& s) { s.attention.latent_dim = s.attention.latent_nope_dim = 0; });
    for (int32_t Attention::*dim : {&Attention::latent_dim, &Attention::head_dim_v})
      if (attention.*dim > 1) steps.push_back(set(&Scenario::attention, dim, 1));
  } else if (attention.latent_dim > 0) {
    steps.push_back([](Scenario& s) { s.attention.latent_dim = 0; });
    steps.push_back([](Scenario& s) {
      s.attention.head_dim_qk -= s.attention.latent_dim - 1;
      s.attention.latent_dim = s.attention.head_dim_v = 1;
    });
  }
  for (const int32_t lanes : {1, 2, 4, 8}) {
    if (attention.latent_dim > 0) break;
    if (lanes < attention.head_dim_qk)
      steps.push_back(set(&Scenario::attention, &Attention::head_dim_qk, lanes));
    if (lanes < attention.head_dim_v)
      steps.push_back(set(&Scenario::attention, &Attention::head_dim_v, lanes));
  }
  if (parallel.layout != LayoutKind::indices) {
    for (const int32_t ranks : {1, 2, parallel.cp_size / 2, parallel.cp_size - 1}) {
      if (ranks < 1 || ranks >= parallel.cp_size) continue;
      steps.push_back(set(&Scenario::parallel, &Parallel::cp_size, ranks));
    }
    steps.push_back(set(&Scenario::parallel, &Parallel::layout, LayoutKind::contiguous));
    if (parallel.layout != LayoutKind::contiguous)
      steps.push_back(set(&Scenario::parallel, &Parallel::layout, LayoutKind::dual_chunk));
  }
  steps.push_back(set(&Scenario::parallel, &Parallel::comm_type, CommType::p2p));
  if (parallel.comm_type != CommType::p2p)
    steps.push_back(set(&Scenario::parallel, &Parallel::comm_type, CommType::all_gather));
  steps.push_back([](Scenario& s) { s.parallel.dispatch = Dispatch::tokens; });
  steps.push_back([](Scenario& s) { s.parallel.backward_kv = BackwardKv::refetch; });
  steps.push_back([](Scenario& s) { s.parallel.stripe = 1; });
}

std::vector<Step> steps_from(const Scenario& scenario) {
  std::vector<Step> steps;
  add_batch_steps(scenario, steps);
  add_size_steps(scenario, steps);
  add_feature_steps(scenario, steps);
  return steps;
}

}  // namespace

Scenario shrink_scenario(Toolbox& toolbox, const std::string& executor, const Scenario& scenario,
                         const FuzzFinding& finding, int64_t most_trials) {
  Scenario smallest = scenario;
  int64_t trials = 0;
  bool is_smaller = true;
  while (is_smaller && trials < most_trials) {
    is_smaller = false;
    for (const Step& step : steps_from(smallest)) {
      Scenario candidate = smallest;
      step(candidate);
      settle_batch(candidate.batch);
      if (candidate == smallest) continue;
      if (++trials > most_trials) break;
      const FuzzResult result = try_scenario(toolbox, executor, candidate);
      if (!result.finding || result.finding->obstacle || result.finding->check != finding.check)
        continue;
      smallest = std::move(candidate);
      is_smaller = true;
      break;
    }
  }
  return smallest;
}

}  // namespace cpscope
