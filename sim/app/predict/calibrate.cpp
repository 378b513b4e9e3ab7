#include "sim/app/predict/calibrate.h"

#include "sim/app/predict/calibration_items.h"
#include "sim/app/predict/calibration_shapes.h"
#include "sim/clock/clock.h"
#include "sim/clock/pass_clock.h"
#include "sim/plan/direction.h"
#include "sim/run/grade/case.h"

#include <algorithm>
#include <map>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

constexpr int64_t kMessageBytesOfToken = 8192;
constexpr int64_t kLeastMessageBytes = 32 << 10;

std::string print_errors(const FitTable& table) {
  return fmt::format("{} times, error {:.1f} % on the mean and {:.1f} % at most", table.rows.size(),
                     100 * table.mean_error(), 100 * table.largest_error());
}

/// The steps of a calibration, in order.
class Measurement {
 public:
  explicit Measurement(const CalibrationRequest& request) : request_(request) {}

  Result<Calibration> run() {
    if (auto error = describe()) return *std::move(error);
    if (auto error = find_missing()) return *std::move(error);
    if (auto error = measure_kernels()) return *std::move(error);
    if (measures_kernels_alone()) {
      add_kernel_source();
      result_.cluster.stacks.insert(result_.cluster.stacks.begin(), std::move(stack_));
      return std::move(result_);
    }
    if (auto error = measure_rows()) return *std::move(error);
    if (has_group()) {
      if (auto error = measure_wires()) return *std::move(error);
      if (auto error = measure_sharing()) return *std::move(error);
    }
    if (auto error = measure_host()) return *std::move(error);
    write_sources();
    result_.cluster.stacks.insert(result_.cluster.stacks.begin(), std::move(stack_));
    return std::move(result_);
  }

 private:
  bool has_group() const { return request_.group != nullptr; }
  bool measures_kernels_alone() const { return !request_.only.empty(); }

  std::vector<KernelClass> classes() const {
    std::vector<KernelClass> chosen = kernel_classes();
    const std::vector<std::string>& only = request_.only;
    if (measures_kernels_alone())
      std::erase_if(chosen, [&](const KernelClass& kernel) {
        return std::find(only.begin(), only.end(), name_of(kernel)) == only.end();
      });
    return chosen;
  }
  bool is_one_gpu() const { return devices_.count == 1; }
  std::optional<RowCost> packing() const {
    return stack_.packs ? std::optional(row_cost_) : std::nullopt;
  }

  void advance() {
    ++done_;
    if (request_.progress) request_.progress(std::min(done_, total_), total_);
  }

  std::optional<Error> describe() {
    Result<DeviceReport> devices = request_.kernels->describe_devices();
    if (!devices) return devices.error();
    devices_ = std::move(devices).value();
    group_devices_ = devices_;
    if (has_group()) {
      Result<DeviceReport> group = request_.group->describe_devices();
      if (!group) return group.error();
      group_devices_ = std::move(group).value();
    }
    const std::string kernels = request_.kernels->name();
    const bool is_own = kernels == "cuda" || kernels == "nccl";
    const std::string name = is_own ? "cpscope" : kernels;
    if (request_.base) result_.cluster = *request_.base;
    std::vector<Stack>& others = result_.cluster.stacks;
    // The base's own stack of this name, or its first, knows what is not measured.
    const auto same = std::find_if(others.begin(), others.end(),
                                   [&](const Stack& stack) { return stack.name == name; });
    if (same != others.end()) {
      stack_ = *same;
      others.erase(same);
    } else {
      if (!others.empty()) stack_ = others.front();
      stack_.title = name == "cpscope" ? "cpscope's own kernels and executors" : name;
    }
    stack_.name = name;
    total_ =
        static_cast<int64_t>(classes().size() * kernel_scenarios(kernel_classes()[0], 512).size());
    if (measures_kernels_alone()) return describe_base();
    stack_.kernels.clear();
    total_ += 5 + (has_group() ? 20 : 1);
    // One GPU does not send, so it does not tell whether messages are packed.
    if (has_group()) {
      stack_.packs = group_devices_.packs;
      stack_.cuts_heads = is_own && !stack_.packs;
    }
    stack_.overlaps = true;
    stack_.first_merge_passes = 2;
    stack_.merge_passes = 3;
    Cluster& cluster = result_.cluster;
    cluster.name = request_.name;
    cluster.title = fmt::format("{} {}, as calibrated", group_devices_.count, devices_.name);
    cluster.device.name = devices_.name;
    cluster.device.multiprocessors = devices_.multiprocessors;
    cluster.device.memory_gib = round_digits(devices_.memory_gib, 4);
    if (has_group()) {
      cluster.gpus_per_node = group_devices_.count;
      cluster.nics_per_node = std::min(cluster.nics_per_node, cluster.gpus_per_node);
    }
    return std::nullopt;
  }

  /// Only kernels are measured: the cluster stays that of the base.
  std::optional<Error> describe_base() {
    if (!request_.base)
      return make_error(ErrorKind::bad_input, "a few kernels are no cluster",
                        "name one that has all else: --base h200x8");
    if (request_.base->device.multiprocessors != devices_.multiprocessors)
      return make_error(
          ErrorKind::bad_input,
          fmt::format("base {} has {} multiprocessors, this device {}", request_.base->name,
                      request_.base->device.multiprocessors, devices_.multiprocessors),
          "name a base with the same GPU");
    result_.cluster.name = request_.name;
    result_.from_base = {"all but these kernels"};
    return std::nullopt;
  }

  void add_kernel_source() {
    std::vector<std::string> names = request_.only;
    std::erase_if(names, [&](const std::string& name) {
      return std::find(measured_.begin(), measured_.end(), name) == measured_.end();
    });
    stack_.source += fmt::format("; kernels {}: measured {} on {}, driver {}, by `{}`, {}",
                                 fmt::join(names, ", "), request_.date, devices_.name,
                                 devices_.driver, request_.command, print_errors(kernel_times()));
  }

  std::optional<Error> find_missing() {
    if (has_group() || measures_kernels_alone()) return std::nullopt;
    const std::vector<std::string> missing = {"the wires between GPUs (inside)", "message_us",
                                              "transfer_multiprocessors"};
    if (!request_.base)
      return make_error(
          ErrorKind::bad_input,
          fmt::format("one GPU does not tell {}, {} and {}", missing[0], missing[1], missing[2]),
          "name a cluster that does: --base h200x8, or use --executor nccl where several GPUs are");
    result_.from_base = missing;
    if (result_.cluster.between)
      result_.from_base.emplace_back("the wires between nodes (between)");
    return std::nullopt;
  }

  std::optional<Error> measure_kernels() {
    for (const KernelClass& kernel : classes()) {
      ByDirection<std::vector<ComputeSample>> samples;
      std::optional<Error> obstacle;
      for (const Scenario& scenario : kernel_scenarios(kernel, request_.max_tokens)) {
        advance();
        if (!request_.kernels->can_hold(kernel.dtype)) {
          obstacle = make_error(ErrorKind::unavailable, "it does not take this dtype");
          break;
        }
        Result<Run> run = carry_out(*request_.kernels, scenario, request_.repeats);
        if (!run && run.error().kind != ErrorKind::unavailable) return run.error();
        if (!run) {
          obstacle = run.error();
          break;
        }
        add_computes(run.value(), samples);
      }
      const std::string name = name_of(kernel);
      if (obstacle) {
        result_.left_out.push_back(
            fmt::format("kernels of head_dim {}: {}", name, to_text(*obstacle)));
        continue;
      }
      if (auto error = fit_kernel(kernel, name, samples)) return error;
    }
    if (measured_.empty())
      return make_error(ErrorKind::unavailable,
                        fmt::format("executor {} has no kernels to measure: {}",
                                    request_.kernels->name(), result_.left_out.front()));
    std::stable_sort(stack_.kernels.begin(), stack_.kernels.end(),
                     [](const KernelCost& a, const KernelCost& b) {
                       return a.head_dim_qk + a.head_dim_v < b.head_dim_qk + b.head_dim_v;
                     });
    return std::nullopt;
  }

  std::optional<Error> fit_kernel(const KernelClass& kernel, const std::string& name,
                                  const ByDirection<std::vector<ComputeSample>>& samples) {
    KernelCost cost{.head_dim_qk = kernel.head_dim_qk,
                    .head_dim_v = kernel.head_dim_v,
                    .bits = kernel.bits(),
                    .forward = {},
                    .backward = {},
                    .is_latent = kernel.is_latent};
    for (const Direction direction : kDirections) {
      Result<Fit<TileCost>> fit = fit_tiles(samples[direction], devices_.multiprocessors);
      if (!fit) return fit.error();
      const TileCost& tiles = fit.value().constants;
      (direction == Direction::backward ? cost.backward : cost.forward) = tiles;
      result_.fits.push_back({fmt::format("kernels {} {}", name, to_name(direction)),
                              {{"tile_rows", tiles.tile_rows},
                               {"tile_keys", tiles.tile_keys},
                               {"launch_us", tiles.launch_us},
                               {"owned_us", tiles.owned_us},
                               {"whole_us", tiles.whole_us},
                               {"masked_us", tiles.masked_us},
                               {"tail_share", tiles.tail_share}},
                              std::move(fit).value().table});
    }
    std::erase_if(stack_.kernels, [&](const KernelCost& of_base) { return kernel.is_of(of_base); });
    stack_.kernels.push_back(cost);
    measured_.push_back(name);
    return std::nullopt;
  }

  void add_computes(const Run& run, ByDirection<std::vector<ComputeSample>>& samples) {
    for (const ItemEvent& event : run.output.events) {
      if (event.item.kind != StageKind::compute) continue;
      const Pass& pass = run.plan().pass(event.item.direction);
      const ComputeItem& item = pass.computes[static_cast<size_t>(event.item.index)];
      const std::span<const BandSlice> slices = run.plan().slices_of(item);
      samples[event.item.direction].push_back({run.label(),
                                               {slices.begin(), slices.end()},
                                               run.plan().rows(item.q_tokens),
                                               item.heads.size(),
                                               duration_us(event)});
    }
  }

  void add_rows(const Run& run) {
    for (const ItemEvent& event : run.output.events) {
      const std::optional<double> bytes = local_bytes(run.plan(), event, stack_);
      if (!bytes || !is_alone(event, run.output, is_one_gpu())) continue;
      rows_.push_back({fmt::format("{} {} of {}", to_name(event.item.direction),
                                   to_name(event.item.kind), run.label()),
                       *bytes, duration_us(event)});
    }
  }

  std::optional<Error> measure_rows() {
    // Long computes stand before these merges, so their launches wait in the queue as they do in a
    // pass; behind short ones the host's own time would show.
    for (const int64_t rows : {request_.max_tokens / 4, request_.max_tokens / 2,
                               request_.max_tokens, 2 * request_.max_tokens}) {
      advance();
      Result<Run> run = carry_out(*request_.kernels, merge_scenario(rows), request_.repeats);
      if (!run) return run.error();
      add_rows(run.value());
      stack_.fuses_rows = std::none_of(run.value().output.events.begin(),
                                       run.value().output.events.end(), [](const ItemEvent& event) {
                                         return event.item.kind == StageKind::merge &&
                                                event.item.direction == Direction::forward;
                                       });
    }
    Result<Fit<RowCost>> fit = fit_rows(rows_);
    if (!fit) return fit.error();
    row_cost_ = fit.value().constants;
    stack_.row_launch_us = row_cost_.launch_us;
    result_.cluster.device.copy_gb_s = row_cost_.copy_gb_s;
    result_.fits.push_back(
        {"rows",
         {{"row_launch_us", row_cost_.launch_us}, {"copy_gb_s", row_cost_.copy_gb_s}},
         std::move(fit).value().table});
    row_errors_ = print_errors(result_.fits.back().table);
    return std::nullopt;
  }

  std::optional<Error> measure_wires() {
    constexpr int kWireRuns = 4;
    Link& inside = result_.cluster.inside;
    const int64_t most = kMessageBytesOfToken * request_.max_tokens;
    for (const CommType comm_type : {CommType::p2p, CommType::all_gather}) {
      std::vector<WireSample> samples;
      for (int64_t bytes = kLeastMessageBytes; bytes <= most; bytes *= 4) {
        advance();
        // The items of a run are those of one repeat: several runs, and the fastest counts.
        for (int run_number = 0; run_number < kWireRuns; ++run_number) {
          Result<Run> run =
              carry_out(*request_.group, wire_scenario(comm_type, group_devices_.count, bytes),
                        request_.repeats);
          if (!run) return run.error();
          add_wires(run.value(), samples);
        }
      }
      Result<Fit<LinkCurve>> fit = fit_curve(samples, packing());
      if (!fit) return fit.error();
      const bool is_ring = comm_type == CommType::p2p;
      (is_ring ? inside.one_peer : inside.many_peers) = fit.value().constants;
      NamedFit named{is_ring ? "inside.one_peer" : "inside.many_peers", {}, {}};
      for (const LinkCurve::Point& point : fit.value().constants.points)
        named.constants.emplace_back(fmt::format("{} bytes", point.bytes), point.us);
      named.table = std::move(fit).value().table;
      result_.fits.push_back(std::move(named));
    }
    return std::nullopt;
  }

  /// Computes of a ring beside transfers, and the last one alone.
  std::optional<Error> measure_sharing() {
    std::vector<SharedSample> samples;
    for (const int64_t share : {8, 4}) {
      advance();
      Result<Run> run = carry_out(*request_.group,
                                  ring_scenario(group_devices_.count, request_.max_tokens / share),
                                  request_.repeats);
      if (!run) return run.error();
      add_shared(run.value(), samples);
    }
    if (samples.empty() && !stack_.packs) {
      stack_.transfer_multiprocessors = 0;
      result_.left_out.emplace_back(
          "transfer_multiprocessors: no compute ran during a transfer; copy engines take none");
      return std::nullopt;
    }
    Result<Fit<int32_t>> fit = fit_transfer_multiprocessors(samples, devices_.multiprocessors);
    if (!fit) return fit.error();
    stack_.transfer_multiprocessors = fit.value().constants;
    result_.fits.push_back({"transfer_multiprocessors",
                            {{"transfer_multiprocessors", fit.value().constants}},
                            std::move(fit).value().table});
    return std::nullopt;
  }

  void add_shared(const Run& run, std::vector<SharedSample>& samples) {
    const Result<const KernelCost*> kernel = find_kernel_cost(stack_, run.plan().scenario);
    const double launch_us = kernel ? kernel.value()->forward.launch_us : 0.0;
    std::map<RankId, double> alone;  // the last step's compute
    const StepId last{run.plan().forward.num_steps - 1};
    for (const ItemEvent& event : run.output.events) {
      if (event.item.kind == StageKind::compute && event.step == last &&
          is_alone(event, run.output, false))
        alone[event.rank] = duration_us(event);
    }
    for (const ItemEvent& event : run.output.events) {
      const auto found = alone.find(event.rank);
      if (event.item.kind != StageKind::compute || event.step == last || found == alone.end())
        continue;
      const std::vector<BusyTime> transfers = transfers_of(run, event.rank, packing());
      const double begin = static_cast<double>(event.start_ns) * 1e-3 + launch_us;
      const BusyTime compute{begin, static_cast<double>(event.end_ns) * 1e-3};
      const double shared = length_of({compute}) - uncovered_us({compute}, transfers);
      if (shared <= 0) continue;
      samples.push_back({fmt::format("{} step {} rank {}", run.label(), to_index(event.step),
                                     to_index(event.rank)),
                         duration_us(event), found->second, shared});
    }
  }

  std::optional<Error> measure_host() {
    // The kernels of 128 lanes are what the small scenarios run.
    const bool has_kernel = std::any_of(
        stack_.kernels.begin(), stack_.kernels.end(),
        [](const KernelCost& k) { return k.bits == 16 && !k.is_latent && k.head_dim_qk >= 128; });
    if (!has_kernel) return std::nullopt;
    Executor& executor = has_group() ? *request_.group : *request_.kernels;
    std::vector<Run> runs;
    std::vector<CommType> types{CommType::p2p};
    if (has_group()) types = {CommType::p2p, CommType::all_gather, CommType::a2a};
    for (const CommType comm_type : types) {
      advance();
      Result<Run> run =
          carry_out(executor, host_scenario(comm_type, has_group() ? group_devices_.count : 1),
                    std::max(20, request_.repeats));
      if (!run) return run.error();
      runs.push_back(std::move(run).value());
    }
    std::vector<PassSample> samples;
    for (const Run& run : runs) {
      for (const Direction direction : kDirections) {
        std::vector<double> seconds = direction == Direction::backward ? run.output.backward_seconds
                                                                       : run.output.forward_seconds;
        if (seconds.empty()) continue;
        std::sort(seconds.begin(), seconds.end());
        samples.push_back({fmt::format("{} {}", run.label(), to_name(direction)), &run.plan(),
                           direction, seconds[seconds.size() / 2] * 1e6});
      }
    }
    Result<Fit<HostCost>> fit = fit_host(samples, result_.cluster, stack_);
    if (!fit) return fit.error();
    const HostCost& host = fit.value().constants;
    stack_.item_us = host.item_us;
    stack_.message_us = host.message_us;
    stack_.pass_us = host.pass_us;
    NamedFit named{"host", {{"item_us", host.item_us}, {"pass_us", host.pass_us}}, {}};
    if (has_group()) named.constants.emplace_back("message_us", host.message_us);
    named.table = std::move(fit).value().table;
    result_.fits.push_back(std::move(named));
    return std::nullopt;
  }

  const FitTable* table_of(std::string_view name) const {
    for (const NamedFit& fit : result_.fits) {
      if (fit.name == name) return &fit.table;
    }
    return nullptr;
  }

  /// Those of all kernels together.
  FitTable kernel_times() const {
    FitTable kernels;
    for (const NamedFit& fit : result_.fits) {
      if (fit.name.starts_with("kernels"))
        kernels.rows.insert(kernels.rows.end(), fit.table.rows.begin(), fit.table.rows.end());
    }
    return kernels;
  }

  void write_sources() {
    const std::string driver =
        group_devices_.driver.empty() ? "" : fmt::format(", driver {}", group_devices_.driver);
    const auto measured = [&](int32_t count) {
      return fmt::format("measured {} on {} {}{} by `{}`", request_.date, count,
                         count > 1 ? "GPUs " + devices_.name : devices_.name, driver,
                         request_.command);
    };
    Cluster& cluster = result_.cluster;
    cluster.device.source = fmt::format("{}: copies {}", measured(1), row_errors_);
    const std::string of_base =
        request_.base ? fmt::format("of base {}: ", request_.base->name) : std::string();
    if (has_group()) {
      cluster.inside.name = fmt::format("between {} GPUs of one host", group_devices_.count);
      cluster.inside.source =
          fmt::format("{}: rings and all-gathers, the fastest of each size{}",
                      measured(group_devices_.count), stack_.packs ? " without its packing" : "");
    } else {
      cluster.inside.source = of_base + cluster.inside.source;
    }
    if (cluster.between) cluster.between->source = of_base + cluster.between->source;
    stack_.source = fmt::format("{}: kernels {}", measured(1), print_errors(kernel_times()));
    if (const FitTable* host = table_of("host"))
      stack_.source += fmt::format("; host {}", print_errors(*host));
    if (const FitTable* sharing = table_of("transfer_multiprocessors"))
      stack_.source += fmt::format("; computes during transfers {}", print_errors(*sharing));
    if (!has_group())
      stack_.source +=
          fmt::format("; message_us and transfer_multiprocessors of base {}", request_.base->name);
  }

  const CalibrationRequest& request_;
  Calibration result_;
  Stack stack_;                        // the measured one
  std::vector<std::string> measured_;  // kernels by name
  DeviceReport devices_, group_devices_;
  std::vector<RowSample> rows_;
  RowCost row_cost_;
  std::string row_errors_;
  int64_t done_ = 0, total_ = 1;
};

}  // namespace

Result<Calibration> calibrate(const CalibrationRequest& request) {
  return Measurement(request).run();
}

}  // namespace cpscope
