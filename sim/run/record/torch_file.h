#pragma once

#include "sim/run/record/foreign_record.h"
#include "sim/run/record/opened_file.h"
#include "sim/run/record/zip_file.h"

#include <vector>

namespace cpscope {

/// True if a zip archive with these entries was written by torch.save.
bool is_torch_archive(const std::vector<ZipEntry>& entries);

/// Reads an archive of torch.save (torch 1.6 and later; torch_pickle.h says of what). Names of
/// nested dicts are joined: "layer.out". A list of tensors becomes parts by rank, a list of whole
/// numbers one tensor of them. Words of the outer dict are metadata, and so is its number "rank". A
/// list of dicts gives one record for each. A single tensor has the name "".
/// Errors (bad_input): not only tensors, numbers and words; a storage that is missing or too short,
/// views with more elements than the file has bytes, big-endian numbers, sums of a DTensor that are
/// not added up yet.
Result<std::vector<NamedRecord>> read_torch_file(OpenedFile& file,
                                                 const std::vector<ZipEntry>& entries);

}  // namespace cpscope
