#pragma once

#include "sim/plan/plan.h"

#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// Does the mask type cut keys behind the query?
bool is_te_causal(MaskType type);

/// Why TransformerEngine would not carry this plan out, by name; nothing when it would. Source:
/// TransformerEngine main d0067d0d, get_attention_backend and context_parallel.py.
std::optional<Error> refuse_as_te(const Plan& plan);

/// What its user has to know beside the metadata.
std::vector<std::string> te_notes(const Scenario& scenario);

}  // namespace cpscope
