#pragma once

#include "sim/base/result.h"
#include "sim/plan/order/order_import.h"

#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// Reads lists of whole numbers: JSON ({"name": [..] or [[..], ..]}, or one bare list without a
/// name; null is an absent one, and the word "qkv_format" is not kept), or whole-number tensors of
/// one or two dimensions from .safetensors, .npz and .pt files, .npy without a name; "name.rank0",
/// "name.rank1", ... become the lists of "name", and so do the dicts of a list in a .pt file; of
/// two dimensions, the rows of one rank after those of another. At most 512 MiB of JSON. Lists of
/// lists of one list, [ranks, 1, n], are [ranks, n]. Errors (bad_input): where is "path", or
/// "path:line:column" for broken JSON.
Result<std::vector<NamedLists>> read_integer_file(const std::string& path);

/// The same for the text of a JSON file.
Result<std::vector<NamedLists>> parse_integer_json(std::string_view text, const std::string& path);

}  // namespace cpscope
