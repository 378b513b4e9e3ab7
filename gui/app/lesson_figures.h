#pragma once

#include "gui/app/caption/caption_writer.h"

#include <cstdint>
#include <string>
#include <utility>

namespace cpscope::gui::words {

// Figures used by several pages of the lessons.

/// "1.75".
std::string print_ratio(double ratio);
/// "3.21e-03".
std::string print_error(double error);
/// Number of compute items of a pass without work, and number of all its compute items.
std::pair<int64_t, int64_t> count_idle(const Pass& pass);
/// Number of ids of a side that hold no token.
int64_t count_padding(const PlanIndex& plan, Side side);
/// Writes the bytes of KV on the wire in the forward, and how many of them are needed by some
/// query.
void tell_kv_share(CaptionWriter& writer);
/// Writes what one rank sends in both passes.
void tell_sent(CaptionWriter& writer, int32_t rank);
/// Writes busiest rank over mean, and critical path over ideal.
void tell_balance(CaptionWriter& writer);

}  // namespace cpscope::gui::words
