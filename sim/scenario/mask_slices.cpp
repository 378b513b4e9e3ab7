#include "sim/scenario/mask_slices.h"

#include "sim/scenario/scenario_names.h"
#include "sim/scenario/sparse_rows.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// No key lies so far from its query.
constexpr int64_t kUnbounded = int64_t{1} << 40;

/// Collects slices; those above the limit are counted only.
class SliceList {
 public:
  void add(const MaskSlice& slice) {
    if (slice.q0 >= slice.q1 || slice.k0 >= slice.k1) return;
    if (++count_ <= kMaxSlices) slices_.push_back(slice);
  }
  void add_all(const std::vector<MaskSlice>& slices) {
    for (const MaskSlice& slice : slices) add(slice);
  }
  void count_more(int64_t count) { count_ += count; }
  int64_t count() const { return count_; }
  std::vector<MaskSlice> take() { return std::move(slices_); }

 private:
  std::vector<MaskSlice> slices_;
  int64_t count_ = 0;
};

/// Adds the pairs of the rectangle with lo <= k - q <= hi. Between two rows at which an edge of the
/// band leaves an edge of the rectangle, the pairs are one slice.
void add_band(const MaskSlice& rectangle, int64_t lo, int64_t hi, std::vector<MaskSlice>& slices) {
  const int64_t first = std::max(rectangle.q0, rectangle.k0 - hi);
  const int64_t end = std::min(rectangle.q1, rectangle.k1 - lo);
  if (first >= end || lo > hi || rectangle.k0 >= rectangle.k1) return;
  // From `rising` on a row sees no longer the first column, before `reached` not yet the last one.
  const int64_t rising = std::clamp(rectangle.k0 - lo, first, end);
  const int64_t reached = std::clamp(rectangle.k1 - hi, first, end);
  const int64_t middle[] = {first, std::min(rising, reached), std::max(rising, reached), end};
  for (size_t part = 0; part < 3; ++part) {
    const int64_t begin = middle[part], stop = middle[part + 1];
    if (begin >= stop) continue;
    const bool begins_slanted = begin >= rising, ends_slanted = stop <= reached;
    MaskSlice slice{begin, stop, begins_slanted ? begin + lo : rectangle.k0,
                    ends_slanted ? stop + hi : rectangle.k1};
    if (stop - begin > 1 && begins_slanted)
      slice.type = ends_slanted ? SliceType::bi_causal : SliceType::inv_causal;
    if (stop - begin > 1 && !begins_slanted && ends_slanted) slice.type = SliceType::causal;
    slices.push_back(slice);
  }
}

MaskSlice whole(const ValidTokens& sequence) {
  return {sequence.q, sequence.q + sequence.queries, sequence.k, sequence.k + sequence.keys};
}

int64_t count_blocks(int64_t tokens, int64_t block) { return (tokens + block - 1) / block; }

void add_block_causal(const ValidTokens& sequence, int64_t block, SliceList& list) {
  for (int64_t begin = 0; begin < sequence.queries;) {
    const int64_t k_end = std::min(begin + block, sequence.keys);
    // Where the keys end, all further rows see the same.
    const int64_t end =
        k_end == sequence.keys ? sequence.queries : std::min(begin + block, sequence.queries);
    list.add({sequence.q + begin, sequence.q + end, sequence.k, sequence.k + k_end});
    begin = end;
  }
}

int64_t count_block_causal(const ValidTokens& sequence, int64_t block) {
  if (sequence.keys == 0) return 0;
  return std::min(count_blocks(sequence.queries, block), count_blocks(sequence.keys, block));
}

void add_block_diffusion(const ValidTokens& sequence, int64_t block, SliceList& list) {
  const int64_t half = sequence.queries / 2;
  const int64_t noisy_q = sequence.q, noisy_k = sequence.k;
  const int64_t clean_q = sequence.q + half, clean_k = sequence.k + half;
  for (int64_t begin = 0; begin < half; begin += block) {
    const int64_t end = std::min(begin + block, half);
    // The last noisy block lies next to the clean keys: both parts of its rows are one rectangle.
    const bool is_joined = end == half;
    list.add({noisy_q + begin, noisy_q + end, noisy_k + begin,
              is_joined ? clean_k + begin : noisy_k + end});
    if (!is_joined) list.add({noisy_q + begin, noisy_q + end, clean_k, clean_k + begin});
    list.add({clean_q + begin, clean_q + end, clean_k, clean_k + end});
  }
}

int64_t count_block_diffusion(const ValidTokens& sequence, int64_t block) {
  const int64_t blocks = count_blocks(sequence.queries / 2, block);
  return blocks < 2 ? 2 * blocks : 3 * blocks - 2;
}

/// Blocks of one token: every part is a triangle or a diagonal.
void add_token_diffusion(const ValidTokens& sequence, SliceList& list) {
  const int64_t half = sequence.queries / 2;
  const int64_t offset = sequence.k - sequence.q;
  MaskSlice noisy = whole(sequence), clean = noisy, across = noisy;
  noisy.q1 = across.q1 = clean.q0 = sequence.q + half;
  noisy.k1 = across.k0 = clean.k0 = sequence.k + half;
  std::vector<MaskSlice> slices;
  add_band(noisy, offset, offset, slices);
  add_band(across, -kUnbounded, offset + half - 1, slices);
  add_band(clean, -kUnbounded, offset, slices);
  list.add_all(slices);
}

void add_global_tokens(const ValidTokens& sequence, const MaskGenerator& mask, SliceList& list) {
  const MaskSlice all = whole(sequence);
  const int64_t offset = sequence.k - sequence.q;
  const int64_t lo = mask.window_left < 0 ? -kUnbounded : offset - mask.window_left;
  const int64_t right = mask.window_right < 0 ? kUnbounded : mask.window_right;
  const int64_t hi = offset + (mask.causal ? 0 : right);
  std::vector<MaskSlice> slices;
  const int64_t count = std::min(mask.count, sequence.queries);
  if (mask.window_left < 0 && hi - offset == kUnbounded) {
    slices.push_back(all);
  } else if (mask.window_left < 0) {
    // Every other row sees the keys from the first one on, the global tokens among them.
    slices.push_back({all.q0, all.q0 + count, all.k0, all.k1});
    MaskSlice others = all;
    others.q0 += count;
    add_band(others, lo, hi, slices);
  } else {
    slices.push_back({all.q0, all.q0 + count, all.k0, all.k1});
    slices.push_back({all.q0 + count, all.q1, all.k0, all.k0 + count});
    MaskSlice others = all;
    others.q0 += count;
    others.k0 += count;
    add_band(others, lo, hi, slices);
  }
  list.add_all(slices);
}

/// One causal triangle through each sequence, and above it the rest of every group's square.
void add_image_groups(const std::vector<ValidTokens>& sequences,
                      const std::vector<TokenGroup>& groups, SliceList& list) {
  std::vector<MaskSlice> slices;
  for (const ValidTokens& sequence : sequences) add_causal_slices(sequence, slices);
  for (const TokenGroup& group : groups) {
    // Queries and keys are the same tokens.
    add_band({group.begin, group.end, group.begin, group.end}, 1, kUnbounded, slices);
  }
  list.add_all(slices);
}

/// Keys [begin, end) of one row's ancestors.
struct AncestorRun {
  int64_t begin = 0;
  int64_t end = 0;

  friend bool operator==(const AncestorRun&, const AncestorRun&) = default;
};

/// The tree over one sequence whose first token is token 0.
class PrefixTree {
 public:
  explicit PrefixTree(const MaskGenerator& mask) : parents_(mask.parents) {
    begins_.push_back(0);
    for (const int64_t length : mask.lengths) begins_.push_back(begins_.back() + length);
  }

  void add_slices(SliceList& list) const;

 private:
  /// What every row of the segment sees of other segments, last run first.
  std::vector<AncestorRun> find_ancestors(size_t segment) const;

  std::vector<int64_t> parents_;  // [segment]
  std::vector<int64_t> begins_;   // [segment + 1] position of its first token
};

std::vector<AncestorRun> PrefixTree::find_ancestors(size_t segment) const {
  std::vector<AncestorRun> runs;
  for (int64_t parent = parents_[segment]; parent >= 0;
       parent = parents_[static_cast<size_t>(parent)]) {
    const auto at = static_cast<size_t>(parent);
    if (!runs.empty() && begins_[at + 1] == runs.back().begin) {
      runs.back().begin = begins_[at];
    } else {
      runs.push_back({begins_[at], begins_[at + 1]});
    }
  }
  return runs;
}

void PrefixTree::add_slices(SliceList& list) const {
  struct OpenRun {
    AncestorRun run;
    int64_t first_row = 0;
  };
  std::vector<OpenRun> open;  // of the rows before, last run first
  const auto close = [&](const OpenRun& ended, int64_t end_row) {
    list.add({ended.first_row, end_row, ended.run.begin, ended.run.end});
  };
  for (size_t segment = 0; segment < parents_.size();) {
    const int64_t begin = begins_[segment];
    std::vector<AncestorRun> runs = find_ancestors(segment);
    // A segment and a child that follows it at once are one causal stretch.
    size_t next = segment + 1;
    while (next < parents_.size() && parents_[next] == static_cast<int64_t>(next) - 1) ++next;
    // Ancestors that end where the stretch begins belong to the same slice.
    int64_t k_begin = begin;
    if (!runs.empty() && runs.front().end == begin) {
      k_begin = runs.front().begin;
      runs.erase(runs.begin());
    }
    // A run that the rows before saw too goes on.
    std::vector<OpenRun> going_on;
    auto old = open.begin();
    for (const AncestorRun& run : runs) {
      for (; old != open.end() && old->run.begin > run.begin; ++old) close(*old, begin);
      const bool is_known = old != open.end() && old->run == run;
      going_on.push_back({run, is_known ? old->first_row : begin});
      if (is_known) ++old;
    }
    for (; old != open.end(); ++old) close(*old, begin);
    open = std::move(going_on);
    const int64_t end = begins_[next];
    list.add({begin, end, k_begin, end, end - begin > 1 ? SliceType::causal : SliceType::full});
    segment = next;
  }
  for (const OpenRun& run : open) close(run, begins_.back());
}

Error too_many_made(const MaskGenerator& generator, int64_t count) {
  return make_bad_input(
      fmt::format("{} makes more slices than the limit of {}: {}", generator.name, kMaxSlices,
                  count),
      generator.block > 0 ? "use a larger block" : "use fewer sequences, segments or groups");
}

/// Slices of all sequences, where that is known before they are made; else 0.
int64_t count_made(const MaskGenerator& generator, const std::vector<ValidTokens>& sequences) {
  const bool is_block_causal = generator.name == "block_causal";
  // Blocks of one token are few slices, whatever they are.
  if (generator.block < 2 || (!is_block_causal && generator.name != "block_diffusion")) return 0;
  int64_t count = 0;
  for (const ValidTokens& sequence : sequences) {
    count += is_block_causal ? count_block_causal(sequence, generator.block)
                             : count_block_diffusion(sequence, generator.block);
  }
  return count;
}

void add_causal(const ValidTokens& sequence, SliceList& list) {
  std::vector<MaskSlice> slices;
  add_causal_slices(sequence, slices);
  list.add_all(slices);
}

void add_sequence(const MaskGenerator& generator, const ValidTokens& sequence, SliceList& list) {
  const bool is_block_causal = generator.name == "block_causal";
  if (generator.name == "global_tokens") return add_global_tokens(sequence, generator, list);
  if (is_block_causal && generator.block == 1) return add_causal(sequence, list);
  if (is_block_causal) return add_block_causal(sequence, generator.block, list);
  if (generator.block == 1) return add_token_diffusion(sequence, list);
  add_block_diffusion(sequence, generator.block, list);
}

/// Every sequence has the same tree, or one has it and the others are causal.
void add_trees(const MaskGenerator& generator, const std::vector<ValidTokens>& sequences,
               SliceList& list) {
  SliceList tree;
  PrefixTree(generator).add_slices(tree);
  const int64_t count = tree.count() * (generator.sequence < 0 ? std::ssize(sequences) : 1);
  if (count > kMaxSlices) return list.count_more(count);
  const std::vector<MaskSlice> slices = tree.take();
  for (size_t s = 0; s < sequences.size(); ++s) {
    const ValidTokens& sequence = sequences[s];
    if (generator.sequence >= 0 && generator.sequence != static_cast<int64_t>(s)) {
      add_causal(sequence, list);
      continue;
    }
    for (MaskSlice slice : slices) {
      slice.q0 += sequence.q;
      slice.q1 += sequence.q;
      slice.k0 += sequence.k;
      slice.k1 += sequence.k;
      list.add(slice);
    }
  }
}

}  // namespace

std::vector<ValidTokens> find_valid_tokens(const Batch& batch) {
  std::vector<ValidTokens> sequences;
  ValidTokens next;
  for (size_t s = 0; s < batch.lengths.size(); ++s) {
    next.queries = batch.lengths[s];
    next.keys = batch.kv_lengths[s];
    sequences.push_back(next);
    next.q += next.queries;
    next.k += next.keys;
  }
  return sequences;
}

void add_causal_slices(const ValidTokens& sequence, std::vector<MaskSlice>& slices) {
  add_band(whole(sequence), -kUnbounded, sequence.k - sequence.q, slices);
}

Result<std::vector<MaskSlice>> generate_slices(const MaskGenerator& generator, const Batch& batch) {
  if (generator.name == "top_k" || generator.name == "block_top_k")
    return draw_sparse_slices(generator, batch);
  const std::vector<ValidTokens> sequences = find_valid_tokens(batch);
  if (const int64_t count = count_made(generator, sequences); count > kMaxSlices)
    return too_many_made(generator, count);
  SliceList list;
  if (generator.name == "prefix_tree") {
    add_trees(generator, sequences, list);
  } else if (generator.name == "image_groups") {
    add_image_groups(sequences, generator.groups, list);
  } else {
    for (const ValidTokens& sequence : sequences) add_sequence(generator, sequence, list);
  }
  if (list.count() > kMaxSlices) return too_many_made(generator, list.count());
  std::vector<MaskSlice> slices = list.take();
  std::sort(slices.begin(), slices.end(), [](const MaskSlice& a, const MaskSlice& b) {
    return std::tuple(a.q0, a.k0) < std::tuple(b.q0, b.k0);
  });
  return slices;
}

}  // namespace cpscope
