#pragma once

#include "reference/aligned_vector.h"
#include "sim/plan/plan.h"
#include "sim/run/judge.h"
#include "sim/scenario/score_terms.h"

#include <cstdint>
#include <span>
#include <vector>

namespace cpscope::reference {

/// Place of a token among the valid tokens of its sequence; sequence -1: padding.
struct SequencePlace {
  int32_t sequence = -1;
  int64_t position = 0;
  int64_t alibi_shift = 0;  // added to the position where ALiBi measures; the fault gallery sets it
};

/// Where the rows and the columns of one compute item stand.
struct TilePlaces {
  std::vector<SequencePlace> rows, columns;
};

/// How one head of a tile numbers what it looks up and draws; the fault gallery changes it.
struct TermNumbers {
  int32_t head = 0;        // of slopes, bias and dropout
  uint32_t seed_low = 0;   // of dropout
  double scale = 1.0;      // factor of the weights that dropout keeps
  bool sums_kept = false;  // the row sum counts only kept weights
  // dropout_mode "framework": the item of the forward, or -1, and its first head.
  int64_t item = -1;
  int32_t first_head = 0;
};

/// Everything that bias, ALiBi and dropout need in one run, for the tiles of all ranks.
class ScoreTerms {
 public:
  /// Refers to the plan and the inputs.
  ScoreTerms(const Plan& plan, const RunInputs& inputs);

  bool is_on() const { return adds() || drops(); }
  bool adds() const { return has_alibi() || has_bias(); }
  bool has_alibi() const { return attention_.alibi; }
  bool has_bias() const { return attention_.bias != BiasShape::none; }
  bool drops() const { return attention_.dropout > 0; }
  const DropoutRule& dropout() const { return dropout_; }
  bool draws_by_item() const { return cpscope::draws_by_item(attention_); }
  const KeptWeights& kept() const { return kept_; }

  /// Of one head of an item, as the plan means them.
  TermNumbers numbers_of(const ComputeItem& item, int32_t head) const;
  TilePlaces places_of(RunListId q_tokens, RunListId kv_tokens) const;

  /// Keys of a sequence minus its queries: the distance of ALiBi is |i + this - j|.
  int64_t excess_keys(int32_t sequence) const { return excess_[static_cast<size_t>(sequence)]; }
  double slope(int32_t head) const { return slopes_[static_cast<size_t>(head)]; }
  /// The bias of one query of one head, from key 0 on.
  const double* bias_row(int32_t sequence, int32_t head, int64_t query) const;
  /// First cell of one query of one head among those of all heads and sequences.
  int64_t first_cell(int32_t sequence, int32_t head, int64_t query) const;
  int64_t count_cells() const { return first_cells_.back(); }
  /// Sums the cells of all heads and sequences in a fixed order, and rounds the sums to the dtype.
  template <class T>
  Tensor sum_cells(const AlignedVector<T>& cells) const;

 private:
  const Plan& plan_;
  const Attention& attention_;
  const Tensor& bias_;
  const KeptWeights& kept_;
  DropoutRule dropout_;
  std::vector<double> slopes_;                       // [head]
  std::vector<int64_t> excess_;                      // [sequence]
  std::vector<SequencePlace> q_places_, kv_places_;  // [packed padded id]
  std::vector<int64_t> first_cells_;                 // [sequence], and the end
};

/// The terms of one head of one compute item.
template <class T>
class TileTerms {
 public:
  /// `dbias`: cells of all heads and sequences to add the gradient to; empty: not wanted.
  TileTerms(const ScoreTerms& terms, const TilePlaces& places, const TermNumbers& numbers,
            std::span<T> dbias)
      : terms_(terms), places_(places), numbers_(numbers), dbias_(dbias) {}

  bool drops() const { return terms_.drops(); }
  bool wants_dbias() const { return !dbias_.empty(); }
  const TermNumbers& numbers() const { return numbers_; }

  /// Adds bias and ALiBi to the logits of `count` columns of a row.
  void add(int64_t row, int64_t first_column, T* logits, int64_t count) const;
  /// Multiplies kept weights by `kept`, dropped ones by `dropped`.
  void drop(int64_t row, int64_t first_column, T* weights, int64_t count, T kept,
            T dropped = T(0)) const;
  /// Adds to the gradient of the bias.
  void add_dbias(int64_t row, int64_t first_column, const T* gradient, int64_t count) const;

 private:
  /// As drop where every compute item draws for itself: the forward's item by its own rows and
  /// columns, the backward by what the forward has kept.
  void drop_by_item(int64_t row, int64_t first_column, T* weights, int64_t count, T kept,
                    T dropped) const;

  const ScoreTerms& terms_;
  const TilePlaces& places_;
  const TermNumbers numbers_;
  const std::span<T> dbias_;
};

}  // namespace cpscope::reference
