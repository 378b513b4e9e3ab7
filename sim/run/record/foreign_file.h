#pragma once

#include "sim/run/record/foreign_record.h"

#include <string>
#include <vector>

namespace cpscope {

/// Reads a file of tensors by any software: .safetensors, .npy, .npz (numpy.savez) or .pt
/// (torch.save of tensors, torch_file.h), known by its first bytes. One record, or one for each
/// rank where a .pt file holds a list of dicts. An array without a name (.npy, torch.save of one
/// tensor) has the name "". Errors (bad_input): as the readers of the formats.
Result<std::vector<NamedRecord>> read_foreign_file(const std::string& path);

/// Reads the files that `grade` is given: one, or one for each rank, sorted by rank. Arrays without
/// a name are called as their files; when there are only such files, of different names, they make
/// one record.
Result<std::vector<NamedRecord>> read_foreign_files(const std::vector<std::string>& paths);

}  // namespace cpscope
