#include "reference/plan_walker.h"

#include "reference/online_softmax.h"
#include "reference/rank_memory.h"
#include "reference/rotate_row.h"
#include "reference/row_moves.h"
#include "reference/tile_attention.h"
#include "sim/base/parallel.h"
#include "sim/run/dtype.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include <fmt/format.h>

namespace cpscope::reference {

namespace {

template <class T>
class Walk {
 public:
  Walk(const Plan& plan, const RunInputs& inputs, const RunOptions& options, bool in_order)
      : plan_(plan),
        attention_(plan.scenario.attention),
        numerics_(plan.scenario.numerics),
        inputs_(inputs),
        options_(options),
        memory_(plan),
        in_order_(in_order) {
    settings_.scale = attention_.effective_scale();
    settings_.softcap = attention_.softcap;
    settings_.dtype = numerics_.dtype;
    settings_.dim_qk = attention_.head_dim_qk;
    settings_.dim_v = attention_.head_dim_v;
    keeps_partials_ =
        numerics_.accumulate == Accumulate::dtype && element_bytes(numerics_.dtype) == 2;
  }

  RunOutput run() {
    // Fresh memory is never assumed to be zero: without poison it is a number that would show.
    memory_.allocate(options_.poison ? std::numeric_limits<T>::quiet_NaN() : T(12345.678));
    load_inputs();
    output_.answer.max_logit.assign(static_cast<size_t>(attention_.heads),
                                    -std::numeric_limits<double>::infinity());
    run_pass(plan_.forward, false);
    collect_forward();
    if (numerics_.backward) {
      run_pass(plan_.backward, true);
      collect_backward();
    }
    return std::move(output_);
  }

 private:
  int64_t cells(const BufferSpec& spec) const { return spec.rows * spec.heads.size(); }

  // ---- inputs
  // -------------------------------------------------------------------------------------------------------------------------

  /// Copies a rank's rows of a packed tensor into its home buffer, rotated where RoPE asks for it.
  void load_rows(const Tensor& tensor, RunListId tokens, int32_t heads, int32_t lanes, bool rotates,
                 bool is_query, AlignedVector<T>& out) {
    int64_t row = 0;
    for (const TokenRun& run : plan_.list(tokens)) {
      for (int64_t token = run.begin; token < run.end; token += run.stride, ++row) {
        const double* source = tensor.values.data() + token * heads * lanes;
        T* target = out.data() + row * heads * lanes;
        for (int64_t i = 0; i < int64_t{heads} * lanes; ++i) target[i] = static_cast<T>(source[i]);
        if (!rotates) continue;
        const int64_t position = position_of(token, is_query);
        for (int32_t head = 0; head < heads; ++head) {
          rotate_row(attention_.rope_theta, position, lanes, 1.0, target + head * lanes);
          for (int32_t lane = 0; lane < lanes; ++lane)
            target[head * lanes + lane] = round_to(numerics_.dtype, target[head * lanes + lane]);
        }
      }
    }
  }

  int64_t position_of(int64_t token, bool is_query) const {
    const auto& sequences = plan_.layout.slots.sequences;
    const auto after = std::upper_bound(sequences.begin(), sequences.end(), token,
                                        [&](int64_t id, const SequenceSlot& slot) {
                                          return id < (is_query ? slot.q_begin : slot.kv_begin);
                                        });
    if (after == sequences.begin()) return 0;
    return token - (is_query ? (after - 1)->q_begin : (after - 1)->kv_begin);
  }

  void load_inputs() {
    const bool rotates = attention_.rope_theta > 0;
    for_each_index(
        static_cast<int64_t>(plan_.home.size()),
        [&](int64_t r) {
          const HomeBuffers& home = plan_.home[r];
          load_rows(inputs_.q, plan_.q_lists[r], attention_.heads, attention_.head_dim_qk, rotates,
                    true, memory_.at(home.q).first);
          load_rows(inputs_.k, plan_.kv_lists[r], attention_.kv_heads, attention_.head_dim_qk,
                    rotates, false, memory_.at(home.kv).first);
          load_rows(inputs_.v, plan_.kv_lists[r], attention_.kv_heads, attention_.head_dim_v, false,
                    false, memory_.at(home.kv).second);
          if (home.d_out == kNoBuffer) return;
          load_rows(inputs_.d_out, plan_.q_lists[r], attention_.heads, attention_.head_dim_v, false,
                    true, memory_.at(home.d_out).first);
        },
        options_.threads);
  }

  // ---- stages
  // -------------------------------------------------------------------------------------------------------------------------

  void run_pass(const Pass& pass, bool is_backward) {
    is_backward_ = is_backward;
    for (size_t s = 0; s < pass.stages.size(); ++s) {
      const Stage& stage = pass.stages[s];
      switch (stage.kind) {
        case StageKind::transfer:
          run_transfers(pass, stage);
          break;
        case StageKind::reorder:
          for_each_index(
              stage.end - stage.begin,
              [&](int64_t i) { gather_rows(plan_, pass.reorders[stage.begin + i], memory_); },
              options_.threads);
          break;
        case StageKind::compute:
          is_backward ? compute_backward(pass, stage) : compute_forward(pass, stage);
          break;
        case StageKind::merge:
          for (int64_t i = stage.begin; i < stage.end; ++i) merge(pass.merges[i]);
          break;
        case StageKind::finish:
          for_each_index(
              stage.end - stage.begin, [&](int64_t i) { finish(pass.finishes[stage.begin + i]); },
              options_.threads);
          break;
      }
      if (options_.progress)
        options_.progress(static_cast<int64_t>(s) + 1, static_cast<int64_t>(pass.stages.size()));
    }
  }

  void run_transfers(const Pass& pass, const Stage& stage) {
    // Additions into one buffer follow item order, so the work is split by receiver, never inside
    // one.
    std::map<int32_t, std::vector<int64_t>> by_receiver;
    for (int64_t i = stage.begin; i < stage.end; ++i)
      by_receiver[to_index(pass.transfers[i].dst)].push_back(i);
    std::vector<const std::vector<int64_t>*> lists;
    for (const auto& [rank, list] : by_receiver) lists.push_back(&list);
    for_each_index(
        static_cast<int64_t>(lists.size()),
        [&](int64_t r) {
          for (const int64_t i : *lists[r]) move_rows(plan_, pass.transfers[i], memory_);
        },
        in_order_ ? 1 : options_.threads);
  }

  // ---- compute
  // ------------------------------------------------------------------------------------------------------------------------

  template <class U>
  HeadView<U> view(BufferId id, int32_t head, bool second) {
    const BufferSpec& spec = plan_.buffer(id);
    const LaneCounts lanes = lane_counts(spec.kind, attention_);
    const int64_t width = second ? lanes.second : lanes.first;
    AlignedVector<T>& data = second ? memory_.at(id).second : memory_.at(id).first;
    return {data.data() + (head - spec.heads.begin) * width, spec.heads.size() * width};
  }

  int32_t kv_head_of(int32_t head) const { return head / (attention_.heads / attention_.kv_heads); }

  void add_work(int32_t head, const TileWork& work, double seconds) {
    const std::lock_guard lock(work_mutex_);
    output_.tile_flops += work.flops;
    output_.tile_seconds += seconds;
    if (!is_backward_)
      output_.answer.max_logit[head] = std::max(output_.answer.max_logit[head], work.max_logit);
  }

  void compute_forward(const Pass& pass, const Stage& stage) {
    struct Unit {
      const ComputeItem* item;
      int32_t head;
    };
    std::vector<Unit> units;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const ComputeItem& item = pass.computes[i];
      for (int32_t head = item.heads.begin; item.num_slices > 0 && head < item.heads.end; ++head)
        units.push_back({&item, head});
    }
    for_each_index(
        static_cast<int64_t>(units.size()),
        [&](int64_t u) {
          const auto start = std::chrono::steady_clock::now();
          const ComputeItem& item = *units[u].item;
          const int32_t head = units[u].head, kv_head = kv_head_of(head);
          const HeadView<T> lse = view<T>(item.out, head, true);
          const HeadView<T> o = view<T>(item.out, head, false);
          const TileWork work = tile_forward<T>(
              settings_, plan_.slices_of(item), plan_.rows(item.q_tokens),
              view<const T>(item.q, head, false), view<const T>(item.kv, kv_head, false),
              view<const T>(item.kv, kv_head, true), o, lse.data, lse.stride);
          if (keeps_partials_) {
            for (int64_t row = 0; row < plan_.rows(item.q_tokens); ++row) {
              for (int32_t lane = 0; lane < settings_.dim_v; ++lane)
                o.row(row)[lane] = round_to(numerics_.dtype, o.row(row)[lane]);
            }
          }
          add_work(head, work,
                   std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        },
        options_.threads);
  }

  void compute_backward(const Pass& pass, const Stage& stage) {
    struct Unit {
      const ComputeItem* item;
      int32_t kv_head;
    };
    std::vector<Unit> units;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const ComputeItem& item = pass.computes[i];
      const HeadRange kv_heads = kv_heads_of(attention_, item.heads);
      for (int32_t kv_head = kv_heads.begin; item.num_slices > 0 && kv_head < kv_heads.end;
           ++kv_head)
        units.push_back({&item, kv_head});
    }
    for_each_index(
        static_cast<int64_t>(units.size()),
        [&](int64_t u) { backward_unit(*units[u].item, units[u].kv_head); }, options_.threads);
  }

  /// One kv head of one item: its query heads one after another, so that dK and dV are summed in a
  /// fixed order.
  void backward_unit(const ComputeItem& item, int32_t kv_head) {
    const auto start = std::chrono::steady_clock::now();
    const int64_t rows = plan_.rows(item.q_tokens), kv_rows = plan_.rows(item.kv_tokens);
    const int32_t group = attention_.heads / attention_.kv_heads;
    const HeadView<T> dk = view<T>(item.dkv, kv_head, false), dv = view<T>(item.dkv, kv_head, true);
    for (int64_t row = 0; row < kv_rows; ++row) {
      std::fill_n(dk.row(row), settings_.dim_qk, T(0));
      std::fill_n(dv.row(row), settings_.dim_v, T(0));
    }
    TileWork total;
    std::vector<T> delta(static_cast<size_t>(rows));
    for (int32_t head = std::max(kv_head * group, item.heads.begin);
         head < std::min((kv_head + 1) * group, item.heads.end); ++head) {
      const HeadView<T> dq = view<T>(item.dq, head, false), lse = view<T>(item.out, head, true);
      for (int64_t row = 0; row < rows; ++row) {
        std::fill_n(dq.row(row), settings_.dim_qk, T(0));
        delta[row] = row_delta(item, head, row);
      }
      const TileWork work = tile_backward<T>(
          settings_, plan_.slices_of(item), view<const T>(item.q, head, false),
          view<const T>(item.kv, kv_head, false), view<const T>(item.kv, kv_head, true),
          view<const T>(item.d_out, head, false), lse.data, lse.stride, delta.data(), dq, dk, dv);
      total.flops += work.flops;
    }
    add_work(0, total,
             std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }

  /// rowsum(d_out * out); 0 for rows that see nothing, whose d_out may be poison.
  T row_delta(const ComputeItem& item, int32_t head, int64_t row) {
    if (*view<T>(item.out, head, true).row(row) == -std::numeric_limits<T>::infinity()) return T(0);
    const T* out = view<T>(item.out, head, false).row(row);
    const T* d_out = view<T>(item.d_out, head, false).row(row);
    T sum = 0;
    for (int32_t lane = 0; lane < settings_.dim_v; ++lane) sum += out[lane] * d_out[lane];
    return sum;
  }

  // ---- merge and finish
  // ---------------------------------------------------------------------------------------------------------------

  void merge(const MergeItem& item) {
    const BufferSpec& spec = plan_.buffer(item.into);
    if (spec.kind == BufferKind::out) return merge_out(item, spec);
    merge_sum(item, &BufferMemory<T>::first);
    merge_sum(item, &BufferMemory<T>::second);
  }

  void merge_sum(const MergeItem& item, AlignedVector<T> BufferMemory<T>::*array) {
    AlignedVector<T>& into = memory_.at(item.into).*array;
    if (item.partial == kNoBuffer) {
      std::fill(into.begin(), into.end(), T(0));
      return;
    }
    const AlignedVector<T>& partial = memory_.at(item.partial).*array;
    // A ring slot may be larger than the rows that it holds now.
    const size_t count = std::min(into.size(), partial.size());
    for (size_t i = 0; i < count; ++i) {
      const T addend = keeps_partials_ ? round_to(numerics_.dtype, partial[i]) : partial[i];
      into[i] = round_sum(numerics_, item.order == 0 ? addend : into[i] + addend);
    }
  }

  void merge_out(const MergeItem& item, const BufferSpec& spec) {
    BufferMemory<T>& into = memory_.at(item.into);
    if (item.order == 0) {
      std::fill(into.first.begin(), into.first.end(), T(0));
      std::fill(into.second.begin(), into.second.end(), -std::numeric_limits<T>::infinity());
    }
    if (item.partial == kNoBuffer) return;
    const BufferMemory<T>& partial = memory_.at(item.partial);
    const int32_t lanes = settings_.dim_v;
    if (keeps_partials_) {
      if (item.order == 0) kept_[to_index(item.into)].clear();
      kept_[to_index(item.into)].push_back(partial);
      for (int64_t i = 0; i < cells(spec); ++i)
        into.second[i] = log_sum_exp(into.second[i], partial.second[i]);
      return;
    }
    for (int64_t i = 0; i < cells(spec); ++i) {
      const T whole = log_sum_exp(into.second[i], partial.second[i]);
      const T old_weight = weight_of(into.second[i], whole),
              new_weight = weight_of(partial.second[i], whole);
      for (int64_t lane = 0; lane < lanes; ++lane) {
        T& value = into.first[i * lanes + lane];
        value = value * old_weight + partial.first[i * lanes + lane] * new_weight;
      }
      into.second[i] = whole;
    }
  }

  /// TransformerEngine's 16-bit merge: with the final lse, every partial is weighted and added in
  /// the dtype, in step order. thd rounds each addend first; bshd and sbhd do not.
  void sum_kept_partials(BufferId id, const BufferSpec& spec) {
    const auto found = kept_.find(to_index(id));
    if (found == kept_.end()) return;
    BufferMemory<T>& into = memory_.at(id);
    const bool rounds_twice = plan_.scenario.batch.qkv_format == QkvFormat::thd;
    for (const BufferMemory<T>& partial : found->second) {
      for (int64_t i = 0; i < cells(spec); ++i) {
        const T weight = weight_of(partial.second[i], into.second[i]);
        for (int64_t lane = 0; lane < settings_.dim_v; ++lane) {
          T addend = partial.first[i * settings_.dim_v + lane] * weight;
          if (rounds_twice) addend = round_to(numerics_.dtype, addend);
          T& value = into.first[i * settings_.dim_v + lane];
          value = round_to(numerics_.dtype, value + addend);
        }
      }
    }
  }

  T sink_of(int32_t head) const {
    return attention_.softmax_type == SoftmaxType::learnable ? static_cast<T>(inputs_.sink[head])
                                                             : T(0);
  }

  void finish(const FinishItem& item) {
    const BufferSpec& spec = plan_.buffer(item.buffer);
    BufferMemory<T>& memory = memory_.at(item.buffer);
    if (spec.kind == BufferKind::out) {
      if (keeps_partials_) sum_kept_partials(item.buffer, spec);
      if (attention_.softmax_type != SoftmaxType::vanilla) add_sink(spec, memory);
    }
    for (T& value : memory.first) value = round_to(numerics_.dtype, value);
    if (spec.kind == BufferKind::dkv) {
      for (T& value : memory.second) value = round_to(numerics_.dtype, value);
    }
  }

  /// The sink is one more key without a value. It enters here, once; rows that see no key stay
  /// empty.
  void add_sink(const BufferSpec& spec, BufferMemory<T>& memory) const {
    for (int64_t i = 0; i < cells(spec); ++i) {
      if (memory.second[i] == -std::numeric_limits<T>::infinity()) continue;
      const T whole =
          log_sum_exp(memory.second[i],
                      sink_of(spec.heads.begin + static_cast<int32_t>(i % spec.heads.size())));
      const T weight = std::exp(memory.second[i] - whole);
      for (int64_t lane = 0; lane < settings_.dim_v; ++lane)
        memory.first[i * settings_.dim_v + lane] *= weight;
      memory.second[i] = whole;
    }
  }

  // ---- answers
  // ------------------------------------------------------------------------------------------------------------------------

  static Tensor make_tensor(std::string name, std::vector<int64_t> shape) {
    Tensor tensor{
        std::move(name), std::move(shape), sizeof(T) == 8 ? Dtype::fp64 : Dtype::fp32, {}};
    // A row that nobody owns would stay NaN and be seen.
    tensor.values.assign(static_cast<size_t>(tensor.size()),
                         std::numeric_limits<double>::quiet_NaN());
    return tensor;
  }

  void collect_forward() {
    const BatchSlots& slots = plan_.layout.slots;
    Answer& answer = output_.answer;
    answer.out = make_tensor("out", {slots.tokens, attention_.heads, attention_.head_dim_v});
    answer.lse = make_tensor("lse", {slots.tokens, attention_.heads});
    for (size_t r = 0; r < plan_.home.size(); ++r) {
      scatter_to_tokens(plan_, plan_.home[r].out, plan_.q_lists[r], false, attention_.heads,
                        memory_, answer.out);
    }
    // lse never travels: it is read where the rows were computed.
    for (const FinishItem& item : plan_.forward.finishes) {
      const BufferSpec& spec = plan_.buffer(item.buffer);
      if (spec.kind != BufferKind::out) continue;
      scatter_to_tokens(plan_, item.buffer, spec.tokens, true, attention_.heads, memory_,
                        answer.lse);
    }
  }

  void unrotate(Tensor& tensor, int32_t heads, bool is_query) {
    const int32_t lanes = attention_.head_dim_qk;
    const int64_t tokens = tensor.shape.front();
    for (int64_t token = 0; token < tokens; ++token) {
      const int64_t position = position_of(token, is_query);
      for (int32_t head = 0; head < heads; ++head) {
        double* row = tensor.values.data() + (token * heads + head) * lanes;
        rotate_row(attention_.rope_theta, position, lanes, -1.0, row);
        for (int32_t lane = 0; lane < lanes; ++lane)
          row[lane] = round_to(numerics_.dtype, row[lane]);
      }
    }
  }

  void collect_backward() {
    const BatchSlots& slots = plan_.layout.slots;
    Answer& answer = output_.answer;
    answer.dq = make_tensor("dq", {slots.tokens, attention_.heads, attention_.head_dim_qk});
    answer.dk = make_tensor("dk", {slots.kv_tokens, attention_.kv_heads, attention_.head_dim_qk});
    answer.dv = make_tensor("dv", {slots.kv_tokens, attention_.kv_heads, attention_.head_dim_v});
    for (size_t r = 0; r < plan_.home.size(); ++r) {
      const HomeBuffers& home = plan_.home[r];
      scatter_to_tokens(plan_, home.dq, plan_.q_lists[r], false, attention_.heads, memory_,
                        answer.dq);
      scatter_to_tokens(plan_, home.dkv, plan_.kv_lists[r], false, attention_.kv_heads, memory_,
                        answer.dk);
      scatter_to_tokens(plan_, home.dkv, plan_.kv_lists[r], true, attention_.kv_heads, memory_,
                        answer.dv);
    }
    if (attention_.rope_theta > 0) {
      unrotate(answer.dq, attention_.heads, true);
      unrotate(answer.dk, attention_.kv_heads, false);
    }
    if (attention_.softmax_type == SoftmaxType::learnable) collect_sink_gradient();
  }

  /// d_sink = -sum over rows of exp(sink - lse) * rowsum(d_out * out), each row once, where it was
  /// computed.
  void collect_sink_gradient() {
    output_.answer.d_sink.assign(static_cast<size_t>(attention_.heads), 0.0);
    std::vector<bool> counted(plan_.buffers.size(), false);
    for (const ComputeItem& item : plan_.backward.computes) {
      if (counted[to_index(item.out)]) continue;
      counted[to_index(item.out)] = true;
      for (int32_t head = item.heads.begin; head < item.heads.end; ++head) {
        const HeadView<T> lse = view<T>(item.out, head, true);
        for (int64_t row = 0; row < plan_.rows(item.q_tokens); ++row) {
          if (*lse.row(row) == -std::numeric_limits<T>::infinity()) continue;
          output_.answer.d_sink[head] -=
              std::exp(static_cast<double>(sink_of(head)) - static_cast<double>(*lse.row(row))) *
              static_cast<double>(row_delta(item, head, row));
        }
      }
    }
  }

  const Plan& plan_;
  const Attention& attention_;
  const Numerics& numerics_;
  const RunInputs& inputs_;
  const RunOptions& options_;
  RankMemory<T> memory_;
  bool in_order_;  // transfers one after another: a faulty plan may read what it writes
  bool is_backward_ = false;
  bool keeps_partials_ = false;
  TileSettings settings_;
  std::map<int32_t, std::vector<BufferMemory<T>>>
      kept_;  // accumulator -> partials, when merged in the dtype at the end
  std::mutex work_mutex_;
  RunOutput output_;
};

class PlanWalker : public Executor {
 public:
  std::string name() const override { return "cpu"; }

  int64_t memory_bytes(const CheckedPlan& plan) const override {
    return reference::memory_bytes(plan.plan(),
                                   plan.plan().scenario.numerics.dtype == Dtype::fp64 ? 8 : 4);
  }

  Result<RunOutput> run(const CheckedPlan& checked, const RunInputs& inputs,
                        const RunOptions& options) override {
    const Plan& plan = checked.plan();
    const bool in_order = !checked.admitted_because().empty();
    try {
      if (plan.scenario.numerics.dtype == Dtype::fp64)
        return Walk<double>(plan, inputs, options, in_order).run();
      return Walk<float>(plan, inputs, options, in_order).run();
    } catch (const std::bad_alloc&) {
      return make_error(
          ErrorKind::unavailable,
          fmt::format(
              "the plan needs {:.1f} GiB on executor cpu, and this machine does not give them",
              static_cast<double>(memory_bytes(checked)) / (1 << 30)),
          "use fewer tokens or ranks");
    }
  }
};

}  // namespace

std::unique_ptr<Executor> make_plan_walker() { return std::make_unique<PlanWalker>(); }

}  // namespace cpscope::reference
