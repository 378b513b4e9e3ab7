#pragma once

#include "sim/base/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

enum class PickledKind {
  none,
  boolean,
  integer,
  real,  // its value is not kept
  text,
  list,  // tuples too
  dict,
  name,     // of a type or a function that the reader knows
  storage,  // the memory of tensors
  tensor,
  object  // of a known type without numbers: a device, a mesh, the placement of a DTensor
};

/// One value of a pickle. Values refer to each other by their place in TorchPickle::values, and may
/// be shared or contain themselves.
struct PickledValue {
  PickledKind kind = PickledKind::none;
  int64_t number = 0;     // boolean, integer; tensor: its place in TorchPickle::tensors
  std::string text = {};  // text; name, object: "torch.Size"; storage: its key
  // list: values; dict: key, value, key, value, ...; object: arguments, then its state
  std::vector<int32_t> items = {};
};

/// Where DTensor says that the rows of a tensor are.
enum class PickledPlacement { whole, one_part, partial_sum };

/// A tensor of a pickle: a view of a storage.
struct PickledTensor {
  std::string storage;           // key: the archive holds its bytes as data/<key>
  std::string type_name;         // in torch's words: "float32", "bfloat16"
  int64_t offset = 0;            // elements
  std::vector<int64_t> shape;    // no negative extent
  std::vector<int64_t> strides;  // [dimension] elements, none negative
  PickledPlacement placement = PickledPlacement::whole;
};

/// The content of data.pkl in a file of torch.save.
struct TorchPickle {
  std::vector<PickledValue> values;
  std::vector<PickledTensor> tensors;
  int32_t root = 0;  // place in `values`
};

/// Reads what torch.save makes of tensors, numbers and words in dicts, lists and tuples, nested in
/// any way; parameters and DTensors too.
/// A pickle is a program that may call anything. This reader runs nothing: it knows the opcodes of
/// values, and the names that torch writes for tensors. Errors (bad_input, without a place) name
/// the opcode or the name that it does not know. Memory is bounded by the size of the pickle.
/// Source: CPython Lib/pickletools.py; torch 2.x _weights_only_unpickler.py, _utils.py.
Result<TorchPickle> parse_torch_pickle(std::string_view pickle);

}  // namespace cpscope
