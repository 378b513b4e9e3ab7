#pragma once

#include "sim/documents/json_text.h"

#include <ostream>

namespace cpscope {

/// All keys of scenario files: the document of `keys --json`, its text (two lines a key), and the
/// page scenarios/keys.md.
Json keys_json();
void write_keys_text(std::ostream& out);
void write_keys_page(std::ostream& out);

}  // namespace cpscope
