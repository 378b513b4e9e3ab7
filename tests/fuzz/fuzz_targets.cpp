#include "tests/fuzz/fuzz_targets.h"

#include "sim/plan/order/order_import.h"
#include "sim/run/record/integer_file.h"
#include "sim/run/record/run_record.h"
#include "sim/scenario/order_file.h"
#include "sim/scenario/partition_fault.h"
#include "sim/scenario/scenario_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

namespace cpscope::fuzzing {
namespace {

using Problem = std::optional<std::string>;

constexpr size_t kHeaderBytes = 8;

/// A file in memory that readers open by its path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : descriptor_(::memfd_create("fuzz", 0)) {
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t wrote = ::write(descriptor_, bytes.data() + done, bytes.size() - done);
      if (wrote <= 0) std::abort();
      done += static_cast<size_t>(wrote);
    }
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return fmt::format("/proc/self/fd/{}", descriptor_); }

 private:
  int descriptor_;
};

std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

/// Every error says what is wrong, in the file that was read.
Problem check_error(const Error& error, const std::string& path) {
  if (error.complaints.empty()) return "an error without a complaint";
  for (const Complaint& complaint : error.complaints) {
    if (complaint.what.empty()) return "a complaint that says nothing";
    if (!complaint.where.empty() && complaint.where.compare(0, path.size(), path) != 0) {
      return "a complaint about another file: " + complaint.where;
    }
  }
  return std::nullopt;
}

// ---- scenario ----------------------------------------------------------------------------------

Problem check_scenario(std::string_view bytes) {
  const std::string path = "fuzz.toml";
  const Result<LoadedScenario> loaded = parse_scenario(bytes, path);
  if (!loaded) return check_error(loaded.error(), path);
  const Scenario& scenario = loaded.value().scenario;
  // What it names lies in no file here, and a seed of TOML is below 2^63.
  if (!scenario.parallel.indices_file.empty() || scenario.numerics.seed > INT64_MAX)
    return std::nullopt;
  const std::string printed = print_scenario(scenario);
  const Result<LoadedScenario> again = parse_scenario(printed, path);
  if (!again) return "a printed scenario is refused: " + to_text(again.error()) + "\n" + printed;
  if (!(again.value().scenario == scenario)) return "a printed scenario is another:\n" + printed;
  return std::nullopt;
}

std::vector<std::string> scenario_seeds(const std::string& scenarios) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(scenarios)) {
    if (entry.path().extension() == ".toml") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> seeds;
  for (const std::filesystem::path& file : files) seeds.push_back(read_bytes(file));
  return seeds;
}

// ---- record ------------------------------------------------------------------------------------

bool is_same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

bool is_same(const Tensor& a, const Tensor& b) {
  return a.name == b.name && a.shape == b.shape && a.dtype == b.dtype &&
         std::equal(a.values.begin(), a.values.end(), b.values.begin(), b.values.end(),
                    [](double x, double y) { return is_same(x, y); });
}

/// Every value comes from the file.
Problem check_sizes(const RunRecord& record, size_t bytes) {
  size_t stored = 0;
  for (const Tensor& tensor : record.tensors) {
    if (tensor.size() != static_cast<int64_t>(tensor.values.size())) {
      return "a tensor that has not as many values as its shape: " + tensor.name;
    }
    stored += tensor.values.size() * static_cast<size_t>(element_bytes(tensor.dtype));
  }
  for (const IntegerTensor& tensor : record.integers) stored += tensor.values.size();
  if (stored > bytes) return fmt::format("{} bytes of values out of {} bytes", stored, bytes);
  return std::nullopt;
}

Problem check_record_as(const std::string& path, const RecordReading& reading, size_t bytes) {
  const Result<RunRecord> record = read_record(path, reading);
  if (!record) return check_error(record.error(), path);
  if (Problem broken = check_sizes(record.value(), bytes)) return broken;
  if (reading.takes_other_types) return std::nullopt;
  const std::string copy =
      (std::filesystem::temp_directory_path() / fmt::format("fuzz-{}", ::getpid())).string();
  const Result<std::string> written = write_record(record.value(), copy);
  if (!written) return "a record that was read cannot be written: " + to_text(written.error());
  const Result<RunRecord> again = read_record(copy);
  std::remove(copy.c_str());
  if (!again) return "a record that was written cannot be read: " + to_text(again.error());
  const std::vector<Tensor>& wanted = record.value().tensors;
  const std::vector<Tensor>& seen = again.value().tensors;
  if (!std::equal(wanted.begin(), wanted.end(), seen.begin(), seen.end(),
                  [](const Tensor& a, const Tensor& b) { return is_same(a, b); })) {
    return "a record that was written holds other tensors";
  }
  return std::nullopt;
}

Problem check_record(std::string_view bytes) {
  const MemoryFile file(bytes);
  if (Problem broken = check_record_as(file.path(), {}, bytes.size())) return broken;
  return check_record_as(file.path(), {.takes_other_types = true}, bytes.size());
}

/// A file of the format around this header, with so many bytes of data.
std::string file_of(std::string header, size_t data_bytes) {
  const uint64_t size = header.size();
  std::string bytes(sizeof size, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  return bytes + header + std::string(data_bytes, '\x3f');
}

std::vector<std::string> record_seeds(const std::string&) {
  return {
      file_of("{}", 0),
      file_of(R"({"out":{"dtype":"F32","shape":[2,1,2],"data_offsets":[0,16]}})", 16),
      file_of(R"({"a":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},)"
              R"("b":{"dtype":"F64","shape":[2],"data_offsets":[0,16]},)"
              R"("c":{"dtype":"F16","shape":[1,2],"data_offsets":[22,26]}})",
              26),
      file_of(R"({"__metadata__":{"scenario":"schema = 1\n","plan_hash":"0011223344556677",)"
              R"("executor":"cpu","clock":"none","budgets":"{\"out\":1e-6,\"lse\":null}",)"
              R"("budgets_l2":"{\"out\":0.5,\"lse\":0}"},)"
              R"("out":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})",
              8),
      file_of(R"({"__metadata__":{"clock":"measured"},)"
              R"("events":{"dtype":"F64","shape":[1,7],"data_offsets":[0,56]}})",
              56),
      file_of(R"({"n":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
              R"("m":{"dtype":"U8","shape":[2],"data_offsets":[8,10]},)"
              R"("f":{"dtype":"BOOL","shape":[1],"data_offsets":[10,11]},)"
              R"("e":{"dtype":"F8_E4M3","shape":[0,3],"data_offsets":[11,11]}})",
              11),
  };
}

// ---- import ------------------------------------------------------------------------------------

constexpr std::array<std::string_view, 8> kLayouts{"",       "ring",  "zigzag", "stripe",
                                                   "llama3", "basic", "strip",  "?"};

/// header: source, layout, cp_size, ulysses degree, tokens (2 bytes), whether the file is .npy,
/// whether the first list is cu_seqlens.
ImportRequest request_of(std::string_view header) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(header[i]); };
  ImportRequest request;
  request.source = static_cast<OrderSource>(byte(0) % 5);
  request.layout = std::string(kLayouts[byte(1) % kLayouts.size()]);
  request.cp_size = byte(2);
  // Mostly one that is not refused at once.
  if (request.source == OrderSource::usp || byte(3) % 16 == 15) request.ulysses_degree = byte(3);
  request.tokens = byte(4) + 256 * byte(5);
  return request;
}

/// What keeps an accepted import from being a whole order that its own file gives back.
Problem check_order(const OrderImport& order) {
  if (const Problem fault = describe_partition_fault(order.ranks, order.tokens())) {
    return "an imported order is no partition: " + *fault;
  }
  int64_t kv_tokens = 0;
  for (const std::vector<int64_t>& rank : order.kv_ranks) {
    kv_tokens += static_cast<int64_t>(rank.size());
  }
  if (const Problem fault = describe_partition_fault(order.kv_ranks, kv_tokens)) {
    return "an imported order of KV is no partition: " + *fault;
  }
  if (static_cast<int64_t>(order.ranks.size()) != order.cp_size) return "cp_size is not the ranks'";
  const bool is_self = order.kv_ranks.empty();
  const OrderDemand demand{.cp_size = order.cp_size,
                           .tokens = order.tokens(),
                           .kv_tokens = is_self ? order.tokens() : kv_tokens,
                           .self_attention = is_self};
  const Result<ImportedOrder> again = parse_order(print_order_file(order), "order.json", demand);
  if (!again) return "the file of an imported order is refused: " + to_text(again.error());
  if (again.value().ranks != order.ranks) return "the file of an imported order holds another";
  return std::nullopt;
}

/// Some millions of tokens are a lawful order, which takes its time: not for millions of runs. What
/// is beyond every limit must be refused at once.
bool takes_its_time(const std::vector<NamedLists>& lists) {
  constexpr int64_t kQuick = 100'000;
  for (const NamedLists& named : lists) {
    for (const std::vector<int64_t>& list : named.lists) {
      for (const int64_t value : list) {
        if (value > kQuick && value <= kMaxTokens) return true;
      }
    }
  }
  return false;
}

Problem check_import(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes) return std::nullopt;
  const std::string_view header = bytes.substr(0, kHeaderBytes), rest = bytes.substr(kHeaderBytes);
  const std::string path = "lists.json";
  Result<std::vector<NamedLists>> lists =
      header[6] % 2 != 0 ? parse_npy(rest, path) : parse_integer_json(rest, path);
  if (!lists) return check_error(lists.error(), path);
  if (takes_its_time(lists.value())) return std::nullopt;
  ImportRequest request = request_of(header);
  if (header[7] % 2 != 0 && !lists.value().empty() && !lists.value().front().lists.empty()) {
    request.cu_seqlens = lists.value().front().lists.front();
  } else {
    request.given = std::move(lists).value();
  }
  const Result<OrderImport> order = import_order(request);
  if (order) return check_order(order.value());
  if (order.error().complaints.empty()) return "an error without a complaint";
  return std::nullopt;
}

std::string import_of(std::array<unsigned char, kHeaderBytes> header, const std::string& rest) {
  return std::string(header.begin(), header.end()) + rest;
}

/// A version 1.0 .npy of int64 (NumPy, numpy.lib.format).
std::string npy_of(const std::string& shape, const std::vector<int64_t>& values) {
  std::string dictionary = "{'descr': '<i8', 'fortran_order': False, 'shape': " + shape + ", }";
  dictionary.resize(118 - 1, ' ');
  dictionary += '\n';
  std::string bytes = std::string("\x93NUMPY\x01\x00", 8) + std::string("\x76\x00", 2) + dictionary;
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t));
  return bytes;
}

std::vector<std::string> import_seeds(const std::string&) {
  return {
      import_of({0, 0, 2, 1, 0, 0, 0, 0}, R"({"cu_seqlens_padded":[0,8,12]})"),
      import_of({0, 0, 2, 1, 0, 0, 0, 0}, R"({"cu_seqlens":[0,7,10],"cu_seqlens_padded":[0,8,12],)"
                                          R"("indices":[[0,1,6,7,8,11],[2,3,4,5,9,10]]})"),
      import_of({0, 0, 2, 1, 0, 0, 0, 0},
                R"({"cu_seqlens":[0,4],"cu_seqlens_padded":[0,4],"cu_seqlens_kv":[0,8],)"
                R"("cu_seqlens_kv_padded":[0,8]})"),
      import_of({1, 0, 2, 1, 0, 0, 0, 0}, R"({"rearrange":[0,1,6,7,2,3,4,5]})"),
      import_of({1, 0, 2, 1, 0, 0, 0, 0}, R"({"restore":[[0,1,4,5,6,7,2,3]]})"),
      import_of({2, 1, 2, 1, 8, 0, 0, 1}, "[0,4,8]"),
      import_of({2, 2, 2, 1, 8, 0, 0, 1}, "[0,4,8]"),
      import_of({2, 3, 4, 1, 16, 0, 0, 1}, "[0,8,16]"),
      import_of({2, 4, 4, 1, 16, 0, 0, 1}, "[0,5,16]"),
      import_of({3, 5, 4, 2, 16, 0, 0, 0}, "{}"),
      import_of({3, 2, 4, 2, 16, 0, 0, 0}, "{}"),
      import_of({3, 6, 4, 2, 16, 0, 0, 0}, "{}"),
      import_of({1, 0, 2, 1, 0, 0, 1, 0}, npy_of("(4,)", {0, 3, 1, 2})),
      import_of({0, 0, 2, 1, 0, 0, 1, 1}, npy_of("(1, 3)", {0, 4, 8})),
  };
}

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all{{"scenario", check_scenario, scenario_seeds},
                                       {"record", check_record, record_seeds},
                                       {"import", check_import, import_seeds}};
  return all;
}

const Target& find_target(std::string_view name) {
  for (const Target& target : targets()) {
    if (target.name == name) return target;
  }
  std::fprintf(stderr, "no such target: %.*s\n", static_cast<int>(name.size()), name.data());
  std::abort();
}

}  // namespace cpscope::fuzzing
