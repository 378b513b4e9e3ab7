#include "sim/plan/order/vllm_import.h"

#include "sim/plan/order/kv_interleave.h"
#include "sim/plan/order/vllm_step.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

// Stands in tables for blocks that a window has left behind (vllm/v1/core/block_pool.py).
constexpr int64_t kNullBlock = 0;

std::string place(size_t request, int64_t position) {
  return fmt::format("position {} of request {}", position, request);
}

/// Imports one step; holds what its checks share.
class StepImport {
 public:
  /// `local_lengths` may be null.
  StepImport(const CacheStep& step, const NamedLists* local_lengths)
      : step_(step), local_(local_lengths) {
    order_.cp_size = static_cast<int32_t>(step.ranks);
    order_.lengths = order_.slots = step.lengths;
    for (size_t r = 0; r < step.lengths.size(); ++r) longest_ = std::max(longest_, step.total(r));
  }

  Result<OrderImport> run() {
    if (auto error = check_local_lengths()) return *error;
    if (step_.slots != nullptr) {
      if (auto error = find_owners()) return *error;
    }
    if (auto error = choose_interleave()) return *error;
    if (step_.slots != nullptr && !step_.blocks.empty()) compare_with_tables();
    place_keys();
    if (local_ != nullptr) compare_local_lengths();
    return std::move(order_);
  }

 private:
  /// Calls visit(request, position, index of the new token).
  template <class Visit>
  void for_each_new(Visit visit) const {
    int64_t token = 0;
    for (size_t r = 0; r < step_.lengths.size(); ++r) {
      for (int64_t i = 0; i < step_.lengths[r]; ++i) visit(r, step_.computed[r] + i, token++);
    }
  }

  std::string place_of_token(int64_t token) const {
    size_t r = 0;
    while (token >= step_.lengths[r]) token -= step_.lengths[r++];
    return place(r, step_.computed[r] + token);
  }

  int64_t slot_of_token(int64_t rank, int64_t token) const {
    return step_.slots->lists[static_cast<size_t>(rank)][static_cast<size_t>(token)];
  }

  /// The rank of each new token, from its slots.
  std::optional<Error> find_owners() {
    const int64_t tokens = step_.num_new();
    owners_.assign(static_cast<size_t>(tokens), -1);
    for (int64_t rank = 0; rank < step_.ranks; ++rank) {
      const std::vector<int64_t>& own = step_.slots->lists[static_cast<size_t>(rank)];
      // Entries of -1 behind the last token pad a captured graph.
      const bool is_padded =
          std::ssize(own) >= tokens &&
          std::all_of(own.begin() + tokens, own.end(), [](int64_t slot) { return slot < 0; });
      if (!is_padded)
        return make_bad_input(
            fmt::format("slot_mapping of rank {} has {} entries, the requests have {} new tokens",
                        rank, own.size(), tokens),
            "give one entry for each token, -1 for those of other ranks");
      for (int64_t token = 0; token < tokens; ++token) {
        if (own[static_cast<size_t>(token)] < 0) continue;
        int32_t& owner = owners_[static_cast<size_t>(token)];
        if (owner >= 0)
          return make_bad_input(fmt::format("{} is in the caches of ranks {} and {}",
                                            place_of_token(token), owner, rank),
                                "each token has one owner");
        owner = static_cast<int32_t>(rank);
      }
      if (auto error = refuse_slot_of_two(rank, tokens)) return error;
    }
    const auto lost = std::find(owners_.begin(), owners_.end(), -1);
    if (lost == owners_.end()) return std::nullopt;
    return make_bad_input(place_of_token(lost - owners_.begin()) + " is in no rank's cache",
                          "each token has one owner: are the lists of all ranks here?");
  }

  /// Two new tokens that a rank writes to one slot.
  std::optional<Error> refuse_slot_of_two(int64_t rank, int64_t tokens) const {
    std::vector<std::pair<int64_t, int64_t>> written;  // slot, token
    for (int64_t token = 0; token < tokens; ++token) {
      if (slot_of_token(rank, token) >= 0) written.emplace_back(slot_of_token(rank, token), token);
    }
    std::sort(written.begin(), written.end());
    const auto twice =
        std::adjacent_find(written.begin(), written.end(),
                           [](const auto& a, const auto& b) { return a.first == b.first; });
    if (twice == written.end()) return std::nullopt;
    return make_bad_input(
        fmt::format("rank {} stores {} and {} in slot {}", rank, place_of_token(twice->second),
                    place_of_token(twice[1].second), twice->first),
        "a slot holds one token");
  }

  /// The new keys by request and rank, neighbours on one rank together.
  std::vector<OwnedKeys> owned_keys() const {
    std::vector<OwnedKeys> keys;
    size_t last_request = 0;
    for_each_new([&](size_t r, int64_t position, int64_t token) {
      const int64_t owner = owners_[static_cast<size_t>(token)];
      const bool goes_on = !keys.empty() && r == last_request && keys.back().rank == owner &&
                           keys.back().end == position;
      if (goes_on) {
        ++keys.back().end;
      } else {
        keys.push_back({position, position + 1, owner});
      }
      last_request = r;
    });
    return keys;
  }

  /// True if every new key is in the slot of its block where this interleave puts it.
  bool fits_offsets(int64_t size) const {
    bool fits = true;
    for_each_new([&](size_t, int64_t position, int64_t token) {
      const int64_t slot = slot_of_token(owners_[static_cast<size_t>(token)], token);
      fits = fits && slot % step_.block_size == step_.offset(position, size);
    });
    return fits;
  }

  std::optional<Error> choose_interleave() {
    interleave_ = step_.interleave;
    if (step_.slots == nullptr) return std::nullopt;
    const std::vector<OwnedKeys> keys = owned_keys();
    std::vector<InterleaveRange> possible;
    if (interleave_ == 0) {
      possible = find_interleaves(keys, step_.ranks, step_.block_size);
      if (step_.block_size > 0)
        keep_those(possible, [&](int64_t size) { return fits_offsets(size); });
      if (local_ != nullptr)
        keep_those(possible, [&](int64_t size) { return !find_wrong_length(size); });
      if (possible.empty()) {
        interleave_ = guess_interleave(keys, step_.ranks, step_.block_size);
        name_first_stray(
            step_.block_size > 0
                ? fmt::format("no interleave that divides block_size = {} explains all keys: ",
                              step_.block_size)
                : "no interleave explains all keys: ");
        return std::nullopt;
      }
    }
    if (interleave_ > 0) {
      name_first_stray("");
    } else {
      interleave_ = possible.front().first;
      const bool is_one = possible.size() == 1 && possible.front().last == interleave_;
      order_.interleaves = std::move(possible);
      if (!is_one) return note_several();
    }
    if (order_.differences.empty() && step_.ranks > 1) {
      order_.interleaves = {{interleave_, interleave_}};
      order_.notes.push_back(fmt::format(
          "interleave {0} explains the ranks of all {1} new keys: layout striped with stripe = {0} "
          "and kv_slots that are multiples of {2} has the same keys on each rank",
          interleave_, step_.num_new(), interleave_ * step_.ranks));
    }
    return std::nullopt;
  }

  /// Leaves the interleaves that meet a condition, unless none does: then what it is about is
  /// wrong, and a comparison with one interleave says where. All from the longest request on are
  /// alike.
  template <class Meets>
  void keep_those(std::vector<InterleaveRange>& possible, Meets meets) const {
    std::vector<InterleaveRange> kept;
    for (const InterleaveRange& range : possible) {
      const bool is_open = range.last < 0;
      const int64_t last = is_open ? std::max(range.first, longest_) : range.last;
      for (int64_t size = range.first; size <= last; ++size) {
        if (!meets(size)) continue;
        const bool goes_on = !kept.empty() && kept.back().last == size - 1;
        if (!goes_on) kept.push_back({size, size});
        kept.back().last = is_open && size == last ? -1 : size;
      }
    }
    if (!kept.empty()) possible = std::move(kept);
  }

  std::optional<Error> note_several() {
    const std::string text = describe_interleaves(order_.interleaves);
    const InterleaveRange& first = order_.interleaves.front();
    const bool is_same_for_all =
        order_.interleaves.size() == 1 && first.last < 0 && first.first >= longest_;
    if (step_.has_cached && !is_same_for_all)
      return make_bad_input(
          "several interleaves explain the new keys, and each has other ranks for "
          "cached ones: " +
              text,
          "give cp_kv_cache_interleave_size, or dcp_local_seq_lens");
    order_.notes.push_back(
        fmt::format("the ranks of all {} new keys are those of several interleaves: {}",
                    step_.num_new(), text));
    return std::nullopt;
  }

  /// A difference for the first key that is on another rank than the interleave gives it.
  void name_first_stray(const std::string& before) {
    int64_t strays = 0;
    std::string first;
    for_each_new([&](size_t r, int64_t position, int64_t token) {
      const int64_t owner = owners_[static_cast<size_t>(token)],
                    expected = rank_of_position(position, interleave_, step_.ranks);
      if (owner == expected || strays++ > 0) return;
      first =
          fmt::format("{} is on rank {}; interleave {}{} gives rank {}", place(r, position), owner,
                      interleave_, before.empty() ? "" : ", which explains the most,", expected);
    });
    if (strays == 0) return;
    order_.differences.push_back(
        fmt::format("{}{} ({} of {} new keys)", before, first, strays, step_.num_new()));
    if (!step_.knows_computed)
      order_.notes.push_back(
          "without seq_lens, num_computed_tokens or positions the new tokens of a request begin at "
          "position 0");
  }

  /// Differences for slots that the block tables do not have, or have for another position.
  void compare_with_tables() {
    int64_t nulls = 0, outside = 0, elsewhere = 0;
    std::string first_null, first_outside, first_elsewhere;
    for_each_new([&](size_t r, int64_t position, int64_t token) {
      const int64_t owner = owners_[static_cast<size_t>(token)], slot = slot_of_token(owner, token),
                    expected = step_.slot(r, position, interleave_);
      const int64_t block = slot / step_.block_size;
      if (block == kNullBlock && nulls++ == 0)
        first_null = fmt::format(
            "{} is in slot {} of rank {}, in vLLM's null block, which no "
            "request has",
            place(r, position), slot, owner);
      if (slot == expected || block == kNullBlock) return;
      const std::vector<int64_t>& blocks = step_.blocks[r];
      if (std::find(blocks.begin(), blocks.end(), block) == blocks.end()) {
        if (outside++ == 0)
          first_outside = fmt::format(
              "{} is in slot {} of rank {}, in block {}, which is not in the request's block table",
              place(r, position), slot, owner, block);
      } else if (owner == rank_of_position(position, interleave_, step_.ranks)) {
        // A key on another rank is named already.
        if (elsewhere++ == 0)
          first_elsewhere = fmt::format(
              "{} is in slot {} of rank {}; its block table and interleave {} give slot {}",
              place(r, position), slot, owner, interleave_, expected);
      }
    });
    for (const auto& [count, first] :
         {std::pair{nulls, first_null}, {outside, first_outside}, {elsewhere, first_elsewhere}}) {
      if (count > 0)
        order_.differences.push_back(
            fmt::format("{} ({} of {} new keys)", first, count, step_.num_new()));
    }
    if (nulls + outside + elsewhere == 0)
      order_.notes.push_back("every slot is where the block tables put it");
  }

  /// A key of the batch on a rank.
  struct PlacedKey {
    int64_t slot = 0;  // the position in the order where slots are unknown
    int32_t id = 0;    // packed, through all requests, cached keys included
    bool is_new = false;
  };

  std::string place_of_key(int64_t id) const {
    size_t r = 0;
    while (id >= step_.total(r)) id -= step_.total(r++);
    return place(r, id);
  }

  void place_keys() {
    const bool knows_slots = !step_.blocks.empty() || !step_.has_cached;
    std::vector<std::vector<PlacedKey>> placed(static_cast<size_t>(step_.ranks));
    int32_t id = 0;
    int64_t token = 0;
    for (size_t r = 0; r < step_.lengths.size(); ++r) {
      for (int64_t position = 0; position < step_.total(r); ++position, ++id) {
        const bool is_new = position >= step_.computed[r], is_said = is_new && step_.slots;
        const int64_t rank = is_said ? owners_[static_cast<size_t>(token)]
                                     : rank_of_position(position, interleave_, step_.ranks);
        const int64_t slot = !knows_slots ? id
                             : is_said    ? slot_of_token(rank, token)
                                          : step_.slot(r, position, interleave_);
        placed[static_cast<size_t>(rank)].push_back({slot, id, is_new});
        token += is_new ? 1 : 0;
      }
    }
    for (int64_t rank = 0; rank < step_.ranks; ++rank) {
      std::vector<PlacedKey>& keys = placed[static_cast<size_t>(rank)];
      std::stable_sort(keys.begin(), keys.end(),
                       [](const PlacedKey& a, const PlacedKey& b) { return a.slot < b.slot; });
      name_overwritten(rank, keys);
    }
    name_reused_blocks();
    take_order(placed);
    if (!knows_slots)
      order_.notes.push_back(
          "without block_table the slots of cached keys are unknown: a rank's keys are by request "
          "and position");
  }

  /// A difference for the first slot that a new key shares with another one.
  void name_overwritten(int64_t rank, const std::vector<PlacedKey>& keys) {
    const auto twice = std::adjacent_find(
        keys.begin(), keys.end(),
        [](const auto& a, const auto& b) { return a.slot == b.slot && (a.is_new || b.is_new); });
    if (twice == keys.end()) return;
    const PlacedKey &a = *twice, &b = twice[1];
    std::string text = fmt::format("rank {} stores {} and {} in slot {}", rank, place_of_key(a.id),
                                   place_of_key(b.id), a.slot);
    if (!a.is_new || !b.is_new)
      text +=
          fmt::format(", where {} was in the cache before", place_of_key(a.is_new ? b.id : a.id));
    order_.differences.push_back(std::move(text));
  }

  /// Blocks twice in one table are a difference, but the null block; cached ones of several
  /// requests are a shared prefix.
  void name_reused_blocks() {
    std::vector<std::pair<int64_t, size_t>> used;  // block, request
    for (size_t r = 0; r < step_.blocks.size(); ++r) {
      for (const int64_t block : step_.blocks[r]) {
        if (block != kNullBlock) used.emplace_back(block, r);
      }
    }
    std::sort(used.begin(), used.end());
    int64_t shared = 0;
    for (size_t i = 0; i + 1 < used.size(); ++i) {
      if (used[i].first != used[i + 1].first) continue;
      if (used[i].second != used[i + 1].second) {
        ++shared;
        continue;
      }
      order_.differences.push_back(fmt::format("the block table of request {} holds block {} twice",
                                               used[i].second, used[i].first));
      return;
    }
    if (shared > 0)
      order_.notes.push_back(fmt::format(
          "requests share cached blocks, {} times: each has a copy in the order", shared));
  }

  void take_order(const std::vector<std::vector<PlacedKey>>& placed) {
    std::vector<int64_t> first_new(step_.lengths.size() + 1, 0);  // new tokens before a request
    std::vector<int64_t> first_key(step_.lengths.size() + 1, 0);
    for (size_t r = 0; r < step_.lengths.size(); ++r) {
      first_new[r + 1] = first_new[r] + step_.lengths[r];
      first_key[r + 1] = first_key[r] + step_.total(r);
      if (step_.has_cached) order_.kv_lengths.push_back(step_.total(r));
    }
    for (const std::vector<PlacedKey>& keys : placed) {
      std::vector<int64_t> queries, all;
      for (const PlacedKey& key : keys) {
        all.push_back(key.id);
        if (!key.is_new) continue;
        const auto after = std::upper_bound(first_key.begin(), first_key.end(), key.id);
        const auto r = static_cast<size_t>(after - first_key.begin() - 1);
        queries.push_back(first_new[r] + key.id - first_key[r] - step_.computed[r]);
      }
      order_.ranks.push_back(std::move(queries));
      if (step_.has_cached) order_.kv_ranks.push_back(std::move(all));
    }
    order_.kv_slots = order_.kv_lengths;
  }

  std::optional<Error> check_local_lengths() const {
    if (local_ == nullptr) return std::nullopt;
    if (std::ssize(local_->lists) != step_.ranks)
      return make_bad_input(fmt::format("{} must be one list a rank: {} lists, {} ranks",
                                        local_->name, local_->lists.size(), step_.ranks));
    for (size_t rank = 0; rank < local_->lists.size(); ++rank) {
      if (local_->lists[rank].size() < step_.lengths.size())
        return make_bad_input(
            fmt::format("{} of rank {} has {} entries, the number of requests is {}", local_->name,
                        rank, local_->lists[rank].size(), step_.lengths.size()));
    }
    return std::nullopt;
  }

  /// Where attention is told another number of keys than an interleave puts on a rank.
  struct WrongLength {
    size_t request = 0;
    int64_t rank = 0, told = 0, expected = 0;
  };
  std::optional<WrongLength> find_wrong_length(int64_t size) const {
    for (int64_t rank = 0; rank < step_.ranks; ++rank) {
      const std::vector<int64_t>& told = local_->lists[static_cast<size_t>(rank)];
      for (size_t r = 0; r < step_.lengths.size(); ++r) {
        const int64_t expected = keys_on_rank(step_.total(r), size, step_.ranks, rank);
        if (told[r] != expected) return WrongLength{r, rank, told[r], expected};
      }
    }
    return std::nullopt;
  }

  void compare_local_lengths() {
    const std::optional<WrongLength> wrong = find_wrong_length(interleave_);
    if (!wrong) {
      order_.notes.push_back(local_->name + " counts the keys of every rank");
      return;
    }
    order_.differences.push_back(
        fmt::format("{} of request {} on rank {} is {}; interleave {} gives it {} of {} keys",
                    local_->name, wrong->request, wrong->rank, wrong->told, interleave_,
                    wrong->expected, step_.total(wrong->request)));
  }

  const CacheStep& step_;
  const NamedLists* local_;  // [rank][request] keys on the rank; null: not given
  OrderImport order_;
  std::vector<int32_t> owners_;  // [new token] rank that stores its key
  int64_t interleave_ = 0;
  int64_t longest_ = 1;  // keys of a request
};

}  // namespace

Result<OrderImport> import_vllm(const ImportRequest& request, int64_t ranks,
                                std::optional<std::vector<int64_t>> lengths) {
  const Result<CacheStep> step = read_vllm_step(request, ranks, std::move(lengths));
  if (!step) return step.error();
  return StepImport(step.value(), find_local_lengths(request)).run();
}

}  // namespace cpscope
