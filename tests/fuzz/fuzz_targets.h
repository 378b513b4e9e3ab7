#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope::fuzzing {

/// A reader of text or bytes that strangers write, and what it promises whatever they write: it
/// ends, touches no memory but its own, and what it accepts can be written and read again.
struct Target {
  std::string_view name;
  /// In one sentence which promise these bytes break; nothing when all are kept.
  std::optional<std::string> (*check)(std::string_view bytes);
  /// Valid and nearly valid bytes to start from. `scenarios`: the folder of the shipped scenarios.
  std::vector<std::string> (*seeds)(const std::string& scenarios);
};

/// scenario: the text of a scenario file; record: a .safetensors file; arrays: an .npy, .npz or .pt
/// file; pickle: data.pkl of a .pt file; import: 8 bytes that choose the source, the named layout
/// and sizes, then an integer file (JSON, or one of tensors); mask: a mask file; trace: a trace of
/// other software, and what is found in it of a ring of two; plan: a plan document.
const std::vector<Target>& targets();

/// Aborts when there is none of that name.
const Target& find_target(std::string_view name);

}  // namespace cpscope::fuzzing
