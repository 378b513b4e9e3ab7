#include "sim/run/grade/suspects.h"

#include "sim/plan/rotary_positions.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

bool has_window(const Attention& attention) {
  return attention.window_left >= 0 || attention.window_right >= 0;
}

/// A batch of one sequence.
Scenario one_sequence(const Scenario& scenario, int64_t queries, int64_t keys) {
  Scenario one = scenario;
  one.batch.lengths = {queries};
  one.batch.kv_lengths = {keys};
  return one;
}

std::vector<int32_t> heads_in_groups(const Attention& attention) {
  std::vector<int32_t> heads(static_cast<size_t>(attention.heads));
  for (int32_t head = 0; head < attention.heads; ++head)
    heads[static_cast<size_t>(head)] = head / (attention.heads / attention.kv_heads);
  return heads;
}

std::vector<int64_t> count_from_zero(int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  return numbers;
}

using Ids = std::vector<std::vector<int64_t>>;

/// True if every rank owns as many tokens in both orders.
bool have_same_sizes(const Ids& own, const Ids& other) {
  return std::equal(own.begin(), own.end(), other.begin(), other.end(),
                    [](const auto& a, const auto& b) { return a.size() == b.size(); });
}

/// Numbers by which a size can be divided, itself and 1 left out.
std::vector<int32_t> proper_divisors(int32_t size) {
  std::vector<int32_t> divisors;
  for (int32_t n = 2; n < size; ++n)
    if (size % n == 0) divisors.push_back(n);
  return divisors;
}

}  // namespace

SuspectMaker::SuspectMaker(const Plan& plan, const MaskWitness& witness, const RunInputs& inputs)
    : plan_(plan),
      scenario_(plan.scenario),
      witness_(witness),
      inputs_(inputs),
      terms_(witness.terms(plan.scenario, inputs)),
      queries_(places_of(plan.layout, Side::q)),
      keys_(places_of(plan.layout, Side::kv)),
      kind_(plan.layout.kind) {
  for (const LayoutKind kind :
       {LayoutKind::contiguous, LayoutKind::dual_chunk, LayoutKind::dual_chunk_packed,
        LayoutKind::striped, LayoutKind::lpt, LayoutKind::lpt_local}) {
    if (kind == plan.layout.kind || plan.layout.cp_size < 2) continue;
    Scenario other = scenario_;
    other.parallel.layout = kind;
    // Of the same slots, as this layout has rounded them.
    for (size_t s = 0; s < other.batch.slots.size(); ++s) {
      other.batch.slots[s] = plan.layout.slots.sequences[s].q_slot;
      other.batch.kv_slots[s] = plan.layout.slots.sequences[s].kv_slot;
    }
    const Result<Layout> layout = make_layout(other);
    if (!layout || layout.value().slots.sequences != plan.layout.slots.sequences ||
        layout.value().slots.tokens != plan.layout.slots.tokens ||
        layout.value().slots.kv_tokens != plan.layout.slots.kv_tokens)
      continue;
    OtherLayout found{std::string(to_name(kind)), ids_by_rank(layout.value(), Side::q),
                      ids_by_rank(layout.value(), Side::kv)};
    if (!add_other(std::move(found)) && kind_ == LayoutKind::indices)
      kind_ = kind;  // an imported order may be one of these
  }
  const int32_t inner = scenario_.parallel.a2a_size, outer = plan.layout.cp_size / inner;
  if (!has_head_groups(scenario_.parallel.comm_type)) return;
  // Ranks that are numbered as if the a2a level were the outer one.
  OtherLayout swapped{fmt::format("{}, ranks of an a2a group {} apart", to_name(kind_), outer)};
  for (int32_t rank = 0; rank < plan.layout.cp_size; ++rank) {
    const auto other = static_cast<size_t>(rank % outer * inner + rank / outer);
    swapped.query_ids.push_back(queries_.ids[other]);
    swapped.key_ids.push_back(keys_.ids[other]);
  }
  add_other(std::move(swapped));
}

bool SuspectMaker::add_other(OtherLayout other) {
  if (other.query_ids == queries_.ids && other.key_ids == keys_.ids) return false;
  if (have_same_sizes(queries_.ids, other.query_ids) && have_same_sizes(keys_.ids, other.key_ids))
    others_.push_back(std::move(other));
  return true;
}

Suspect SuspectMaker::as_asked(Parts parts) const {
  Suspect suspect;
  AlteredAttention& altered = suspect.attention;
  altered.times = by_mask(scenario_);
  // A long batch would keep them for every suspect.
  if (scenario_.attention.rope_theta > 0) {
    altered.query_positions = rotary_positions(scenario_, plan_.layout.slots, Side::q);
    altered.key_positions = rotary_positions(scenario_, plan_.layout.slots, Side::kv);
  }
  altered.theta = scenario_.attention.rope_theta;
  const Attention& asked = scenario_.attention;
  altered.latent_dim = asked.has_v_in_k() ? asked.latent_dim : 0;
  altered.first_rotated = asked.first_rotated_of_q();
  altered.scale = scenario_.attention.effective_scale();
  altered.softcap = scenario_.attention.softcap;
  altered.kv_head_of =
      heads_in_groups(asked.expands_rows() ? asked.with_expanded_rows(asked.heads) : asked);
  altered.terms = terms_at(terms_, {queries_.position, keys_.position});
  if (parts != Parts::none) {
    const int32_t size = parts == Parts::of_ranks ? 1 : scenario_.parallel.a2a_size;
    altered.ranks = plan_.layout.cp_size / size;
    altered.query_ranks = queries_.rank;
    altered.key_ranks = keys_.rank;
    for (auto* ranks : {&altered.query_ranks, &altered.key_ranks})
      for (int32_t& rank : *ranks) rank /= size;
  }
  suspect.sinks = scenario_.attention.softmax_type == SoftmaxType::vanilla ? 0.0 : 1.0;
  return suspect;
}

/// The mask of a scenario of the same sequences.
SuspectMaker::Times SuspectMaker::by_mask(const Scenario& scenario) const {
  return [this, visible = witness_.is_visible(scenario)](int64_t query, int64_t key) {
    const int32_t sequence = queries_.sequence[static_cast<size_t>(query)];
    if (sequence < 0 || sequence != keys_.sequence[static_cast<size_t>(key)]) return 0.0;
    return visible(sequence, queries_.position[static_cast<size_t>(query)],
                   keys_.position[static_cast<size_t>(key)])
               ? 1.0
               : 0.0;
  };
}

/// The mask applied to other positions of the valid tokens, as in one long sequence that is as
/// long for queries as for keys.
SuspectMaker::Times SuspectMaker::by_positions(std::vector<int64_t> queries,
                                               std::vector<int64_t> keys,
                                               bool within_sequences) const {
  const int64_t length = std::max(queries_.tokens(), keys_.tokens());
  return [this, within_sequences, queries = std::move(queries), keys = std::move(keys),
          visible = witness_.is_visible(one_sequence(scenario_, length, length))](int64_t query,
                                                                                  int64_t key) {
    const int32_t sequence = queries_.sequence[static_cast<size_t>(query)],
                  other = keys_.sequence[static_cast<size_t>(key)];
    if (sequence < 0 || other < 0 || (within_sequences && sequence != other)) return 0.0;
    return visible(0, queries[static_cast<size_t>(query)], keys[static_cast<size_t>(key)]) ? 1.0
                                                                                           : 0.0;
  };
}

Suspect SuspectMaker::with_times(const char* name, std::string text, Times times) const {
  Suspect suspect = as_asked(Parts::none);
  suspect.name = name;
  suspect.text = std::move(text);
  suspect.attention.times = std::move(times);
  return suspect;
}

Suspect SuspectMaker::with_rotation(Suspect suspect, const std::vector<int64_t>& queries,
                                    const std::vector<int64_t>& keys) const {
  suspect.attention.query_positions = queries;
  suspect.attention.key_positions = keys;
  return suspect;
}

Suspect SuspectMaker::with_attention(const char* name, std::string text,
                                     const Attention& attention) const {
  Scenario altered = scenario_;
  altered.attention = attention;
  return with_times(name, std::move(text), by_mask(altered));
}

void SuspectMaker::make(const Take& take) const {
  add_documents(take);
  add_masks(take);
  add_padding(take);
  if (plan_.layout.cp_size > 1) {
    add_ranks_alone(take);
    add_local_masks(take);
    add_layout_masks(take);
    add_masks_by_rank(take);
    add_ring_halves(take);
    add_missing_chunks(take);
    add_exchanged_lse(take);
  }
  add_rotations(take);
  add_numbers(take);
  add_terms(take);
}

void SuspectMaker::add_documents(const Take& take) const {
  if (scenario_.batch.lengths.size() < 2) return;
  const char* name = "documents_ignored";
  const auto add = [&](std::string text, Times times, const std::vector<int64_t>& queries,
                       const std::vector<int64_t>& keys) {
    take(with_times(name, text, times));
    if (scenario_.attention.rope_theta != 0.0)
      take(with_rotation(with_times(name, text + ", and RoPE counts through it", std::move(times)),
                         queries, keys));
  };
  const int64_t valid_queries = queries_.valid_before.back() + (queries_.sequence.back() >= 0),
                valid_keys = keys_.valid_before.back() + (keys_.sequence.back() >= 0);
  add(
      "the valid tokens of the batch are treated as one sequence",
      [this, visible = witness_.is_visible(one_sequence(scenario_, valid_queries, valid_keys))](
          int64_t query, int64_t key) {
        const auto q = static_cast<size_t>(query), k = static_cast<size_t>(key);
        return queries_.sequence[q] >= 0 && keys_.sequence[k] >= 0 &&
                       visible(0, queries_.valid_before[q], keys_.valid_before[k])
                   ? 1.0
                   : 0.0;
      },
      queries_.valid_before, keys_.valid_before);
  if (scenario_.attention.mask_type == MaskType::slices) return;
  const IsVisible visible =
      witness_.is_visible(one_sequence(scenario_, queries_.tokens(), keys_.tokens()));
  if (valid_queries != queries_.tokens() || valid_keys != keys_.tokens())
    add(
        "the packed batch is treated as one sequence, padding included",
        [visible](int64_t query, int64_t key) { return visible(0, query, key) ? 1.0 : 0.0; },
        count_from_zero(queries_.tokens()), count_from_zero(keys_.tokens()));
  // A ring that is told of one sequence takes the local buffers for that sequence's chunks.
  for (const OtherLayout& other : others_) {
    const std::vector<int64_t> queries = ids_in(queries_.ids, other.query_ids),
                               keys = ids_in(keys_.ids, other.key_ids);
    add(
        fmt::format("the ranks' buffers are treated as one sequence in layout {}", other.name),
        [visible, queries, keys](int64_t query, int64_t key) {
          return visible(0, queries[static_cast<size_t>(query)], keys[static_cast<size_t>(key)])
                     ? 1.0
                     : 0.0;
        },
        queries, keys);
  }
}

void SuspectMaker::add_masks(const Take& take) const {
  const Attention& asked = scenario_.attention;
  const bool is_cross = scenario_.batch.lengths != scenario_.batch.kv_lengths;
  const bool has_slices = asked.mask_type == MaskType::slices;
  Attention full = asked;
  full.mask_type = MaskType::no_mask;
  full.slices.clear();
  if (is_causal(asked.mask_type) || is_bottom_right(asked.mask_type)) {
    take(with_attention("causal_ignored", "queries see the keys after them", full));
  } else if (has_slices) {
    Attention rectangles = asked;
    for (MaskSlice& slice : rectangles.slices) slice.type = SliceType::full;
    if (rectangles.slices != asked.slices)
      take(with_attention("causal_ignored", "all slices are full", rectangles));
    take(with_attention("slices_ignored", "queries see every key of their sequence", full));
  }
  if (!is_causal(asked.mask_type)) {
    Attention causal = asked;
    causal.mask_type = MaskType::causal;
    causal.slices.clear();
    const bool is_top_left = is_bottom_right(asked.mask_type);
    if (!is_top_left || is_cross)
      take(is_top_left ? with_attention("aligned_top_left",
                                        "the causal diagonal begins at the first key", causal)
                       : with_attention("causal_added", "queries see no keys after them", causal));
  }
  if (is_causal(asked.mask_type) && is_cross) {
    Attention bottom = asked;
    bottom.mask_type = MaskType::causal_bottom_right;
    take(
        with_attention("aligned_bottom_right", "the causal diagonal ends at the last key", bottom));
  }
  if (has_window(asked)) {
    Attention open = asked;
    open.window_left = open.window_right = -1;
    take(with_attention("window_ignored", "queries see keys outside the window", open));
    if (is_cross && !has_slices) {
      take(with_times("aligned_top_left", "the window is aligned with the first key",
                      by_positions(queries_.position, keys_.position, true)));
    }
    for (const int64_t by : {-1, 1}) {
      for (const bool is_left : {true, false}) {
        Attention moved = asked;
        int64_t& edge = is_left ? moved.window_left : moved.window_right;
        if (edge < 0 || edge + by < 0) continue;
        edge += by;
        take(with_attention(
            "mask_shifted",
            fmt::format("the {} edge of the window is {}", is_left ? "left" : "right", edge),
            moved));
      }
    }
  }
  if (asked.chunk_size > 0) {
    Attention open = asked;
    open.chunk_size = 0;
    take(with_attention("chunk_ignored", "queries see keys of other chunks", open));
  }
  if (is_causal(asked.mask_type) || is_bottom_right(asked.mask_type)) {
    for (const int64_t by : {-1, 1}) {
      // Compared as positions of one long sequence, so that only the diagonal moves.
      std::vector<int64_t> queries = queries_.position;
      const bool ends_last = is_bottom_right(asked.mask_type);
      for (size_t at = 0; at < queries.size(); ++at) {
        if (queries_.sequence[at] < 0) continue;
        const auto s = static_cast<size_t>(queries_.sequence[at]);
        queries[at] += by;
        if (ends_last) queries[at] += scenario_.batch.kv_lengths[s] - scenario_.batch.lengths[s];
      }
      Scenario other = scenario_;
      other.attention.mask_type = MaskType::no_mask;
      const Times moved = [this, queries, open = by_mask(other)](int64_t query, int64_t key) {
        return keys_.position[static_cast<size_t>(key)] <= queries[static_cast<size_t>(query)]
                   ? open(query, key)
                   : 0.0;
      };
      take(with_times("mask_shifted",
                      by > 0 ? "the causal diagonal is one key too far to the right"
                             : "the causal diagonal is one key too far to the left",
                      moved));
    }
  }
}

void SuspectMaker::add_padding(const Take& take) const {
  if (scenario_.attention.mask_type == MaskType::slices) return;
  Scenario slots = scenario_;
  bool has_padding = false, is_aligned_otherwise = false;
  for (size_t s = 0; s < plan_.layout.slots.sequences.size(); ++s) {
    const SequenceSlot& slot = plan_.layout.slots.sequences[s];
    slots.batch.lengths[s] = slot.q_slot;
    slots.batch.kv_lengths[s] = slot.kv_slot;
    has_padding = has_padding || slot.kv_slot > slot.kv_valid;
    is_aligned_otherwise =
        is_aligned_otherwise || slot.kv_slot - slot.q_slot != slot.kv_valid - slot.q_valid;
  }
  if (!has_padding && !is_aligned_otherwise) return;
  const auto by_slots = [this, visible = witness_.is_visible(slots)](int64_t query, int64_t key) {
    const auto q = static_cast<size_t>(query), k = static_cast<size_t>(key);
    return queries_.slot[q] >= 0 && queries_.slot[q] == keys_.slot[k] &&
                   visible(queries_.slot[q], queries_.in_slot[q], keys_.in_slot[k])
               ? 1.0
               : 0.0;
  };
  take(with_times("padding_visible", "queries see the padding of their slot", by_slots));
  if (scenario_.batch.pad_side == PadSide::left)
    take(with_times("padding_side_ignored",
                    "the valid tokens are taken to be at the front of their slot",
                    [this, visible = witness_.is_visible(scenario_)](int64_t query, int64_t key) {
                      const auto q = static_cast<size_t>(query), k = static_cast<size_t>(key);
                      const int32_t sequence = queries_.slot[q];
                      if (sequence < 0 || sequence != keys_.slot[k]) return 0.0;
                      const auto s = static_cast<size_t>(sequence);
                      return queries_.in_slot[q] < scenario_.batch.lengths[s] &&
                                     keys_.in_slot[k] < scenario_.batch.kv_lengths[s] &&
                                     visible(sequence, queries_.in_slot[q], keys_.in_slot[k])
                                 ? 1.0
                                 : 0.0;
                    }));
  if (!is_aligned_otherwise) return;
  take(with_times(
      "aligned_by_padding", "the mask is aligned by the padded lengths of queries and keys",
      [this, by_slots](int64_t query, int64_t key) {
        return keys_.sequence[static_cast<size_t>(key)] < 0 ? 0.0 : by_slots(query, key);
      }));
}

void SuspectMaker::add_ranks_alone(const Take& take) const {
  const auto restrict = [&](std::string text, std::function<bool(int32_t, int32_t)> together) {
    take(with_times("rank_alone", std::move(text),
                    [this, asked = by_mask(scenario_), together = std::move(together)](
                        int64_t query, int64_t key) {
                      return together(queries_.rank[static_cast<size_t>(query)],
                                      keys_.rank[static_cast<size_t>(key)])
                                 ? asked(query, key)
                                 : 0.0;
                    }));
  };
  restrict("every rank sees only its own keys", [](int32_t q, int32_t k) { return q == k; });
  for (const int32_t size : proper_divisors(plan_.layout.cp_size))
    restrict(fmt::format("every group of {} consecutive ranks sees only its own keys", size),
             [size](int32_t q, int32_t k) { return q / size == k / size; });
  if (has_head_groups(scenario_.parallel.comm_type))
    restrict("every p2p group sees only its own keys",
             [size = scenario_.parallel.a2a_size](int32_t q, int32_t k) {
               return q % size == k % size;
             });
  if (scenario_.attention.mask_type == MaskType::slices) return;
  // A framework that is not told of context parallelism sees its shard as one sequence.
  const Suspect shard = with_times(
      "rank_alone", "every rank treats its own tokens as one sequence",
      [this, local = by_positions(queries_.local, keys_.local, false)](int64_t query, int64_t key) {
        return queries_.rank[static_cast<size_t>(query)] == keys_.rank[static_cast<size_t>(key)]
                   ? local(query, key)
                   : 0.0;
      });
  take(shard);
  if (scenario_.attention.rope_theta == 0.0) return;
  Suspect rotated = with_rotation(shard, queries_.local, keys_.local);
  rotated.text += ", RoPE too";
  take(rotated);
}

void SuspectMaker::add_local_masks(const Take& take) const {
  if (scenario_.attention.mask_type == MaskType::slices) return;
  const bool looks_at_places = scenario_.attention.mask_type != MaskType::no_mask &&
                               scenario_.attention.mask_type != MaskType::padding;
  if (!looks_at_places && !has_window(scenario_.attention) && scenario_.attention.chunk_size == 0)
    return;
  struct Way {
    const char* text;
    std::vector<int64_t> queries, keys;
  };
  for (const Way& way :
       {Way{"the mask compares places in the ranks' buffers", queries_.local, keys_.local},
        Way{"the mask compares places in the ranks' parts of the sequence",
            queries_.local_in_sequence, keys_.local_in_sequence},
        Way{"the mask compares positions of queries with places of keys in their rank's part",
            queries_.position, keys_.local_in_sequence},
        Way{"the mask compares places of queries in their rank's part with positions of keys",
            queries_.local_in_sequence, keys_.position},
        Way{"the mask of every rank's queries ends at the last key of their sequence",
            places_from_end(), keys_.position}})
    take(with_times("mask_by_local_place", way.text, by_positions(way.queries, way.keys, true)));
  // The window by place, the causal diagonal by position: ring steps of later ranks are skipped.
  if (has_window(scenario_.attention) && looks_at_places) {
    take(with_times("mask_by_local_place",
                    "the window compares places in the ranks' buffers, and later keys are not seen",
                    [this, by_place = by_positions(queries_.local, keys_.local, true)](
                        int64_t query, int64_t key) {
                      return keys_.position[static_cast<size_t>(key)] <=
                                     queries_.position[static_cast<size_t>(query)]
                                 ? by_place(query, key)
                                 : 0.0;
                    }));
  }
  // The chunk by place, the causal diagonal by position.
  if (scenario_.attention.chunk_size > 0 && looks_at_places) {
    Scenario open = scenario_;
    open.attention.chunk_size = 0;
    const int64_t chunk = scenario_.attention.chunk_size;
    take(with_times("mask_by_local_place",
                    "chunks are cut by places in the ranks' parts of the sequence",
                    [this, chunk, times = by_mask(open)](int64_t query, int64_t key) {
                      return queries_.local_in_sequence[static_cast<size_t>(query)] / chunk ==
                                     keys_.local_in_sequence[static_cast<size_t>(key)] / chunk
                                 ? times(query, key)
                                 : 0.0;
                    }));
  }
}

/// [token] Positions of queries if the last one of every rank stands at the end of the sequence.
std::vector<int64_t> SuspectMaker::places_from_end() const {
  std::vector<int64_t> places(queries_.position.size(), 0);
  for (size_t at = 0; at < places.size(); ++at) {
    if (queries_.slot[at] < 0) continue;
    const auto slot = static_cast<size_t>(queries_.slot[at]);
    places[at] = plan_.layout.slots.sequences[slot].kv_slot - queries_.rows_of_slot[at] +
                 queries_.local_in_sequence[at];
  }
  return places;
}

void SuspectMaker::add_layout_masks(const Take& take) const {
  if (scenario_.attention.mask_type == MaskType::slices) return;
  const auto add = [&](const char* name, std::string text, std::vector<int64_t> queries,
                       std::vector<int64_t> keys, std::string layout) {
    Suspect suspect = with_times(name, std::move(text),
                                 [queries = std::move(queries), keys = std::move(keys),
                                  asked = by_mask(scenario_)](int64_t query, int64_t key) {
                                   const int64_t q = queries[static_cast<size_t>(query)],
                                                 k = keys[static_cast<size_t>(key)];
                                   return q < 0 || k < 0 ? 0.0 : asked(q, k);
                                 });
    suspect.layout = std::move(layout);
    take(suspect);
  };
  for (const OtherLayout& other : others_)
    add("other_layout", fmt::format("the mask is that of layout {}", other.name),
        ids_in(queries_.ids, other.query_ids), ids_in(keys_.ids, other.key_ids), other.name);
  add("rows_exchanged", "the mask is that of buffers in which each rank's halves are exchanged",
      ids_with_halves_exchanged(queries_), ids_with_halves_exchanged(keys_), {});
}

void SuspectMaker::add_rotations(const Take& take) const {
  if (scenario_.attention.rope_theta == 0.0) return;
  const auto add = [&](const char* name, std::string text, const std::vector<int64_t>& queries,
                       const std::vector<int64_t>& keys) {
    take(with_rotation(with_times(name, std::move(text), by_mask(scenario_)), queries, keys));
  };
  Suspect ignored = with_times("rope_ignored", "q and k are not rotated", by_mask(scenario_));
  ignored.attention.theta = 0.0;
  take(ignored);
  if (scenario_.attention.has_v_in_k() && scenario_.attention.head_dim_qk % 2 == 0) {
    Suspect whole = as_asked(Parts::none);
    whole.name = "v_rotated";
    whole.text = "RoPE turns all elements of q and k, those that v is too";
    whole.attention.first_rotated = 0;
    take(whole);
  }
  if (scenario_.attention.rotates_queries_from_end())
    add("rope_from_start", "RoPE of q counts from 0, as if no key came before the queries",
        queries_.position, keys_.position);
  if (!scenario_.batch.q_positions.empty())
    add("rope_from_start", "RoPE counts places in the sequence, not positions_file",
        queries_.position, keys_.position);
  add("rope_by_local_place", "RoPE counts places in the ranks' buffers", queries_.local,
      keys_.local);
  add("rope_by_local_place", "RoPE counts places in the ranks' parts of the sequence",
      queries_.local_in_sequence, keys_.local_in_sequence);
  add("rope_by_local_place", "RoPE of q alone counts places in the ranks' parts of the sequence",
      queries_.local_in_sequence, keys_.position);
  add("rope_by_local_place", "RoPE of k alone counts places in the ranks' parts of the sequence",
      queries_.position, keys_.local_in_sequence);
}

void SuspectMaker::add_numbers(const Take& take) const {
  const Attention& asked = scenario_.attention;
  const double scale = asked.effective_scale();
  const auto add = [&](const char* name, std::string text,
                       const std::function<void(Suspect&)>& alter) {
    Suspect suspect = with_times(name, std::move(text), by_mask(scenario_));
    alter(suspect);
    take(suspect);
  };
  const double dim = asked.head_dim_qk;
  for (const auto& [other, what] : std::initializer_list<std::pair<double, const char*>>{
           {1.0, "1"},
           {1.0 / dim, "1/head_dim"},
           {1.0 / std::sqrt(dim), "1/sqrt(head_dim)"},
           {1.0 / std::sqrt(static_cast<double>(asked.head_dim_v)), "1/sqrt(head_dim_v)"},
           {scale * scale, "applied twice"},
           {scale * std::log(2.0), "softmax_scale/log2(e): exp2 of natural logits"}}) {
    if (std::abs(other - scale) > 1e-9 * scale)
      add("scale_ignored", fmt::format("the scale of the logits is {}", what),
          [value = other](Suspect& suspect) { suspect.attention.scale = value; });
  }
  if (asked.softcap != 0.0)
    add("softcap_ignored", "logits are not capped",
        [](Suspect& suspect) { suspect.attention.softcap = 0.0; });
  if (asked.softmax_type != SoftmaxType::vanilla) {
    const auto add_sinks = [&](const char* name, const char* text, double sinks) {
      add(name, text, [sinks](Suspect& suspect) { suspect.sinks = sinks; });
    };
    add_sinks("sink_ignored", "the sink is left out", 0.0);
    add_sinks("sink_counted_twice", "the sink enters twice", 2.0);
    if (plan_.layout.cp_size > 2)
      add_sinks("sink_counted_twice", "the sink enters once for every rank", plan_.layout.cp_size);
  }
  if (asked.latent_dim > 0 && scenario_.numerics.backward) {
    add("dv_not_added", "dk lacks the gradient of v, which k stands for",
        [](Suspect& suspect) { suspect.attention.value_gradients = 0.0; });
    add("dv_added_twice", "the gradient of v is added to dk twice",
        [](Suspect& suspect) { suspect.attention.value_gradients = 2.0; });
    if (asked.has_v_in_k() && asked.latent_dim < asked.head_dim_qk)
      add("dv_misplaced", "the gradient of v is added to the last elements of dk",
          [&](Suspect& suspect) {
            suspect.attention.value_gradients_at = asked.head_dim_qk - asked.latent_dim;
          });
  }
  const Parallel& parallel = scenario_.parallel;
  const bool is_a2a = parallel.comm_type == CommType::a2a;
  const int32_t of_rank = asked.heads / (is_a2a ? plan_.layout.cp_size : parallel.a2a_size);
  if (asked.expands_rows() && (is_a2a || has_head_groups(parallel.comm_type)) && of_rank > 0)
    add("weights_by_local_head",
        "latent rows are expanded with the weights of head 0 and those after it on every rank",
        [&](Suspect& suspect) {
          for (int32_t& head : suspect.attention.kv_head_of) head %= of_rank;
        });
  if (asked.kv_heads > 1 && asked.kv_heads < asked.heads)
    add("kv_heads_interleaved", "query head h reads KV head h mod kv_heads", [&](Suspect& suspect) {
      for (int32_t head = 0; head < asked.heads; ++head)
        suspect.attention.kv_head_of[static_cast<size_t>(head)] = head % asked.kv_heads;
    });
  std::vector<double> counts{2.0};
  if (plan_.layout.cp_size > 2) counts.push_back(plan_.layout.cp_size);
  for (const double times : counts)
    add("keys_counted_twice", fmt::format("every key counts {} times in the softmax", times),
        [&](Suspect& suspect) {
          suspect.attention.times = [asked_times = by_mask(scenario_), times](
                                        int64_t q, int64_t k) { return times * asked_times(q, k); };
        });
}

}  // namespace cpscope
