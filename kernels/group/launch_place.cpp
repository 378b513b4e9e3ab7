#include "kernels/group/launch_place.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope::kernels {

namespace {

// Below the ports that systems assign automatically.
constexpr int32_t kFirstPort = 20'000;
constexpr int32_t kNumPorts = 10'000;

/// Names of one launcher's variables. Empty: the launcher has no variable of that meaning.
struct Dialect {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* job;
};

constexpr Dialect kTorchrun = {
    "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"};
constexpr Dialect kOpenMpi = {"mpirun",
                              "OMPI_COMM_WORLD_RANK",
                              "OMPI_COMM_WORLD_SIZE",
                              "OMPI_COMM_WORLD_LOCAL_RANK",
                              "OMPI_COMM_WORLD_LOCAL_SIZE",
                              "PMIX_NAMESPACE"};
constexpr Dialect kPmi = {"mpirun",          "PMI_RANK",        "PMI_SIZE",
                          "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_ID"};
constexpr Dialect kSrun = {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
                           "",     "SLURM_JOB_ID"};

Error complain(std::string what, std::string hint) {
  return make_error(ErrorKind::bad_input, std::move(what), std::move(hint), "environment");
}

/// Reads variables as numbers and keeps the first error.
class VariableReader {
 public:
  explicit VariableReader(const Environment& environment) : environment_(environment) {}

  std::optional<std::string> text(const char* name) const {
    return *name == '\0' ? std::nullopt : environment_(name);
  }
  bool has(const char* name) const { return text(name).has_value(); }

  /// The number in [least, most]; nothing if the variable is not set or invalid.
  std::optional<int32_t> number(const char* name, int32_t least, int32_t most) {
    const std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    int32_t number = 0;
    const char* end = value->data() + value->size();
    const auto [stop, code] = std::from_chars(value->data(), end, number);
    if (code == std::errc{} && stop == end && number >= least && number <= most) return number;
    if (!error_) {
      error_ = complain(
          fmt::format("{} must be a whole number of {} to {}: \"{}\"", name, least, most, *value),
          "let the launcher set it, or unset it");
    }
    return std::nullopt;
  }

  const std::optional<Error>& error() const { return error_; }

 private:
  const Environment& environment_;
  std::optional<Error> error_;
};

/// Checks that the mandatory variables of a dialect are set.
std::optional<Error> find_missing(const VariableReader& reader, const Dialect& dialect) {
  std::vector<const char*> missing, present;
  for (const char* name : {dialect.rank, dialect.size, dialect.local_rank}) {
    (reader.has(name) ? present : missing).push_back(name);
  }
  if (missing.empty()) return std::nullopt;
  return complain(fmt::format("variables of {} are missing: {}; there are {}", dialect.launcher,
                              fmt::join(missing, ", "), fmt::join(present, ", ")),
                  "start with the launcher, or unset all of them");
}

/// "4(x2),3" and node 1 -> 4. Source: Slurm's SLURM_STEP_TASKS_PER_NODE.
int32_t tasks_of_node(const std::string& list, int32_t node) {
  size_t at = 0;
  while (at < list.size()) {
    int32_t tasks = 0, repeats = 1;
    const char* end = list.data() + list.size();
    const char* stop = std::from_chars(list.data() + at, end, tasks).ptr;
    const size_t rest = static_cast<size_t>(stop - list.data());
    if (std::string_view(list).substr(rest).starts_with("(x")) {
      std::from_chars(stop + 2, end, repeats);
    }
    if (node < repeats) return tasks;
    node -= repeats;
    const size_t comma = list.find(',', at);
    if (comma == std::string::npos) break;
    at = comma + 1;
  }
  return 0;
}

std::optional<Error> check_numbers(const LaunchPlace& place, const Dialect& dialect) {
  const auto contradict = [](const char* a, int32_t a_value, const char* b, int32_t b_value) {
    return complain(
        fmt::format("{} and {} contradict each other: {} and {}", a, b, a_value, b_value),
        "a number counts from 0 and stays below its total");
  };
  if (place.process >= place.num_processes) {
    return contradict(dialect.rank, place.process, dialect.size, place.num_processes);
  }
  if (place.local_process > place.process) {
    return contradict(dialect.local_rank, place.local_process, dialect.rank, place.process);
  }
  if (place.num_local_processes == 0) return std::nullopt;
  const char* local_size = *dialect.local_size != '\0' ? dialect.local_size : "the tasks per node";
  if (place.local_process >= place.num_local_processes) {
    return contradict(dialect.local_rank, place.local_process, local_size,
                      place.num_local_processes);
  }
  if (place.num_local_processes > place.num_processes) {
    return contradict(local_size, place.num_local_processes, dialect.size, place.num_processes);
  }
  return std::nullopt;
}

/// A port that the processes of a job agree on and that other jobs of the host seldom use.
int32_t port_of_job(const std::string& job) {
  uint64_t hash = 14'695'981'039'346'656'037ULL;  // FNV-1a
  for (const char c : job) hash = (hash ^ static_cast<uint8_t>(c)) * 1'099'511'628'211ULL;
  return kFirstPort + static_cast<int32_t>(hash % kNumPorts);
}

/// Reads the address at which process 0 listens.
std::optional<Error> read_address(VariableReader& reader, LaunchPlace& place) {
  const std::optional<std::string> host = reader.text("MASTER_ADDR");
  const std::optional<int32_t> port = reader.number("MASTER_PORT", 1, 65'535);
  if (reader.error()) return reader.error();
  place.port = port ? *port : port_of_job(place.job);
  // torchrun's own store listens on that port; cpscope uses the next one.
  if (reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True" && place.port < 65'535) ++place.port;
  if (host) {
    place.host = *host;
  } else if (place.launcher == "srun") {
    const std::optional<std::string> step = reader.text("SLURM_STEP_NODELIST");
    const std::optional<std::string> hosts = step ? step : reader.text("SLURM_JOB_NODELIST");
    if (!hosts) {
      return complain("srun set no SLURM_STEP_NODELIST and no SLURM_JOB_NODELIST",
                      "set MASTER_ADDR to the host of process 0");
    }
    place.host = first_host(*hosts);
  } else if (place.num_local_processes != place.num_processes) {
    return complain(fmt::format("MASTER_ADDR is missing: {} says that {} processes run on several "
                                "hosts, not where process 0 is",
                                place.launcher, place.num_processes),
                    "set MASTER_ADDR to the host of process 0");
  }
  if (place.launcher == "torchrun" && (!host || !port)) {
    return complain(fmt::format("variables of torchrun are missing: {}; there are WORLD_SIZE {}",
                                host ? "MASTER_PORT" : "MASTER_ADDR", place.num_processes),
                    "start with torchrun, or set MASTER_ADDR and MASTER_PORT");
  }
  return std::nullopt;
}

/// A program under torchrun under mpirun has at least as many copies as mpirun started.
std::optional<Error> check_outer_launchers(VariableReader& reader, const LaunchPlace& place) {
  for (const char* name : {kOpenMpi.size, kPmi.size}) {
    const std::optional<int32_t> outer = reader.number(name, 1, INT32_MAX);
    if (!outer || *outer <= place.num_processes) continue;
    return complain(fmt::format("WORLD_SIZE and {} contradict each other: {} and {}", name,
                                place.num_processes, *outer),
                    "unset RANK, WORLD_SIZE and LOCAL_RANK under mpirun");
  }
  return reader.error();
}

Result<LaunchPlace> read_dialect(VariableReader& reader, const Dialect& dialect) {
  if (std::optional<Error> error = find_missing(reader, dialect)) return *std::move(error);
  LaunchPlace place;
  place.launcher = dialect.launcher;
  place.process = reader.number(dialect.rank, 0, INT32_MAX).value_or(0);
  // The total of sbatch may differ from that of its steps.
  const bool has_step_size =
      dialect.launcher == std::string_view("srun") && reader.has("SLURM_STEP_NUM_TASKS");
  place.num_processes =
      reader.number(has_step_size ? "SLURM_STEP_NUM_TASKS" : dialect.size, 1, INT32_MAX)
          .value_or(1);
  place.local_process = reader.number(dialect.local_rank, 0, INT32_MAX).value_or(0);
  place.num_local_processes = reader.number(dialect.local_size, 1, INT32_MAX).value_or(0);
  place.job = reader.text(dialect.job).value_or("");
  if (place.launcher == "srun") {
    place.job += "." + reader.text("SLURM_STEP_ID").value_or("");
    const int32_t node = reader.number("SLURM_NODEID", 0, INT32_MAX).value_or(0);
    place.num_local_processes =
        tasks_of_node(reader.text("SLURM_STEP_TASKS_PER_NODE").value_or(""), node);
  }
  if (place.num_processes == 1) place.num_local_processes = 1;
  if (reader.error()) return *reader.error();
  if (std::optional<Error> error = check_numbers(place, dialect)) return *std::move(error);
  if (place.launcher == "torchrun") {
    if (std::optional<Error> error = check_outer_launchers(reader, place)) return *std::move(error);
  }
  if (place.num_processes > 1) {
    if (std::optional<Error> error = read_address(reader, place)) return *std::move(error);
  }
  return place;
}

}  // namespace

Environment process_environment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
}

Result<LaunchPlace> find_launch_place(const Environment& environment) {
  VariableReader reader(environment);
  // Inner launchers first: torchrun may itself be started by mpirun or srun, mpirun by srun.
  for (const Dialect* dialect : {&kTorchrun, &kOpenMpi, &kPmi}) {
    if (reader.has(dialect->rank) || reader.has(dialect->size))
      return read_dialect(reader, *dialect);
  }
  // A batch script has SLURM_PROCID too; only processes that srun started belong to a step.
  if (reader.has(kSrun.rank) && reader.has("SLURM_STEP_ID")) return read_dialect(reader, kSrun);
  return LaunchPlace{};
}

std::string first_host(const std::string& list) {
  std::string host;
  size_t at = 0;
  while (at < list.size() && list[at] != ',') {
    if (list[at] != '[') {
      host += list[at++];
      continue;
    }
    const size_t close = std::min(list.find(']', at), list.size());
    const size_t stop = std::min(list.find_first_of("-,]", at), close);
    host += list.substr(at + 1, stop - at - 1);
    at = close + 1;
  }
  return host;
}

}  // namespace cpscope::kernels
