#include "tests/kernels/tiles/turn_model.h"

#include <algorithm>
#include <functional>
#include <list>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cpscope::kernels {
namespace {

/// The turn of a streamed tile.
struct Visit {
  int32_t counter = 0;
  int32_t turn = 0;
};

std::vector<Visit> visits_of(const TileList& list, const OwnedTile& tile) {
  std::vector<Visit> visits;
  const TurnRun* next = list.turns.data() + tile.first_turn;
  TurnRun run;
  for (int32_t i = 0; i < tile.num_tiles; ++i) {
    if (run.num_tiles == 0) {
      run = *next++;
    } else {
      --run.counter;
    }
    --run.num_tiles;
    visits.push_back({run.counter, std::max(run.turn, 0)});
  }
  return visits;
}

constexpr int32_t kNoItem = -1;

/// Blocks of streamed rows, those used last.
class Cache {
 public:
  /// Returns whether the block was cached; caches it.
  bool touch(size_t block) {
    // Q, dO and dq of 64 rows at head_dim 128.
    constexpr size_t kBlocks = 30'000'000 / (64 * 128 * (2 + 2 + 4));
    const auto place = places_.find(block);
    if (place != places_.end()) {
      order_.splice(order_.begin(), order_, place->second);
      return true;
    }
    order_.push_front(block);
    places_[block] = order_.begin();
    if (order_.size() > kBlocks) {
      places_.erase(order_.back());
      order_.pop_back();
    }
    return false;
  }

 private:
  std::list<size_t> order_;  // most recently used first
  std::unordered_map<size_t, std::list<size_t>::iterator> places_;
};

struct Cta {
  int32_t drawn = kNoItem;  // fetched ahead
  int32_t item = kNoItem;
  int32_t head = 0;    // of the streamed heads
  size_t visit = 0;    // of the item
  double ready = 0.0;  // time when its dq may be sent
  int64_t num_sent = 0;
  std::vector<double> sender_free;
};

/// The rows of one counter and head.
struct Rows {
  int32_t taken = 0;
  double free = 0.0;                                // time when the next turn can start
  std::vector<std::pair<int32_t, size_t>> waiting;  // turn, CTA
};

class Model {
 public:
  Model(const TileList& list, int32_t heads_walked, int num_ctas, const TurnCosts& costs)
      : list_(list), heads_walked_(heads_walked), costs_(costs), ctas_(num_ctas) {
    int32_t num_heads = 0;
    for (const OwnedTile& tile : list.tiles) visits_.push_back(visits_of(list, tile));
    for (const WorkItem& item : list.work) num_heads = std::max(num_heads, item.head + 1);
    rows_.resize(static_cast<size_t>(num_heads) * heads_walked * list.num_counters);
    for (const WorkItem& item : list.work)
      times_.alone += static_cast<double>(visits_[item.tile].size()) * heads_walked * costs.tile;
    times_.alone /= num_ctas;
  }

  TurnTimes run() {
    for (size_t c = 0; c < ctas_.size(); ++c) {
      ctas_[c].sender_free.assign(static_cast<size_t>(costs_.num_senders), 0.0);
      if (costs_.draws_ahead) ctas_[c].drawn = draw();
      begin_item(c, 0.0);
    }
    while (!events_.empty()) {
      const auto [time, c] = events_.top();
      events_.pop();
      send(c, time);
    }
    times_.is_stuck = num_done_ < num_drawn_;
    return times_;
  }

 private:
  int32_t draw() {
    while (next_ < list_.work.size() && visits_[list_.work[next_].tile].empty()) ++next_;
    if (next_ == list_.work.size()) return kNoItem;
    ++num_drawn_;
    return static_cast<int32_t>(next_++);
  }

  void begin_item(size_t c, double time) {
    Cta& cta = ctas_[c];
    cta.item = costs_.draws_ahead ? std::exchange(cta.drawn, kNoItem) : draw();
    if (cta.item == kNoItem) {
      times_.all = std::max(times_.all, time);
      return;
    }
    if (costs_.draws_ahead) cta.drawn = draw();
    cta.head = 0;
    cta.visit = 0;
    cta.ready = time + costs_.item + costs_.tile;
    events_.push({cta.ready, c});
  }

  /// dq of the CTA's tile is ready, possibly for a long time already.
  void send(size_t c, double time) {
    Cta& cta = ctas_[c];
    const WorkItem& item = list_.work[cta.item];
    const std::vector<Visit>& visits = visits_[item.tile];
    const Visit visit = visits[cta.visit];
    const size_t block =
        (static_cast<size_t>(item.head) * heads_walked_ + cta.head) * list_.num_counters +
        visit.counter;
    Rows& rows = rows_[block];
    if (rows.taken != visit.turn) {
      rows.waiting.push_back({visit.turn, c});
      return;
    }
    double& sender = cta.sender_free[static_cast<size_t>(cta.num_sent++ % costs_.num_senders)];
    const double start = std::max({time, rows.free, sender});
    sender = start + costs_.sending;
    // dq is written back as well.
    if (!cache_.touch(block)) times_.read_bytes += 64 * 128 * (2 + 2 + 4 + 4);
    ++rows.taken;
    rows.free = start + costs_.hand_over;
    const auto next = std::find_if(rows.waiting.begin(), rows.waiting.end(),
                                   [&](const auto& waits) { return waits.first == rows.taken; });
    if (next != rows.waiting.end()) {
      events_.push({rows.free, next->second});
      rows.waiting.erase(next);
    }
    const double buffer = start + costs_.buffer;
    if (!go_on(visits.size(), cta)) {
      ++num_done_;
      begin_item(c, std::max(cta.ready, buffer));
      return;
    }
    cta.ready = std::max(cta.ready + costs_.tile, buffer);
    events_.push({cta.ready, c});
  }

  /// Goes on to the item's next tile or head, if there is one.
  bool go_on(size_t num_visits, Cta& cta) const {
    if (list_.walks_by_tile) {
      if (++cta.head < heads_walked_) return true;
      cta.head = 0;
      return ++cta.visit < num_visits;
    }
    if (++cta.visit < num_visits) return true;
    cta.visit = 0;
    return ++cta.head < heads_walked_;
  }

  using Event = std::pair<double, size_t>;  // time, CTA

  const TileList& list_;
  const int32_t heads_walked_;
  const TurnCosts& costs_;
  std::vector<std::vector<Visit>> visits_;  // [stationary tile]
  std::vector<Cta> ctas_;
  std::vector<Rows> rows_;  // [KV head][streamed head][counter]
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  Cache cache_;
  size_t next_ = 0;
  int64_t num_drawn_ = 0, num_done_ = 0;
  TurnTimes times_;
};

}  // namespace

TurnTimes walk_in_turns(const TileList& list, int32_t heads_walked, int num_ctas,
                        const TurnCosts& costs) {
  return Model(list, heads_walked, num_ctas, costs).run();
}

}  // namespace cpscope::kernels
