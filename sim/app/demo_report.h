#pragma once

#include "sim/app/commands.h"

#include <string>
#include <vector>

namespace cpscope {

/// One HTML page, no scripts, nothing loaded from elsewhere: a table of all rows, then one section
/// a scenario with its question, its balance by step and rank as a strip of bars, what moves, what
/// was proved and how far every tensor is from the oracle.
std::string demo_report(const std::vector<VerifyRow>& rows);

}  // namespace cpscope
