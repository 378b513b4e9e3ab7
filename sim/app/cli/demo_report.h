#pragma once

#include "sim/app/cli/verified_file.h"

#include <map>
#include <string>
#include <vector>

namespace cpscope {

/// One HTML page, no scripts, nothing loaded but the pictures beside it: a table of all rows, then
/// one section a scenario with its question, its balance by step and rank as a strip of bars, what
/// moves, what was proved and how far every tensor is from the oracle. `pictures`: scenario file to
/// the name of its picture beside the page.
std::string demo_report(const std::vector<VerifyRow>& rows,
                        const std::map<std::string, std::string>& pictures);

}  // namespace cpscope
