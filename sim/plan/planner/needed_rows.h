#pragma once

#include "sim/base/id_vector.h"
#include "sim/base/ids.h"
#include "sim/plan/layout.h"
#include "sim/plan/piece_table.h"

#include <cstdint>
#include <vector>

namespace cpscope {

/// The ids of ranges of stride 1, as ascending disjoint ranges that do not touch.
std::vector<TokenRun> merge_ranges(std::vector<TokenRun> ranges);

/// Packed padded key ids that the rows of `q` see, as ascending disjoint runs of stride 1. Padding
/// is never included.
std::vector<TokenRun> visible_keys(const PieceTable& q, const MaskBands& mask,
                                   const BatchSlots& slots);

/// Finds the owner of key ids.
class KvOwners {
 public:
  explicit KvOwners(const Layout& layout);

  /// Rows that one owner sends: of its home kv buffer, and of what the receiver gets.
  struct Source {
    RankId rank{};
    std::vector<TokenRun> rows, to_rows;
  };

  struct Received {
    // Ascending, or, if the layout is striped, one rank's after another's.
    std::vector<TokenRun> tokens;
    std::vector<Source> sources;  // by rank; none without rows
  };

  /// The keys of `wanted` that `self` does not own, and who sends them.
  Received receive(const std::vector<TokenRun>& wanted, RankId self) const;

  /// Number of runs of tokens, and of rows sent and received, that `receive` returns. No list is
  /// built.
  int64_t count_runs(const std::vector<TokenRun>& wanted, RankId self) const;

  /// Number of wanted keys that `rank` does not own. O(runs); no list is built.
  int64_t count_remote(const std::vector<TokenRun>& wanted, RankId rank) const;

  /// True for strided layouts (one-token stripes), where local order and ascending token order
  /// share no useful runs.
  bool is_striped() const { return strided_; }

 private:
  struct Chunk {
    int64_t begin, end;  // token ids
    int64_t row;
    RankId rank;
  };

  /// Calls visit(owner, rows, tokens) for every part of the wanted keys that one run of one rank
  /// holds, in the order of Received::tokens.
  template <class Visit>
  void for_each_part(const std::vector<TokenRun>& wanted, Visit visit) const;

  const Layout& layout_;
  bool strided_ = false;       // runs of stride > 1 are searched run by run
  std::vector<Chunk> chunks_;  // by begin; unit stride layouts only
};

}  // namespace cpscope
