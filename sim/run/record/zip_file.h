#pragma once

#include "sim/run/record/opened_file.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// The first bytes of a zip archive that is not empty.
inline constexpr std::string_view kZipMagic = "PK\x03\x04";

/// A file inside a zip archive, stored as it is.
struct ZipEntry {
  std::string name;
  int64_t begin = 0;  // byte of the archive at which its content begins
  int64_t size = 0;   // bytes
};

/// The files of a zip archive, with the 64-bit extension, in the order of its directory. Errors
/// (bad_input): a broken directory, an entry outside of the file, entries that are compressed or
/// encrypted, that have one name, or that hold more bytes than the archive.
/// Source: PKWARE APPNOTE.TXT 6.3.10, sections 4.3 and 4.5.3.
Result<std::vector<ZipEntry>> list_zip(OpenedFile& file);

}  // namespace cpscope
