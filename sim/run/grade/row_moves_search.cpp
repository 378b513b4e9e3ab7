#include "sim/run/grade/row_moves_search.h"

#include "sim/run/dtype.h"
#include "sim/run/grade/tensor_grader.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

constexpr double kLog2E = 1.4426950408889634;

/// The values that a mistake would give a row; nothing if they are not known.
using Predict = std::function<std::optional<std::vector<double>>(const JudgedRow&)>;

std::vector<double> copy_of(std::span<const double> row) { return {row.begin(), row.end()}; }

RowFit fit_of(const WrongTensor& tensor, const Predict& predict) {
  RowFit fit;
  for (const JudgedRow& row : tensor.wrong) {
    const auto predicted = predict(row);
    ++fit.wrong;
    fit.explained += predicted && tensor.explains(row, *predicted) ? 1 : 0;
  }
  for (const JudgedRow& row : tensor.right) {
    const auto predicted = predict(row);
    ++fit.right;
    fit.contradicted += predicted && tensor.excess(row, *predicted) > 1 ? 1 : 0;
  }
  return fit;
}

/// One failed tensor and the candidates found for it.
class Moves {
 public:
  explicit Moves(const MovesSearch& search)
      : search_(search),
        tensor_(search.tensor),
        places_(search.tensor.side == Side::q ? search.maker.queries() : search.maker.keys()) {}

  std::vector<Explanation> find() {
    if (tensor_.wrong.empty()) return {};
    look_for_zeros();
    look_for_factor();
    look_for_count();
    look_for_heads();
    look_for_sums();
    look_for_places();
    look_for_narrow_values();
    if (!has_explanation()) look_for_nearest();
    look_for_unwritten();
    return std::move(found_);
  }

 private:
  using Move = std::function<int64_t(int64_t token)>;  // -1: unknown

  void add(std::string name, std::string text, const Predict& predict, std::string layout = {}) {
    const RowFit fit = fit_of(tensor_, predict);
    if (fit.explains())
      found_.push_back({std::move(name), std::move(text), std::move(layout), {fit}});
  }
  bool has_explanation() const { return !found_.empty(); }

  void look_for_zeros() {
    const auto& values = search_.seen.values;
    if (!std::all_of(values.begin(), values.end(), [](double value) { return value == 0; })) return;
    add("zeros", "every value is 0: the output was never written",
        [](const JudgedRow& row) { return std::vector<double>(row.exact.size(), 0.0); });
  }

  /// Rows that hold no result: one value in all elements, or none.
  void look_for_unwritten() {
    int64_t empty = 0;
    std::set<double> fillings;
    for (const JudgedRow& row : tensor_.wrong) {
      const double first = row.seen.front();
      const bool is_constant = std::all_of(row.seen.begin(), row.seen.end(), [&](double value) {
        return value == first || (std::isnan(value) && std::isnan(first));
      });
      const bool is_bare = tensor_.lanes > 1 || first == 0 || !std::isfinite(first);
      if (!is_constant || !is_bare) continue;
      ++empty;
      if (!std::isnan(first)) fillings.insert(first);
    }
    const RowFit fit{static_cast<int64_t>(tensor_.wrong.size()), empty, 0, 0};
    if (!fit.explains() || fillings.size() > 1) return;
    for (const Explanation& other : found_)
      if (other.name == "zeros") return;
    found_.push_back({std::string(kUnwrittenRows),
                      fillings.empty() ? std::string("the wrong rows hold NaN: they were not "
                                                     "written, or were computed from such memory")
                                       : fmt::format("the wrong rows hold {} everywhere: they were "
                                                     "not written",
                                                     *fillings.begin()),
                      {},
                      {fit}});
  }

  void look_for_factor() {
    double product = 0, exact2 = 0;
    for (const JudgedRow& row : tensor_.wrong) {
      for (size_t lane = 0; lane < row.seen.size(); ++lane) {
        if (!std::isfinite(row.seen[lane]) || !std::isfinite(row.exact[lane])) continue;
        product += row.seen[lane] * row.exact[lane];
        exact2 += row.exact[lane] * row.exact[lane];
      }
    }
    if (!(exact2 > 0)) return;
    const double factor = product / exact2;
    if (std::abs(factor) < 1e-6 || std::abs(factor - 1) <= 2 * tensor_.budget) return;
    const bool is_base_2 = tensor_.name == "lse" && std::abs(factor - kLog2E) < 1e-3;
    add(is_base_2 ? "lse_base_2" : "factor",
        is_base_2 ? std::string("every value is 1.4427 (log2 e) times what it should be: a "
                                "logarithm to base 2, and lse is the natural one")
                  : fmt::format("every value is {:.{}g} times what it should be", factor,
                                tensor_.budget > 1e-5 ? 3 : 6),
        [factor](const JudgedRow& row) {
          std::vector<double> scaled = copy_of(row.exact);
          for (double& value : scaled) value *= factor;
          return scaled;
        });
  }

  /// lse that counts every key n times.
  void look_for_count() {
    if (tensor_.name != "lse") return;
    const JudgedRow& row = tensor_.wrong.front();
    const double times = std::round(std::exp(row.seen.front() - row.exact.front()));
    if (!(times >= 2) || times > 65536) return;
    add("keys_counted_twice", fmt::format("every key counts {} times in lse", times),
        [times](const JudgedRow& judged) {
          return std::vector<double>{judged.exact.front() + std::log(times)};
        });
  }

  void look_for_heads() {
    const int64_t heads = search_.rows.exact.shape[1];
    constexpr int64_t kMostHeads = 1024;
    if (heads < 2 || heads > kMostHeads) return;
    std::map<int32_t, int32_t> holds;  // [head] whose rows it holds
    for (const JudgedRow& row : tensor_.wrong) {
      if (holds.contains(row.at.head)) continue;
      for (int32_t head = 0; head < heads; ++head) {
        if (head == row.at.head || tensor_.excess(row, search_.rows.row({row.at.token, head})) > 1)
          continue;
        holds[row.at.head] = head;
        break;
      }
    }
    if (holds.empty()) return;
    std::vector<std::string> moves;
    for (const auto& [head, other] : holds)
      moves.push_back(fmt::format("{} holds head {}'s", head, other));
    add("heads_exchanged", describe_moves("head", moves), [&](const JudgedRow& row) {
      const auto found = holds.find(row.at.head);
      return found == holds.end() ? copy_of(row.exact)
                                  : copy_of(search_.rows.row({row.at.token, found->second}));
    });
  }

  /// Values that a narrower type holds, as right as it can hold them.
  void look_for_narrow_values() {
    if (!tensor_.narrow) return;
    add(fmt::format("rounded_to_{}", to_name(*tensor_.narrow)),
        fmt::format("all values fit {}, and are as right as it can hold them",
                    to_name(*tensor_.narrow)),
        [this](const JudgedRow& row) -> std::optional<std::vector<double>> {
          const double error = 2 * unit_roundoff(*tensor_.narrow) *
                               row_norm(row.exact.data(), std::ssize(row.exact));
          if (row_distance(row.seen, row.exact) > row.allowed + error) return std::nullopt;
          return copy_of(row.seen);
        });
  }

  /// dk and dv added up, of the own rows or of a neighbour's.
  void look_for_sums() {
    if (!search_.twin || search_.twin->exact.shape != search_.rows.exact.shape) return;
    for (const int32_t shift : {0, 1, -1}) {
      const Move move = by_rank_shift(shift);
      add("dk_dv_added",
          shift == 0 ? std::string("the row holds the sum of dk and dv")
                     : fmt::format("the row holds the sum of dk and dv of rank r {} 1's rows",
                                   shift > 0 ? '+' : '-'),
          [&](const JudgedRow& row) -> std::optional<std::vector<double>> {
            const int64_t token = move(row.at.token);
            if (token < 0) return std::nullopt;
            const auto own = search_.rows.row({token, row.at.head}),
                       twin = search_.twin->row({token, row.at.head});
            if (own.empty() || twin.empty()) return std::nullopt;
            std::vector<double> sum = copy_of(own);
            for (size_t lane = 0; lane < sum.size(); ++lane) sum[lane] += twin[lane];
            return sum;
          });
    }
  }

  Move by_rank_shift(int32_t shift) const {
    return [this, shift](int64_t token) -> int64_t {
      const auto ranks = static_cast<int32_t>(places_.ids.size());
      const auto at = static_cast<size_t>(token);
      const auto& ids =
          places_.ids[static_cast<size_t>((places_.rank[at] + shift + ranks) % ranks)];
      const auto local = static_cast<size_t>(places_.local[at]);
      return local < ids.size() ? ids[local] : -1;
    };
  }

  void add_move(const char* name, std::string text, const Move& move, std::string layout = {}) {
    // Every padding row is empty, so that a lost row looks like one of them.
    const auto count =
        std::count_if(tensor_.wrong.begin(), tensor_.wrong.end(), [&](const JudgedRow& row) {
          const int64_t token = move(row.at.token);
          return token >= 0 && places_.sequence[static_cast<size_t>(token)] >= 0;
        });
    if (count * 2 < std::ssize(tensor_.wrong)) return;
    add(
        name, std::move(text),
        [&](const JudgedRow& row) -> std::optional<std::vector<double>> {
          const int64_t token = move(row.at.token);
          if (token < 0) return std::nullopt;
          const auto exact = search_.rows.row({token, row.at.head});
          if (exact.empty()) return std::nullopt;
          return copy_of(exact);
        },
        std::move(layout));
  }

  static std::vector<int64_t> ids_of(const std::vector<std::vector<int64_t>>& by_rank) {
    std::vector<int64_t> all;
    for (const auto& ids : by_rank) all.insert(all.end(), ids.begin(), ids.end());
    return all;
  }

  /// Rows that were moved by a known rule.
  void look_for_places() {
    const auto ranks = static_cast<int32_t>(places_.ids.size());
    constexpr int32_t kMostRanks = 64;
    for (int32_t shift = 1; shift < std::min(ranks, kMostRanks); ++shift)
      add_move("ranks_exchanged", fmt::format("rank r holds rank r + {}'s rows", shift),
               by_rank_shift(shift));
    const auto add_moves = [&](const char* name, std::string text, const std::vector<int64_t>& ids,
                               std::string layout = {}) {
      add_move(
          name, std::move(text), [&](int64_t token) { return ids[static_cast<size_t>(token)]; },
          std::move(layout));
    };
    for (const SuspectMaker::OtherLayout& other : search_.maker.other_layouts()) {
      const auto& foreign = tensor_.side == Side::q ? other.query_ids : other.key_ids;
      // A packed tensor is in the order of contiguous parts.
      const std::vector<int64_t> ids = ids_of(foreign);
      const bool is_packed = std::is_sorted(ids.begin(), ids.end());
      add_moves("other_layout",
                fmt::format("the rows are in the order of layout {}{}", other.name,
                            is_packed ? ", as in a packed tensor (--order packed)" : ""),
                ids_in(places_.ids, foreign), other.name);
      if (is_packed) continue;  // then they are in rank order, see below
      add_moves("other_layout",
                fmt::format("the rows were put back by the order of layout {}", other.name),
                ids_in(foreign, places_.ids), other.name);
    }
    const std::vector<int64_t> order = ids_of(places_.ids);
    std::vector<int64_t> inverse(order.size());
    for (size_t row = 0; row < order.size(); ++row)
      inverse[static_cast<size_t>(order[row])] = static_cast<int64_t>(row);
    if (!std::is_sorted(order.begin(), order.end())) {
      add_moves("rows_exchanged",
                "all rows agree when they are read in packed order: --order packed", inverse);
      add_moves("rows_exchanged", "all rows agree when they are read in rank order: --order rank",
                order);
    }
    add_moves("rows_exchanged", "each rank's halves are exchanged",
              ids_with_halves_exchanged(places_));
  }

  /// Looks for the exact row that a wrong row holds.
  void look_for_nearest() {
    constexpr int64_t kMostRows = int64_t{1} << 22;
    if (tensor_.lanes < 4 || search_.rows.exact.shape[0] > kMostRows) return;
    std::map<int32_t, std::vector<std::pair<double, int64_t>>> by_head;  // projection, token
    std::map<RowAddress, int64_t> holds;
    for (const JudgedRow& row : tensor_.wrong) {
      // Every empty row is zero.
      if (std::all_of(row.seen.begin(), row.seen.end(), [](double value) { return value == 0; }))
        continue;
      auto& sorted = by_head[row.at.head];
      if (sorted.empty()) {
        for (const int64_t token : search_.rows.tokens)
          sorted.emplace_back(project(search_.rows.row({token, row.at.head})), token);
        std::sort(sorted.begin(), sorted.end());
      }
      const double wanted = project(row.seen);
      const double reach = std::sqrt(static_cast<double>(tensor_.lanes)) *
                           std::max(row.allowed, 3 * tensor_.budget * std::abs(wanted) + 1e-30);
      auto near =
          std::lower_bound(sorted.begin(), sorted.end(), std::pair{wanted - reach, int64_t{-1}});
      for (; near != sorted.end() && near->first <= wanted + reach; ++near) {
        if (near->second == row.at.token || places_.sequence[static_cast<size_t>(near->second)] < 0)
          continue;
        if (tensor_.excess(row, search_.rows.row({near->second, row.at.head})) > 1) continue;
        holds[row.at] = near->second;
        break;
      }
    }
    if (holds.empty()) return;
    const bool is_of_ranks = std::all_of(holds.begin(), holds.end(), [&](const auto& move) {
      const auto at = static_cast<size_t>(move.first.token),
                 from = static_cast<size_t>(move.second);
      return places_.rank[at] != places_.rank[from] && places_.local[at] == places_.local[from];
    });
    add(is_of_ranks ? "ranks_exchanged" : "rows_exchanged", describe_places(holds, is_of_ranks),
        [&](const JudgedRow& row) -> std::optional<std::vector<double>> {
          const auto found = holds.find(row.at);
          if (found == holds.end()) return std::nullopt;
          return copy_of(search_.rows.row({found->second, row.at.head}));
        });
  }

  static double project(std::span<const double> row) {
    double sum = 0;
    for (size_t lane = 0; lane < row.size(); ++lane)
      sum += std::isfinite(row[lane]) ? row[lane] * std::cos(1.7 * static_cast<double>(lane) + 0.3)
                                      : 0.0;
    return sum;
  }

  std::string describe_places(const std::map<RowAddress, int64_t>& holds, bool is_of_ranks) const {
    if (is_of_ranks) {
      std::map<int32_t, int32_t> ranks;
      for (const auto& [at, from] : holds)
        ranks[places_.rank[static_cast<size_t>(at.token)]] =
            places_.rank[static_cast<size_t>(from)];
      std::vector<std::string> moves;
      for (const auto& [rank, other] : ranks)
        moves.push_back(fmt::format("{} holds rank {}'s rows", rank, other));
      return describe_moves("rank", moves);
    }
    const auto& [at, from] = *holds.begin();
    const auto to_text = [this, head = at.head](int64_t token) {
      const auto index = static_cast<size_t>(token);
      return fmt::format("position {} of sequence {} (rank {})", places_.position[index],
                         places_.sequence[index], places_.rank_of(token, head));
    };
    return fmt::format("rows hold the right rows of other tokens: {} holds that of {}",
                       to_text(at.token), to_text(from));
  }

  static std::string describe_moves(const char* noun, const std::vector<std::string>& moves) {
    constexpr size_t kShown = 4;
    const size_t shown = std::min(kShown, moves.size());
    return fmt::format(
        "{} {}{}", noun,
        fmt::join(moves.begin(), moves.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
        moves.size() > shown ? fmt::format(", and so on ({} in all)", moves.size())
                             : std::string());
  }

  const MovesSearch& search_;
  const WrongTensor& tensor_;
  const TokenPlaces& places_;
  std::vector<Explanation> found_;
};

}  // namespace

std::span<const double> ExactRows::row(const RowAddress& at) const {
  const auto found = std::lower_bound(tokens.begin(), tokens.end(), at.token);
  if (found == tokens.end() || *found != at.token) return {};
  const int64_t lanes = exact.shape.size() > 2 ? exact.shape[2] : 1;
  const auto row = static_cast<size_t>((found - tokens.begin()) * exact.shape[1] + at.head);
  return std::span(exact.values)
      .subspan(row * static_cast<size_t>(lanes), static_cast<size_t>(lanes));
}

std::vector<Explanation> find_moved_rows(const MovesSearch& search) { return Moves(search).find(); }

}  // namespace cpscope
