#include "reference/python/arrays.h"

#include "sim/run/dtype.h"

#include <chrono>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <nanobind/stl/string.h>

namespace cpscope::python {
namespace nb = nanobind;
namespace {

using Code = nb::dlpack::dtype_code;

/// The readable dtype of this type, if there is one.
std::optional<Dtype> dtype_of(const nb::dlpack::dtype& type) {
  if (type.lanes != 1) return std::nullopt;
  const auto code = static_cast<Code>(type.code);
  if (code == Code::Bfloat && type.bits == 16) return Dtype::bf16;
  if (code != Code::Float) return std::nullopt;
  if (type.bits == 16) return Dtype::fp16;
  if (type.bits == 32) return Dtype::fp32;
  if (type.bits == 64) return Dtype::fp64;
  return std::nullopt;
}

std::string describe_type(const nb::dlpack::dtype& type) {
  const char* name = "a type of another kind";
  switch (static_cast<Code>(type.code)) {
    case Code::Int:
      name = "int";
      break;
    case Code::UInt:
      name = "uint";
      break;
    case Code::Float:
      name = "float";
      break;
    case Code::Complex:
      name = "complex";
      break;
    case Code::Bool:
      return "bool";
    default:
      return type.bits == 8 ? "an 8-bit float" : name;
  }
  return fmt::format("{}{}", name, type.bits);
}

double widen(double value) { return value; }
double widen(float value) { return static_cast<double>(value); }
struct Fp16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};
double widen(Fp16 value) { return static_cast<double>(from_fp16_bits(value.bits)); }
double widen(Bf16 value) { return static_cast<double>(from_bf16_bits(value.bits)); }

/// Reads all elements in row-major order; strides count elements and may be negative or 0.
template <class Element>
void copy_strided(const AnyArray& array, std::vector<double>& values) {
  const size_t dims = array.ndim();
  const auto* data = static_cast<const Element*>(array.data());
  if (values.empty()) return;
  if (dims == 0) {
    values[0] = widen(*data);
    return;
  }
  const auto inner = static_cast<int64_t>(array.shape(dims - 1));
  const int64_t inner_stride = array.stride(dims - 1);
  std::vector<int64_t> index(dims, 0);
  int64_t begin = 0;
  for (size_t out = 0; out < values.size();) {
    for (int64_t i = 0; i < inner; ++i) values[out++] = widen(data[begin + i * inner_stride]);
    // Next row: count up in the outer dimensions, the last of them fastest.
    for (size_t d = dims - 1; d-- > 0;) {
      begin += array.stride(d);
      if (++index[d] < static_cast<int64_t>(array.shape(d))) break;
      begin -= array.stride(d) * index[d];
      index[d] = 0;
    }
  }
}

/// The place of a complaint. Keywords have no lines: the first of the keys at fault, without its
/// table.
std::string name_place(const Complaint& complaint) {
  if (!complaint.where.starts_with("<keys>")) return complaint.where;
  if (complaint.keys.empty()) return "";
  const std::string& key = complaint.keys.front();
  return key.substr(key.rfind('.') == std::string::npos ? 0 : key.find('.') + 1);
}

/// A numpy array over the memory of a vector on the heap.
template <class Array, class T>
Array wrap(std::vector<T> values, const std::vector<size_t>& shape) {
  auto holder = std::make_unique<std::vector<T>>(std::move(values));
  T* data = holder->data();
  nb::capsule owner(holder.get(),
                    [](void* held) noexcept { delete static_cast<std::vector<T>*>(held); });
  holder.release();
  // An empty vector has no memory, but an array needs a valid address.
  static T nothing{};
  return Array(data != nullptr ? data : &nothing, shape.size(), shape.data(), owner);
}

}  // namespace

void throw_error(const Error& error, const char* subject) {
  nb::list complaints;
  for (const Complaint& one : error.complaints)
    complaints.append(nb::make_tuple(one.what, name_place(one), one.hint));
  const nb::object made = nb::module_::import_("cpscope._errors")
                              .attr("make")(static_cast<int>(error.kind), subject, complaints);
  PyErr_SetObject(made.type().ptr(), made.ptr());
  throw nb::python_error();
}

void throw_input_error(std::string what, std::string hint, std::string where) {
  throw_error(make_error(ErrorKind::bad_input, std::move(what), std::move(hint), std::move(where)),
              kInput);
}

std::vector<ArrayRecord> look_at_arrays(const nb::list& records) {
  constexpr const char* kTypes = "float64, float32, float16 or bfloat16 (torch)";
  std::vector<ArrayRecord> looked;
  for (const nb::handle record : records) {
    ArrayRecord one{nb::cast<std::string>(record[0]), {}};
    for (const nb::handle item : nb::borrow<nb::list>(record[1])) {
      NamedArray named{nb::cast<std::string>(item[0]), {}};
      const nb::object value = item[1];
      if (value.is_none()) {
        one.absent.push_back(named.name);
        continue;
      }
      if (!nb::try_cast(value, named.array)) {
        throw_input_error(fmt::format("\"{}\" is not a readable array: {}", named.name,
                                      nb::cast<std::string>(value.type().attr("__name__"))),
                          fmt::format("a numpy array or torch tensor of {}", kTypes), one.path);
      }
      if (named.array.device_type() != nb::device::cpu::value) {
        throw_input_error(fmt::format("\"{}\" does not lie in the memory of the CPU", named.name),
                          "copy it there first", one.path);
      }
      if (!dtype_of(named.array.dtype())) {
        throw_input_error(fmt::format("\"{}\" has a type that is not read: {}", named.name,
                                      describe_type(named.array.dtype())),
                          kTypes, one.path);
      }
      if (named.array.size() > 0 && named.array.data() == nullptr) {
        throw_input_error(fmt::format("\"{}\" has no memory that can be read: {}", named.name,
                                      nb::cast<std::string>(value.type().attr("__name__"))),
                          "give a plain array", one.path);
      }
      one.arrays.push_back(std::move(named));
    }
    looked.push_back(std::move(one));
    PyList_SetSlice(nb::object(record[1]).ptr(), 0, PY_SSIZE_T_MAX, nullptr);
  }
  return looked;
}

Tensor describe(const NamedArray& named) {
  Tensor tensor{named.name, {}, *dtype_of(named.array.dtype()), {}};
  for (size_t d = 0; d < named.array.ndim(); ++d)
    tensor.shape.push_back(static_cast<int64_t>(named.array.shape(d)));
  return tensor;
}

std::vector<double> read_values(const NamedArray& named) {
  std::vector<double> values(named.array.size());
  switch (*dtype_of(named.array.dtype())) {
    case Dtype::fp64:
      copy_strided<double>(named.array, values);
      break;
    case Dtype::fp32:
      copy_strided<float>(named.array, values);
      break;
    case Dtype::fp16:
      copy_strided<Fp16>(named.array, values);
      break;
    case Dtype::bf16:
      copy_strided<Bf16>(named.array, values);
      break;
  }
  return values;
}

nb::object to_numpy(std::vector<double> values, const std::vector<int64_t>& shape) {
  using Array = nb::ndarray<nb::numpy, double>;
  return nb::cast(wrap<Array>(std::move(values), std::vector<size_t>(shape.begin(), shape.end())));
}

IntegerList to_numpy(std::vector<int64_t> values) {
  const size_t size = values.size();
  return wrap<IntegerList>(std::move(values), {size});
}

RunControl Interruptible::control() {
  return {.is_cancelled = [this] { return was_interrupted(); }};
}

bool Interruptible::was_interrupted() {
  // Python delivers signals to its main thread only, and checking takes the GIL.
  if (std::this_thread::get_id() != caller_) return false;
  if (error_) return true;
  const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  constexpr int64_t kPauseNs = 20'000'000;
  if (now - last_asked_ns_ < kPauseNs) return false;
  last_asked_ns_ = now;
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return false;
  error_.emplace();
  return true;
}

void Interruptible::rethrow() {
  if (error_) throw nb::python_error(*error_);
}

}  // namespace cpscope::python
