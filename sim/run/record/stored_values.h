#pragma once

#include "sim/run/record/opened_file.h"
#include "sim/run/record/record_header.h"
#include "sim/run/record/run_record.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// Where the values of a tensor lie in a file.
struct StoredValues {
  std::string name;
  StoredType type;
  std::vector<int64_t> shape;         // no negative extent
  std::vector<int64_t> strides = {};  // [dimension] elements, none negative; empty: row-major
  int64_t begin = 0;                  // byte of the file at which the first element lies
};

/// Elements of a shape; nothing where that is more than int64_t holds.
std::optional<int64_t> count_elements(const std::vector<int64_t>& shape);

/// Bytes of the file from the first element to the end of the last one; 0 without elements, nothing
/// where that is more than int64_t holds.
std::optional<int64_t> count_spanned_bytes(const StoredValues& stored);

/// Appends the values, in row-major order, to the record's list of their kind: tensors, integers,
/// or the skipped ones. False when the file ends early. Needs a count_elements and a
/// count_spanned_bytes.
bool take_values(OpenedFile& file, const StoredValues& stored, RunRecord& record);

}  // namespace cpscope
