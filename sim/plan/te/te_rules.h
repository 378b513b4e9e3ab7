#pragma once

#include "sim/plan/plan.h"

#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// True if the mask type hides keys after the query.
bool is_te_causal(MaskType type);

/// Why TransformerEngine would not run this plan, with an error that names the feature; nothing
/// when it would. Source: TransformerEngine main d0067d0d, get_attention_backend and
/// context_parallel.py.
std::optional<Error> refuse_as_te(const Plan& plan);

/// Notes that a user of the view needs in addition to the metadata.
std::vector<std::string> te_notes(const Scenario& scenario);

}  // namespace cpscope
