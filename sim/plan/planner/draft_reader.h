#pragma once

#include "sim/plan/planner/schedule_draft.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cpscope {

/// A block on a rank that receives it in a pass.
enum class CopyId : int32_t {};
inline constexpr CopyId kOwnRows{-1};  // the rank owns the block

/// A send with the block of the sender's that contains the rows, and their places in it.
struct ReadSend {
  DraftSend send;
  BlockId from{};
  RunListId from_rows = kAllRows;
  CopyId from_copy = kOwnRows, to_copy{};
};

/// A compute with the blocks that its rank holds, and the bands over their rows.
struct ReadCompute {
  RankId rank{};
  BlockId q{}, kv{};
  CopyId q_copy = kOwnRows, kv_copy = kOwnRows;
  HeadRange heads;
  SliceRange range;
};

struct ReadStep {
  std::vector<ReadSend> before;
  std::vector<ReadCompute> computes;
  std::vector<ReadSend> during;
};

struct ReadPass {
  std::vector<ReadStep> steps;
  size_t num_copies = 0;
};

/// Checks who holds what when in one pass, and finds the visible pairs of every compute. Gives
/// every block its heads, and every rank a block of its home buffers.
class DraftReader {
 public:
  DraftReader(PlanBuilder& builder, ScheduleDraft& draft);

  /// The steps of a pass in their order, or the first error. `wrong` gets its place, if it has one.
  std::optional<Error> read(const std::vector<DraftStep>& from, ReadPass& pass,
                            std::optional<DraftPlace>& wrong);

 private:
  /// Rows of a block that a rank holds; kAllRows: all of them.
  struct Held {
    BlockId holder{};
    RunListId rows = kAllRows;

    auto operator<=>(const Held&) const = default;
  };
  struct Found {
    Held held;
    CopyId copy = kOwnRows;  // of held.holder
  };
  struct Arrival {
    BlockId block{};
    CopyId copy{};
    size_t usable = 0;  // first step whose computes may use it
  };

  void name_home_blocks();
  bool owns(RankId rank, BlockId block) const { return draft_.blocks[block].owner == rank; }
  std::optional<Found> find(RankId rank, BlockId block, size_t step);
  const std::optional<Held>& rows_inside(BlockId outer, BlockId inner);
  std::optional<Held> find_rows_inside(BlockId outer, BlockId inner);
  std::optional<Error> read_step(const DraftStep& from, ReadStep& into, DraftPlace& place);
  std::optional<Error> read_sends(size_t step, DraftPlace& place,
                                  const std::vector<DraftSend>& sends, size_t usable,
                                  std::vector<ReadSend>& into);
  std::optional<Error> check_joined(const DraftSend& send) const;
  std::optional<Error> read_compute(const DraftCompute& compute, size_t step, ReadStep& into);
  int32_t table_of(const Held& part, Side side);
  std::string name(BlockId block) const;
  Error lacks(RankId rank, std::string_view verb, BlockId block) const;

  PlanBuilder& builder_;
  ScheduleDraft& draft_;
  IdVector<RankId, BlockId> home_q_, home_kv_;
  bool has_parts_ = false;                         // blocks that are no whole home buffer
  std::unordered_map<int64_t, Arrival> received_;  // by receiver and block
  std::unordered_map<int64_t, std::vector<Arrival>> arrivals_;  // by receiver and owner, with parts
  std::map<std::pair<BlockId, BlockId>, std::optional<Held>> inside_;
  std::vector<PieceTable> q_tables_, kv_tables_;
  std::map<Held, int32_t> tables_;
  std::vector<SliceJob> jobs_;
};

}  // namespace cpscope
