#include "sim/base/whole_file.h"
#include "sim/run/dtype.h"
#include "sim/run/record/record_extras.h"
#include "sim/run/record/record_header.h"
#include "sim/run/record/run_record.h"
#include "sim/run/record/stored_values.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <ostream>

#include <fmt/format.h>

namespace cpscope {

namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr int64_t kChunkElements = 65'536;
constexpr int64_t kLengthBytes = 8;  // in front of the header

template <class Stored, class Encode>
void encode_values(const double* values, int64_t count, char* bytes, Encode encode) {
  for (int64_t i = 0; i < count; ++i) {
    const Stored stored = encode(values[i]);
    std::memcpy(bytes + i * static_cast<int64_t>(sizeof stored), &stored, sizeof stored);
  }
}

/// Bytes of `count` values, each rounded once to dtype.
void encode_chunk(Dtype dtype, const double* values, int64_t count, char* bytes) {
  switch (dtype) {
    case Dtype::bf16:
      return encode_values<uint16_t>(values, count, bytes, [](double value) {
        return to_bf16_bits(static_cast<float>(round_to(Dtype::bf16, value)));
      });
    case Dtype::fp16:
      return encode_values<uint16_t>(values, count, bytes, [](double value) {
        return to_fp16_bits(static_cast<float>(round_to(Dtype::fp16, value)));
      });
    case Dtype::fp32:
      return encode_values<float>(values, count, bytes,
                                  [](double value) { return static_cast<float>(value); });
    case Dtype::fp64:
      return encode_values<double>(values, count, bytes, [](double value) { return value; });
  }
}

/// Begin of each tensor's data: widest elements first, so that every tensor is aligned to its own
/// element size, else in the record's order.
struct DataPlan {
  std::vector<const Tensor*> tensors;
  std::vector<size_t> order;    // tensors in the order of their data
  std::vector<int64_t> begins;  // [tensor] bytes after the header
};

DataPlan place_data(std::vector<const Tensor*> tensors) {
  DataPlan plan;
  plan.tensors = std::move(tensors);
  plan.order.resize(plan.tensors.size());
  plan.begins.resize(plan.tensors.size());
  std::iota(plan.order.begin(), plan.order.end(), size_t{0});
  std::stable_sort(plan.order.begin(), plan.order.end(), [&](size_t a, size_t b) {
    return element_bytes(plan.tensors[a]->dtype) > element_bytes(plan.tensors[b]->dtype);
  });
  int64_t begin = 0;
  for (const size_t t : plan.order) {
    plan.begins[t] = begin;
    begin += plan.tensors[t]->size() * element_bytes(plan.tensors[t]->dtype);
  }
  return plan;
}

void write_stream(const DataPlan& plan, const std::string& header, std::ostream& stream) {
  const uint64_t header_bytes = header.size();
  std::array<char, sizeof header_bytes> length;
  std::memcpy(length.data(), &header_bytes, sizeof header_bytes);
  stream.write(length.data(), length.size());
  stream.write(header.data(), static_cast<std::streamsize>(header.size()));

  std::vector<char> bytes(static_cast<size_t>(kChunkElements) * sizeof(double));
  for (const size_t t : plan.order) {
    const Tensor& tensor = *plan.tensors[t];
    const int64_t size = tensor.size();
    for (int64_t done = 0; done < size && stream; done += kChunkElements) {
      const int64_t count = std::min(kChunkElements, size - done);
      encode_chunk(tensor.dtype, tensor.values.data() + done, count, bytes.data());
      stream.write(bytes.data(), count * element_bytes(tensor.dtype));
    }
  }
}

Error file_error(std::string what, const std::string& path, std::string hint = "") {
  return make_error(ErrorKind::bad_input, std::move(what), std::move(hint), path);
}

std::optional<Error> fill_metadata(const RecordHeader& header, RunRecord& record) {
  const auto take = [&](const char* key, std::string& target) {
    const auto found = header.metadata.find(key);
    if (found != header.metadata.end()) target = found->second;
  };
  take("scenario", record.scenario_text);
  take("plan_hash", record.plan_hash);
  take("executor", record.executor);
  take("machine", record.machine);
  take("version", record.version);
  take("clock", record.clock);
  Result<std::vector<TensorBudget>> budgets = parse_budgets(header.metadata);
  if (!budgets) return budgets.error();
  record.budgets = std::move(budgets).value();
  return std::nullopt;
}

/// Moves events out of the tensors: they are times, not results.
std::optional<Error> take_events(RunRecord& record) {
  const auto found =
      std::find_if(record.tensors.begin(), record.tensors.end(),
                   [&](const Tensor& tensor) { return holds_events(tensor, record.clock); });
  if (found == record.tensors.end()) return std::nullopt;
  Result<std::vector<ItemEvent>> events = unpack_events(*found);
  if (!events) return events.error();
  record.events = std::move(events).value();
  record.tensors.erase(found);
  return std::nullopt;
}

/// Bytes of the header's text, which the file begins with.
Result<int64_t> read_header_size(OpenedFile& file) {
  uint64_t header_bytes = 0;
  std::array<char, sizeof header_bytes> length;
  if (!file.read(0, length))
    return file.error(fmt::format("too short for a .safetensors file: {} bytes", file.size()));
  std::memcpy(&header_bytes, length.data(), length.size());
  const int64_t rest = file.size() - kLengthBytes;
  if (header_bytes > static_cast<uint64_t>(std::min(rest, kMaxHeaderBytes))) {
    return file.error(
        fmt::format("the header is longer than the file or the limit: header {} bytes, file {}, "
                    "limit {}",
                    header_bytes, file.size(), kMaxHeaderBytes),
        "is this a .safetensors file?");
  }
  return static_cast<int64_t>(header_bytes);
}

Error with_path(Error error, const std::string& path) {
  for (Complaint& complaint : error.complaints) complaint.where = path;
  return error;
}

}  // namespace

const Tensor* RunRecord::find(const std::string& name) const {
  for (const Tensor& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

Result<std::string> write_record(const RunRecord& record, const std::string& path) {
  for (const Tensor& tensor : record.tensors) {
    CPSCOPE_CHECK(tensor.size() == static_cast<int64_t>(tensor.values.size()),
                  "tensor " + tensor.name + " does not fill its shape", tensor.size(),
                  tensor.values.size());
  }
  const Tensor events = pack_events(record.events);
  std::vector<const Tensor*> tensors;
  for (const Tensor& tensor : record.tensors) tensors.push_back(&tensor);
  if (!record.events.empty()) tensors.push_back(&events);
  const DataPlan plan = place_data(std::move(tensors));
  const std::string header = print_record_header(record, plan.tensors, plan.begins);
  if (static_cast<int64_t>(header.size()) > kMaxHeaderBytes) {
    return file_error(
        fmt::format("the header would be longer than readers take: {} bytes, limit {}",
                    header.size(), kMaxHeaderBytes),
        path, "record without --items");
  }
  const Result<size_t> written = write_whole_file(
      path, [&](std::ostream& stream) { write_stream(plan, header, stream); }, "the record");
  if (!written) return written.error();
  return path;
}

Result<RunRecord> read_record(const std::string& path, const RecordReading& reading) {
  Result<OpenedFile> file = OpenedFile::open(path);
  if (!file) return file.error();
  const Result<int64_t> header_bytes = read_header_size(file.value());
  if (!header_bytes) return header_bytes.error();
  const std::optional<std::string> text =
      file.value().read_text(kLengthBytes, header_bytes.value());
  if (!text) return file_error("the header cannot be read", path);
  Result<RecordHeader> header = parse_record_header(*text);
  if (!header) return with_path(header.error(), path);
  const int64_t data_begin = kLengthBytes + header_bytes.value();
  const Result<std::vector<StoredType>> types = check_record_header(
      header.value(), file.value().size() - data_begin, reading.takes_other_types);
  if (!types) return with_path(types.error(), path);

  RunRecord record;
  if (const auto error = fill_metadata(header.value(), record)) return with_path(*error, path);
  for (size_t t = 0; t < header.value().tensors.size(); ++t) {
    const StoredTensor& stored = header.value().tensors[t];
    const StoredValues values{.name = stored.name,
                              .type = types.value()[t],
                              .shape = stored.shape,
                              .begin = data_begin + stored.begin};
    if (!take_values(file.value(), values, record)) {
      return file_error(fmt::format("tensor \"{}\" cannot be read, bytes [{}, {})",
                                    printable_name(stored.name), stored.begin, stored.end),
                        path);
    }
  }
  if (const auto error = take_events(record)) return with_path(*error, path);
  record.metadata = std::move(header.value().metadata);
  return record;
}

}  // namespace cpscope
