#include "kernels/run/executor_nccl.h"

#include "kernels/device/device_report.h"
#include "kernels/run/nccl_group.h"
#include "kernels/run/nccl_run.h"
#include "kernels/run/rank_engine.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <new>
#include <numeric>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

/// Devices that this process drives, out of `count` on this host.
Result<std::vector<int>> choose_devices(const LaunchPlace& place, int count) {
  std::vector<int> devices(static_cast<size_t>(count));
  std::iota(devices.begin(), devices.end(), 0);
  // Alone on the host, or its launcher shows it only one device.
  if (place.num_local_processes == 1 || count == 1) return devices;
  if (place.local_process < count) return std::vector<int>{place.local_process};
  return make_error(
      ErrorKind::unavailable,
      fmt::format("this host has {} GPUs and more processes: this is number {} of its processes",
                  count, place.local_process),
      "start one process per GPU");
}

bool all_reach_each_other(const std::vector<int>& devices) {
  for (const int device : devices) {
    select_device(device);
    for (const int peer : devices) {
      if (!reach_device(peer)) return false;
    }
  }
  return true;
}

/// The wire of one process that drives all ranks, or of many.
Wire choose_wire(Wire wanted, int32_t num_processes, const std::vector<int>& devices) {
  const bool copies = wanted == Wire::copies && num_processes == 1 && all_reach_each_other(devices);
  return copies ? Wire::copies : Wire::nccl;
}

class ExecutorNccl : public Executor {
 public:
  explicit ExecutorNccl(Result<NcclSettings> settings) : settings_(std::move(settings)) {}

  ~ExecutorNccl() override {
    // Communicators must end together; process 0 may still be comparing results.
    if (nccl_ != nullptr && stopped_.empty() && !group_->barrier()) nccl_->abort();
    reachable_ = nullptr;
  }

  std::string name() const override { return "nccl"; }

  bool can_hold(Dtype dtype) const override { return dtype != Dtype::fp64; }

  std::optional<Error> absence() const override {
    if (!settings_) return settings_.error();
    const Result<int> count = count_devices();
    if (!count) return count.error();
    const NcclSettings& settings = settings_.value();
    if (settings.devices.empty()) {
      const Result<std::vector<int>> devices = choose_devices(settings.place, count.value());
      if (!devices) return devices.error();
    }
    if (!library_) library_ = settings.load_library();
    if (!*library_) return library_->error();
    return std::nullopt;
  }

  Result<DeviceReport> describe_devices() const override {
    if (const auto missing = absence()) return *missing;
    const NcclSettings& settings = settings_.value();
    if (settings.place.num_processes > 1)
      return make_error(ErrorKind::unavailable, "executor nccl is one of many processes here",
                        "let one process drive all GPUs of the host");
    std::vector<int> devices = settings.devices;
    if (devices.empty()) devices = choose_devices(settings.place, count_devices().value()).value();
    Result<DeviceReport> report =
        report_devices(devices.front(), static_cast<int32_t>(devices.size()));
    if (report) report.value().packs = choose_wire(settings.wire, 1, devices) == Wire::nccl;
    return report;
  }

  int64_t memory_bytes(const CheckedPlan& checked) const override {
    const Attention& attention = checked.plan().scenario.attention;
    // The host packs one array of a rank at a time; answers of other processes arrive complete.
    int64_t largest = 0;
    for (const BufferSpec& spec : checked.plan().buffers) {
      largest = std::max(largest, spec.rows * spec.heads.size() *
                                      int64_t{attention.head_dim_qk + attention.head_dim_v});
    }
    const BatchSlots& slots = checked.plan().layout.slots;
    const int64_t answer = (slots.tokens * attention.heads + slots.kv_tokens * attention.kv_heads) *
                           int64_t{attention.head_dim_qk + attention.head_dim_v};
    const bool is_alone = !settings_ || settings_.value().place.num_processes == 1;
    return (2 * largest + (is_alone ? 0 : 2 * answer)) * int64_t{sizeof(float)};
  }

  Result<RunOutput> run(const CheckedPlan& checked, const RunInputs& inputs,
                        const RunOptions& options) override {
    if (const auto reason = RankEngine::why_not(checked.plan()))
      return make_error(ErrorKind::unavailable, "executor nccl cannot do this: " + *reason,
                        "use --executor cpu");
    if (const auto missing = absence()) return *missing;
    if (!stopped_.empty())
      return make_error(ErrorKind::unavailable,
                        "executor nccl stopped in an earlier run: " + stopped_, "start again");
    try {
      if (const auto error = join()) return *error;
      return run_with_group(checked, inputs, options);
    } catch (const GroupStopped& error) {
      return stop(error.what());
    } catch (const DeviceError& error) {
      return fail(error.what());
    } catch (const std::bad_alloc&) {
      return fail("this machine does not give the host memory that the run needs");
    }
  }

 private:
  /// At the first run: connects the processes, then makes their communicator.
  std::optional<Error> join() {
    if (nccl_ != nullptr) return std::nullopt;
    const NcclSettings& settings = settings_.value();
    if (group_ == nullptr) {
      Result<std::unique_ptr<ProcessGroup>> group =
          ProcessGroup::join(settings.place, settings.limits, [this] {
            // The main thread is blocked in a call that waits for a device.
            if (NcclGroup* nccl = reachable_.load()) nccl->abort();
          });
      if (!group) return group.error();
      group_ = std::move(group).value();
    }
    std::vector<int> devices = settings.devices;
    if (devices.empty()) devices = choose_devices(settings.place, count_devices().value()).value();
    group_->publish({num_runs_, Activity::preparing, 0});
    nccl_ = std::make_unique<NcclGroup>(library_->value().functions, *group_, devices);
    reachable_ = nccl_.get();
    wire_ = choose_wire(settings.wire, group_->num_processes(), devices);
    return std::nullopt;
  }

  Result<RunOutput> run_with_group(const CheckedPlan& checked, const RunInputs& inputs,
                                   const RunOptions& options) {
    const auto num_ranks = static_cast<int32_t>(checked.plan().home.size());
    if (num_ranks > nccl_->num_ranks()) {
      return make_error(ErrorKind::unavailable,
                        fmt::format("executor nccl puts one rank on each GPU: {} ranks, {} GPUs",
                                    num_ranks, nccl_->num_ranks()),
                        "use --executor cuda, where one GPU plays all ranks");
    }
    const NcclSettings& settings = settings_.value();
    NcclRun run(checked, options, *nccl_,
                {wire_, settings.generation, settings.most_pieces, settings.without}, num_runs_++);
    const std::string complaint = run.prepare(inputs);
    if (!complaint.empty()) {
      rest();
      return make_error(ErrorKind::unavailable, "executor nccl cannot do this: " + complaint);
    }
    Result<RunOutput> output = run.carry_out();
    const std::string broken = run.find_broken_guard();
    if (broken.empty() && output) run.gather(output.value());
    rest();
    if (broken.empty()) return output;
    return make_error(
        ErrorKind::failed,
        "executor nccl wrote outside its buffers: a guard byte was overwritten " + broken);
  }

  /// Reports that this process need not move until the next run.
  void rest() { group_->publish({num_runs_, Activity::unwatched, 0}); }

  /// Reports the failure of this process to the others.
  Error fail(const std::string& why) {
    if (group_ == nullptr)
      return make_error(ErrorKind::unavailable, "executor nccl failed: " + why);
    group_->fail(why);
    return stop(group_->why_stopped().value_or(why));
  }

  Error stop(const std::string& why) {
    if (nccl_ != nullptr) nccl_->abort();
    stopped_ = why;
    return stopped_error("executor nccl: " + why);
  }

  const Result<NcclSettings> settings_;
  mutable std::optional<Result<NcclLibrary>> library_;
  std::unique_ptr<ProcessGroup> group_;
  std::unique_ptr<NcclGroup> nccl_;
  std::atomic<NcclGroup*> reachable_ = nullptr;  // nccl_, for the thread of the group
  Wire wire_ = Wire::nccl;
  int64_t num_runs_ = 0;
  std::string stopped_;  // why this executor can no longer be used
};

}  // namespace

Result<NcclSettings> nccl_settings_of_environment() {
  const Environment environment = process_environment();
  Result<LaunchPlace> place = find_launch_place(environment);
  if (!place) return place.error();
  NcclSettings settings;
  settings.place = std::move(place).value();
  settings.load_library = [] { return load_nccl(nccl_search_of_environment()); };
  if (const std::optional<std::string> text = environment("CPSCOPE_WIRE")) {
    if (*text != "nccl" && *text != "copies")
      return make_error(ErrorKind::bad_input,
                        fmt::format("CPSCOPE_WIRE must be copies or nccl: \"{}\"", *text),
                        "copies is what it is when unset", "environment");
    settings.wire = *text == "nccl" ? Wire::nccl : Wire::copies;
  }
  const auto read_number = [&](const char* name, const char* unset,
                               auto set) -> std::optional<Error> {
    const std::optional<std::string> text = environment(name);
    if (!text) return std::nullopt;
    int32_t number = 0;
    const char* end = text->data() + text->size();
    const auto [stop, code] = std::from_chars(text->data(), end, number);
    if (code != std::errc{} || stop != end || number < 1)
      return make_error(ErrorKind::bad_input,
                        fmt::format("{} must be a whole number from 1 on: \"{}\"", name, *text),
                        unset, "environment");
    set(number);
    return std::nullopt;
  };
  if (const auto error = read_number(
          "CPSCOPE_HANG_SECONDS", "20 is what it is when unset",
          [&](int32_t number) { settings.limits.hang_after = std::chrono::seconds{number}; }))
    return *error;
  if (const auto error =
          read_number("CPSCOPE_HEAD_PIECES", "it follows from the length of a pass when unset",
                      [&](int32_t number) { settings.most_pieces = number; }))
    return *error;
  Result<std::vector<std::string>> without = passes_left_out(environment);
  if (!without) return without.error();
  settings.without = std::move(without).value();
  return settings;
}

std::unique_ptr<Executor> make_executor_nccl(NcclSettings settings) {
  return std::make_unique<ExecutorNccl>(std::move(settings));
}

std::unique_ptr<Executor> make_executor_nccl() {
  return std::make_unique<ExecutorNccl>(nccl_settings_of_environment());
}

}  // namespace cpscope::kernels
