#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cpscope {

/// What a value of another framework is here. `ours` is empty if it is nothing.
struct OwnValue {
  std::string_view ours, note;
};

/// The one of `choices` that another framework calls `value`, or spells so ("P2P", "all-gather").
OwnValue find_own_value(std::string_view key, std::string_view value,
                        std::span<const std::string_view> choices);
/// The same for a key whose choices are known here: masks, formats, layouts and the like.
OwnValue find_own_value(std::string_view key, std::string_view value);

/// In lower case, with "_" for "-" and blanks, without the "torch." of a number type.
std::string normalise_word(std::string_view text);

/// "cp_comm_type = \"ring\": use cp_comm_type = \"p2p\"" for a value that another framework gives
/// to one of our keys. Nothing if it is unknown, or if what it is here is not one of `choices`.
std::optional<std::string> explain_foreign_value(std::string_view key, std::string_view value,
                                                 std::span<const std::string_view> choices);

}  // namespace cpscope
