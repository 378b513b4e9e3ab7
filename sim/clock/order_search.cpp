#include "sim/clock/order_search.h"

#include "sim/base/parallel.h"
#include "sim/plan/layout.h"
#include "sim/scenario/portable_random.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace cpscope {
namespace {

constexpr int64_t kMostPieces = 16'384;
/// Of a layout in chunks; one in stripes has more, too small to change the time by themselves.
constexpr int64_t kPiecesOfChunk = 4;
/// Number of pieces of the other rank among which one is chosen.
constexpr int kChoices = 8;

int64_t up_to_multiple(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Calls visit(sequence, begin, end) for the parts of ids [begin, end) that lie in slots, as
/// offsets in the slot.
template <class Visit>
void for_each_slot(const BatchSlots& slots, Side side, int64_t begin, int64_t end, Visit visit) {
  const auto& sequences = slots.sequences;
  auto slot = std::partition_point(
      sequences.begin(), sequences.end(),
      [&](const SequenceSlot& before) { return before.side(side).end() <= begin; });
  for (; slot != sequences.end() && slot->side(side).begin < end; ++slot) {
    const SlotSide own = slot->side(side);
    const int64_t from = std::max(begin, own.begin), to = std::min(end, own.end());
    if (from < to) visit(slot - sequences.begin(), from - own.begin, to - own.begin);
  }
}

/// The same tokens in slots without the padding of a layout.
std::vector<TokenRun> without_padding(const std::vector<TokenRun>& runs, const BatchSlots& from,
                                      const BatchSlots& to, Side side) {
  std::vector<TokenRun> kept;
  const auto keep = [&](int64_t begin, int64_t end) {
    for_each_slot(from, side, begin, end, [&](int64_t s, int64_t first, int64_t last) {
      const SlotSide old = from.sequences[static_cast<size_t>(s)].side(side);
      const SlotSide now = to.sequences[static_cast<size_t>(s)].side(side);
      // Padding may stand on either side of the valid tokens.
      const int64_t shift = now.front - old.front;
      append_run(kept, {now.begin + std::clamp(first + shift, int64_t{0}, now.slot),
                        now.begin + std::clamp(last + shift, int64_t{0}, now.slot), 1});
    });
  };
  for (const TokenRun& run : runs) {
    if (run.stride == 1) {
      keep(run.begin, run.end);
      continue;
    }
    for (int64_t i = 0; i < run.count(); ++i) keep(run.at(i), run.at(i) + 1);
  }
  return kept;
}

}  // namespace

RowPairs::RowPairs(const Attention& attention, const BatchSlots& slots)
    : slots_(slots), mask_(compile_mask(attention, slots.sequences)) {}

int64_t RowPairs::count(int64_t begin, int64_t end) const {
  int64_t pairs = 0;
  for_each_slot(slots_, Side::q, begin, end, [&](int64_t s, int64_t first, int64_t last) {
    const int64_t front = slots_.sequences[static_cast<size_t>(s)].q_front;
    for (const Band& band : mask_.near_rows(s, first - front, last - front))
      pairs += count_pairs_in_rows(band, first - front, last - front);
  });
  return pairs;
}

BatchSlots slots_of_order(const Batch& batch) {
  BatchSlots slots;
  for (size_t s = 0; s < batch.lengths.size(); ++s) {
    SequenceSlot slot{.q_begin = slots.tokens,
                      .q_valid = batch.lengths[s],
                      .q_slot = up_to_multiple(batch.slots[s], batch.slot_multiple),
                      .kv_begin = slots.kv_tokens,
                      .kv_valid = batch.kv_lengths[s],
                      .kv_slot = up_to_multiple(batch.kv_slots[s], batch.slot_multiple)};
    if (batch.pad_side == PadSide::left) {
      slot.q_front = slot.q_slot - slot.q_valid;
      slot.kv_front = slot.kv_slot - slot.kv_valid;
    }
    slots.tokens += slot.q_slot;
    slots.kv_tokens += slot.kv_slot;
    slots.sequences.push_back(slot);
  }
  return slots;
}

std::optional<OrderSearch> OrderSearch::begin(const Scenario& scenario, int64_t chunk,
                                              uint64_t seed, uint64_t stream,
                                              const PriceOrder& price) {
  const Result<Layout> layout = make_layout(scenario);
  if (!layout) return std::nullopt;
  const BatchSlots slots = slots_of_order(scenario.batch);
  const RowPairs pairs(scenario.attention, slots);
  OrderSearch search;
  search.scenario_ = scenario;
  search.seed_ = seed;
  search.stream_ = stream;
  const int64_t ranks = scenario.parallel.cp_size;
  search.most_tokens_ = (slots.tokens + ranks - 1) / ranks;
  const auto kept = [&](Side side, RankId rank) {
    return without_padding(layout.value().runs(side)[rank], layout.value().slots, slots, side);
  };
  const int64_t most_pieces =
      std::min(kMostPieces, kPiecesOfChunk * (slots.tokens / chunk + ranks) +
                                2 * static_cast<int64_t>(slots.sequences.size()));
  Held held;
  for (const RankId rank : layout.value().q_runs.ids()) {
    held.emplace_back();
    int64_t tokens = 0;
    for (const TokenRun& run : kept(Side::q, rank)) {
      tokens += run.count();
      for (int64_t i = 0; i < run.count();) {
        // To the next multiple of the chunk or end of a sequence.
        const int64_t begin = run.at(i);
        int64_t end = std::min(run.end, (begin / chunk + 1) * chunk);
        if (run.stride != 1) end = begin + 1;
        for_each_slot(slots, Side::q, begin, begin + 1, [&](int64_t s, int64_t, int64_t) {
          end = std::min(end, slots.sequences[static_cast<size_t>(s)].side(Side::q).end());
        });
        held.back().push_back(static_cast<int32_t>(search.pieces_.size()));
        search.pieces_.push_back({begin, end, pairs.count(begin, end)});
        if (search.pieces() > most_pieces) return std::nullopt;
        i += end - begin;
      }
    }
    search.most_tokens_ = std::max(search.most_tokens_, tokens);
  }
  // Pieces are numbered by their ids.
  std::vector<int32_t> number(search.pieces_.size()), place(search.pieces_.size());
  std::iota(number.begin(), number.end(), 0);
  std::sort(number.begin(), number.end(), [&](int32_t a, int32_t b) {
    return search.pieces_[static_cast<size_t>(a)].begin <
           search.pieces_[static_cast<size_t>(b)].begin;
  });
  std::vector<Piece> sorted;
  for (const int32_t id : number) {
    place[static_cast<size_t>(id)] = static_cast<int32_t>(sorted.size());
    sorted.push_back(search.pieces_[static_cast<size_t>(id)]);
  }
  search.pieces_ = std::move(sorted);
  for (std::vector<int32_t>& own : held) {
    for (int32_t& id : own) id = place[static_cast<size_t>(id)];
    std::sort(own.begin(), own.end());
  }
  Parallel& parallel = search.scenario_.parallel;
  parallel.layout = LayoutKind::indices;
  parallel.imported = {};
  for (const RankId rank : layout.value().kv_runs.ids())
    parallel.imported.kv_ranks.push_back(expand(kept(Side::kv, rank)));
  search.settle(std::move(held));
  const std::optional<OrderPrice> first = price(search.scenario_);
  if (!first) return std::nullopt;
  search.price_ = *first;
  return search;
}

Scenario OrderSearch::with_order(const Held& held) const {
  Scenario scenario = scenario_;
  ImportedOrder& order = scenario.parallel.imported;
  order.ranks.clear();
  for (const std::vector<int32_t>& own : held) {
    order.ranks.emplace_back();
    for (const int32_t id : own) {
      const Piece& piece = pieces_[static_cast<size_t>(id)];
      for (int64_t token = piece.begin; token < piece.end; ++token)
        order.ranks.back().push_back(token);
    }
  }
  if (scenario.batch.self_attention) order.kv_ranks = order.ranks;
  return scenario;
}

/// Takes an order as the present one.
void OrderSearch::settle(Held held) {
  scenario_ = with_order(held);
  held_ = std::move(held);
  at_.assign(pieces_.size(), 0);
  tokens_.assign(held_.size(), 0);
  pairs_.assign(held_.size(), 0);
  for (size_t rank = 0; rank < held_.size(); ++rank) {
    for (const int32_t id : held_[rank]) {
      at_[static_cast<size_t>(id)] = static_cast<int32_t>(rank);
      tokens_[rank] += pieces_[static_cast<size_t>(id)].size();
      pairs_[rank] += pieces_[static_cast<size_t>(id)].pairs;
    }
  }
}

uint64_t OrderSearch::draw(uint64_t below) { return draw_bits(seed_, stream_, drawn_++) % below; }

bool OrderSearch::is_allowed(const Change& change) const {
  const auto p = static_cast<size_t>(change.p), q = static_cast<size_t>(change.q);
  const int64_t given = pieces_[static_cast<size_t>(change.a)].size();
  const int64_t taken = change.b < 0 ? 0 : pieces_[static_cast<size_t>(change.b)].size();
  // Every rank keeps a token.
  if (change.b < 0 && held_[p].size() < 2) return false;
  return tokens_[q] + given - taken <= most_tokens_ && tokens_[p] - given + taken <= most_tokens_;
}

/// Pairs of that one of the two ranks that then has more.
int64_t OrderSearch::fuller_load(const Change& change) const {
  const int64_t given = pieces_[static_cast<size_t>(change.a)].pairs;
  const int64_t taken = change.b < 0 ? 0 : pieces_[static_cast<size_t>(change.b)].pairs;
  return std::max(pairs_[static_cast<size_t>(change.p)] - given + taken,
                  pairs_[static_cast<size_t>(change.q)] + given - taken);
}

/// Half of the changes take work from ranks that compute longest; a quarter brings a piece to the
/// rank that holds its neighbour; a quarter is any.
std::optional<OrderSearch::Change> OrderSearch::propose(const std::vector<int32_t>& by_time) {
  const uint64_t ranks = by_time.size(), kind = draw(4);
  Change change;
  const uint64_t place = kind < 2 ? draw(std::max<uint64_t>(1, ranks / 8)) : draw(ranks);
  change.p = by_time[place];
  const std::vector<int32_t>& own = held_[static_cast<size_t>(change.p)];
  if (own.empty()) return std::nullopt;
  change.a = own[draw(own.size())];
  change.q = kind < 2 ? by_time[ranks - 1 - draw((ranks + 1) / 2)] : by_time[draw(ranks)];
  if (kind == 2) {
    const int32_t neighbour = change.a + (draw(2) == 0 ? 1 : -1);
    if (neighbour < 0 || neighbour >= pieces()) return std::nullopt;
    change.q = at_[static_cast<size_t>(neighbour)];
  }
  if (change.p == change.q) return std::nullopt;
  std::optional<Change> best;
  const auto consider = [&](const Change& one) {
    if (is_allowed(one) && (!best || fuller_load(one) < fuller_load(*best))) best = one;
  };
  consider(change);
  const std::vector<int32_t>& other = held_[static_cast<size_t>(change.q)];
  for (int i = 0; i < kChoices && !other.empty(); ++i) {
    change.b = other[draw(other.size())];
    // Which piece comes back matters for more than the work.
    if (kind >= 2 && i > 0) break;
    consider(change);
  }
  return best;
}

void OrderSearch::apply(const Change& change, Held& held) const {
  const auto put = [&](int32_t id, int32_t from, int32_t to) {
    if (id < 0) return;
    std::vector<int32_t>& source = held[static_cast<size_t>(from)];
    std::vector<int32_t>& target = held[static_cast<size_t>(to)];
    source.erase(std::lower_bound(source.begin(), source.end(), id));
    target.insert(std::lower_bound(target.begin(), target.end(), id), id);
  };
  put(change.a, change.p, change.q);
  put(change.b, change.q, change.p);
}

int64_t OrderSearch::step(int64_t count, const PriceOrder& price) {
  std::vector<int32_t> by_time(held_.size());
  std::iota(by_time.begin(), by_time.end(), 0);
  std::stable_sort(by_time.begin(), by_time.end(), [&](int32_t a, int32_t b) {
    return price_.compute_us[static_cast<size_t>(a)] > price_.compute_us[static_cast<size_t>(b)];
  });
  std::vector<Change> changes;
  for (int64_t i = 0; i < 8 * count && std::ssize(changes) < count; ++i) {
    const std::optional<Change> change = propose(by_time);
    if (change && std::find(changes.begin(), changes.end(), *change) == changes.end())
      changes.push_back(*change);
  }
  std::vector<std::optional<OrderPrice>> prices(changes.size());
  for_each_index(std::ssize(changes), [&](int64_t i) {
    Held held = held_;
    apply(changes[static_cast<size_t>(i)], held);
    prices[static_cast<size_t>(i)] = price(with_order(held));
  });
  // Orders of the same time are told apart by how even their work is: the next change may then
  // help.
  const auto cost = [](const OrderPrice& one) {
    double squares = 0;
    for (const double us : one.compute_us) squares += us * us;
    return std::tuple(one.us, squares);
  };
  ++idle_steps_;
  std::optional<size_t> best;
  for (size_t i = 0; i < prices.size(); ++i) {
    if (prices[i] && cost(*prices[i]) < cost(best ? *prices[*best] : price_)) best = i;
  }
  if (best) {
    if (prices[*best]->us < price_.us) idle_steps_ = 0;
    Held held = held_;
    apply(changes[*best], held);
    settle(std::move(held));
    price_ = *prices[*best];
  }
  return std::ssize(changes);
}

}  // namespace cpscope
