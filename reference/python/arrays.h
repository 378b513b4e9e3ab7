#pragma once

#include "sim/base/result.h"
#include "sim/base/run_control.h"
#include "sim/run/tensor.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

namespace cpscope::python {

/// Any array that supports DLPack or the buffer protocol, read in place.
using AnyArray = nanobind::ndarray<nanobind::ro>;

struct NamedArray {
  std::string name;
  AnyArray array;
};

/// The arrays of one record; `path` is its name in messages.
struct ArrayRecord {
  std::string path;
  std::vector<NamedArray> arrays;
  std::vector<std::string> absent = {};  // names whose array is None
};

/// Subject of an error.
inline constexpr const char* kScenario = "scenario";
inline constexpr const char* kInput = "input";

/// Throws the Python exception of cpscope._errors for an error of this subject (kScenario or
/// kInput). Needs the GIL.
[[noreturn]] void throw_error(const Error& error, const char* subject);
[[noreturn]] void throw_input_error(std::string what, std::string hint, std::string where = "");

/// The value; throws if there is an error instead.
template <class T>
T take(Result<T> result, const char* subject) {
  if (!result) throw_error(result.error(), subject);
  return std::move(result).value();
}

/// [(path, [(name, array), ...]), ...] with every array checked: on the CPU, of float64, float32,
/// float16 or bfloat16; None is noted as absent. Empties the inner lists. Throws an InputError that
/// names the first that fails.
std::vector<ArrayRecord> look_at_arrays(const nanobind::list& records);

/// Its name, shape and type, without values. May run without the GIL.
Tensor describe(const NamedArray& named);
/// A copy in doubles, whatever the strides are. May run without the GIL.
std::vector<double> read_values(const NamedArray& named);

using IntegerList = nanobind::ndarray<nanobind::numpy, int64_t, nanobind::ndim<1>>;

/// A numpy array that owns `values`; nothing is copied.
nanobind::object to_numpy(std::vector<double> values, const std::vector<int64_t>& shape);
IntegerList to_numpy(std::vector<int64_t> values);

/// Python's Ctrl-C for work without the GIL: checked now and then by the thread that began the
/// work.
class Interruptible {
 public:
  RunControl control();
  /// Throws the KeyboardInterrupt that stopped the work, if one did. Needs the GIL.
  void rethrow();

 private:
  bool was_interrupted();

  std::thread::id caller_ = std::this_thread::get_id();
  int64_t last_asked_ns_ = 0;
  std::optional<nanobind::python_error> error_;
};

}  // namespace cpscope::python
