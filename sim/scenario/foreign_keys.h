#pragma once

#include "sim/scenario/toml_document.h"

#include <optional>
#include <string>
#include <string_view>

namespace cpscope {

/// What to write for a key of another framework: "context_parallel_size = 4: use cp_size = 4", or
/// why there is no such key. Knows those of Megatron, Hugging Face, TransformerEngine,
/// ring-flash-attention, USP, MagiAttention, PyTorch and JAX; nothing for any other key.
/// A key of ours in another table than `here` is named with its table, if `here` is given.
std::optional<std::string> explain_foreign_key(std::string_view key, const TomlValue& value,
                                               std::optional<std::string_view> here);

/// The key of ours that a key of another framework stands for; empty if there is none.
std::string_view find_own_key(std::string_view foreign);

}  // namespace cpscope
