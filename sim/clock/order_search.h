#pragma once

#include "sim/plan/mask_bands.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace cpscope {

/// Visible pairs of query rows of the packed padded batch, for one head.
class RowPairs {
 public:
  RowPairs(const Attention& attention, const BatchSlots& slots);
  /// Of the packed padded query ids [begin, end).
  int64_t count(int64_t begin, int64_t end) const;

 private:
  const BatchSlots& slots_;
  MaskBands mask_;
};

/// The slots of a batch in an order of its own, which adds no padding.
BatchSlots slots_of_order(const Batch& batch);

/// What one order of tokens costs.
struct OrderPrice {
  double us = 0;
  std::vector<double> compute_us;  // [rank] both passes
};

/// The price of a scenario, or nothing if it is impossible or does not fit in memory. Safe from
/// several threads.
using PriceOrder = std::function<std::optional<OrderPrice>(const Scenario&)>;

/// A local search for the order of tokens in which one way to move is the fastest. Pieces of at
/// most `chunk` consecutive tokens, which no sequence boundary divides, go from rank to rank, alone
/// or in exchange for another, as long as that lowers the price; no rank gets more tokens than the
/// fullest one had, or than its share. Deterministic: exchanges are functions of seed, stream and
/// count.
class OrderSearch {
 public:
  /// Pieces of the tokens that this way and its layout give to each rank. Nothing if they are too
  /// many, or if the way is impossible with an order.
  static std::optional<OrderSearch> begin(const Scenario& scenario, int64_t chunk, uint64_t seed,
                                          uint64_t stream, const PriceOrder& price);

  /// Prices up to `count` changes of the present order and keeps the best, if it is better. Returns
  /// how many were priced: 0 if none is possible.
  int64_t step(int64_t count, const PriceOrder& price);

  const Scenario& scenario() const { return scenario_; }  // with the present order
  double us() const { return price_.us; }
  int64_t pieces() const { return static_cast<int64_t>(pieces_.size()); }
  /// Steps since the last one that found a better order.
  int64_t idle_steps() const { return idle_steps_; }

 private:
  struct Piece {
    int64_t begin = 0, end = 0;  // packed padded query ids
    int64_t pairs = 0;
    int64_t size() const { return end - begin; }
  };
  /// Piece a of rank p against piece b of rank q; b = -1: a alone moves to q.
  struct Change {
    int32_t p = 0, q = 0;
    int32_t a = -1, b = -1;
    friend bool operator==(const Change&, const Change&) = default;
  };
  using Held = std::vector<std::vector<int32_t>>;  // [rank] ascending pieces

  uint64_t draw(uint64_t below);
  std::optional<Change> propose(const std::vector<int32_t>& by_time);
  bool is_allowed(const Change& change) const;
  int64_t fuller_load(const Change& change) const;
  void apply(const Change& change, Held& held) const;
  Scenario with_order(const Held& held) const;
  void settle(Held held);

  Scenario scenario_;
  uint64_t seed_ = 1, stream_ = 0, drawn_ = 0;
  int64_t most_tokens_ = 0;  // of a rank
  std::vector<Piece> pieces_;
  std::vector<int32_t> at_;  // [piece] its rank
  Held held_;
  std::vector<int64_t> tokens_, pairs_;  // [rank]
  OrderPrice price_;
  int64_t idle_steps_ = 0;
};

}  // namespace cpscope
