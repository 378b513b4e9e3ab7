#pragma once

// Private to the reference library: the walk itself, as used by the executor `cpu` and by the fault
// gallery's walker.

#include "reference/home_rows.h"
#include "reference/partial_merger.h"
#include "reference/quantised_tiles.h"
#include "reference/rank_memory.h"
#include "reference/round_rows.h"
#include "reference/row_expander.h"
#include "reference/row_moves.h"
#include "reference/tile_attention.h"
#include "reference/walk_seam.h"
#include "sim/base/id_vector.h"
#include "sim/base/parallel.h"
#include "sim/plan/item_uses.h"
#include "sim/plan/kept_inputs.h"
#include "sim/plan/visit_items.h"
#include "sim/run/executor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace cpscope::reference {

/// One run of one plan. `in_order`: the items of a stage run one after another, because a faulty
/// plan may read what it writes.
template <class T, class Seam = HealthySeam<T>>
class Walk {
 public:
  Walk(const Plan& plan, const RunInputs& inputs, const RunOptions& options, bool in_order,
       const typename Seam::Setup& setup = {})
      : plan_(plan),
        attention_(plan.scenario.attention),
        inputs_(inputs),
        options_(options),
        item_threads_(in_order ? 1 : options.threads),
        watch_(
            options.control,
            (plan.forward.num_items() + plan.backward.num_items()) * std::max(1, options.repeats),
            count_work() * std::max(1, options.repeats)),
        memory_(plan),
        merger_(plan, inputs.sink, memory_),
        terms_(plan, inputs),
        expander_(plan.scenario, inputs),
        seam_(WalkParts<T>{plan, inputs, memory_, merger_}, setup) {
    settings_.scale = attention_.effective_scale();
    settings_.softcap = attention_.softcap;
    settings_.dtype = plan.scenario.numerics.dtype;
    settings_.dim_qk = attention_.head_dim_qk;
    settings_.dim_v = attention_.head_dim_v;
  }

  Result<RunOutput> run() {
    // Fresh memory is never assumed to be zero: without poison it is a number that would be
    // noticed.
    memory_.allocate(options_.poison ? std::numeric_limits<T>::quiet_NaN() : T(12345.678),
                     options_.threads);
    load_inputs(plan_, inputs_, options_.threads, memory_);
    if constexpr (Seam::kIsOpen) seam_.after_load();
    if constexpr (kIsFloat) {
      if (plan_.scenario.numerics.fp8) {
        fp8_ = make_quantised_rules(plan_, inputs_);
        if constexpr (requires { seam_.change_rules(fp8_); }) seam_.change_rules(fp8_);
        quantise_home_rows(plan_, fp8_, memory_);
        if constexpr (requires { seam_.after_quantising(fp8_); }) seam_.after_quantising(fp8_);
      }
    }
    output_.answer.max_logit.assign(static_cast<size_t>(attention_.heads),
                                    -std::numeric_limits<double>::infinity());
    output_.forward_seconds = time_pass(Direction::forward);
    if (watch_.was_cancelled()) return watch_.error("the run", "items");
    collect_forward(plan_, memory_, item_threads_, output_.answer);
    if (plan_.scenario.numerics.backward) {
      output_.backward_seconds = time_pass(Direction::backward);
      if (watch_.was_cancelled()) return watch_.error("the run", "items");
      collect_backward(plan_, memory_, item_threads_, output_.answer);
      if (terms_.has_bias()) output_.answer.dbias = terms_.sum_cells(dbias_cells_);
      if (attention_.softmax_type == SoftmaxType::learnable) collect_sink_gradient();
    }
    if constexpr (Seam::kIsOpen) seam_.after_run(output_.answer);
    return std::move(output_);
  }

 private:
  static constexpr bool kIsFloat = std::is_same_v<T, float>;

  /// The products of a compute item: its visible pairs, in lengths of a row.
  double work_of(const ComputeItem& item, Direction direction) const {
    const double qk = attention_.head_dim_qk, v = attention_.head_dim_v;
    return static_cast<double>(item.visible_pairs) *
           (direction == Direction::backward ? 3 * qk + 2 * v : qk + v);
  }

  double count_work() const {
    double work = 0;
    for (const Direction direction : {Direction::forward, Direction::backward})
      for (const ComputeItem& item : plan_.pass(direction).computes)
        work += work_of(item, direction);
    return work;
  }

  /// Runs one direction options.repeats times; returns the wall time of each repeat.
  std::vector<double> time_pass(Direction direction) {
    std::vector<double> seconds;
    std::vector<std::pair<BufferId, BufferMemory<T>>> kept;
    if (direction == Direction::backward && options_.repeats > 1) {
      for (const BufferId id : find_kept_inputs(plan_)) kept.emplace_back(id, memory_.at(id));
    }
    for (int32_t repeat = 0; repeat < std::max(1, options_.repeats) && !watch_.was_cancelled();
         ++repeat) {
      for (const auto& [id, values] : kept) memory_.at(id) = values;
      const auto start = std::chrono::steady_clock::now();
      run_pass(direction);
      seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return seconds;
  }

  void run_pass(Direction direction) {
    const Pass& pass = plan_.pass(direction);
    direction_ = direction;
    if (direction == Direction::backward) fill_statistics();
    if (direction == Direction::backward && terms_.has_bias())
      dbias_cells_.assign(static_cast<size_t>(terms_.count_cells()), T(0));
    for (const Stage& stage : pass.stages) {
      if constexpr (Seam::kIsOpen) seam_.before_stage(pass, stage, direction);
      run_stage(pass, stage);
      if (watch_.was_cancelled()) return;
      if constexpr (Seam::kIsOpen) seam_.after_stage(pass, stage, direction);
      if (options_.observer) observe_stage(pass, stage);
      num_done_ += stage.end - stage.begin;
      watch_.reach(num_done_);
    }
  }

  /// lse and delta of every rank's rows, where queries move in the backward.
  void fill_statistics() {
    for (const HomeBuffers& home : plan_.home) {
      if (home.stats == kNoBuffer) continue;
      const BufferSpec& spec = plan_.buffer(home.stats);
      BufferMemory<T>& stats = memory_.at(home.stats);
      stats.second = memory_.at(home.out).second;
      for_each_index(
          spec.rows,
          [&](int64_t row) {
            for (int32_t head = 0; head < spec.heads.size(); ++head)
              stats.first[row * spec.heads.size() + head] =
                  row_delta(home.out, home.d_out, head, row);
          },
          options_.threads);
    }
  }

  void run_stage(const Pass& pass, const Stage& stage) {
    switch (stage.kind) {
      case StageKind::transfer:
        settle_sources(pass, stage);
        // Additions into one buffer follow item order.
        run_grouped(
            stage, [&](int64_t i) { return to_index(pass.transfers[i].dst); },
            [&](int64_t i) {
              const TransferItem& item = pass.transfers[i];
              if (!replaces(item)) move_rows(plan_, item, memory_);
            });
        break;
      case StageKind::reorder:
        run_watched(
            stage.end - stage.begin, stage.end - stage.begin, item_threads_,
            [&](int64_t i) { gather_rows(plan_, pass.reorders[stage.begin + i], memory_); });
        break;
      case StageKind::compute:
        if constexpr (requires(Seam & seam, const ComputeItem& item) {
                        seam.compute(item, Direction::forward);
                      }) {
          compute_in_seam(pass, stage);
        } else {
          direction_ == Direction::backward ? compute_backward(pass, stage)
                                            : compute_forward(pass, stage);
        }
        break;
      case StageKind::merge:
        run_grouped(
            stage, [&](int64_t i) { return to_index(pass.merges[i].into); },
            [&](int64_t i) {
              if (!replaces(pass.merges[i])) merger_.merge(pass.merges[i]);
            });
        break;
      case StageKind::finish:
        run_watched(stage.end - stage.begin, stage.end - stage.begin, item_threads_,
                    [&](int64_t i) {
                      const FinishItem& item = pass.finishes[stage.begin + i];
                      if (!replaces(item)) merger_.finish(item);
                    });
        break;
    }
  }

  /// Adds up the partial results that a stage sends. One buffer may be sent to several ranks.
  void settle_sources(const Pass& pass, const Stage& stage) {
    std::set<BufferId> sources;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const TransferItem& item = pass.transfers[i];
      if (item.payload == Payload::partial || item.landing == Landing::add)
        sources.insert(item.from);
    }
    const std::vector<BufferId> list(sources.begin(), sources.end());
    for_each_index(
        std::ssize(list), [&](int64_t i) { merger_.settle(list[static_cast<size_t>(i)]); },
        item_threads_);
  }

  /// True if the seam has run this item itself.
  template <class Item>
  bool replaces([[maybe_unused]] const Item& item) {
    if constexpr (Seam::kIsOpen) return seam_.replaces(item);
    return false;
  }

  /// Runs body(index) for `count` units of `num_items` items, until the run is cancelled.
  template <class Body>
  void run_watched(int64_t count, int64_t num_items, int threads, Body body) {
    std::atomic<int64_t> done = 0;
    for_each_index(
        count,
        [&](int64_t index) {
          if (watch_.is_cancelled()) return;
          body(index);
          watch_.reach(num_done_ + num_items * ++done / count);
        },
        threads);
  }

  /// Passes the results of the stage's computes or finishes to the observer, item by item.
  void observe_stage(const Pass& pass, const Stage& stage) {
    for_each_item(
        pass, direction_, stage,
        Overload{[&](const ItemId& id, const ComputeItem& item) {
                   visit_writes(item, [&](BufferId written) {
                     const bool is_of_keys = plan_.buffer(written).kind == BufferKind::dkv;
                     observe(id, item.rank, item.step, written,
                             plan_.rows(is_of_keys ? item.kv_tokens : item.q_tokens));
                   });
                 },
                 [&](const ItemId& id, const FinishItem& item) {
                   observe(id, item.rank, item.step, item.buffer, plan_.buffer(item.buffer).rows);
                 },
                 [](const ItemId&, const auto&) {}});
  }

  /// The first `rows` rows of a result buffer's arrays.
  void observe(const ItemId& id, RankId rank, StepId step, BufferId buffer, int64_t rows) {
    const BufferSpec& spec = plan_.buffer(buffer);
    const LaneCounts lanes = lane_counts(spec.kind, attention_);
    const auto show = [&](const char* array, const AlignedVector<T>& data, int64_t width) {
      ItemResult result{id, rank, step, array, {rows, spec.heads.size(), width}, {}};
      result.values.assign(data.begin(), data.begin() + rows * spec.heads.size() * width);
      options_.observer(result);
    };
    const BufferMemory<T>& memory = memory_.at(buffer);
    const bool is_out = spec.kind == BufferKind::out;
    show(is_out ? "out" : spec.kind == BufferKind::dkv ? "dk" : "dq", memory.first, lanes.first);
    if (lanes.second > 0) show(is_out ? "lse" : "dv", memory.second, lanes.second);
  }

  /// Runs the items of a stage; items of one group run one after another, in order.
  template <class GroupOf, class Body>
  void run_grouped(const Stage& stage, GroupOf group_of, Body body) {
    std::map<int32_t, std::vector<int64_t>> groups;
    for (int64_t i = stage.begin; i < stage.end; ++i) groups[group_of(i)].push_back(i);
    std::vector<const std::vector<int64_t>*> lists;
    for (const auto& [group, list] : groups) lists.push_back(&list);
    run_watched(static_cast<int64_t>(lists.size()), stage.end - stage.begin, item_threads_,
                [&](int64_t l) {
                  for (const int64_t i : *lists[l]) {
                    if (watch_.is_cancelled()) return;
                    body(i);
                  }
                });
  }

  /// One head of a buffer; `second`: V or lse. A V that is a part of K has K's rows.
  template <class U>
  HeadView<U> view(BufferId id, int32_t head, bool second) {
    const BufferSpec& spec = plan_.buffer(id);
    const LaneCounts lanes = lane_counts(spec.kind, attention_);
    second = second && lanes.second > 0;
    const int64_t width = second ? lanes.second : lanes.first;
    AlignedVector<T>& data = second ? memory_.at(id).second : memory_.at(id).first;
    return {data.data() + (head - spec.heads.begin) * width, spec.heads.size() * width};
  }

  int32_t kv_head_of(int32_t head) const {
    if constexpr (Seam::kIsOpen) return seam_.kv_head_of(head);
    return head / (attention_.heads / attention_.kv_heads);
  }

  /// One head of one compute item: a query head forward, a KV head backward.
  struct Unit {
    const ComputeItem* item;
    int32_t head;
    int32_t units;  // of the item
  };

  /// Runs every unit and adds up the work that each returns.
  template <class Body>
  void run_units(const std::vector<Unit>& units, const Stage& stage, Body body) {
    run_watched(static_cast<int64_t>(units.size()), stage.end - stage.begin, options_.threads,
                [&](int64_t u) {
                  const auto start = std::chrono::steady_clock::now();
                  std::unique_ptr<TileScratch<T>> scratch = take_scratch();
                  const TileWork work = body(*units[u].item, units[u].head, *scratch);
                  const std::chrono::duration<double> elapsed =
                      std::chrono::steady_clock::now() - start;
                  watch_.add_work(work_of(*units[u].item, direction_) / units[u].units);
                  const std::lock_guard lock(work_mutex_);
                  idle_scratch_.push_back(std::move(scratch));
                  output_.tile_flops += work.flops;
                  output_.tile_seconds += elapsed.count();
                  if (direction_ == Direction::backward) return;
                  double& max_logit = output_.answer.max_logit[units[u].head];
                  max_logit = std::max(max_logit, work.max_logit);
                });
  }

  /// There are as many as threads that have worked at the same time. Their content never affects a
  /// result.
  std::unique_ptr<TileScratch<T>> take_scratch() {
    const std::lock_guard lock(work_mutex_);
    if (idle_scratch_.empty()) return std::make_unique<TileScratch<T>>();
    std::unique_ptr<TileScratch<T>> scratch = std::move(idle_scratch_.back());
    idle_scratch_.pop_back();
    return scratch;
  }

  /// Runs items of a seam that has a kernel of its own, one after another.
  void compute_in_seam(const Pass& pass, const Stage& stage) {
    run_watched(stage.end - stage.begin, stage.end - stage.begin, 1, [&](int64_t i) {
      const ComputeItem& item = pass.computes[stage.begin + i];
      if (item.num_slices > 0) seam_.compute(item, direction_);
      watch_.add_work(work_of(item, direction_));
    });
  }

  /// Runs body(settings) with the terms of one head of an item.
  template <class Body>
  auto with_terms(const ComputeItem& item, const TilePlaces& places, int32_t head, Body body) {
    TileSettings<T> settings = settings_;
    if (!terms_.is_on()) return body(settings);
    TermNumbers numbers = terms_.numbers_of(item, head);
    if constexpr (Seam::kIsOpen) seam_.alter_terms(item, direction_, numbers);
    const TileTerms<T> terms(terms_, places, numbers, dbias_cells_);
    settings.terms = &terms;
    return body(settings);
  }

  TilePlaces places_of(const ComputeItem& item) {
    if (!terms_.is_on()) return {};
    TilePlaces places = terms_.places_of(item.q_tokens, item.kv_tokens);
    if constexpr (Seam::kIsOpen) seam_.alter_places(item, direction_, places);
    return places;
  }

  void compute_forward(const Pass& pass, const Stage& stage) {
    std::vector<Unit> units;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const ComputeItem& item = pass.computes[i];
      for (int32_t head = item.heads.begin; item.num_slices > 0 && head < item.heads.end; ++head)
        units.push_back({&item, head, item.heads.size()});
    }
    run_units(units, stage, [&](const ComputeItem& item, int32_t head, TileScratch<T>& scratch) {
      const int64_t rows = plan_.rows(item.q_tokens);
      const HeadView<T> lse = view<T>(item.out, head, true), o = view<T>(item.out, head, false);
      const TilePlaces places = places_of(item);
      const KeysOfHead keys = keys_of(item, head);
      const TileWork work = with_terms(item, places, head, [&](const TileSettings<T>& settings) {
        if constexpr (kIsFloat) {
          if (fp8_.is_on)
            return quantised_forward(settings, fp8_, plan_.slices_of(item), operands_of(item, head),
                                     o, lse.data, lse.stride);
        }
        return tile_forward<T>(settings, plan_.slices_of(item), rows,
                               view<const T>(item.q, head, false), keys.k, keys.v, o, lse.data,
                               lse.stride, scratch);
      });
      if (merger_.keeps_partials()) round_partial(o, rows);
      return work;
    });
  }

  /// K and V that a query head of an item reads: rows of its buffer, or expanded ones.
  struct KeysOfHead {
    AlignedVector<T> expanded;
    HeadView<const T> k, v;
  };
  KeysOfHead keys_of(const ComputeItem& item, int32_t head) {
    const HeadView<const T> rows = view<const T>(item.kv, kv_head_of(head), false);
    if (!expander_.is_on()) return {{}, rows, view<const T>(item.kv, kv_head_of(head), true)};
    const int64_t count = plan_.rows(item.kv_tokens), width = settings_.dim_qk + settings_.dim_v;
    KeysOfHead keys;
    keys.expanded.resize(static_cast<size_t>(count * width));
    expander_.expand(weights_head_of(item, head), rows, count, keys.expanded.data());
    keys.k = {keys.expanded.data(), width};
    keys.v = {keys.expanded.data() + settings_.dim_qk, width};
    return keys;
  }

  /// The head whose weights expand latent rows.
  int32_t weights_head_of([[maybe_unused]] const ComputeItem& item, int32_t head) const {
    if constexpr (requires { seam_.weights_head_of(item, head); })
      return seam_.weights_head_of(item, head);
    return head;
  }

  void round_partial(HeadView<T> o, int64_t rows) {
    for (int64_t row = 0; row < rows; ++row)
      round_rows(settings_.dtype, std::span<T>(o.row(row), static_cast<size_t>(settings_.dim_v)));
  }

  void compute_backward(const Pass& pass, const Stage& stage) {
    std::vector<Unit> units;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const ComputeItem& item = pass.computes[i];
      if (item.num_slices == 0) continue;
      const HeadRange kv_heads = kv_heads_of(attention_, item.heads);
      for (int32_t kv_head = kv_heads.begin; kv_head < kv_heads.end; ++kv_head)
        units.push_back({&item, kv_head, kv_heads.size()});
    }
    run_units(units, stage, [&](const ComputeItem& item, int32_t kv_head, TileScratch<T>& scratch) {
      return backward_unit(item, kv_head, scratch);
    });
  }

  /// One KV head of one item: its query heads one after another, so that dK and dV are summed in a
  /// fixed order.
  TileWork backward_unit(const ComputeItem& item, int32_t kv_head, TileScratch<T>& scratch) {
    const int64_t rows = plan_.rows(item.q_tokens), kv_rows = plan_.rows(item.kv_tokens);
    const int32_t group = attention_.heads / attention_.kv_heads;
    const bool is_latent = attention_.latent_dim > 0, is_expanded = expander_.is_on();
    const int64_t width = settings_.dim_v + (is_expanded ? settings_.dim_qk : 0);
    AlignedVector<T> apart(static_cast<size_t>(is_latent ? kv_rows * width : 0));
    const HeadView<T> sums = view<T>(item.dkv, kv_head, false),
                      dv = is_latent ? HeadView<T>{apart.data(), width}
                                     : view<T>(item.dkv, kv_head, true),
                      dk = is_expanded ? HeadView<T>{apart.data() + settings_.dim_v, width} : sums;
    const auto clear = [&](HeadView<T> sum, int64_t lanes) {
      for (int64_t row = 0; row < kv_rows; ++row) std::fill_n(sum.row(row), lanes, T(0));
    };
    clear(sums, attention_.key_dim());
    clear(dv, settings_.dim_v);
    TileWork total;
    std::vector<T> delta(static_cast<size_t>(rows));
    const TilePlaces places = places_of(item);
    for (int32_t head = std::max(kv_head * group, item.heads.begin);
         head < std::min((kv_head + 1) * group, item.heads.end); ++head) {
      const HeadView<T> dq = view<T>(item.dq, head, false), lse = view<T>(item.out, head, true);
      for (int64_t row = 0; row < rows; ++row) {
        std::fill_n(dq.row(row), settings_.dim_qk, T(0));
        delta[row] = row_delta(item.out, item.d_out, head, row);
      }
      const KeysOfHead keys = keys_of(item, head);
      if (is_expanded) std::fill(apart.begin(), apart.end(), T(0));
      const TileWork work = with_terms(item, places, head, [&](const TileSettings<T>& settings) {
        if constexpr (kIsFloat) {
          if (fp8_.is_on)
            return quantised_backward(settings, fp8_, plan_.slices_of(item),
                                      operands_of(item, head), lse.data, lse.stride, delta.data(),
                                      dq, dk, dv);
        }
        return tile_backward<T>(settings, plan_.slices_of(item), view<const T>(item.q, head, false),
                                keys.k, keys.v, view<const T>(item.d_out, head, false), lse.data,
                                lse.stride, delta.data(), dq, dk, dv, scratch);
      });
      if (is_expanded)
        expander_.add_gradients(weights_head_of(item, head), kv_rows, dk, dv,
                                latent_sum(item).times, sums);
      total.flops += work.flops;
    }
    if (is_latent && !is_expanded) add_latent_gradients(item, kv_rows, dv, dk);
    if constexpr (kIsFloat) {
      cast_rows(fp8_.gradients, fp8_.dk, kv_rows, settings_.dim_qk, dk);
      cast_rows(fp8_.gradients, fp8_.dv, kv_rows, settings_.dim_v, dv);
    }
    return total;
  }

  /// Adds the gradient of a V that is a part of K to that of K.
  void add_latent_gradients(const ComputeItem& item, int64_t rows, HeadView<T> dv,
                            HeadView<T> dk) const {
    const LatentSum<T> sum = latent_sum(item);
    for (int64_t row = 0; row < rows; ++row) {
      for (int32_t lane = 0; lane < settings_.dim_v; ++lane)
        dk.row(row)[sum.first + lane] += sum.times * dv.row(row)[lane];
    }
  }

  LatentSum<T> latent_sum([[maybe_unused]] const ComputeItem& item) const {
    LatentSum<T> sum;
    if constexpr (requires { seam_.latent_sum(item); }) sum = seam_.latent_sum(item);
    return sum;
  }

  /// The quantised rows of one query head of an item in the present direction.
  QuantisedOperands operands_of(const ComputeItem& item, int32_t head) {
    const int32_t kv_head = kv_head_of(head);
    const bool is_backward = direction_ == Direction::backward;
    const auto blocks = [&](RunListId tokens, Side side) {
      return fp8_.is_mx ? blocks_of_rows(plan_, tokens, side, fp8_) : std::vector<int32_t>{};
    };
    return make_operands(
        settings_, fp8_, view<const T>(item.q, head, false), view<const T>(item.kv, kv_head, false),
        view<const T>(item.kv, kv_head, true),
        is_backward ? view<const T>(item.d_out, head, false) : HeadView<const T>{},
        is_backward ? blocks(item.q_tokens, Side::q) : std::vector<int32_t>{},
        blocks(item.kv_tokens, Side::kv), plan_.rows(item.q_tokens), plan_.rows(item.kv_tokens));
  }

  /// rowsum(d_out * out); 0 for rows that see nothing, whose d_out may be NaN.
  T row_delta(BufferId out, BufferId d_out, int32_t head, int64_t row) {
    if (*view<T>(out, head, true).row(row) == -std::numeric_limits<T>::infinity()) return T(0);
    if (plan_.buffer(out).kind == BufferKind::stats) return *view<T>(out, head, false).row(row);
    return dot_product<T>(view<const T>(out, head, false).row(row),
                          view<const T>(d_out, head, false).row(row), settings_.dim_v);
  }

  /// d_sink = -sum over rows of exp(sink - lse) * rowsum(d_out * out), each row once, on the rank
  /// that computed it.
  void collect_sink_gradient() {
    output_.answer.d_sink.assign(static_cast<size_t>(attention_.heads), 0.0);
    if (plan_.home.front().stats != kNoBuffer) {
      for (const HomeBuffers& home : plan_.home) {
        const BufferSpec& spec = plan_.buffer(home.out);
        add_sink_gradients(home.out, home.d_out, spec.heads, spec.rows);
      }
      return;
    }
    std::set<std::pair<BufferId, int32_t>> counted;  // heads of buffers
    for (const ComputeItem& item : plan_.backward.computes) {
      for (int32_t head = item.heads.begin; head < item.heads.end; ++head) {
        if (counted.emplace(item.out, head).second)
          add_sink_gradients(item.out, item.d_out, {head, head + 1}, plan_.rows(item.q_tokens));
      }
    }
  }

  void add_sink_gradients(BufferId out, BufferId d_out, HeadRange heads, int64_t rows) {
    for (int32_t head = heads.begin; head < heads.end; ++head) {
      const HeadView<T> lse = view<T>(out, head, true);
      const double sink = static_cast<double>(merger_.sink_of(head));
      for (int64_t row = 0; row < rows; ++row) {
        if (*lse.row(row) == -std::numeric_limits<T>::infinity()) continue;
        output_.answer.d_sink[head] -= std::exp(sink - static_cast<double>(*lse.row(row))) *
                                       static_cast<double>(row_delta(out, d_out, head, row));
      }
    }
  }

  const Plan& plan_;
  const Attention& attention_;
  const RunInputs& inputs_;
  const RunOptions& options_;
  int item_threads_;
  RunWatch watch_;
  int64_t num_done_ = 0;  // items of finished stages, over all repeats
  Direction direction_ = Direction::forward;
  TileSettings<T> settings_;
  QuantisedRules fp8_;  // off without dtype fp8
  RankMemory<T> memory_;
  PartialMerger<T> merger_;
  const ScoreTerms terms_;
  const RowExpander<T> expander_;
  AlignedVector<T> dbias_cells_;  // of all heads and sequences, see ScoreTerms
  Seam seam_;
  std::mutex work_mutex_;  // guards scratch and output, which the units share
  std::vector<std::unique_ptr<TileScratch<T>>> idle_scratch_;
  RunOutput output_;
};

}  // namespace cpscope::reference
