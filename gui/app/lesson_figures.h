#pragma once

#include "gui/app/caption_writer.h"

#include <cstdint>
#include <string>
#include <utility>

namespace cpscope::gui::words {

// Figures that several pages of the lessons speak of.

/// "1.75".
std::string print_ratio(double ratio);
/// "3.21e-03".
std::string print_error(double error);
/// Compute items of a pass without work, and all of them.
std::pair<int64_t, int64_t> count_idle(const Pass& pass);
/// Query rows with a token.
int64_t count_valid(const PlanIndex& plan);
/// Bytes of KV on the wire in the forward, and how many of them anybody needs.
void tell_kv_share(CaptionWriter& writer);
/// What one rank sends in both passes.
void tell_sent(CaptionWriter& writer, int32_t rank);
/// Busiest rank over the mean, critical path over the ideal.
void tell_balance(CaptionWriter& writer);

}  // namespace cpscope::gui::words
