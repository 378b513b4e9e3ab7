#pragma once

// Private to the search for causes: the mistakes that are suspected, in forms that the oracle can
// carry out.

#include "sim/plan/plan.h"
#include "sim/run/grade/token_places.h"
#include "sim/run/judge.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

inline bool is_causal(MaskType type) {
  return type == MaskType::causal || type == MaskType::padding_causal;
}
inline bool is_bottom_right(MaskType type) {
  return type == MaskType::causal_bottom_right || type == MaskType::padding_causal_bottom_right;
}

/// What a mistake does to the parts that one rank's queries make with another rank's keys.
struct PartsMistake {
  std::string name, text;
  /// How often the part counts; empty: once.
  std::function<double(int32_t query_rank, int32_t key_rank)> times = {};
  /// The tensors that it can be in; empty: all.
  std::vector<std::string_view> tensors = {};
  /// Replaces the merge of normalised partial outputs: the weight of a part from its lse and the
  /// lse of the merge; empty: exp(lse - merged).
  enum class Merge {
    by_lse,
    mean,
    mean_of_ranks,
    sum,
    base_2,  // a natural lse taken for one to base 2
    base_e,  // an lse to base 2 taken for a natural one
    last_step,
    in_dtype  // out and lse are rounded to the dtype with every part
  } merge = Merge::by_lse;
  bool has_sink_in_every_part = false;
  /// A sum in a buffer that the next step writes: the last part counts twice, all others are lost,
  /// and a single part counts once.
  bool reuses_buffer = false;
};

/// One suspected mistake.
struct Suspect {
  std::string name;  // a word of the contract
  std::string text;  // one clause
  std::string layout = {};
  AlteredAttention attention;
  double sinks = 0.0;  // how often the sink enters
};

/// Parts are kept apart for at most this many ranks.
inline constexpr int32_t kMostRanksApart = 256;

/// The places and the mask of a plan, from which suspects are made.
class SuspectMaker {
 public:
  /// Refers to all of them.
  SuspectMaker(const Plan& plan, const MaskWitness& witness, const RunInputs& inputs);

  const TokenPlaces& queries() const { return queries_; }
  const TokenPlaces& keys() const { return keys_; }

  /// Whose keys, and whose queries, are kept apart.
  enum class Parts { none, of_ranks, of_p2p_groups };

  /// The question as it is asked.
  Suspect as_asked(Parts parts) const;
  using Take = std::function<void(const Suspect&)>;
  /// Every mistake in mask, positions, scale, sink or heads that this scenario can have, one after
  /// the other: each may hold numbers for every token.
  void make(const Take& take) const;
  /// Mistakes in which partial results are merged.
  std::vector<PartsMistake> parts_mistakes(Parts parts) const;
  /// Layouts of the same tokens that give some rank other ones, or in another order.
  struct OtherLayout {
    std::string name;
    std::vector<std::vector<int64_t>> query_ids = {}, key_ids = {};  // as in TokenPlaces
  };
  const std::vector<OtherLayout>& other_layouts() const { return others_; }

 private:
  using Times = std::function<double(int64_t, int64_t)>;
  bool add_other(OtherLayout other);  // false: it is the plan's own
  std::vector<int64_t> places_from_end() const;
  Times by_mask(const Scenario& scenario) const;
  Times by_positions(std::vector<int64_t> queries, std::vector<int64_t> keys,
                     bool within_sequences) const;
  Suspect with_times(const char* name, std::string text, Times times) const;
  Suspect with_rotation(Suspect suspect, const std::vector<int64_t>& queries,
                        const std::vector<int64_t>& keys) const;
  Suspect with_attention(const char* name, std::string text, const Attention& attention) const;
  void add_masks(const Take& take) const;
  void add_documents(const Take& take) const;
  void add_padding(const Take& take) const;
  void add_ranks_alone(const Take& take) const;
  void add_local_masks(const Take& take) const;
  void add_layout_masks(const Take& take) const;
  void add_masks_by_rank(const Take& take) const;
  void add_ring_halves(const Take& take) const;
  void add_missing_chunks(const Take& take) const;
  void add_exchanged_lse(const Take& take) const;
  void add_rotations(const Take& take) const;
  void add_numbers(const Take& take) const;
  void add_terms(const Take& take) const;
  template <class Add>
  void add_draws_by_item(Add add) const;
  /// The terms of other positions and heads than a token's own; `of` may be empty.
  struct TermPlaces {
    const std::vector<int64_t>& queries;  // [token]
    const std::vector<int64_t>& keys;
    bool heads_from_zero = false;  // of the rank that computes the head
  };
  using TokenTerms = std::function<PairTerm(int64_t, int64_t, int32_t)>;
  TokenTerms terms_at(PairTermsOf of, const TermPlaces& places) const;

  const Plan& plan_;
  const Scenario& scenario_;
  const MaskWitness& witness_;
  const RunInputs& inputs_;
  const PairTermsOf terms_;  // of the scenario; empty if it has none
  TokenPlaces queries_, keys_;
  LayoutKind kind_;  // of the plan; where an imported order is that of a kind, this one
  std::vector<OtherLayout> others_;
  mutable std::deque<Scenario> others_without_;  // with other terms, for witness_.terms
  mutable std::deque<RunInputs> others_inputs_;  // with other draws, for the same
};

}  // namespace cpscope
