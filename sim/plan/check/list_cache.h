#pragma once

#include "sim/base/id_vector.h"
#include "sim/base/ids.h"
#include "sim/base/parallel.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace cpscope {

/// Tables made of token lists. That of a list with several uses is kept; that of a list with one,
/// which may be as long as the batch, is made when it is used, and dropped: where every rank has
/// such a list, all of them together would fill gigabytes.
template <class Table>
class ListCache {
 public:
  using Make = std::function<std::unique_ptr<Table>(RunListId)>;

  ListCache(size_t num_lists, Make make)
      : make_(std::move(make)), uses_(num_lists), kept_(num_lists) {}

  void add_use(RunListId list) { ++uses_[list]; }

  /// Call when all uses are known.
  void make_kept() {
    std::vector<RunListId> lists;
    for (const RunListId list : uses_.ids()) {
      if (uses_[list] > 1) lists.push_back(list);
    }
    for_each_index(std::ssize(lists), [&](int64_t i) {
      const RunListId list = lists[static_cast<size_t>(i)];
      kept_[list] = make_(list);
    });
  }

  /// The table of a list, which `own` holds if it is not kept.
  const Table& of(RunListId list, std::unique_ptr<Table>& own) const {
    if (kept_[list]) return *kept_[list];
    own = make_(list);
    return *own;
  }

 private:
  Make make_;
  IdVector<RunListId, int64_t> uses_;
  IdVector<RunListId, std::unique_ptr<Table>> kept_;
};

}  // namespace cpscope
