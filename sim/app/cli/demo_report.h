#pragma once

#include "sim/app/cli/verified_file.h"

#include <map>
#include <string>
#include <vector>

namespace cpscope {

/// One HTML page, no scripts, nothing loaded but the pictures beside it: a table of all rows, then
/// one section a scenario with its question, its balance by step and rank as a strip of bars, what
/// moves, what was proved and how far every tensor is from the oracle. What did not pass stands
/// first. Light or dark as the reader's system, and for phones. `pictures`: scenario file to the
/// name of its picture beside the page. `window`: the window as a page beside it, or empty.
std::string demo_report(const std::vector<VerifyRow>& rows,
                        const std::map<std::string, std::string>& pictures,
                        const std::string& window);

}  // namespace cpscope
