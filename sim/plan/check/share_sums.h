#pragma once

#include "sim/plan/check/check_rows.h"
#include "sim/plan/item_event.h"

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace cpscope {

/// A hash of a compute item; no other sum of items is likely to equal it.
uint64_t fingerprint(int64_t item);

/// Results of computes in a buffer: the sum of their fingerprints.
struct Share {
  RunListId tokens, rows;  // rows of the list `tokens`
  HeadRange heads;
  uint64_t weight;
};

/// A token and head.
struct TokenHead {
  int64_t token = 0;
  int32_t head = 0;
};

/// True if rows `rows` of the list `tokens` have the token.
bool has_token(const Plan& plan, RunListId tokens, RunListId rows, int64_t token);

/// Results per interval of heads, which must cancel.
class ShareLedger {
 public:
  explicit ShareLedger(const Plan& plan) : plan_(plan), picker_(plan) {}

  void add(const Share& share);
  /// First (token, head) whose results do not cancel, or nothing.
  std::optional<TokenHead> first_difference();

 private:
  struct Entry {
    int32_t begin, end;  // heads
    RunListId tokens, rows;
    uint64_t weight;
  };

  const std::vector<TokenRun>& picked(RunListId tokens, RunListId rows);
  /// Removes the results of lists whose rows cancel by their numbers, whatever their tokens are:
  /// nearly all where every rank's rows are of a list of its own, which may be long.
  void drop_balanced_lists();
  /// True if the results of every token cancel in their sum over all heads. Every head has a weight
  /// of its own, which no compute item has as its fingerprint, and results are multiplied with it:
  /// heads that do not cancel are as unlikely to cancel each other as computes are. False says
  /// nothing of single heads.
  bool cancels_over_heads();

  const Plan& plan_;
  RowPicker picker_;
  std::map<std::pair<int32_t, int32_t>, std::vector<TokenRun>> picked_;
  std::map<std::tuple<int32_t, int32_t, int32_t, int32_t>, uint64_t> entries_;
};

/// What part of a result is followed.
enum class Followed : uint8_t { values, lse };

/// The computes whose results are in each buffer while the items of a plan are visited in order: of
/// out, dq or dkv, or whose lse are in the lse of out.
class ShareSums {
 public:
  ShareSums(const Plan& plan, BufferKind kind, Followed what)
      : plan_(plan), kind_(kind), what_(what), sums_(plan.buffers.size()) {}

  const std::vector<Share>& of(BufferId id) const { return sums_[id]; }
  /// The tokens, heads and fingerprint of what a compute item adds to the sums of this kind.
  Share share_of(const ComputeItem& item, int64_t index) const;
  /// From now on only results of this token and head are followed, and no two are one share.
  void follow_alone(const TokenHead& place) { place_ = place; }

  void follow(const ItemId& id, const ComputeItem& item);
  void follow(const ItemId& id, const ReorderItem& item);
  void follow(const ItemId& id, const FinishItem& item);
  void follow(const ItemId& id, const MergeItem& item);
  void follow(const ItemId& id, const TransferItem& item);

 private:
  void add_share(std::vector<Share>& sum, const Share& share) const;

  const Plan& plan_;
  const BufferKind kind_;
  const Followed what_;
  std::optional<TokenHead> place_;
  IdVector<BufferId, std::vector<Share>> sums_;
};

/// Checks that results which are scaled by a gathered lse reach their owner, and only there become
/// an answer: no rank uses them alone, nothing is merged by lse into their sum, and every rank's
/// scale has the lse of all results of the row, each once. Nothing is checked of plans without such
/// results.
CheckResult check_scales(const Plan& plan);

}  // namespace cpscope
