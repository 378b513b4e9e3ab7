#include "reference/kernel_walker.h"

#include "reference/plan_walk.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include <fmt/format.h>

namespace cpscope::reference {
namespace {

/// State that the seams of one run share: the kernel, and the error that stopped it.
struct KernelRun {
  const ItemKernel& kernel;
  std::optional<Error> error;
};

/// Passes compute items to the kernel; the walk does all other items.
template <class T>
class KernelSeam {
 public:
  static constexpr bool kIsOpen = true;
  struct Setup {
    KernelRun* run = nullptr;
  };

  KernelSeam(const WalkParts<T>& parts, const Setup& setup)
      : plan_(parts.plan),
        attention_(parts.plan.scenario.attention),
        memory_(parts.memory),
        rounds_partials_(parts.merger.keeps_partials()),
        run_(*setup.run),
        max_logit_(static_cast<size_t>(attention_.heads),
                   -std::numeric_limits<double>::infinity()) {}

  void after_load() {}
  void alter_places(const ComputeItem&, Direction, TilePlaces&) {}
  void alter_terms(const ComputeItem&, Direction, TermNumbers&) {}
  void before_stage(const Pass&, const Stage&, Direction) {}
  void after_stage(const Pass&, const Stage&, Direction) {}
  void after_run(Answer& answer) { answer.max_logit = max_logit_; }
  template <class Item>
  bool replaces(const Item&) {
    return false;
  }
  int32_t kv_head_of(int32_t head) const { return head / (attention_.heads / attention_.kv_heads); }

  /// Runs the item; after an error no further item is run.
  void compute(const ComputeItem& item, Direction direction) {
    if (run_.error) return;
    ItemCall call;
    call.plan = &plan_;
    call.item = &item;
    call.direction = direction;
    call.q_rows = plan_.rows(item.q_tokens);
    call.kv_rows = plan_.rows(item.kv_tokens);
    call.heads = item.heads;
    call.kv_heads = kv_heads_of(attention_, item.heads);
    const int32_t qk = attention_.head_dim_qk, v = attention_.head_dim_v;
    call.q = take(item.q, call.q_rows, call.heads, qk, false);
    call.k = take(item.kv, call.kv_rows, call.kv_heads, qk, false);
    const bool is_latent = attention_.latent_dim > 0;
    call.v = is_latent ? first_elements(call.k, qk, v)
                       : take(item.kv, call.kv_rows, call.kv_heads, v, true);
    if (direction == Direction::backward) {
      call.out = take(item.out, call.q_rows, call.heads, v, false);
      call.lse = take(item.out, call.q_rows, call.heads, 1, true);
      call.d_out = take(item.d_out, call.q_rows, call.heads, v, false);
    }
    if (auto error = run_.kernel(call)) {
      run_.error = std::move(error);
      return;
    }
    if (direction == Direction::backward) {
      put(call.dq, item.dq, call.q_rows, call.heads, qk, false);
      for (size_t i = 0; is_latent && i < call.dv.size(); ++i)
        call.dk[i / v * qk + i % v] += call.dv[i];
      put(call.dk, item.dkv, call.kv_rows, call.kv_heads, qk, false);
      if (!is_latent) put(call.dv, item.dkv, call.kv_rows, call.kv_heads, v, true);
      return;
    }
    if (rounds_partials_) round_values(plan_.scenario.numerics.dtype, std::span<double>(call.out));
    put(call.out, item.out, call.q_rows, call.heads, v, false);
    put(call.lse, item.out, call.q_rows, call.heads, 1, true);
    for (int32_t head = 0; head < call.heads.size(); ++head) {
      double& most = max_logit_[call.heads.begin + head];
      const double said = call.max_logit[head];
      const double largest = is_unwritten(said) ? find_max_logit(call, head) : said;
      if (!std::isnan(most) && !(largest <= most)) most = largest;  // a NaN stays
    }
  }

 private:
  /// The first `count` elements of every row of `lanes`.
  static std::vector<double> first_elements(const std::vector<double>& rows, int32_t lanes,
                                            int32_t count) {
    std::vector<double> values;
    for (auto row = rows.begin(); row != rows.end(); row += lanes)
      values.insert(values.end(), row, row + count);
    return values;
  }

  AlignedVector<T>& array(BufferId id, bool second) {
    return second ? memory_.at(id).second : memory_.at(id).first;
  }

  /// Visits every row of some heads of a buffer: (values of the buffer, values of the call).
  template <class Values, class Visit>
  void for_rows(Values& values, BufferId id, int64_t rows, HeadRange heads, int64_t lanes,
                bool second, Visit visit) {
    const HeadRange held = plan_.buffer(id).heads;
    T* data = array(id, second).data();
    for (int64_t row = 0; row < rows; ++row) {
      for (int32_t head = 0; head < heads.size(); ++head)
        visit(data + (row * held.size() + heads.begin - held.begin + head) * lanes,
              values.data() + (row * heads.size() + head) * lanes);
    }
  }

  std::vector<double> take(BufferId id, int64_t rows, HeadRange heads, int64_t lanes, bool second) {
    std::vector<double> values(static_cast<size_t>(rows * heads.size() * lanes));
    for_rows(values, id, rows, heads, lanes, second,
             [lanes](const T* from, double* to) { std::copy_n(from, lanes, to); });
    return values;
  }

  void put(const std::vector<double>& values, BufferId id, int64_t rows, HeadRange heads,
           int64_t lanes, bool second) {
    for_rows(values, id, rows, heads, lanes, second, [lanes](T* to, const double* from) {
      std::transform(from, from + lanes, to, [](double value) { return static_cast<T>(value); });
    });
  }

  /// Largest visible logit of one head, for kernels that do not store it.
  double find_max_logit(const ItemCall& call, int32_t head) const {
    const int32_t kv_head = kv_head_of(call.heads.begin + head) - call.kv_heads.begin;
    const int64_t lanes = attention_.head_dim_qk;
    double most = -std::numeric_limits<double>::infinity();
    for (const BandSlice& slice : plan_.slices_of(*call.item)) {
      for (int64_t row = slice.q0; row < slice.q1; ++row) {
        const ColumnRange columns = columns_of_row(slice, row);
        for (int64_t column = columns.begin; column < columns.end; ++column) {
          const double* q = call.q.data() + (row * call.heads.size() + head) * lanes;
          const double* k = call.k.data() + (column * call.kv_heads.size() + kv_head) * lanes;
          most = std::max(most, attention_.effective_scale() * dot_product<double>(q, k, lanes));
        }
      }
    }
    return attention_.softcap > 0 ? attention_.softcap * std::tanh(most / attention_.softcap)
                                  : most;
  }

  const Plan& plan_;
  const Attention& attention_;
  RankMemory<T>& memory_;
  const bool rounds_partials_;
  KernelRun& run_;
  std::vector<double> max_logit_;
};

/// True if a compute of the backward has the statistics of its rows in place of their out.
bool reads_sent_statistics(const Plan& plan) {
  return std::any_of(
      plan.backward.computes.begin(), plan.backward.computes.end(), [&](const ComputeItem& item) {
        return item.num_slices > 0 && plan.buffer(item.out).kind == BufferKind::stats;
      });
}

class KernelWalker : public Executor {
 public:
  KernelWalker(std::string name, ItemKernel kernel)
      : name_(std::move(name)), kernel_(std::move(kernel)) {}

  std::string name() const override { return name_; }

  int64_t memory_bytes(const CheckedPlan& plan) const override {
    // The largest item is copied from the buffers, and once more into the kernel's own types.
    return 2 * reference::memory_bytes(plan.plan(), 8);
  }

  Result<RunOutput> run(const CheckedPlan& checked, const RunInputs& inputs,
                        const RunOptions& options) override {
    if (checked.plan().scenario.numerics.fp8)
      return make_error(ErrorKind::unavailable,
                        fmt::format("executor {} cannot do this: kernels of others are not told "
                                    "the scales of dtype fp8",
                                    name_),
                        "use --executor cpu");
    if (reads_sent_statistics(checked.plan()))
      return make_error(
          ErrorKind::unavailable,
          fmt::format("executor {} cannot do this: kernels of others read out in the backward, and "
                      "with queries of other ranks only lse and delta arrive",
                      name_),
          "use backward = false, or --executor cpu");
    if (checked.plan().scenario.attention.expands_rows())
      return make_error(ErrorKind::unavailable,
                        fmt::format("executor {} cannot do this: kernels of others are not told "
                                    "the weights that expand latent rows (latent_nope_dim)",
                                    name_),
                        "use --executor cpu");
    if (has_score_terms(checked.plan().scenario.attention))
      return make_error(
          ErrorKind::unavailable,
          fmt::format("executor {} cannot do this: kernels of others are not told the bias, the "
                      "slopes of ALiBi or the dropped weights of an item",
                      name_),
          "use --executor cpu");
    try {
      if (checked.plan().scenario.numerics.dtype == Dtype::fp64)
        return run_with<double>(checked, inputs, options);
      return run_with<float>(checked, inputs, options);
    } catch (const std::bad_alloc&) {
      return make_error(ErrorKind::unavailable,
                        fmt::format("this machine has not enough memory for executor {}", name_),
                        "use fewer tokens or ranks");
    }
  }

 private:
  template <class T>
  Result<RunOutput> run_with(const CheckedPlan& checked, const RunInputs& inputs,
                             const RunOptions& options) {
    KernelRun state{kernel_, {}};
    Result<RunOutput> output = Walk<T, KernelSeam<T>>(checked.plan(), inputs, options,
                                                      !checked.admitted_because().empty(), {&state})
                                   .run();
    if (state.error) return *state.error;
    return output;
  }

  const std::string name_;
  const ItemKernel kernel_;
};

}  // namespace

std::unique_ptr<Executor> make_kernel_walker(std::string name, ItemKernel kernel) {
  return std::make_unique<KernelWalker>(std::move(name), std::move(kernel));
}

}  // namespace cpscope::reference
