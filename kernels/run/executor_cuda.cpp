#include "kernels/run/executor_cuda.h"

#include "kernels/device/device_report.h"
#include "kernels/group/launch_place.h"
#include "kernels/run/item_clock.h"
#include "kernels/run/rank_engine.h"
#include "sim/base/machine_memory.h"
#include "sim/plan/item_uses.h"
#include "sim/plan/visit_items.h"
#include "sim/run/dtype.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

constexpr size_t kComputeStreams = 4;

/// More than the L2 cache of any device.
constexpr int64_t kFlushBytes = int64_t{256} << 20;

/// True if every repeat is followed by one that the host enqueues ahead. Not with an observer,
/// which sees all repeats.
bool repeats_ahead(const RunOptions& options) {
  return options.measures_items && options.repeats > 1 && !options.observer;
}

/// One run of one plan on the selected device.
class DeviceRun {
 public:
  DeviceRun(const CheckedPlan& checked, const LoweredPlan& lowered, const RunOptions& options,
            RankEngine& engine)
      : lowered_(lowered),
        plan_(lowered.plan),
        options_(options),
        // A faulty plan may read what it writes, so its items run one after another.
        num_compute_streams_(checked.admitted_because().empty() ? kComputeStreams : 0),
        engine_(engine),
        watch_(options.control, (plan_.forward.num_items() + plan_.backward.num_items()) *
                                    std::max(1, options.repeats) *
                                    (repeats_ahead(options) ? 2 : 1)),
        hazards_(plan_),
        clock_(options.measures_items, transfer_stream_.get()) {
    engine_.report_casts_to(&clock_);
  }

  /// Runs one direction for the requested number of repeats; returns the wall time of each. No work
  /// is pending before or after it. If items are measured, every repeat is followed by another one
  /// that the host enqueues ahead, while the cache is flushed, so that an item's time contains no
  /// launches. The item times of the median one of these are kept.
  std::vector<double> run_pass(Direction direction) {
    std::vector<double> seconds, ahead_seconds;
    const int32_t first = clock_.repeat() + 1;
    const bool is_bench = repeats_ahead(options_);
    const DeviceMemory flush(is_bench ? kFlushBytes : 0);
    if (direction == Direction::backward) engine_.move_kept_inputs(true, transfer_stream_.get());
    const auto prepare = [&] {
      if (direction == Direction::backward) engine_.move_kept_inputs(false, transfer_stream_.get());
      if (is_bench) flush_cache(flush);
    };
    for (int32_t repeat = 0; repeat < std::max(1, options_.repeats) && !watch_.was_cancelled();
         ++repeat) {
      prepare();
      wait_for_all();
      seconds.push_back(run_once(direction));
      if (!is_bench) continue;
      prepare();
      ahead_seconds.push_back(run_once(direction));
    }
    clock_.keep_only(direction, is_bench ? first + 2 * middle_of(ahead_seconds) + 1
                                         : first + middle_of(seconds));
    return seconds;
  }

  std::vector<ItemEvent> events() { return planned_events(lowered_, clock_.read()); }
  Stream main_stream() const { return transfer_stream_.get(); }
  /// The Error of a cancelled run; nothing if the run was not cancelled.
  std::optional<Error> cancellation() const {
    if (!watch_.was_cancelled()) return std::nullopt;
    return watch_.error("the run", "items");
  }

 private:
  /// Flushes the cache, so that a repeat does not find its inputs there. All streams wait for it.
  void flush_cache(const DeviceMemory& memory) {
    fill_bytes(memory.data(), 0, kFlushBytes, transfer_stream_.get());
    const DeviceEvent flushed(false);
    record_event(flushed.get(), transfer_stream_.get());
    for (const DeviceStream& stream : compute_streams_) wait_for_event(stream.get(), flushed.get());
  }

  /// Runs one direction once; returns the seconds until all its work is done.
  double run_once(Direction direction) {
    engine_.begin_pass();
    if (direction == Direction::backward) engine_.clear_bias_gradient(main_stream());
    clock_.begin_repeat();
    const auto start = std::chrono::steady_clock::now();
    run_stages(direction);
    wait_for_all();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void run_stages(Direction direction) {
    direction_ = direction;
    const Pass& pass = plan_.pass(direction);
    if (direction == Direction::backward) make_sent_statistics();
    for (const Stage& stage : pass.stages) {
      run_stage(pass, stage);
      if (watch_.was_cancelled()) return;
    }
  }

  void make_sent_statistics() {
    for (const RankId rank : plan_.home.ids()) {
      const BufferUse use = RankEngine::sent_statistics_use(plan_, rank);
      const Stream stream = compute_stream(rank);
      hazards_.begin(use, stream);
      engine_.make_sent_statistics(rank, stream);
      hazards_.end(use, stream);
    }
  }

  Stream compute_stream(RankId rank) const {
    if (num_compute_streams_ == 0) return transfer_stream_.get();
    return compute_streams_[to_index(rank) % num_compute_streams_].get();
  }

  void wait_for_all() {
    wait_for_stream(transfer_stream_.get());
    for (const DeviceStream& stream : compute_streams_) wait_for_stream(stream.get());
  }

  void run_stage(const Pass& pass, const Stage& stage) {
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      // Enqueued work runs to its end; the rest is skipped.
      if (watch_.is_cancelled()) return;
      const ItemId id{direction_, stage.kind, i};
      visit_item(pass, stage.kind, i, [&](const auto& item) { run_item(id, item); });
      watch_.reach(++num_enqueued_);
    }
  }

  template <class Item>
  void run_item(const ItemId& id, const Item& item) {
    const BufferUse use = uses_of(plan_, item);
    if (use.writes.empty()) return;  // an idle compute
    const RankId rank = rank_of(item);
    const Stream stream =
        id.kind == StageKind::transfer ? transfer_stream_.get() : compute_stream(rank);
    hazards_.begin(use, stream);
    clock_.start(stream);
    engine_.run(item, stream);
    clock_.stop(id, rank, item.step, stream);
    hazards_.end(use, stream);
    if (!options_.observer) return;
    for (const ItemResult& result : engine_.read_results(id, stream)) options_.observer(result);
  }

  const LoweredPlan& lowered_;
  const Plan& plan_;
  const RunOptions& options_;
  size_t num_compute_streams_;
  RankEngine& engine_;
  RunWatch watch_;
  int64_t num_enqueued_ = 0;  // items, over all repeats
  BufferHazards hazards_;
  DeviceStream transfer_stream_{Urgency::urgent};
  std::array<DeviceStream, kComputeStreams> compute_streams_;
  ItemClock clock_;
  Direction direction_ = Direction::forward;
};

class ExecutorCuda : public Executor {
 public:
  ExecutorCuda(int device, std::optional<Generation> generation,
               Result<std::vector<std::string>> without)
      : device_(device), generation_(generation), without_(std::move(without)) {}

  std::string name() const override {
    return generation_ == Generation::portable ? "cuda-portable" : "cuda";
  }

  bool can_hold(Dtype dtype) const override { return dtype != Dtype::fp64; }

  std::optional<Error> absence() const override {
    if (!without_) return without_.error();
    const Result<int> devices = count_devices();
    return devices ? std::nullopt : std::optional<Error>(devices.error());
  }

  Result<DeviceReport> describe_devices() const override { return report_devices(device_, 1); }

  int64_t memory_bytes(const CheckedPlan& checked) const override {
    // The host packs one array of a rank at a time.
    int64_t largest = 0;
    for (const BufferSpec& spec : checked.plan().buffers)
      largest = std::max(largest, spec.rows * spec.heads.size() *
                                      int64_t{checked.plan().scenario.attention.head_dim_qk +
                                              checked.plan().scenario.attention.head_dim_v});
    return 2 * largest * int64_t{sizeof(float)};
  }

  Result<RunOutput> run(const CheckedPlan& checked, const RunInputs& inputs,
                        const RunOptions& options) override {
    if (const auto reason = RankEngine::why_not(checked.plan()))
      return make_error(ErrorKind::unavailable, "executor cuda cannot do this: " + *reason,
                        "use --executor cpu");
    try {
      return run_on_device(checked, inputs, options);
    } catch (const DeviceError& error) {
      return make_error(ErrorKind::unavailable,
                        fmt::format("executor cuda failed: {}", error.what()));
    } catch (const std::bad_alloc&) {
      return make_error(
          ErrorKind::unavailable,
          "executor cuda: this machine does not give the host memory that the plan needs",
          "use fewer tokens or ranks");
    }
  }

 private:
  Result<RunOutput> run_on_device(const CheckedPlan& checked, const RunInputs& inputs,
                                  const RunOptions& options) {
    select_device(device_);
    const DeviceInfo info = describe_device(device_);
    const LoweredPlan lowered = lower_for_devices(checked, options,
                                                  {.generation = generation_,
                                                   .compute_capability = info.compute_capability,
                                                   .without = without_.value()});
    const Plan& plan = lowered.plan;
    RankEngine engine(lowered, IdVector<RankId, bool>(plan.home.size(), true),
                      info.compute_capability,
                      {options.poison, generation_, options.threads, options.repeats > 1});
    if (engine.device_bytes() > info.free_bytes)
      return make_error(
          ErrorKind::unavailable,
          fmt::format("the plan needs {:.2f} GiB on one GPU, {} has {:.2f} GiB free",
                      gibibytes(engine.device_bytes()), info.name, gibibytes(info.free_bytes)),
          "use fewer tokens, heads or ranks, or executor nccl on several GPUs");
    DeviceRun run(checked, lowered, options, engine);
    const Stream stream = run.main_stream();
    engine.allocate(stream);
    engine.load(inputs, stream);
    Fp8Store& fp8 = engine.fp8();
    fp8.quantise(fp8.needs_amax() ? fp8.find_amax(stream) : Fp8Amax{}, stream);
    RunOutput output;
    output.kernels = engine.generation_text();
    output.item_kernels = engine.item_kernels();
    output.list_seconds = engine.list_seconds();
    output.forward_seconds = run.run_pass(Direction::forward);
    if (auto cancelled = run.cancellation()) return *std::move(cancelled);
    engine.collect_forward(output.answer, stream);
    if (plan.scenario.numerics.backward) {
      output.backward_seconds = run.run_pass(Direction::backward);
      if (auto cancelled = run.cancellation()) return *std::move(cancelled);
      engine.collect_backward(output.answer, stream);
      round_values(plan.scenario.numerics.dtype, output.answer.dbias.values);
    }
    const std::string broken = engine.find_broken_guard(stream);
    if (!broken.empty())
      return make_error(
          ErrorKind::failed,
          "executor cuda wrote outside its buffers: a guard byte was overwritten " + broken);
    output.events = run.events();
    output.tile_flops = engine.tile_flops();
    for (const ItemEvent& event : output.events) {
      if (event.item.kind == StageKind::compute)
        output.tile_seconds += static_cast<double>(event.end_ns - event.start_ns) * 1e-9;
    }
    return output;
  }

  int device_;
  std::optional<Generation> generation_;
  Result<std::vector<std::string>> without_;  // names of passes of lowering
};

}  // namespace

std::unique_ptr<Executor> make_executor_cuda(std::optional<Generation> generation) {
  return std::make_unique<ExecutorCuda>(0, generation, passes_left_out(process_environment()));
}

}  // namespace cpscope::kernels
