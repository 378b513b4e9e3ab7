#include "sim/app/cli/commands.h"
#include "sim/app/predict/calibrate.h"
#include "sim/app/predict/calibration_samples.h"
#include "sim/app/predict/calibration_shapes.h"
#include "sim/base/whole_file.h"
#include "sim/documents/json_text.h"
#include "sim/findings/progress_bar.h"
#include "sim/scenario/scenario_folder.h"
#include "sim/scenario/text_file.h"

#include <filesystem>
#include <iostream>
#include <memory>

#include <fmt/format.h>

namespace cpscope {
namespace {

struct CalibrateArguments {
  std::vector<std::string> executors;  // none: cuda, and nccl if it can help
  std::string base;                    // by name or file; may be empty
  std::string cluster_path = "machine.toml";
  std::string samples_path;       // rates of a file instead of a machine
  std::vector<std::string> only;  // kernels
  int64_t max_tokens = 16384;
  int32_t repeats = 5;
  bool json = false;
};

constexpr int64_t kMaxSamplesBytes = 4 << 20;

Json fit_json(const NamedFit& fit) {
  Json constants = Json::object();
  for (const auto& [name, value] : fit.constants) constants[name] = value;
  Json rows = Json::array();
  for (const FitRow& row : fit.table.rows)
    rows.push_back({{"label", row.label},
                    {"measured_us", row.measured_us},
                    {"fitted_us", row.fitted_us},
                    {"error", row.error()}});
  return {{"name", fit.name},
          {"mean_error", fit.table.mean_error()},
          {"largest_error", fit.table.largest_error()},
          {"constants", constants},
          {"rows", rows}};
}

Json fits_json(const std::vector<NamedFit>& fits) {
  Json list = Json::array();
  for (const NamedFit& fit : fits) list.push_back(fit_json(fit));
  return list;
}

void print_table(const std::vector<NamedFit>& fits) {
  std::cout << fmt::format("{:<28} {:>5} {:>7} {:>8}  {}\n", "fit", "times", "error", "at most",
                           "constants");
  for (const NamedFit& fit : fits) {
    std::string constants;
    for (const auto& [name, value] : fit.constants)
      constants += fmt::format("{}{} {}", constants.empty() ? "" : ", ", name, value);
    std::cout << fmt::format("{:<28} {:>5} {:>6.1f}% {:>7.1f}%  {}\n", fit.name,
                             fit.table.rows.size(), 100 * fit.table.mean_error(),
                             100 * fit.table.largest_error(), constants);
  }
}

/// Comments, so that the whole output is a piece of a cluster file.
void print_rows(const std::vector<NamedFit>& fits) {
  for (const NamedFit& fit : fits) {
    std::cout << fmt::format("# {}: error {:.1f} % on the mean, {:.1f} % at most\n", fit.name,
                             100 * fit.table.mean_error(), 100 * fit.table.largest_error());
    for (const FitRow& row : fit.table.rows)
      std::cout << fmt::format("#   {:<50} {:>11.2f} us, fitted {:>11.2f}, {:>+6.1f} %\n",
                               row.label, row.measured_us, row.fitted_us, 100 * row.error());
  }
}

int fit_file(const CalibrateArguments& options) {
  const Result<std::string> text = read_text_file(options.samples_path, kMaxSamplesBytes);
  if (!text) return report(text.error());
  const Result<FittedKernels> fitted = fit_samples(text.value(), options.samples_path);
  if (!fitted) return report(fitted.error());
  std::string kernels;
  for (const KernelCost& kernel : fitted.value().kernels) kernels += print_kernel(kernel);
  if (options.json) {
    std::cout << print_json({{"schema", 1},
                             {"kernels", kernels},
                             {"fits", fits_json(fitted.value().fits)}})
              << '\n';
    return 0;
  }
  print_rows(fitted.value().fits);
  std::cout << kernels;
  return 0;
}

/// Those that the command line names; else cuda, and nccl where it drives several GPUs.
Result<std::vector<Executor*>> choose_executors(const CalibrateArguments& options,
                                                Toolbox& toolbox) {
  std::vector<Executor*> chosen;
  std::vector<std::string> names = options.executors;
  if (names.empty()) names = {"cuda"};
  for (const std::string& name : names) {
    const Result<Executor*> executor = find_executor(toolbox, name);
    if (!executor) return executor.error();
    chosen.push_back(executor.value());
  }
  if (!options.executors.empty()) return chosen;
  const Result<Executor*> nccl = find_executor(toolbox, "nccl");
  if (nccl) chosen.push_back(nccl.value());
  return chosen;
}

std::string quote(const std::string& word) {
  return word.find(' ') == std::string::npos ? word : fmt::format("\"{}\"", word);
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const KernelClass& kernel : kernel_classes()) names.push_back(name_of(kernel));
  return names;
}

Result<CalibrationRequest> make_request(const CalibrateArguments& options, Toolbox& toolbox) {
  CalibrationRequest request;
  const Result<std::vector<Executor*>> executors = choose_executors(options, toolbox);
  if (!executors) return executors.error();
  request.kernels = executors.value().front();
  request.command = "cpscope calibrate";
  for (Executor* executor : executors.value()) {
    const Result<DeviceReport> devices = executor->describe_devices();
    if (!devices) {
      // Nobody asked for it.
      if (options.executors.empty() && executor != request.kernels) continue;
      return devices.error();
    }
    request.command += " --executor " + executor->name();
    if (devices.value().count > 1) request.group = executor;
  }
  if (!options.base.empty()) {
    Result<Cluster> base = load_cluster(options.base, shipped_clusters());
    if (!base) return base.error();
    request.base = std::move(base).value();
    request.command += " --base " + request.base->name;
  }
  request.name = std::filesystem::path(options.cluster_path).stem().string();
  request.date = today();
  request.repeats = options.repeats;
  request.max_tokens = options.max_tokens;
  request.only = options.only;
  for (const std::string& kernel : options.only) request.command += " --kernels " + quote(kernel);
  return request;
}

int command_calibrate(const CalibrateArguments& options, const Tools& tools) {
  if (!options.samples_path.empty()) return fit_file(options);
  Result<CalibrationRequest> request = make_request(options, tools.toolbox);
  if (!request) return report(request.error());
  Result<Calibration> calibration = [&] {
    ProgressBar bar(!options.json);
    request.value().progress = bar.phase("items");
    return calibrate(request.value());
  }();
  if (!calibration) return report(calibration.error());
  const Calibration& done = calibration.value();
  const std::string text = print_cluster(done.cluster);
  // What is written must be read again.
  const Result<Cluster> again = parse_cluster(text, options.cluster_path);
  if (!again) return report(again.error());
  const Result<size_t> written = write_whole_file(options.cluster_path, text, "the cluster file");
  if (!written) return report(written.error());
  if (options.json) {
    std::cout << print_json({{"schema", 1},
                             {"cluster", done.cluster.name},
                             {"file", options.cluster_path},
                             {"fits", fits_json(done.fits)},
                             {"from_base", done.from_base},
                             {"left_out", done.left_out}})
              << '\n';
    return 0;
  }
  print_table(done.fits);
  for (const std::string& what : done.from_base)
    std::cout << fmt::format("from base {}: {}\n", request.value().base->name, what);
  for (const std::string& what : done.left_out) std::cout << "left out: " << what << '\n';
  std::cout << fmt::format("wrote {}\n", options.cluster_path);
  return 0;
}

}  // namespace

Command add_calibrate(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<CalibrateArguments>();
  CLI::App* calibrate =
      app.add_subcommand("calibrate", "measures this machine and writes its cluster file");
  calibrate
      ->add_option("--executor", options->executors,
                   "whose kernels, and who drives several GPUs (default: cuda, and nccl where "
                   "there are two GPUs or more)")
      ->check(kNotEmpty);
  calibrate
      ->add_option("--base", options->base,
                   "a cluster by name or file: what cannot be measured here (one GPU: the wires) "
                   "is taken from it")
      ->check(kNotEmpty);
  calibrate
      ->add_option("--out", options->cluster_path,
                   "the cluster file, whose name the cluster gets (default machine.toml)")
      ->check(kNotEmpty);
  calibrate
      ->add_option("--kernels", options->only,
                   "measure these kernels alone, and take all else from --base, of the same GPU; "
                   "can be given several times")
      ->check(CLI::IsMember(kernel_names()));
  calibrate
      ->add_option("--repeats", options->repeats,
                   "carry out each scenario so often; the last time counts")
      ->check(whole_number(1, 1000000));
  calibrate
      ->add_option("--max-tokens", options->max_tokens,
                   "sequences up to twice as long are measured, messages up to 8 KiB for each "
                   "(default 16384)")
      ->check(whole_number(256, 1 << 20));
  calibrate
      ->add_option(
          "--samples", options->samples_path,
          "fit rates of this file (TOML: sim/app/predict/calibration_samples.h) instead of "
          "measuring, and print the tables [[stacks.kernels]]")
      ->check(kNotEmpty);
  add_json(calibrate, options->json);
  calibrate->footer(
      "Without a GPU: exit code 3, and nothing is written.\n"
      "Examples: cpscope calibrate --base h200x8 --out mine.toml\n"
      "          cpscope calibrate --base h200x8 --kernels \"fp8 128\" --out more.toml");
  return {calibrate, [options, tools] { return command_calibrate(*options, tools); }};
}

}  // namespace cpscope
