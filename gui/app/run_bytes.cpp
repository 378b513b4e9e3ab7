#include "gui/app/run_bytes.h"

#include "sim/run/record/run_record.h"

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace cpscope::gui {
namespace {

struct ByteWriter {
  static constexpr bool kReads = false;
  std::string bytes;

  void copy(const void* from, size_t size) { bytes.append(static_cast<const char*>(from), size); }
};

/// Gives zeros once the bytes have ended.
struct ByteReader {
  static constexpr bool kReads = true;
  std::string_view left;
  bool is_short = false;

  void copy(void* to, size_t size) {
    is_short |= size > left.size();
    if (is_short) {
      std::memset(to, 0, size);
      return;
    }
    std::memcpy(to, left.data(), size);
    left.remove_prefix(size);
  }
};

template <class T>
inline constexpr bool kIsList = false;
template <class T>
inline constexpr bool kIsList<std::vector<T>> = true;
template <>
inline constexpr bool kIsList<std::string> = true;
template <class T>
inline constexpr bool kIsArray = false;
template <class T, size_t kCount>
inline constexpr bool kIsArray<std::array<T, kCount>> = true;

/// A structure of this type, read or written.
template <class T, class Wanted>
concept Either = std::same_as<std::remove_const_t<T>, Wanted>;

template <class Archive, class... Fields>
void each(Archive& archive, Fields&... fields) {
  (pass(archive, fields), ...);
}

void pass_fields(auto& archive, Either<Complaint> auto& c) {
  each(archive, c.what, c.where, c.hint, c.keys);
}
void pass_fields(auto& archive, Either<TensorBudget> auto& b) {
  each(archive, b.name, b.rel_l2, b.l2);
}
void pass_fields(auto& archive, Either<Tensor> auto& t) {
  each(archive, t.name, t.shape, t.dtype, t.values);
}
void pass_fields(auto& archive, Either<RunRecord> auto& r) {
  each(archive, r.scenario_text, r.plan_hash, r.executor, r.machine, r.version, r.clock, r.budgets,
       r.events, r.tensors);
}
void pass_fields(auto& archive, Either<MaxPyramid> auto& pyramid) {
  int64_t rows = pyramid.rows();
  int32_t columns = pyramid.columns();
  each(archive, rows, columns);
  std::vector<float> values;
  if constexpr (std::remove_reference_t<decltype(archive)>::kReads) {
    pass(archive, values);
    if (rows * columns == std::ssize(values))
      pyramid = MaxPyramid(std::move(values), rows, columns);
    else
      archive.is_short = true;
  } else {
    for (int64_t row = 0; row < rows; ++row)
      for (int32_t column = 0; column < columns; ++column)
        values.push_back(pyramid.at(row, column));
    pass(archive, values);
  }
}
/// Without `parts`, which only differences of two plans have.
void pass_fields(auto& archive, Either<ErrorField> auto& f) {
  each(archive, f.name, f.tokens, f.heads, f.row_errors, f.row_budgets, f.rel_l2, f.budget,
       f.typical_row, f.passed, f.nan, f.rows_over, f.worst, f.shares, f.histogram);
}
void pass_fields(auto& archive, Either<FirstParting> auto& p) {
  each(archive, p.step, p.tensor, p.item, p.token, p.head, p.text);
}
void pass_fields(auto& archive, Either<StepErrors> auto& s) {
  each(archive, s.against, s.fields, s.histograms, s.judged_beside);
  bool has_first = s.first.has_value();
  pass(archive, has_first);
  if constexpr (std::remove_reference_t<decltype(archive)>::kReads) {
    if (has_first) s.first.emplace();
  }
  if (has_first) pass(archive, *s.first);
}

/// Reads or writes a value that may be missing.
template <class T>
void pass_shared(auto& archive, std::shared_ptr<const T>& shared) {
  bool is_there = shared != nullptr;
  pass(archive, is_there);
  if (!is_there) return;
  if constexpr (std::remove_reference_t<decltype(archive)>::kReads) {
    auto made = std::make_shared<T>();
    pass(archive, *made);
    shared = std::move(made);
  } else {
    pass(archive, *shared);
  }
}

void pass_fields(auto& archive, Either<RunView> auto& v) {
  each(archive, v.name, v.errors, v.events, v.is_simulated, v.total_ns, v.against, v.verdict,
       v.passed, v.first_divergence, v.without_steps);
  auto record = v.record;
  auto steps = v.steps;
  pass_shared(archive, record);
  pass_shared(archive, steps);
  if constexpr (std::remove_reference_t<decltype(archive)>::kReads) {
    v.record = std::move(record);
    v.steps = std::move(steps);
  }
}

template <class Archive, class T>
void pass(Archive& archive, T& value) {
  using Value = std::remove_const_t<T>;
  if constexpr (kIsList<Value>) {
    using Element = typename Value::value_type;
    uint64_t count = value.size();
    pass(archive, count);
    if constexpr (Archive::kReads) {
      // No element takes less than a byte.
      archive.is_short |= count > archive.left.size();
      if (archive.is_short) return;
      value.resize(count);
    }
    if constexpr (std::is_trivially_copyable_v<Element>) {
      if (count > 0) archive.copy(value.data(), count * sizeof(Element));
    } else {
      for (auto& element : value) pass(archive, element);
    }
  } else if constexpr (std::is_trivially_copyable_v<Value>) {
    archive.copy(&value, sizeof value);
  } else if constexpr (kIsArray<Value>) {
    for (auto& element : value) pass(archive, element);
  } else {
    pass_fields(archive, value);
  }
}

}  // namespace

std::string write_run_bytes(const Result<SharedRun>& run) {
  ByteWriter writer;
  const bool is_there = run.ok();
  pass(writer, is_there);
  if (is_there)
    pass(writer, *run.value());
  else
    each(writer, run.error().kind, run.error().complaints);
  return std::move(writer.bytes);
}

Result<SharedRun> read_run_bytes(std::string_view bytes) {
  ByteReader reader{bytes};
  bool is_there = false;
  pass(reader, is_there);
  Error error;
  auto view = std::make_shared<RunView>();
  if (is_there)
    pass(reader, *view);
  else
    each(reader, error.kind, error.complaints);
  if (reader.is_short || !reader.left.empty() || (!is_there && error.complaints.empty()))
    return make_error(ErrorKind::unavailable, "The result of the run did not arrive whole",
                      "run it again");
  if (is_there) return SharedRun(std::move(view));
  return error;
}

}  // namespace cpscope::gui
