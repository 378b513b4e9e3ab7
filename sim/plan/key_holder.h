#pragma once

#include "sim/plan/chunk_reach.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace cpscope {

/// The chunks of one rank, or of a group of ranks that share their rows, and its foreign keys: key
/// chunks that it sees and does not hold. Under self attention it holds the keys of its chunks,
/// else the keys given to the constructor.
class KeyHolder {
 public:
  /// `keys`: [word] key chunks held whatever chunks are added. All arguments must outlive this.
  KeyHolder(const ChunkReach& reach, const std::vector<uint64_t>& keys, bool same_kv)
      : reach_(reach), same_kv_(same_kv), words_(static_cast<size_t>(reach.words)) {
    for (size_t w = 0; w < words_.size(); ++w) words_[w].held = keys[w];
  }

  const std::vector<int64_t>& chunks() const { return chunks_; }
  int64_t foreign() const { return foreign_; }
  bool sees(int64_t key) const { return has_bit(words_[key / 64].seen, key); }

  /// Increase of the foreign keys if `chunk`, which another rank holds, is added; any number above
  /// `limit` if the increase is larger than that.
  int64_t count_added(int64_t chunk, int64_t limit = INT64_MAX / 2) const {
    const bool is_seen = sees(chunk) || has_bit(reach_.row(chunk)[chunk / 64], chunk);
    const int64_t held = same_kv_ && is_seen ? 1 : 0;
    return count_new(chunk, limit + held) - held;
  }

  /// Foreign keys that only `chunk`, one of these chunks, sees.
  int64_t count_lone(int64_t chunk) const {
    const uint64_t* row = reach_.row(chunk);
    const auto [begin, end] = reach_.spans[chunk];
    int64_t count = 0;
    for (int64_t w = begin; w < end; ++w) count += std::popcount(row[w] & words_[w].lone());
    return count;
  }

  /// Increase of the foreign keys if `came` replaces `gone`: at least -count_lone(gone), and one
  /// less than that if sees(came).
  int64_t count_exchanged(int64_t gone, int64_t came) const {
    const uint64_t *lost = reach_.row(gone), *won = reach_.row(came);
    const auto [begin, end] = reach_.spans[gone];
    int64_t count = count_new(came);
    for (int64_t w = begin; w < end; ++w)
      count -= std::popcount(lost[w] & words_[w].lone() & ~won[w]);
    if (!same_kv_) return count;
    const auto is_seen = [&](int64_t key) {
      const Word& word = words_[key / 64];
      return has_bit(word.twice | (word.seen & ~lost[key / 64]) | won[key / 64], key);
    };
    return count + (is_seen(gone) ? 1 : 0) - (is_seen(came) ? 1 : 0);
  }

  void add(int64_t chunk) {
    foreign_ += count_added(chunk);
    chunks_.push_back(chunk);
    if (same_kv_) set_bit(words_[chunk / 64].held, chunk);
    join(chunk, reach_.spans[chunk]);
  }

  void exchange(int64_t gone, int64_t came) {
    foreign_ += count_exchanged(gone, came);
    *std::find(chunks_.begin(), chunks_.end(), gone) = came;
    if (same_kv_) {
      words_[gone / 64].held &= ~(uint64_t{1} << (gone % 64));
      set_bit(words_[came / 64].held, came);
    }
    const auto [begin, end] = reach_.spans[gone];
    for (int64_t w = begin; w < end; ++w) words_[w].seen = words_[w].twice = 0;
    for (const int64_t chunk : chunks_) {
      const auto [from, to] = reach_.spans[chunk];
      join(chunk, {std::max(begin, from), std::min(end, to)});
    }
    // Outside the span of the removed row, the new row only adds.
    const auto [from, to] = reach_.spans[came];
    join(came, {from, std::min(to, std::max(from, begin))});
    join(came, {std::max(from, end), to});
  }

 private:
  struct Word {
    uint64_t seen = 0;   // by at least one of the chunks
    uint64_t twice = 0;  // by at least two of them
    uint64_t held = 0;
    uint64_t lone() const { return seen & ~twice & ~held; }
  };

  int64_t count_new(int64_t chunk, int64_t limit = INT64_MAX) const {
    const uint64_t* row = reach_.row(chunk);
    const auto [begin, end] = reach_.spans[chunk];
    int64_t count = 0;
    for (int64_t w = begin; w < end && count <= limit; ++w)
      count += std::popcount(row[w] & ~words_[w].seen & ~words_[w].held);
    return count;
  }

  void join(int64_t chunk, ChunkReach::Span span) {
    const uint64_t* row = reach_.row(chunk);
    for (int64_t w = span.begin; w < span.end; ++w) {
      words_[w].twice |= words_[w].seen & row[w];
      words_[w].seen |= row[w];
    }
  }

  const ChunkReach& reach_;
  bool same_kv_;
  std::vector<Word> words_;
  std::vector<int64_t> chunks_;
  int64_t foreign_ = 0;
};

}  // namespace cpscope
