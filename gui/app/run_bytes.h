#pragma once

#include "gui/app/app_state.h"
#include "sim/base/result.h"

#include <string>
#include <string_view>

namespace cpscope::gui {

/// A run that can be shown, or the error that took its place, as bytes: a worker of the browser
/// shares no memory with the page. Only the same program can read them.
std::string write_run_bytes(const Result<SharedRun>& run);

/// What write_run_bytes was given. Bytes that end too early are an error.
Result<SharedRun> read_run_bytes(std::string_view bytes);

}  // namespace cpscope::gui
