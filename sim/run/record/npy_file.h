#pragma once

#include "sim/run/record/opened_file.h"
#include "sim/run/record/run_record.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cpscope {

/// The first bytes of an .npy file.
inline constexpr std::string_view kNpyMagic = "\x93NUMPY";

/// Appends the array that lies in bytes [begin, begin + size) of the file as .npy (versions 1 to 3,
/// row-major or Fortran order) to the record, under `name`. Types: f2, f4, f8, integers, and V2,
/// ml_dtypes' bfloat16; others, big-endian ones too, become skipped tensors. Errors (bad_input):
/// a broken header, a shape that disagrees with the data.
/// Source: numpy.lib.format.
std::optional<Error> take_npy(OpenedFile& file, int64_t begin, int64_t size,
                              const std::string& name, RunRecord& record);

}  // namespace cpscope
