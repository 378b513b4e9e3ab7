#pragma once

#include "sim/plan/plan.h"

#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// True if the mask type hides keys after the query.
bool is_te_causal(MaskType type);

/// Why TransformerEngine would not run this plan, or would run it wrongly on every back end that it
/// has for it, with an error that names the feature; nothing when it would run it.
/// Source: TransformerEngine 2.20.2, pytorch/attention/dot_product_attention: utils.py
/// (get_attention_backend) and context_parallel.py (attn_forward_func_with_cp and the forward of
/// its three classes).
std::optional<Error> refuse_as_te(const Plan& plan);

/// Notes that a user of the view needs in addition to the metadata.
std::vector<std::string> te_notes(const Plan& plan);

}  // namespace cpscope
