#pragma once

#include <string>
#include <string_view>

namespace cpscope {

/// A text as the content of XML and HTML, or as an attribute between quotes. Control characters
/// that XML 1.0 does not know and bytes that are no UTF-8 become "?".
std::string escape_markup(std::string_view text);

/// A text as one line of Markdown: nothing of it is taken for formatting, links, HTML or the edge
/// of a table.
std::string escape_markdown(std::string_view text);

/// A path as the address of a link.
std::string escape_address(std::string_view path);

}  // namespace cpscope
