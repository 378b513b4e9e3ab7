#pragma once

#include "sim/base/result.h"
#include "sim/plan/order/order_import.h"

#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// Reads lists of whole numbers: JSON ({"name": [..] or [[..], ..]}, or one bare list without a
/// name), .safetensors (I64, I32, ... tensors of one or two dimensions; "name.rank0", "name.rank1",
/// ... become the lists of "name"), or .npy (one array without a name). Lists of lists of one list,
/// [ranks, 1, n], are [ranks, n]. At most 512 MiB. Errors (bad_input): where is "path", or
/// "path:line:column" for broken JSON.
Result<std::vector<NamedLists>> read_integer_file(const std::string& path);

/// The same for the text of a JSON file and the bytes of an .npy file.
Result<std::vector<NamedLists>> parse_integer_json(std::string_view text, const std::string& path);
Result<std::vector<NamedLists>> parse_npy(std::string_view bytes, const std::string& path);

}  // namespace cpscope
