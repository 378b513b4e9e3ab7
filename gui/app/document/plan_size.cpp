#include "gui/app/document/plan_size.h"

#include "sim/base/machine_memory.h"
#include "sim/plan/plan_size.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

/// Bytes per pair of ranks that exchange data: items of both passes, their buffers and rows, and
/// what views keep of them. Measured as the peak of `render --view all` at 256 to 1024 ranks.
double bytes_of_meeting(CommType comm) {
  switch (comm) {
    case CommType::p2p:
    case CommType::double_ring:
    case CommType::a2a_p2p:
    case CommType::a2a_double_ring:
      return 1000;
    case CommType::a2a:
      return 1200;
    case CommType::all_gather:
      return 600;
    case CommType::group_cast:
      return 1400;
    case CommType::pass_q:
    case CommType::token_ring:
    case CommType::helper_ring:
    case CommType::mesh:
    case CommType::gather_q:
    case CommType::custom:
      return 2000;
  }
  return 1400;
}

/// Bytes per band slice, including the rows and runs that belong to it.
double bytes_of_slice(CommType comm) { return comm == CommType::group_cast ? 160 : 60; }

/// Number of tokens in all slots.
double count_tokens(const Scenario& scenario) {
  double tokens = 0;
  for (const int64_t slot : scenario.batch.slots) tokens += static_cast<double>(slot);
  return tokens;
}

double count_meetings(const Scenario& scenario) {
  const Parallel& parallel = scenario.parallel;
  const auto ranks = static_cast<double>(parallel.cp_size);
  if (has_head_groups(parallel.comm_type)) {
    const auto fast =
        static_cast<double>(std::clamp<int64_t>(parallel.a2a_size, 1, parallel.cp_size));
    return ranks * (ranks / fast + fast);
  }
  const bool is_packed =
      parallel.layout == LayoutKind::contiguous || parallel.layout == LayoutKind::dual_chunk_packed;
  if (parallel.comm_type != CommType::group_cast || !is_packed)
    return ranks * ranks * static_cast<double>(count_head_stages(scenario));
  // Only ranks that share a sequence exchange data.
  const double tokens = std::max(1.0, count_tokens(scenario));
  double meetings = ranks;
  for (const int64_t slot : scenario.batch.slots) {
    const double spanned = 2 * (static_cast<double>(slot) * ranks / tokens + 2);
    meetings += spanned * spanned;
  }
  return std::min(meetings, ranks * ranks);
}

/// Number of slices of all computes: where ranks share sequences, each pair of chunks may have one.
double count_slices(const Scenario& scenario) {
  const Parallel& parallel = scenario.parallel;
  const auto ranks = static_cast<double>(parallel.cp_size);
  const auto sequences = static_cast<double>(scenario.batch.lengths.size());
  const double tokens = count_tokens(scenario);
  // All-to-all: each rank has all tokens of some heads in one compute.
  if (parallel.comm_type == CommType::a2a) return ranks * (sequences + 1);
  switch (parallel.layout) {
    case LayoutKind::dual_chunk:
      // Every slot is split over all ranks.
      return ranks * ranks * sequences;
    case LayoutKind::lpt:
    case LayoutKind::lpt_local: {
      const double chunks = std::max(ranks, tokens / std::max<double>(1, parallel.dispatch_chunk));
      return chunks * chunks / 2 + sequences * sequences;
    }
    case LayoutKind::striped: {
      // Every rank has tokens of every sequence.
      if (parallel.stripe <= 1) return ranks * ranks * sequences;
      const double stripes = tokens / static_cast<double>(parallel.stripe);
      return stripes * stripes / 2;
    }
    case LayoutKind::contiguous:
    case LayoutKind::dual_chunk_packed:
    case LayoutKind::indices:
      return 4 * ranks * ranks + ranks * sequences;
  }
  return ranks * ranks * sequences;
}

}  // namespace

int64_t estimate_plan_bytes(const Scenario& scenario) {
  const CommType comm = scenario.parallel.comm_type;
  // Each slice of the mask is one of a compute at least.
  const double slices =
      count_slices(scenario) + static_cast<double>(scenario.attention.slices.size());
  const double bytes =
      count_meetings(scenario) * bytes_of_meeting(comm) + slices * bytes_of_slice(comm);
  return static_cast<int64_t>(std::min(bytes, 1e18));
}

int64_t plan_bytes_limit() { return machine_memory_bytes() / 2; }

std::optional<Error> refuse_large_plan(const Scenario& scenario, int64_t limit) {
  const int64_t bytes = estimate_plan_bytes(scenario);
  if (bytes <= limit) return std::nullopt;
  Error error = make_error(
      ErrorKind::unavailable,
      fmt::format("Showing this plan would take about {:.3g} GiB, and half of this machine's "
                  "memory is {:.3g} GiB: {} ranks",
                  gibibytes(bytes), gibibytes(limit), scenario.parallel.cp_size),
      "use fewer ranks or sequences here, or `cpscope plan` on a larger machine");
  error.complaints.front().keys = {"parallel.cp_size"};
  return error;
}

}  // namespace cpscope::gui
