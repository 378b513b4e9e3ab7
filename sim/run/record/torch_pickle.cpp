#include "sim/run/record/torch_pickle.h"

#include "sim/run/record/record_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr size_t kMaxPickledValues = 1 << 20;
constexpr int32_t kPickleMark = -1;  // on the stack, below what the next opcode collects
// What torch writes is far below these; values that are shared must not multiply their own size.
constexpr size_t kMaxPickledName = 256;
constexpr size_t kMaxPickledArguments = 64;

/// Storage classes and the types of their elements.
constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kStorageTypes{
    {{"torch.DoubleStorage", "float64"},
     {"torch.FloatStorage", "float32"},
     {"torch.HalfStorage", "float16"},
     {"torch.BFloat16Storage", "bfloat16"},
     {"torch.LongStorage", "int64"},
     {"torch.IntStorage", "int32"},
     {"torch.ShortStorage", "int16"},
     {"torch.CharStorage", "int8"},
     {"torch.ByteStorage", "uint8"},
     {"torch.BoolStorage", "bool"},
     {"torch.ComplexFloatStorage", "complex64"},
     {"torch.ComplexDoubleStorage", "complex128"},
     {"torch.storage.UntypedStorage", ""}}};

/// Element types, which only torch.<type> names.
constexpr std::array<std::string_view, 21> kElementTypes{
    "float64",       "float32",       "float16",     "bfloat16",        "int64",
    "int32",         "int16",         "int8",        "uint64",          "uint32",
    "uint16",        "uint8",         "bool",        "complex32",       "complex64",
    "complex128",    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e8m0fnu"};

/// What a pickle may call, and the types of tensors.
constexpr std::array<std::string_view, 16> kKnownNames{
    "collections.OrderedDict",
    "torch.Size",
    "torch.Tensor",
    "torch.device",
    "torch.nn.parameter.Parameter",
    "torch.nn.parameter.Buffer",
    "torch.serialization._get_layout",
    "torch._tensor._rebuild_from_type",
    "torch._tensor._rebuild_from_type_v2",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_wrapper_subclass"};

/// Meshes and placements of DTensors: their classes move between versions of torch.
constexpr std::string_view kDistributed = "torch.distributed.";

std::string_view storage_type(std::string_view name) {
  for (const auto& [storage, type] : kStorageTypes) {
    if (storage == name) return type;
  }
  return {};
}

bool is_storage(std::string_view name) {
  return std::any_of(kStorageTypes.begin(), kStorageTypes.end(),
                     [&](const auto& known) { return known.first == name; });
}

bool is_known_name(std::string_view name) {
  if (is_storage(name) || name.starts_with(kDistributed)) return true;
  if (std::find(kKnownNames.begin(), kKnownNames.end(), name) != kKnownNames.end()) return true;
  return name.starts_with("torch.") && std::find(kElementTypes.begin(), kElementTypes.end(),
                                                 name.substr(6)) != kElementTypes.end();
}

/// The machine: a stack of places in TorchPickle::values, and a memo of them.
class PickleMachine {
 public:
  explicit PickleMachine(std::string_view pickle) : pickle_(pickle) {}

  /// Runs to STOP; false with a problem.
  bool run();

  TorchPickle take_result() { return std::move(result_); }
  Error take_error() { return make_bad_input(std::move(problem_), std::move(hint_)); }

 private:
  // Every function that returns bool has said what is wrong when that is false.
  bool stop(std::string problem, std::string hint = "") {
    problem_ = std::move(problem);
    hint_ = std::move(hint);
    return false;
  }
  bool stop_broken(const std::string& what) {
    return stop(fmt::format("the pickle is broken at byte {}: {}", opcode_at_, what),
                "was the file written by torch.save, and completely?");
  }
  bool stop_code(const std::string& name);

  bool step(uint8_t opcode);
  bool step_text(uint8_t opcode);
  bool step_number(uint8_t opcode);
  bool step_collection(uint8_t opcode);
  bool step_memo(uint8_t opcode);
  bool step_call(uint8_t opcode);

  // The pickle's bytes.
  bool take_number(size_t width, uint64_t& number);
  bool take_bytes(uint64_t size, std::string_view& bytes);
  bool take_line(std::string_view& line);

  // The stack.
  bool push(PickledValue value);
  bool push_place(int32_t place) {
    stack_.push_back(place);
    return true;
  }
  bool pop(int32_t& place);
  bool pop_to_mark(std::vector<int32_t>& places);
  bool collect(size_t count);
  bool fill(int32_t target, const std::vector<int32_t>& items);

  // Names and calls.
  bool push_name(std::string name);
  bool call(int32_t function, int32_t arguments, bool is_new);
  bool take_arguments(int32_t list, std::vector<int32_t>& arguments);
  bool call_named(const std::string& name, const std::vector<int32_t>& arguments);
  bool build(int32_t object, int32_t state);
  bool take_persistent(int32_t id);
  bool make_tensor(const std::vector<int32_t>& arguments, bool names_type);
  bool make_of_type(const std::vector<int32_t>& arguments);
  bool make_distributed(int32_t state);

  PickledValue& at(int32_t place) { return result_.values[static_cast<size_t>(place)]; }
  bool is(int32_t place, PickledKind kind) { return at(place).kind == kind; }
  /// Value of a key that is a word, in a small dict; -1 if there is none.
  int32_t find_entry(int32_t dict, std::string_view key);
  bool read_extents(int32_t list, std::vector<int64_t>& extents);
  PickledPlacement find_placement(int32_t spec);

  std::string_view pickle_;
  size_t next_ = 0, opcode_at_ = 0;
  std::vector<int32_t> stack_;
  std::unordered_map<uint64_t, int32_t> memo_;
  TorchPickle result_;
  std::string problem_, hint_;
};

bool PickleMachine::stop_code(const std::string& name) {
  if (name.ends_with(".PackedSeqParams"))
    return stop(
        "the file holds an object, which only its own code can read: " + printable_name(name),
        "save its values: torch.save(vars(packed_seq_params), path), without cp_group");
  return stop("the file holds code: " + printable_name(name),
              "torch.save only tensors, numbers and words, in dicts and lists");
}

// ---- bytes and stack ---------------------------------------------------------------------------

bool PickleMachine::take_bytes(uint64_t size, std::string_view& bytes) {
  if (size > pickle_.size() - next_) return stop_broken("it ends early");
  bytes = pickle_.substr(next_, size);
  next_ += size;
  return true;
}

bool PickleMachine::take_number(size_t width, uint64_t& number) {
  std::string_view bytes;
  if (!take_bytes(width, bytes)) return false;
  number = 0;
  for (size_t i = 0; i < width; ++i)
    number |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  return true;
}

bool PickleMachine::take_line(std::string_view& line) {
  const size_t end = pickle_.find('\n', next_);
  if (end == std::string_view::npos) return stop_broken("it ends early");
  line = pickle_.substr(next_, end - next_);
  next_ = end + 1;
  return true;
}

bool PickleMachine::push(PickledValue value) {
  if (result_.values.size() == kMaxPickledValues)
    return stop(fmt::format("the pickle has more than {} values", kMaxPickledValues),
                "save numbers as tensors, not as lists");
  result_.values.push_back(std::move(value));
  return push_place(static_cast<int32_t>(result_.values.size() - 1));
}

bool PickleMachine::pop(int32_t& place) {
  if (stack_.empty() || stack_.back() == kPickleMark) return stop_broken("a value is missing");
  place = stack_.back();
  stack_.pop_back();
  return true;
}

bool PickleMachine::pop_to_mark(std::vector<int32_t>& places) {
  const auto mark = std::find(stack_.rbegin(), stack_.rend(), kPickleMark);
  if (mark == stack_.rend()) return stop_broken("a mark is missing");
  places.assign(mark.base(), stack_.end());
  stack_.erase(mark.base() - 1, stack_.end());
  return true;
}

/// Replaces the last `count` values by a list of them.
bool PickleMachine::collect(size_t count) {
  PickledValue list{.kind = PickledKind::list};
  list.items.resize(count);
  for (size_t i = count; i-- > 0;) {
    if (!pop(list.items[i])) return false;
  }
  return push(std::move(list));
}

/// Appends to a list, or sets entries of a dict. The target stays on the stack.
bool PickleMachine::fill(int32_t target, const std::vector<int32_t>& items) {
  PickledValue& value = at(target);
  if (value.kind != PickledKind::list && value.kind != PickledKind::dict)
    return stop_broken("something that is no list and no dict is filled");
  if (value.kind == PickledKind::dict && items.size() % 2 != 0)
    return stop_broken("a key without a value");
  value.items.insert(value.items.end(), items.begin(), items.end());
  return push_place(target);
}

// ---- opcodes -----------------------------------------------------------------------------------

bool PickleMachine::run() {
  while (true) {
    opcode_at_ = next_;
    uint64_t opcode = 0;
    if (!take_number(1, opcode)) return false;
    if (opcode == '.') {
      if (!pop(result_.root)) return false;
      return stack_.empty() ? true : stop_broken("values are left over");
    }
    if (!step(static_cast<uint8_t>(opcode))) return false;
  }
}

bool PickleMachine::step(uint8_t opcode) {
  uint64_t number = 0;
  switch (opcode) {
    case 0x80:  // PROTO
      if (!take_number(1, number)) return false;
      return number <= 5 ? true : stop_broken(fmt::format("protocol {}", number));
    case 0x95:  // FRAME, of protocol 4: a size that says nothing new
      return take_number(8, number);
    case '(':  // MARK
      return push_place(kPickleMark);
    case 'N':  // NONE
      return push({});
    case 0x88:  // NEWTRUE
    case 0x89:  // NEWFALSE
      return push({.kind = PickledKind::boolean, .number = opcode == 0x88});
    case 'X':   // BINUNICODE
    case 0x8c:  // SHORT_BINUNICODE
    case 0x8d:  // BINUNICODE8
      return step_text(opcode);
    case 'J':   // BININT
    case 'K':   // BININT1
    case 'M':   // BININT2
    case 0x8a:  // LONG1
    case 'G':   // BINFLOAT
      return step_number(opcode);
    case ')':   // EMPTY_TUPLE
    case ']':   // EMPTY_LIST
    case '}':   // EMPTY_DICT
    case 't':   // TUPLE
    case 0x85:  // TUPLE1
    case 0x86:  // TUPLE2
    case 0x87:  // TUPLE3
    case 'a':   // APPEND
    case 'e':   // APPENDS
    case 's':   // SETITEM
    case 'u':   // SETITEMS
      return step_collection(opcode);
    case 'q':   // BINPUT
    case 'r':   // LONG_BINPUT
    case 0x94:  // MEMOIZE
    case 'h':   // BINGET
    case 'j':   // LONG_BINGET
      return step_memo(opcode);
    case 'c':   // GLOBAL
    case 0x93:  // STACK_GLOBAL
    case 'R':   // REDUCE
    case 0x81:  // NEWOBJ
    case 'b':   // BUILD
    case 'Q':   // BINPERSID
      return step_call(opcode);
    default:
      return stop(fmt::format("the file holds code: opcode 0x{:02x} at byte {} of its pickle",
                              opcode, opcode_at_),
                  "torch.save only tensors, numbers and words, in dicts and lists");
  }
}

bool PickleMachine::step_text(uint8_t opcode) {
  uint64_t size = 0;
  std::string_view bytes;
  if (!take_number(opcode == 'X' ? 4 : opcode == 0x8c ? 1 : 8, size) || !take_bytes(size, bytes))
    return false;
  return push({.kind = PickledKind::text, .text = std::string(bytes)});
}

bool PickleMachine::step_number(uint8_t opcode) {
  uint64_t size = 0, bits = 0;
  if (opcode == 'G') return take_number(8, bits) && push({.kind = PickledKind::real});
  size_t width = opcode == 'J' ? 4 : opcode == 'K' ? 1 : 2;
  bool is_signed = opcode == 'J';
  if (opcode == 0x8a) {
    if (!take_number(1, size)) return false;
    if (size > 8) return stop_broken("a number is too large");
    width = size;
    is_signed = true;
  }
  if (!take_number(width, bits)) return false;
  auto number = static_cast<int64_t>(bits);
  if (is_signed && width > 0 && width < 8) {
    const int unused = 64 - 8 * static_cast<int>(width);
    number = static_cast<int64_t>(bits << unused) >> unused;
  }
  return push({.kind = PickledKind::integer, .number = number});
}

bool PickleMachine::step_collection(uint8_t opcode) {
  std::vector<int32_t> items;
  int32_t target = 0;
  switch (opcode) {
    case ')':
    case ']':
      return push({.kind = PickledKind::list});
    case '}':
      return push({.kind = PickledKind::dict});
    case 0x85:
    case 0x86:
    case 0x87:
      return collect(opcode - 0x84u);
    case 't':
      if (!pop_to_mark(items)) return false;
      return push({.kind = PickledKind::list, .items = std::move(items)});
    case 'a':
      items.resize(1);
      return pop(items[0]) && pop(target) && fill(target, items);
    case 's':
      items.resize(2);
      return pop(items[1]) && pop(items[0]) && pop(target) && fill(target, items);
    default:
      return pop_to_mark(items) && pop(target) && fill(target, items);
  }
}

bool PickleMachine::step_memo(uint8_t opcode) {
  uint64_t key = memo_.size();
  if (opcode != 0x94 && !take_number(opcode == 'q' || opcode == 'h' ? 1 : 4, key)) return false;
  if (opcode == 'h' || opcode == 'j') {
    const auto found = memo_.find(key);
    return found != memo_.end() ? push_place(found->second)
                                : stop_broken("a value that was not kept");
  }
  if (stack_.empty() || stack_.back() == kPickleMark) return stop_broken("nothing to keep");
  memo_[key] = stack_.back();
  return true;
}

bool PickleMachine::step_call(uint8_t opcode) {
  int32_t first = 0, second = 0;
  if (opcode == 'c') {
    std::string_view module, name;
    return take_line(module) && take_line(name) &&
           push_name(std::string(module) + '.' + std::string(name));
  }
  if (opcode == 'Q') return pop(first) && take_persistent(first);
  if (!pop(second) || !pop(first)) return false;
  if (opcode == 'b') return build(first, second);
  if (opcode != 0x93) return call(first, second, opcode == 0x81);
  if (!is(first, PickledKind::text) || !is(second, PickledKind::text))
    return stop_broken("a name that is no text");
  return push_name(at(first).text + '.' + at(second).text);
}

// ---- names and calls ---------------------------------------------------------------------------

bool PickleMachine::push_name(std::string name) {
  if (name.size() > kMaxPickledName || !is_known_name(name)) return stop_code(name);
  return push({.kind = PickledKind::name, .text = std::move(name)});
}

bool PickleMachine::call(int32_t function, int32_t arguments, bool is_new) {
  if (!is(function, PickledKind::name) || !is(arguments, PickledKind::list))
    return stop_broken("a call of something that is no function");
  // Copies: a call appends to the values that these are part of.
  const std::string name = at(function).text;
  if (name.starts_with(kDistributed))
    return push({.kind = PickledKind::object, .text = name, .items = {arguments}});
  std::vector<int32_t> items;
  return take_arguments(arguments, items) && (is_new ? stop_code(name) : call_named(name, items));
}

bool PickleMachine::take_arguments(int32_t list, std::vector<int32_t>& arguments) {
  if (!is(list, PickledKind::list) || at(list).items.size() > kMaxPickledArguments)
    return stop_broken("arguments that are no tuple, or too many");
  arguments = at(list).items;
  return true;
}

bool PickleMachine::call_named(const std::string& name, const std::vector<int32_t>& arguments) {
  if (name == "collections.OrderedDict" && arguments.empty())
    return push({.kind = PickledKind::dict});
  if (name == "torch.device" || name == "torch.serialization._get_layout")
    return push({.kind = PickledKind::object, .text = name});
  if (name == "torch.Size" && arguments.size() == 1 && is(arguments[0], PickledKind::list))
    return push_place(arguments[0]);
  const bool is_wrapped = name.starts_with("torch._utils._rebuild_parameter") ||
                          name == "torch._utils._rebuild_device_tensor_from_cpu_tensor";
  if (is_wrapped && !arguments.empty() && is(arguments[0], PickledKind::tensor))
    return push_place(arguments[0]);
  if (name == "torch._utils._rebuild_tensor" || name == "torch._utils._rebuild_tensor_v2")
    return make_tensor(arguments, false);
  if (name == "torch._utils._rebuild_tensor_v3") return make_tensor(arguments, true);
  if (name == "torch._tensor._rebuild_from_type" || name == "torch._tensor._rebuild_from_type_v2")
    return make_of_type(arguments);
  return stop_code(name);
}

/// What an object is told of itself: kept for DTensors, not needed of ordered dicts.
bool PickleMachine::build(int32_t object, int32_t state) {
  if (is(object, PickledKind::object)) {
    at(object).items.push_back(state);
  } else if (!is(object, PickledKind::dict)) {
    return stop_broken("a state of something that is no object");
  }
  return push_place(object);
}

/// ("storage", class, key, device, elements): the only thing outside of the pickle.
bool PickleMachine::take_persistent(int32_t id) {
  std::vector<int32_t> items;
  if (!take_arguments(id, items)) return false;
  if (items.size() < 3 || !is(items[0], PickledKind::text) || at(items[0]).text != "storage" ||
      !is(items[1], PickledKind::name) || !is_storage(at(items[1]).text) ||
      !is(items[2], PickledKind::text) || at(items[2]).text.size() > kMaxPickledName)
    return stop_broken("a reference to something that is no storage");
  return push({.kind = PickledKind::storage, .text = at(items[2]).text, .items = {items[1]}});
}

bool PickleMachine::read_extents(int32_t list, std::vector<int64_t>& extents) {
  if (!is(list, PickledKind::list)) return stop_broken("a shape that is no tuple");
  if (at(list).items.size() > kMaxDimensions)
    return stop_broken(fmt::format("a tensor of {} dimensions", at(list).items.size()));
  for (const int32_t item : at(list).items) {
    if (!is(item, PickledKind::integer) || at(item).number < 0)
      return stop_broken("a shape of something else than whole numbers");
    extents.push_back(at(item).number);
  }
  return true;
}

/// (storage, offset, shape, strides, requires_grad, hooks, [dtype,] [metadata]).
bool PickleMachine::make_tensor(const std::vector<int32_t>& arguments, bool names_type) {
  constexpr size_t kTypeAt = 6;
  const size_t metadata_at = names_type ? 7 : 6;
  if (arguments.size() < (names_type ? 7u : 4u) || !is(arguments[0], PickledKind::storage) ||
      !is(arguments[1], PickledKind::integer) || at(arguments[1]).number < 0)
    return stop_broken("a tensor without a storage");
  PickledTensor tensor;
  tensor.storage = at(arguments[0]).text;
  tensor.type_name = storage_type(at(at(arguments[0]).items[0]).text);
  tensor.offset = at(arguments[1]).number;
  if (!read_extents(arguments[2], tensor.shape) || !read_extents(arguments[3], tensor.strides))
    return false;
  if (tensor.shape.size() != tensor.strides.size())
    return stop_broken("a tensor with more strides than dimensions, or fewer");
  if (names_type) {
    const PickledValue& type = at(arguments[kTypeAt]);
    if (type.kind != PickledKind::name || !type.text.starts_with("torch."))
      return stop_broken("a tensor without a type");
    tensor.type_name = type.text.substr(6);
  }
  if (tensor.type_name.empty()) return stop_broken("a tensor without a type");
  // {"neg": True}: the stored numbers have the other sign.
  if (arguments.size() > metadata_at && is(arguments[metadata_at], PickledKind::dict)) {
    const int32_t negative = find_entry(arguments[metadata_at], "neg");
    if (negative >= 0 && at(negative).number != 0)
      return stop("a tensor is a negated view", "save tensor.resolve_neg()");
  }
  result_.tensors.push_back(std::move(tensor));
  return push(
      {.kind = PickledKind::tensor, .number = static_cast<int64_t>(result_.tensors.size() - 1)});
}

/// (function, type, arguments, state): a tensor with attributes, a parameter, a DTensor.
bool PickleMachine::make_of_type(const std::vector<int32_t>& arguments) {
  if (arguments.size() < 4 || !is(arguments[0], PickledKind::name) ||
      !is(arguments[1], PickledKind::name))
    return stop_broken("a tensor without a type");
  const std::string function = at(arguments[0]).text, type = at(arguments[1]).text;
  if (function == "torch._utils._rebuild_wrapper_subclass") {
    if (!type.ends_with(".DTensor")) return stop_code(type);
    return make_distributed(arguments[3]);
  }
  if (function != "torch._utils._rebuild_tensor_v2" &&
      function != "torch._utils._rebuild_tensor_v3")
    return stop_code(function);
  std::vector<int32_t> items;
  return take_arguments(arguments[2], items) && make_tensor(items, function.ends_with("3"));
}

int32_t PickleMachine::find_entry(int32_t dict, std::string_view key) {
  const std::vector<int32_t>& items = at(dict).items;
  if (!is(dict, PickledKind::dict) || items.size() > 2 * kMaxPickledArguments) return -1;
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    if (is(items[i], PickledKind::text) && at(items[i]).text == key) return items[i + 1];
  }
  return -1;
}

/// Of a DTensorSpec: its last argument is the dict of its attributes.
PickledPlacement PickleMachine::find_placement(int32_t spec) {
  if (!is(spec, PickledKind::object) || at(spec).items.empty()) return PickledPlacement::whole;
  const int32_t placements = find_entry(at(spec).items.back(), "placements");
  if (placements < 0 || at(placements).items.size() > kMaxPickledArguments)
    return PickledPlacement::whole;
  auto placement = PickledPlacement::whole;
  for (const int32_t item : at(placements).items) {
    const std::string& kind = at(item).text;
    if (kind.ends_with("Partial")) return PickledPlacement::partial_sum;
    if (kind.ends_with("Shard")) placement = PickledPlacement::one_part;
  }
  return placement;
}

bool PickleMachine::make_distributed(int32_t state) {
  // Attributes in slots are the second of a pair.
  if (is(state, PickledKind::list) && at(state).items.size() == 2) state = at(state).items[1];
  const int32_t local = find_entry(state, "_local_tensor"), spec = find_entry(state, "_spec");
  if (local < 0 || spec < 0 || !is(local, PickledKind::tensor))
    return stop_broken("a DTensor without a local tensor");
  PickledTensor tensor = result_.tensors[static_cast<size_t>(at(local).number)];
  tensor.placement = find_placement(spec);
  result_.tensors.push_back(std::move(tensor));
  return push(
      {.kind = PickledKind::tensor, .number = static_cast<int64_t>(result_.tensors.size() - 1)});
}

}  // namespace

Result<TorchPickle> parse_torch_pickle(std::string_view pickle) {
  PickleMachine machine(pickle);
  if (!machine.run()) return machine.take_error();
  return machine.take_result();
}

}  // namespace cpscope
