#include "kernels/plugin/plugin_call.h"

#include "sim/run/dtype.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <vector>

#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

constexpr int64_t kMarginBytes = 4096;  // before and after every array
constexpr uint8_t kGuard = 0xc5;

int32_t dtype_code(Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16:
      return CPSCOPE_BF16;
    case Dtype::fp16:
      return CPSCOPE_FP16;
    case Dtype::fp32:
      return CPSCOPE_FP32;
    case Dtype::fp64:
      break;
  }
  return CPSCOPE_FP64;
}

template <class Stored, class Encode>
void encode_as(const std::vector<double>& values, uint8_t* bytes, Encode encode) {
  for (size_t i = 0; i < values.size(); ++i) {
    const Stored stored = encode(values[i]);
    std::memcpy(bytes + i * sizeof stored, &stored, sizeof stored);
  }
}

void encode_all(Dtype dtype, const std::vector<double>& values, uint8_t* bytes) {
  switch (dtype) {
    case Dtype::bf16:
      return encode_as<uint16_t>(values, bytes, [](double value) {
        return to_bf16_bits(static_cast<float>(round_to(Dtype::bf16, value)));
      });
    case Dtype::fp16:
      return encode_as<uint16_t>(values, bytes, [](double value) {
        return to_fp16_bits(static_cast<float>(round_to(Dtype::fp16, value)));
      });
    case Dtype::fp32:
      return encode_as<float>(values, bytes,
                              [](double value) { return static_cast<float>(value); });
    case Dtype::fp64:
      return encode_as<double>(values, bytes, [](double value) { return value; });
  }
}

template <class Stored>
std::vector<double> decode_as(const uint8_t* bytes, size_t count) {
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) {
    Stored stored;
    std::memcpy(&stored, bytes + i * sizeof stored, sizeof stored);
    values[i] = static_cast<double>(stored);
  }
  return values;
}

/// One array in the plugin's memory, between guard bytes, with a copy of its content before the
/// call.
class GuardedArray {
 public:
  GuardedArray(const PluginMemory& memory, std::string name, std::vector<uint8_t> content)
      : memory_(memory), name_(std::move(name)) {
    image_.assign(kMarginBytes, kGuard);
    image_.insert(image_.end(), content.begin(), content.end());
    image_.resize(image_.size() + kMarginBytes, kGuard);
    bytes_ = memory.allocate(size());
    memory_.copy_in(bytes_.get(), image_.data(), size());
  }

  void* data() const { return static_cast<uint8_t*>(bytes_.get()) + kMarginBytes; }
  const std::string& name() const { return name_; }

  /// Reads the array back. Returns a description of a forbidden write, or nothing.
  std::optional<std::string> read_back(bool may_change) {
    std::vector<uint8_t> now(image_.size());
    memory_.copy_out(now.data(), bytes_.get(), size());
    const auto is_guard = [](uint8_t byte) { return byte == kGuard; };
    std::optional<std::string> fault;
    if (!std::all_of(now.end() - kMarginBytes, now.end(), is_guard)) {
      fault = "wrote past the end of " + name_;
    } else if (!std::all_of(now.begin(), now.begin() + kMarginBytes, is_guard)) {
      fault = "wrote before the beginning of " + name_;
    } else if (!may_change && now != image_) {
      fault = "wrote into its input " + name_;
    }
    image_ = std::move(now);
    return fault;
  }

  const uint8_t* content() const { return image_.data() + kMarginBytes; }

 private:
  int64_t size() const { return static_cast<int64_t>(image_.size()); }

  const PluginMemory& memory_;
  const std::string name_;
  std::vector<uint8_t> image_;
  std::shared_ptr<void> bytes_;
};

/// A result: its array, and the destination of its values.
struct ResultArray {
  size_t index;
  std::vector<double>* values;
};

/// All arrays of one call.
class CallArrays {
 public:
  CallArrays(const PluginMemory& memory, const ItemCall& call)
      : memory_(memory),
        dtype_(call.plan->scenario.numerics.dtype),
        wide_(dtype_ == Dtype::fp64 ? Dtype::fp64 : Dtype::fp32) {}

  cpscope_tensor add_input(const char* name, const std::vector<double>& values, int64_t heads,
                           int64_t lanes, bool is_wide) {
    const Dtype stored = is_wide ? wide_ : dtype_;
    std::vector<uint8_t> content(values.size() * static_cast<size_t>(element_bytes(stored)));
    encode_all(stored, values, content.data());
    return add(name, std::move(content), heads, lanes);
  }

  /// Adds a result, unwritten at first.
  cpscope_tensor add_result(const char* name, std::vector<double>& values, int64_t rows,
                            int64_t heads, int64_t lanes) {
    values.assign(static_cast<size_t>(rows * heads * lanes), unwritten());
    results_.push_back({arrays_.size(), &values});
    return add_input(name, values, heads, lanes, true);
  }

  const int32_t* add_boundaries(const char* name, const std::vector<int32_t>& values) {
    std::vector<uint8_t> content(values.size() * sizeof(int32_t));
    std::memcpy(content.data(), values.data(), content.size());
    return static_cast<const int32_t*>(add(name, std::move(content), 1, 1).data);
  }

  /// Reads the results. Returns a description of a forbidden write, or nothing.
  std::optional<std::string> read_back() {
    std::optional<std::string> fault;
    for (size_t i = 0; i < arrays_.size(); ++i) {
      const bool is_result =
          std::any_of(results_.begin(), results_.end(),
                      [i](const ResultArray& result) { return result.index == i; });
      const auto found = arrays_[i].read_back(is_result);
      if (found && !fault) fault = found;
    }
    for (const ResultArray& result : results_) {
      const uint8_t* bytes = arrays_[result.index].content();
      *result.values = wide_ == Dtype::fp64 ? decode_as<double>(bytes, result.values->size())
                                            : decode_as<float>(bytes, result.values->size());
    }
    return fault;
  }

  Dtype wide() const { return wide_; }

 private:
  cpscope_tensor add(const char* name, std::vector<uint8_t> content, int64_t heads, int64_t lanes) {
    arrays_.emplace_back(memory_, name, std::move(content));
    return {arrays_.back().data(), heads * lanes, lanes};
  }

  const PluginMemory& memory_;
  const Dtype dtype_, wide_;
  std::vector<GuardedArray> arrays_;
  std::vector<ResultArray> results_;
};

void add_tensors(ItemCall& call, CallArrays& arrays, cpscope_call& described) {
  const int32_t heads = call.heads.size(), kv_heads = call.kv_heads.size();
  const int32_t qk = described.dim_qk, v = described.dim_v;
  described.q = arrays.add_input("q", call.q, heads, qk, false);
  described.k = arrays.add_input("k", call.k, kv_heads, qk, false);
  described.v = arrays.add_input("v", call.v, kv_heads, v, false);
  if (call.direction == Direction::backward) {
    described.out = arrays.add_input("out", call.out, heads, v, false);
    described.lse = arrays.add_input("lse", call.lse, heads, 1, true);
    described.d_out = arrays.add_input("d_out", call.d_out, heads, v, false);
    described.dq = arrays.add_result("dq", call.dq, call.q_rows, heads, qk);
    described.dk = arrays.add_result("dk", call.dk, call.kv_rows, kv_heads, qk);
    described.dv = arrays.add_result("dv", call.dv, call.kv_rows, kv_heads, v);
  } else {
    described.out = arrays.add_result("out", call.out, call.q_rows, heads, v);
    described.lse = arrays.add_result("lse", call.lse, call.q_rows, heads, 1);
    described.max_logit = arrays.add_result("max_logit", call.max_logit, 1, heads, 1);
  }
}

void add_sequences(const ItemCall& call, CallArrays& arrays, cpscope_call& described) {
  const BatchSlots& slots = call.plan->layout.slots;
  const auto q = find_row_boundaries(call.plan->list(call.item->q_tokens), slots, Side::q),
             kv = find_row_boundaries(call.plan->list(call.item->kv_tokens), slots, Side::kv);
  if (!q || !kv) return;
  described.num_sequences = static_cast<int64_t>(slots.sequences.size());
  described.cu_seqlens_q = arrays.add_boundaries("cu_seqlens_q", q->cu_seqlens);
  described.cu_seqlens_q_padded =
      arrays.add_boundaries("cu_seqlens_q_padded", q->cu_seqlens_padded);
  described.cu_seqlens_kv = arrays.add_boundaries("cu_seqlens_kv", kv->cu_seqlens);
  described.cu_seqlens_kv_padded =
      arrays.add_boundaries("cu_seqlens_kv_padded", kv->cu_seqlens_padded);
}

cpscope_call describe_call(const ItemCall& call, const std::vector<int32_t>& kv_head_of,
                           const std::vector<cpscope_slice>& slices) {
  const Attention& attention = call.plan->scenario.attention;
  cpscope_call described{};
  described.struct_size = sizeof described;
  described.is_backward = call.direction == Direction::backward ? 1 : 0;
  described.dtype = dtype_code(call.plan->scenario.numerics.dtype);
  described.result_dtype = described.dtype == CPSCOPE_FP64 ? CPSCOPE_FP64 : CPSCOPE_FP32;
  described.rank = to_index(call.item->rank);
  described.step = to_index(call.item->step);
  described.q_rows = call.q_rows;
  described.kv_rows = call.kv_rows;
  described.heads = call.heads.size();
  described.kv_heads = call.kv_heads.size();
  described.first_head = call.heads.begin;
  described.first_kv_head = call.kv_heads.begin;
  described.dim_qk = attention.head_dim_qk;
  described.dim_v = attention.head_dim_v;
  described.kv_head_of = kv_head_of.data();
  described.scale = attention.effective_scale();
  described.softcap = attention.softcap;
  described.num_slices = static_cast<int64_t>(slices.size());
  described.slices = slices.data();
  return described;
}

Error plugin_error(const LoadedPlugin& plugin, const ItemCall& call, ErrorKind kind,
                   const std::string& what) {
  return make_error(kind, fmt::format("plugin {} {}: {}, rank {}, step {}", plugin.path, what,
                                      to_name(call.direction), to_index(call.item->rank),
                                      to_index(call.item->step)));
}

/// The plugin's message, in one line.
std::string said(std::array<char, 512>& message) {
  message.back() = '\0';
  std::string text(message.data());
  for (char& letter : text) {
    if (static_cast<unsigned char>(letter) < 0x20) letter = ' ';
  }
  return text.empty() ? "" : fmt::format(" (\"{}\")", text);
}

}  // namespace

std::optional<Error> call_plugin(const LoadedPlugin& plugin, ItemCall& call) try {
  const Attention& attention = call.plan->scenario.attention;
  const int32_t group = attention.heads / attention.kv_heads;
  std::vector<int32_t> kv_head_of;
  for (int32_t head = call.heads.begin; head < call.heads.end; ++head)
    kv_head_of.push_back(head / group - call.kv_heads.begin);
  std::vector<cpscope_slice> slices;
  for (const BandSlice& slice : call.plan->slices_of(*call.item))
    slices.push_back({slice.q0, slice.q1, slice.k0, slice.k1, slice.lo, slice.hi});

  cpscope_call described = describe_call(call, kv_head_of, slices);
  CallArrays arrays(plugin.memory, call);
  add_tensors(call, arrays, described);
  add_sequences(call, arrays, described);
  described.stream = plugin.memory.stream;
  std::array<char, 512> message{};
  const int32_t status = plugin.description->attend(&described, message.data(), message.size());
  plugin.memory.wait();
  if (status == CPSCOPE_UNSUPPORTED)
    return plugin_error(plugin, call, ErrorKind::unavailable,
                        "does not support this call" + said(message));
  if (status != CPSCOPE_OK)
    return plugin_error(plugin, call, ErrorKind::failed,
                        fmt::format("returned {}{}", status, said(message)));
  if (const auto fault = arrays.read_back())
    return plugin_error(plugin, call, ErrorKind::failed, *fault);
  return std::nullopt;
} catch (const std::exception& error) {
  return plugin_error(plugin, call, ErrorKind::unavailable,
                      std::string("could not be given its tensors: ") + error.what());
}

}  // namespace cpscope::kernels
