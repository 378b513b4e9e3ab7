#pragma once

#include "sim/base/result.h"
#include "sim/run/record/run_record.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// Longest header that is written and read, the limit of the format's own readers.
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

/// Most dimensions of a tensor that is read.
inline constexpr size_t kMaxDimensions = 16;

/// One tensor as the header of a .safetensors file describes it.
struct StoredTensor {
  std::string name;
  std::string type_name;       // "F32", "BF16", ... as written, not checked yet
  std::vector<int64_t> shape;  // no negative extent
  int64_t begin = 0;           // bytes from the first byte after the header
  int64_t end = 0;             // one past the last byte
};

/// The JSON part of a .safetensors file: the form of the document is checked, the numbers are not.
struct RecordHeader {
  std::vector<StoredTensor> tensors;            // in the order of the header
  std::map<std::string, std::string> metadata;  // __metadata__
};

/// Parses the JSON text. Memory is bounded by the text, not by the sizes that it claims; the depth
/// is bounded by the format. Errors (bad_input) have no `where`: the caller knows the file.
Result<RecordHeader> parse_record_header(std::string_view json);

/// One of the format's types.
struct StoredType {
  std::string_view name;  // "F32", "I64", ...
  int64_t bytes = 0;      // of one element
  std::optional<Dtype> dtype;
  bool is_integer = false;
  bool is_signed = false;
};

/// The type of this name, one that records do not hold too; nothing for a name that the format does
/// not know.
std::optional<StoredType> find_stored_type(std::string_view name);

/// Checks that every tensor has a known type (one that records hold, or with `takes_other_types`
/// any of the format's), that its size does not overflow and equals its byte range, and that the
/// ranges cover the `data_bytes` after the header without gap or overlap, as the format requires.
Result<std::vector<StoredType>> check_record_header(const RecordHeader& header, int64_t data_bytes,
                                                    bool takes_other_types = false);

/// The header of a record whose tensor t lies at begins[t], padded with spaces to 8 bytes.
/// `tensors`: all that the file stores, events included.
std::string print_record_header(const RunRecord& record, const std::vector<const Tensor*>& tensors,
                                const std::vector<int64_t>& begins);

/// The format's name of a dtype: F64, F32, F16, BF16.
std::string_view stored_type_name(Dtype dtype);

/// Untrusted text for a message: control characters replaced, at most 80 bytes.
std::string printable_name(std::string_view text);

}  // namespace cpscope
