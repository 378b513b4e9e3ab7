#pragma once

#include "kernels/group/tcp_socket.h"
#include "sim/run/executor.h"

#include <span>
#include <vector>

namespace cpscope::kernels {

/// One process's part of a run: rows of its ranks in `output.answer`, its events and times. Numbers
/// of answers are sent in fp32, in which they were computed; sums over rows in fp64.
Bytes encode_results(const Plan& plan, std::span<const RankId> ranks, const RunOutput& output);

/// Adds another process's results to those of this one: rows to their places, the largest of maxima
/// and times, the sum of sums. False: the bytes do not belong to this plan.
bool add_results(const Plan& plan, std::span<const RankId> ranks, std::span<const uint8_t> bytes,
                 RunOutput& output);

/// Encodes item results for the process that has the observer.
Bytes encode_items(const std::vector<ItemResult>& results);
std::vector<ItemResult> decode_items(std::span<const uint8_t> bytes);

}  // namespace cpscope::kernels
