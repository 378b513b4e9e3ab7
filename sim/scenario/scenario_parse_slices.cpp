#include "sim/scenario/scenario_names.h"
#include "sim/scenario/scenario_parts.h"
#include "sim/scenario/slice_overlap.h"

#include <array>
#include <numeric>
#include <optional>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr size_t kShownOverlaps = 10;
constexpr int64_t kSliceEntries = 5;

/// Numbers of tokens that bound the slices.
struct SliceBounds {
  int64_t q = kMaxTokens;
  int64_t k = kMaxTokens;
};

class SliceReader {
 public:
  SliceReader(const TableReader& table, SliceBounds bounds) : table_(table), bounds_(bounds) {}

  std::optional<MaskSlice> read(const TomlValue& value, int64_t index) const;

 private:
  void complain(const TomlValue& value, int64_t index, const std::string& what,
                std::string hint) const {
    table_.complaints().add(value.position(),
                            fmt::format("{}[{}] {}", table_.full_name("slices"), index, what),
                            std::move(hint));
  }
  std::optional<SliceType> read_type(const TomlValue& value, int64_t index) const;
  bool check_range(const TomlValue& value, int64_t index, int64_t begin, int64_t end, int64_t limit,
                   std::string_view axis) const;

  const TableReader& table_;
  SliceBounds bounds_;
};

std::optional<SliceType> SliceReader::read_type(const TomlValue& value, int64_t index) const {
  std::vector<std::string_view> names;
  for (const SliceType type : kSliceTypes) {
    if (value.kind() == TomlKind::text && value.text() == to_name(type)) return type;
    names.push_back(to_name(type));
  }
  complain(value, index, "has no such type: " + show_value_of(value),
           "choose " + show_choices(names));
  return std::nullopt;
}

bool SliceReader::check_range(const TomlValue& value, int64_t index, int64_t begin, int64_t end,
                              int64_t limit, std::string_view axis) const {
  if (0 <= begin && begin <= end && end <= limit) return true;
  complain(value, index,
           fmt::format("must satisfy 0 <= {0}0 <= {0}1 <= {1}: {2}, {3}", axis, limit, begin, end),
           "ids count the valid tokens through the batch");
  return false;
}

std::optional<MaskSlice> SliceReader::read(const TomlValue& value, int64_t index) const {
  const std::string form = R"(write [q0, q1, k0, k1, "full"])";
  if (value.kind() != TomlKind::array || value.size() != kSliceEntries) {
    complain(value, index, "must be a list of 5 entries: " + show_value_of(value), form);
    return std::nullopt;
  }
  std::array<int64_t, 4> ids = {};
  for (int64_t i = 0; i < 4; ++i) {
    const TomlValue entry = value.item(i);
    if (entry.kind() != TomlKind::integer) {
      complain(entry, index, "must begin with 4 integers: " + show_value_of(entry), form);
      return std::nullopt;
    }
    ids[static_cast<size_t>(i)] = entry.integer();
  }
  const std::optional<SliceType> type = read_type(value.item(4), index);
  const bool has_rows = check_range(value, index, ids[0], ids[1], bounds_.q, "q");
  const bool has_columns = check_range(value, index, ids[2], ids[3], bounds_.k, "k");
  if (!type || !has_rows || !has_columns) return std::nullopt;
  return MaskSlice{ids[0], ids[1], ids[2], ids[3], *type};
}

void check_overlaps(const TableReader& table, const std::vector<MaskSlice>& slices) {
  const SliceOverlapReport report = find_slice_overlaps(slices, kShownOverlaps);
  const TomlValue list = table.find("slices");
  for (const SliceOverlap& overlap : report.overlaps) {
    const std::string name = table.full_name("slices");
    table.complaints().add(list.item(overlap.second).position(),
                           fmt::format("{0}[{1}] and {0}[{2}] overlap, first at query {3}, key {4}",
                                       name, overlap.first, overlap.second, overlap.q, overlap.k),
                           "each visible pair must be in one slice only");
  }
  if (!report.is_complete) {
    table.complain(
        "slices",
        fmt::format("has too many overlapping rectangles to check: {} slices", slices.size()),
        "give fewer slices, or rectangles that lie apart");
  }
}

}  // namespace

void read_slices(const TableReader& table, const Batch* batch, Attention& attention) {
  const TomlValue value = table.find("slices");
  if (value.kind() == TomlKind::none) return;
  if (value.kind() != TomlKind::array) {
    table.complain("slices", "must be a list of slices: " + show_value_of(value),
                   R"(write [[q0, q1, k0, k1, "full"], ...])");
    return;
  }
  if (value.size() > kMaxSlices) {
    table.complain(
        "slices",
        fmt::format("has more entries than the limit of {}: {}", kMaxSlices, value.size()),
        "merge slices that touch");
    return;
  }
  SliceBounds bounds;
  if (batch != nullptr) {
    bounds.q = std::reduce(batch->lengths.begin(), batch->lengths.end(), int64_t{0});
    bounds.k = std::reduce(batch->kv_lengths.begin(), batch->kv_lengths.end(), int64_t{0});
  }
  const SliceReader reader(table, bounds);
  std::vector<MaskSlice> slices;
  for (int64_t i = 0; i < value.size(); ++i) {
    if (const auto slice = reader.read(value.item(i), i)) slices.push_back(*slice);
  }
  if (batch == nullptr || slices.size() != static_cast<size_t>(value.size())) return;
  check_overlaps(table, slices);
  attention.slices = std::move(slices);
}

}  // namespace cpscope
