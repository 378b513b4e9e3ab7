#pragma once

#include "sim/base/result.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <vector>

namespace cpscope {

/// Draws document lengths until they sum to generator.tokens (the last one is cut to fit).
/// Deterministic: a function of the generator alone, the same on every machine. wlb, prolong and
/// wiki follow the measured shares of documents and tokens per bin; byted follows its published
/// statistics; magi follows the document counts per bin (length_tables.h). magi cuts documents to a
/// quarter of tokens, as MagiAttention's packing does. Documents are clamped to [min, max], as a
/// context window does; csv ignores min and max. csv with tokens repeats or cuts the listed lengths
/// to that sum; without tokens it takes them unchanged. equal with count splits the tokens evenly,
/// to within one token.
/// Sources: field data of WLB-LLM (OSDI 2025), ProLong and the Wikipedia sample of FlexSP;
/// ByteScale (arXiv:2502.21231); the benchmark data of MagiAttention. `base_dir` anchors
/// generator.file. Errors: unknown name, impossible bounds, more than 4,194,304 documents,
/// unreadable csv.
Result<std::vector<int64_t>> generate_lengths(const Generator& generator,
                                              const std::string& base_dir);

}  // namespace cpscope
