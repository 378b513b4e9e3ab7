#pragma once

#include "sim/plan/order/order_import.h"

#include <cstdint>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

namespace cpscope {

/// A step of vLLM: requests with new tokens, behind tokens whose keys are in the cache already.
struct CacheStep {
  int64_t ranks = 1;
  std::vector<int64_t> lengths, computed;         // [request] new tokens, tokens before them
  const NamedLists* slots = nullptr;              // [rank][new token]; null: to be computed
  int64_t block_size = 0;                         // slots of a block on one rank; 0: unknown
  std::vector<std::vector<int64_t>> blocks = {};  // [request] its block table; empty: unknown
  int64_t interleave = 0;                         // 0: to be found
  bool knows_computed = false, has_cached = false;

  int64_t total(size_t request) const { return computed[request] + lengths[request]; }
  int64_t num_new() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }
  /// The place of a position's key in its block.
  int64_t offset(int64_t position, int64_t size) const {
    const int64_t in_blocks = position % (block_size * ranks);
    return in_blocks / (ranks * size) * size + in_blocks % size;
  }
  /// The slot that the block table gives a position.
  int64_t slot(size_t request, int64_t position, int64_t size) const {
    const int64_t block = blocks[request][static_cast<size_t>(position / (block_size * ranks))];
    return block * block_size + offset(position, size);
  }
};

/// Reads the lists of a step, as import_order documents them, of requests with `lengths` new
/// tokens; without lengths all new tokens are of one request. Errors (bad_input): what is missing,
/// numbers that cannot be, block tables that are too short.
Result<CacheStep> read_vllm_step(const ImportRequest& request, int64_t ranks,
                                 std::optional<std::vector<int64_t>> lengths);

/// The local lengths that each rank's attention is told; null if they are not given.
const NamedLists* find_local_lengths(const ImportRequest& request);

/// Names of the lists of a step.
std::vector<std::string_view> names_of_vllm();

}  // namespace cpscope
