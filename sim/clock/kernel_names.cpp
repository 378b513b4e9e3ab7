#include "sim/clock/foreign_trace.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>

namespace cpscope {
namespace {

std::string to_lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return lower;
}

template <size_t n>
bool has_any(std::string_view text, const std::array<std::string_view, n>& words) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) {
    return text.find(word) != std::string_view::npos;
  });
}

/// Of NCCL's and RCCL's kernels, and of PyTorch's annotations ("gloo:all_gather").
TraceWork collective_of(std::string_view lower) {
  constexpr std::array<std::pair<std::string_view, TraceWork>, 12> kWords = {{
      {"sendrecv", TraceWork::exchange},
      {"reducescatter", TraceWork::reduce_scatter},
      {"reduce_scatter", TraceWork::reduce_scatter},
      {"allgather", TraceWork::all_gather},
      {"all_gather", TraceWork::all_gather},
      {"alltoall", TraceWork::all_to_all},
      {"all_to_all", TraceWork::all_to_all},
      {"coalesced", TraceWork::exchange},
      {"reduce", TraceWork::other_collective},
      {"broadcast", TraceWork::other_collective},
      {"send", TraceWork::send},
      {"recv", TraceWork::receive},
  }};
  for (const auto& [word, work] : kWords)
    if (lower.find(word) != std::string_view::npos) return work;
  return TraceWork::other_collective;
}

}  // namespace

std::string_view to_name(TraceWork work) {
  switch (work) {
    case TraceWork::attention:
      return "attention";
    case TraceWork::send:
      return "send";
    case TraceWork::receive:
      return "receive";
    case TraceWork::exchange:
      return "exchange";
    case TraceWork::all_to_all:
      return "all_to_all";
    case TraceWork::all_gather:
      return "all_gather";
    case TraceWork::reduce_scatter:
      return "reduce_scatter";
    case TraceWork::other_collective:
      return "other_collective";
    case TraceWork::other:
      break;
  }
  return "other";
}

std::optional<Direction> name_direction(std::string_view name) {
  constexpr std::array<std::string_view, 6> kBackward = {"bwd",      "backward",   "bprop",
                                                         "dot_do_o", "convert_dq", "fmha_cutlassb"};
  constexpr std::array<std::string_view, 4> kForward = {"fwd", "forward", "fprop", "fmha_cutlassf"};
  const std::string lower = to_lower(name);
  const bool is_backward = has_any(lower, kBackward), is_forward = has_any(lower, kForward);
  if (is_backward == is_forward) return std::nullopt;
  return is_backward ? Direction::backward : Direction::forward;
}

NamedWork name_work(std::string_view name) {
  constexpr std::array<std::string_view, 6> kAttention = {"flash",     "fmha", "sdpa",
                                                          "attention", "attn", "fused_attn"};
  // torch.compile names its kernels after every operator that was fused into them, so only its
  // templates are attention.
  constexpr std::array<std::string_view, 5> kNever = {"triton_poi_", "triton_red_", "triton_per_",
                                                      "rotary", "out_correction"};
  constexpr std::array<std::string_view, 2> kBehind = {"dot_do_o", "preprocess"};
  constexpr std::array<std::string_view, 4> kBefore = {"convert_dq", "convert_dk", "postprocess",
                                                       "combine"};
  const std::string lower = to_lower(name);
  NamedWork named;
  if (has_any(lower,
              std::array<std::string_view, 5>{"nccldev", "ncclkernel", "rccl", "gloo:", "nccl:"})) {
    named.work = collective_of(lower);
    return named;
  }
  if (lower.starts_with("memcpy p")) {  // "Memcpy PtoP", "Memcpy Peer"
    named.work = TraceWork::exchange;
    return named;
  }
  if (!has_any(lower, kAttention) || has_any(lower, kNever)) return named;
  named.work = TraceWork::attention;
  named.direction = name_direction(lower);
  named.helper = has_any(lower, kBehind)   ? HelperPlace::behind
                 : has_any(lower, kBefore) ? HelperPlace::before
                                           : HelperPlace::none;
  return named;
}

int64_t element_bytes_of(std::string_view dtype) {
  const std::string lower = to_lower(dtype);
  std::string_view word = lower;
  if (word.starts_with("c10::")) word.remove_prefix(5);
  constexpr std::array<std::pair<std::string_view, int64_t>, 15> kBytes = {{
      {"bfloat16", 2},
      {"half", 2},
      {"float16", 2},
      {"float", 4},
      {"float32", 4},
      {"double", 8},
      {"byte", 1},
      {"char", 1},
      {"unsigned char", 1},
      {"signed char", 1},
      {"int", 4},
      {"long", 8},
      {"short", 2},
      {"bool", 1},
      {"long int", 8},
  }};
  for (const auto& [name, bytes] : kBytes)
    if (word == name) return bytes;
  return word.starts_with("float8") ? 1 : 0;
}

}  // namespace cpscope
