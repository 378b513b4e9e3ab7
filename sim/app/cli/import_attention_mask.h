#pragma once

#include <string>

namespace cpscope {

/// `cpscope import --attention-mask`: prints the [batch] lines of a scenario for a file with a mask
/// of tokens, [batch, seqlen] of 0 and 1 (sim/scenario/attention_mask.h), or the same as JSON.
/// Returns the exit code.
int import_attention_mask(const std::string& path, bool as_json);

}  // namespace cpscope
