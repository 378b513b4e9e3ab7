#include "tests/fuzz/fuzz_targets.h"

#include "sim/clock/trace_match.h"
#include "sim/plan/order/order_import.h"
#include "sim/plan/planner/planner.h"
#include "sim/run/record/foreign_file.h"
#include "sim/run/record/integer_file.h"
#include "sim/run/record/run_record.h"
#include "sim/scenario/mask_file.h"
#include "sim/scenario/order_file.h"
#include "sim/scenario/partition_fault.h"
#include "sim/scenario/scenario_file.h"
#include "sim/scenario/slice_overlap.h"
#include "tests/fuzz/fuzz_plan.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/kineto_trace.h"

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
using testing_support::npy_of;
using testing_support::pickle_of;
using testing_support::pickled_dict;
using testing_support::pickled_list;
using testing_support::pickled_name;
using testing_support::pickled_number;
using testing_support::pickled_tensor;
using testing_support::pickled_text;
using testing_support::pickled_tuple;
using testing_support::torch_archive_of;
using testing_support::zip_of;

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

// ---- arrays and pickle -------------------------------------------------------------------------

/// Every number comes from the file, however often the file's tensors overlap.
Problem check_counts(const std::vector<NamedRecord>& records, size_t bytes) {
  size_t numbers = 0;
  for (const NamedRecord& named : records) {
    for (const Tensor& tensor : named.record.tensors) {
      if (tensor.size() != static_cast<int64_t>(tensor.values.size()))
        return "a tensor that has not as many values as its shape: " + tensor.name;
      numbers += tensor.values.size();
    }
  }
  if (numbers > bytes) return fmt::format("{} numbers out of {} bytes", numbers, bytes);
  return std::nullopt;
}

Problem check_arrays(std::string_view bytes) {
  const MemoryFile file(bytes);
  const Result<std::vector<NamedRecord>> records = read_foreign_file(file.path());
  if (!records) return check_error(records.error(), file.path());
  return check_counts(records.value(), bytes.size());
}

std::vector<std::string> array_seeds(const std::string&) {
  const std::string out = npy_of("'<f4'", "(2, 3)", std::string(24, '\x3f'));
  const std::string tensor = pickled_tensor({.shape = {2, 3}, .strides = {3, 1}});
  return {
      out,
      npy_of("'<V2'", "(3,)", std::string(6, '\x3f')),
      npy_of("'<f8'", "(2, 2)", std::string(32, '\x3f'), "True"),
      npy_of("'<i4'", "()", std::string(4, '\x01')),
      zip_of({{"out.npy", out}, {"rank.npy", npy_of("'<i8'", "()", std::string(8, '\x00'))}}),
      zip_of(
          {{"out.rank0.npy", out}, {"out.rank1.npy", out}, {"s.npy", npy_of("'<U1'", "()", "")}}),
      torch_archive_of(pickle_of(pickled_dict({{"out", tensor}})), {std::string(24, '\x3f')}),
      torch_archive_of(pickle_of(tensor), {std::string(24, '\x3f')}),
  };
}

/// The pickle inside an archive with two storages, so that what it says of them is read.
Problem check_pickle(std::string_view bytes) {
  const std::string archive =
      torch_archive_of(std::string(bytes), {std::string(48, '\x3f'), std::string(16, '\x01')});
  return check_arrays(archive);
}

std::vector<std::string> pickle_seeds(const std::string&) {
  const std::string out = pickled_tensor({.shape = {2, 3}, .strides = {3, 1}}),
                    ids = pickled_tensor(
                        {.storage_class = "LongStorage", .key = "1", .shape = {2}, .strides = {1}});
  const std::string replicated =
      pickled_name("torch.distributed.tensor.placement_types", "Replicate") + ")\x81";
  const std::string spec = pickled_name("torch.distributed.tensor._dtensor_spec", "DTensorSpec") +
                           ")\x81" + pickled_dict({{"placements", pickled_tuple({replicated})}}) +
                           'b';
  return {
      pickle_of(pickled_dict({{"out", out}, {"rank", pickled_number(1)}, {"dq", "N"}})),
      pickle_of(pickled_list({pickled_dict({{"out", out}}), pickled_dict({{"out", out}})})),
      pickle_of(pickled_dict({{"order", pickled_text("rank")}, {"ids", ids}, {"is", "\x88"}})),
      // One view again, from the memo, and a list of numbers.
      pickle_of(pickled_dict({{"a", out + "q\x01"}, {"b", "h\x01"}})),
      pickle_of(
          pickled_dict({{"ids", pickled_list({pickled_number(3), "K\x07", "\x8a\x01\x05"})}})),
      pickle_of(pickled_name("torch._utils", "_rebuild_parameter") +
                pickled_tuple({out, "\x88", pickled_name("collections", "OrderedDict") + ")R"}) +
                'R'),
      pickle_of(pickled_name("torch._tensor", "_rebuild_from_type_v2") +
                pickled_tuple({pickled_name("torch._utils", "_rebuild_wrapper_subclass"),
                               pickled_name("torch.distributed.tensor", "DTensor"), ")",
                               pickled_tuple({"N", pickled_dict({{"_local_tensor", out},
                                                                 {"_spec", spec}})})}) +
                'R'),
  };
}

// ---- import ------------------------------------------------------------------------------------

constexpr std::array<std::string_view, 8> kLayouts{"",       "ring",  "zigzag", "stripe",
                                                   "llama3", "basic", "strip",  "?"};

/// header: source, layout, cp_size, ulysses degree, tokens (2 bytes), whether the file is of
/// tensors, whether the first list is cu_seqlens.
ImportRequest request_of(std::string_view header) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(header[i]); };
  ImportRequest request;
  request.source = static_cast<OrderSource>(byte(0) % 7);
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
  const bool is_of_tensors = header[6] % 2 != 0;
  const MemoryFile file(is_of_tensors ? rest : std::string_view());
  const std::string path = is_of_tensors ? file.path() : "lists.json";
  Result<std::vector<NamedLists>> lists =
      is_of_tensors ? read_integer_file(path) : parse_integer_json(rest, path);
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

std::string integers_of(const std::string& shape, const std::vector<int64_t>& values) {
  return npy_of("'<i8'", shape, testing_support::bytes_of(values));
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
      import_of({1, 0, 2, 1, 0, 0, 1, 0}, integers_of("(4,)", {0, 3, 1, 2})),
      import_of({0, 0, 2, 1, 0, 0, 1, 1}, integers_of("(1, 3)", {0, 4, 8})),
      import_of({5, 0, 2, 1, 0, 0, 1, 0},
                zip_of({{"cu_seqlens_q_padded.npy", integers_of("(1, 3)", {0, 8, 12})},
                        {"max_seqlen_q.npy", integers_of("()", {8})}})),
  };
}

// ---- mask --------------------------------------------------------------------------------------

Problem check_mask(std::string_view bytes) {
  constexpr int64_t kQuick = 1'000'000;
  const std::string path = "mask.npy";
  const Result<MaskRows> mask = parse_mask_rows(std::string(bytes), path);
  if (!mask) return check_error(mask.error(), path);
  const int64_t queries = mask.value().rows * mask.value().row_tile;
  const int64_t keys = mask.value().columns * mask.value().column_tile;
  if (queries > kQuick || keys > kQuick) return std::nullopt;
  Batch batch;
  batch.lengths = {queries};
  batch.kv_lengths = {keys};
  const Result<MaskCut> cut = cut_mask(mask.value(), batch, -1);
  if (!cut) return "a mask does not fit a batch of its size: " + to_text(cut.error());
  for (const MaskSlice& slice : cut.value().slices) {
    if (slice.q0 < 0 || slice.q1 > queries || slice.k0 < 0 || slice.k1 > keys)
      return "a slice of a mask leaves it";
  }
  if (!find_slice_overlaps(cut.value().slices, 1).overlaps.empty())
    return "two slices of a mask share a pair";
  return std::nullopt;
}

/// A version 1.0 .npy of bool with this shape.
std::string bool_npy_of(const std::string& shape, const std::string& cells) {
  std::string dictionary = "{'descr': '|b1', 'fortran_order': False, 'shape': " + shape + ", }";
  dictionary.resize(118 - 1, ' ');
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + dictionary + '\n' + cells;
}

std::vector<std::string> mask_seeds(const std::string&) {
  return {
      bool_npy_of("(2, 2)", std::string("\1\0\1\1", 4)),
      bool_npy_of("(1, 1, 3, 2)", std::string("\1\0\0\1\1\1", 6)),
      R"({"keys":[[0],[1,0],[-1,2],[]]})",
      R"({"kv_num_blocks":[1,2],"kv_indices":[[0,0],[1,0]],"block_size":[4,2]})",
      R"({"kv_num_blocks":[[[1,1]]],"kv_indices":[[[[0,3],[1,7]]]],"block_size":8})",
      R"({"kv_num_blocks":[0],"kv_indices":[[0]],"full_kv_num_blocks":[1],"full_kv_indices":[[0]]})",
      R"({"kv_num_blocks":[1],"kv_indices":[[0]],"full_kv_num_blocks":null,)"
      R"("full_kv_indices":null,"block_size":[128,128]})",
  };
}

// ---- trace -------------------------------------------------------------------------------------

const Plan& traced_plan() {
  static const Plan plan = [] {
    const Result<LoadedScenario> loaded = parse_scenario(
        "schema = 1\n[attention]\nheads = 2\nhead_dim = 64\n[batch]\nlengths = [64]\n[parallel]\n"
        "cp_size = 2\n[numerics]\ndtype = \"bf16\"\n",
        "fuzz.toml");
    Result<Plan> made = make_plan(loaded.value().scenario);
    return std::move(made).value();
  }();
  return plan;
}

Problem check_figures(const PassFigures& pass) {
  const double sum = pass.attention_us + pass.exposed_us + pass.other_us + pass.idle_us;
  // Microseconds of 73 years have three decimals.
  if (!(std::abs(sum - pass.total_us) <= 1e-6 * (1 + pass.total_us)))
    return fmt::format("a rank's times sum to {}, not {}", sum, pass.total_us);
  if (pass.transfer_us < pass.exposed_us) return "more is exposed than transferred";
  return std::nullopt;
}

/// What is found in a trace are items of the plan, at times that are in order.
Problem check_match(const std::string& path, bool has_rank) {
  TraceSource source{path, std::nullopt};
  if (!has_rank) source.rank = 1;
  const Plan& plan = traced_plan();
  const Result<TraceMatch> match = match_traces(plan, {source});
  if (!match) return check_error(match.error(), path);
  for (const ItemEvent& event : match.value().events) {
    if (event.start_ns < 0 || event.end_ns < event.start_ns)
      return "an event ends before it begins";
    if (event.item.index < 0 ||
        event.item.index >= count_items(plan.pass(event.item.direction), event.item.kind))
      return "an event of an item that the plan does not have";
  }
  for (const RankMeasured& rank : match.value().ranks) {
    if (Problem broken = check_figures(rank.forward)) return broken;
    if (Problem broken = check_figures(rank.backward)) return broken;
  }
  return std::nullopt;
}

Problem check_trace(std::string_view bytes) {
  const MemoryFile file(bytes);
  const Result<ForeignTrace> trace = read_foreign_trace(file.path());
  if (!trace) return check_error(trace.error(), file.path());
  for (const TraceProcess& process : trace.value().processes) {
    int64_t last = 0;
    for (const TraceSpan& span : process.spans) {
      if (span.time.start_ns < last || span.time.end_ns < span.time.start_ns)
        return "spans that are not in order";
      last = span.time.start_ns;
      if (span.sent_bytes < -1 || span.received_bytes < -1) return "a negative number of bytes";
      if (span.name >= process.names.size()) return "a span without a name";
    }
  }
  return check_match(file.path(), trace.value().rank.has_value());
}

std::vector<std::string> trace_seeds(const std::string&) {
  using testing_support::KinetoTrace;
  std::vector<std::string> seeds;
  for (const int64_t layers : {1, 2}) {
    KinetoTrace trace(0, 2);
    int64_t now = 0;
    for (int64_t layer = 0; layer < layers; ++layer)
      now = testing_support::add_layer(trace, traced_plan(), RankId{0}, now);
    seeds.push_back(trace.text());
  }
  KinetoTrace collectives(1, 2);
  collectives.add_collective("ncclDevKernel_AllGather_RING_LL(x)", "_allgather_base", 0, 5, 8, 16,
                             2);
  collectives.add_collective("ncclDevKernel_ReduceScatter_RING_LL(x)", "_reduce_scatter_base", 9, 5,
                             16, 8, 2, "Float");
  collectives.add_collective(testing_support::kSendRecv, "all_to_all", 20, 5, 64, 64, 2);
  collectives.add("gpu_user_annotation", "## backward ##", 1, 7, 0, 90, "\"External id\": 3");
  collectives.add_kernel("flex_attention", 30, 9);
  seeds.push_back(collectives.text());
  KinetoTrace cpu(0, 2);
  cpu.add("user_annotation", "gloo:send", 4, 4, 0, 20,
          R"("Input type": ["float"], "Input Dims": [[1, 128], []])");
  cpu.add("cpu_op", "flash_attn_fwd", 4, 4, 2, 9, R"("Input Dims": [[[1, 2]]])");
  seeds.push_back(cpu.text());
  seeds.push_back(R"([{"ph":"M","name":"process_name","pid":"a","args":{"name":"rank 1"}},)"
                  R"({"ph":"X","name":"flash fwd","pid":"a","tid":1,"ts":1e3,"dur":2.25}])");
  seeds.push_back(
      R"({"otherData":{"made_by":"cpscope 0.1.0","plan_hash":")" + to_hex(traced_plan().hash) +
      R"("},"traceEvents":[{"ph":"M","name":"process_name","pid":1,"args":{"name":)"
      R"("rank 0, measured"}},{"ph":"X","name":"a","cat":"compute","pid":1,"tid":1,"ts":0.000,)"
      R"("dur":9.000,"args":{"pass":"forward","step":0,"kind":"compute","item":0}}]})");
  return seeds;
}

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all{
      {"scenario", check_scenario, scenario_seeds}, {"record", check_record, record_seeds},
      {"arrays", check_arrays, array_seeds},        {"pickle", check_pickle, pickle_seeds},
      {"import", check_import, import_seeds},       {"mask", check_mask, mask_seeds},
      {"trace", check_trace, trace_seeds},          {"plan", check_plan_bytes, plan_seeds}};
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
