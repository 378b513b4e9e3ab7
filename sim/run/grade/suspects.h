#pragma once

// Private to the search for causes: the mistakes that are suspected, in forms that the oracle can
// carry out.

#include "sim/plan/plan.h"
#include "sim/run/grade/token_places.h"
#include "sim/run/judge.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cpscope {

/// What a mistake does to the parts that one rank's queries make with another rank's keys.
struct PartsMistake {
  std::string name, text;
  /// How often the part counts; empty: once.
  std::function<double(int32_t query_rank, int32_t key_rank)> times = {};
  /// Replaces the merge of normalised partial outputs: the weight of a part from its lse and the
  /// lse of the merge; empty: exp(lse - merged).
  enum class Merge {
    by_lse,
    mean,
    mean_of_ranks,
    sum,
    base_2,  // a natural lse taken for one to base 2
    base_e,  // an lse to base 2 taken for a natural one
    last_step
  } merge = Merge::by_lse;
  bool has_sink_in_every_part = false;
  bool of_keys_only = false;     // a mistake in dk and dv
  bool of_queries_only = false;  // a mistake in out and lse
};

/// One suspected mistake.
struct Suspect {
  std::string name;  // a word of the contract
  std::string text;  // one clause
  std::string layout = {};
  AlteredAttention attention;
  double sinks = 0.0;  // how often the sink enters
};

/// The places and the mask of a plan, from which suspects are made.
class SuspectMaker {
 public:
  SuspectMaker(const Plan& plan, const MaskWitness& witness);

  const TokenPlaces& queries() const { return queries_; }
  const TokenPlaces& keys() const { return keys_; }

  /// The question as it is asked; `ranks` parts, or one.
  Suspect as_asked(bool by_rank) const;
  /// Every mistake in mask, positions, scale, sink or heads that this scenario can have.
  std::vector<Suspect> make() const;
  /// Mistakes in which partial results are merged.
  std::vector<PartsMistake> parts_mistakes() const;
  /// Layouts of the same tokens, with their local buffers: [layout] name, and ids as in
  /// TokenPlaces, of queries and of keys.
  struct OtherLayout {
    std::string name;
    TokenPlaces queries, keys;
  };
  const std::vector<OtherLayout>& other_layouts() const { return others_; }

 private:
  using Times = std::function<double(int64_t, int64_t)>;
  Times by_mask(const Scenario& scenario) const;
  Times by_positions(std::vector<int64_t> queries, std::vector<int64_t> keys,
                     bool within_sequences) const;
  Suspect with_times(const char* name, std::string text, Times times) const;
  Suspect with_attention(const char* name, std::string text, const Attention& attention) const;
  void add_masks(std::vector<Suspect>& all) const;
  void add_documents(std::vector<Suspect>& all) const;
  void add_padding(std::vector<Suspect>& all) const;
  void add_ranks_alone(std::vector<Suspect>& all) const;
  void add_local_masks(std::vector<Suspect>& all) const;
  void add_layout_masks(std::vector<Suspect>& all) const;
  void add_masks_by_rank(std::vector<Suspect>& all) const;
  void add_rotations(std::vector<Suspect>& all) const;
  void add_numbers(std::vector<Suspect>& all) const;

  const Plan& plan_;
  const Scenario& scenario_;
  const MaskWitness& witness_;
  TokenPlaces queries_, keys_;
  std::vector<OtherLayout> others_;
};

}  // namespace cpscope
