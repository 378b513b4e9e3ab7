#include "gui/model/traffic/edge_matrix.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace cpscope::gui {
namespace {

/// Calls look(stage, item) with every transfer to another rank, by stage.
template <class Look>
void for_each_transfer(const PlanIndex& index, Look look) {
  for (size_t s = 0; s < index.stages().size(); ++s) {
    const StageRef& stage = index.stages()[s];
    if (stage.kind != StageKind::transfer) continue;
    const std::vector<TransferItem>& items = index.pass(stage.direction).transfers;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      if (items[i].bytes > 0 && items[i].src != items[i].dst) look(s, items[i]);
    }
  }
}

}  // namespace

EdgeMatrix::EdgeMatrix(const PlanIndex& index) : num_ranks_(index.num_ranks()) {
  find_links(index);
  add_sums();
  find_extremes(index);
}

void EdgeMatrix::find_links(const PlanIndex& index) {
  // The receivers of each sender, ascending: few in a ring, and already in order elsewhere.
  std::vector<std::vector<int32_t>> receivers(static_cast<size_t>(num_ranks_));
  for_each_transfer(index, [&](size_t, const TransferItem& item) {
    std::vector<int32_t>& known = receivers[to_index(item.src)];
    const int32_t dst = to_index(item.dst);
    const auto at = std::lower_bound(known.begin(), known.end(), dst);
    if (at == known.end() || *at != dst) known.insert(at, dst);
  });
  std::vector<int32_t> first(receivers.size() + 1, 0);
  for (size_t src = 0; src < receivers.size(); ++src) {
    first[src + 1] = first[src] + static_cast<int32_t>(receivers[src].size());
    for (const int32_t dst : receivers[src]) links_.push_back({static_cast<int32_t>(src), dst});
  }
  const size_t stages = index.stages().size();
  payloads_.assign(stages + 1, {});
  first_of_stage_.assign(stages + 1, 0);
  for_each_transfer(index, [&](size_t stage, const TransferItem& item) {
    const std::vector<int32_t>& known = receivers[to_index(item.src)];
    const auto at = std::lower_bound(known.begin(), known.end(), to_index(item.dst));
    const auto place = static_cast<int32_t>(at - known.begin());
    shares_.push_back({first[to_index(item.src)] + place, item.bytes});
    payloads_[stage + 1][static_cast<size_t>(item.payload)] += item.bytes;
    first_of_stage_[stage + 1] = static_cast<int64_t>(shares_.size());
  });
  for (size_t stage = 0; stage < stages; ++stage) {
    first_of_stage_[stage + 1] = std::max(first_of_stage_[stage + 1], first_of_stage_[stage]);
    for (size_t p = 0; p < kPayloads; ++p) payloads_[stage + 1][p] += payloads_[stage][p];
  }
}

void EdgeMatrix::add_sums() {
  first_of_link_.assign(links_.size() + 1, 0);
  for (const Share& share : shares_) ++first_of_link_[share.link + 1];
  std::partial_sum(first_of_link_.begin(), first_of_link_.end(), first_of_link_.begin());
  std::vector<int64_t> next(first_of_link_.begin(), first_of_link_.end());
  std::vector<int64_t> carried(links_.size(), 0);
  sums_.resize(shares_.size());
  for (size_t stage = 0; stage + 1 < first_of_stage_.size(); ++stage) {
    for (int64_t i = first_of_stage_[stage]; i < first_of_stage_[stage + 1]; ++i) {
      const Share& share = shares_[i];
      carried[share.link] += share.bytes;
      sums_[next[share.link]++] = {static_cast<int32_t>(stage), carried[share.link]};
    }
  }
  for (const int64_t bytes : carried) most_of_all_ = std::max(most_of_all_, bytes);
}

void EdgeMatrix::find_extremes(const PlanIndex& index) {
  for (size_t link = 0; link < links_.size(); ++link) {
    int64_t i = first_of_link_[link], before = 0;
    while (i < first_of_link_[link + 1]) {
      const int32_t step = index.step_of_stage(sums_[i].stage);
      const int32_t end_stage = index.steps()[step].end_stage;
      while (i < first_of_link_[link + 1] && sums_[i].stage < end_stage) ++i;
      const int64_t bytes = sums_[i - 1].bytes - before;
      before = sums_[i - 1].bytes;
      most_of_step_ = std::max(most_of_step_, bytes);
      least_of_step_ = least_of_step_ == 0 ? bytes : std::min(least_of_step_, bytes);
    }
  }
}

int64_t EdgeMatrix::carried(size_t link, int32_t end_stage) const {
  const auto begin = sums_.begin() + first_of_link_[link];
  const auto end = sums_.begin() + first_of_link_[link + 1];
  const auto at =
      std::partition_point(begin, end, [&](const Sum& sum) { return sum.stage < end_stage; });
  return at == begin ? 0 : (at - 1)->bytes;
}

std::vector<LinkBytes> EdgeMatrix::of_stages(int32_t first_stage, int32_t end_stage) const {
  std::vector<LinkBytes> out;
  const auto add = [&](size_t link, int64_t bytes) {
    if (bytes > 0) out.push_back({links_[link].src, links_[link].dst, bytes});
  };
  const int64_t begin = first_of_stage_[first_stage], end = first_of_stage_[end_stage];
  if (end - begin >= static_cast<int64_t>(links_.size())) {
    for (size_t link = 0; link < links_.size(); ++link)
      add(link, carried(link, end_stage) - carried(link, first_stage));
    return out;
  }
  std::vector<Share> shares(shares_.begin() + begin, shares_.begin() + end);
  const auto is_before = [](const Share& a, const Share& b) { return a.link < b.link; };
  if (!std::is_sorted(shares.begin(), shares.end(), is_before))
    std::sort(shares.begin(), shares.end(), is_before);
  for (size_t i = 0; i < shares.size();) {
    const int32_t link = shares[i].link;
    int64_t bytes = 0;
    for (; i < shares.size() && shares[i].link == link; ++i) bytes += shares[i].bytes;
    add(static_cast<size_t>(link), bytes);
  }
  return out;
}

PayloadBytes EdgeMatrix::payloads(int32_t first_stage, int32_t end_stage) const {
  PayloadBytes bytes{};
  for (size_t p = 0; p < kPayloads; ++p)
    bytes[p] = payloads_[end_stage][p] - payloads_[first_stage][p];
  return bytes;
}

int64_t EdgeMatrix::total(int32_t first_stage, int32_t end_stage) const {
  const PayloadBytes bytes = payloads(first_stage, end_stage);
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

}  // namespace cpscope::gui
