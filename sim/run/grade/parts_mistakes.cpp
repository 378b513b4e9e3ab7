#include "sim/run/grade/suspects.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace cpscope {

std::vector<PartsMistake> SuspectMaker::parts_mistakes(Parts parts) const {
  const bool is_of_ranks = parts == Parts::of_ranks;
  const int32_t ranks = plan_.layout.cp_size / (is_of_ranks ? 1 : scenario_.parallel.a2a_size);
  const char* rank_noun = is_of_ranks ? "rank" : "p2p group";
  const std::vector<std::string_view> of_keys{"dk", "dv"}, of_queries{"out", "lse"};
  std::vector<PartsMistake> all;
  all.push_back({.name = "local_gradients_only",
                 .text = fmt::format("a {}'s dk and dv hold the gradients of its own queries alone",
                                     rank_noun),
                 .times = [](int32_t q, int32_t k) { return q == k ? 1.0 : 0.0; },
                 .tensors = of_keys});
  const bool is_ring = scenario_.parallel.comm_type == CommType::p2p || !is_of_ranks;
  if (is_ring)
    all.push_back({.name = "buffer_reused",
                   .text = "dq is twice the part of the last ring step: the sum and the results of "
                           "the steps share a buffer",
                   .tensors = {"dq"},
                   .reuses_buffer = true});
  for (const auto& [times, name, what] :
       std::initializer_list<std::tuple<double, const char*, const char*>>{
           {0.0, "partial_missing", "is missing"},
           {2.0, "keys_counted_twice", "is merged twice"}}) {
    const auto first = std::ssize(all);
    for (int32_t apart = 0; apart < ranks; ++apart) {
      // Every rank alone is suspected before, but not by heads.
      if (ranks == 2 && times == 0.0 && apart == 1 && !owns_heads(scenario_.parallel)) continue;
      all.push_back({.name = name,
                     .text = is_ring
                                 ? fmt::format("the partial of ring step {}, {} r - {}'s keys, {}",
                                               apart + 1, rank_noun, apart, what)
                                 : fmt::format("the part of rank r - {}'s keys {}", apart, what),
                     .times = [apart, ranks, times = times](int32_t q, int32_t k) {
                       return (q - k + ranks) % ranks == apart ? times : 1.0;
                     }});
    }
    const auto of_named = std::ssize(all);
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const std::string text = fmt::format("the part of {} {}'s keys {}", rank_noun, rank, what);
      // In all rows, or in those that other ranks own: what a rank keeps need not travel.
      all.push_back(
          {.name = name,
           .text = text,
           .times = [rank, times = times](int32_t, int32_t k) { return k == rank ? times : 1.0; },
           .tensors = {"out", "lse", "dq"}});
      all.push_back(
          {.name = name, .text = text, .times = [rank, times = times](int32_t q, int32_t k) {
             return k == rank && q != rank ? times : 1.0;
           }});
      all.push_back(
          {.name = name,
           .text = fmt::format("the share of {} {}'s queries {}", rank_noun, rank, what),
           .times = [rank, times = times](
                        int32_t q, int32_t k) { return q == rank && k != rank ? times : 1.0; },
           .tensors = of_keys});
    }
    // One rank that explains all rows is named rather than r - 1, unless that is a step of a ring.
    if (!is_ring) std::rotate(all.begin() + first, all.begin() + of_named, all.end());
  }
  using Merge = PartsMistake::Merge;
  for (const auto& [merge, text] : std::initializer_list<std::pair<Merge, const char*>>{
           {Merge::mean, "the outputs of the parts that see a key are averaged"},
           {Merge::mean_of_ranks, "the outputs of all ranks' parts are averaged"},
           {Merge::sum, "the outputs of the parts are added"},
           {Merge::base_2, "parts are weighed by 2 to the power of their natural lse"},
           {Merge::base_e, "parts are weighed by e to the power of their lse to base 2"},
           {Merge::last_step, "the last part overwrites the others"}})
    all.push_back(
        {.name = "merge_without_lse", .text = text, .tensors = of_queries, .merge = merge});
  const Dtype dtype = scenario_.numerics.dtype;
  if (dtype == Dtype::bf16 || dtype == Dtype::fp16)
    all.push_back(
        {.name = "merge_in_dtype",
         .text = fmt::format("out and lse are rounded to {} in every merge", to_name(dtype)),
         .tensors = of_queries,
         .merge = Merge::in_dtype});
  if (scenario_.attention.softmax_type != SoftmaxType::vanilla)
    all.push_back({.name = "sink_counted_twice",
                   .text = "the sink enters with every part that sees a key",
                   .tensors = of_queries,
                   .has_sink_in_every_part = true});
  return all;
}

}  // namespace cpscope
