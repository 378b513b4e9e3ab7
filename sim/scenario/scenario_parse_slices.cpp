#include "sim/scenario/entry_faults.h"
#include "sim/scenario/scenario_names.h"
#include "sim/scenario/scenario_parts.h"
#include "sim/scenario/slice_overlap.h"

#include <array>
#include <numeric>
#include <optional>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr size_t kCountedOverlaps = 10;
constexpr int64_t kSliceEntries = 5;

/// Numbers of tokens that bound the slices.
struct SliceBounds {
  int64_t q = kMaxTokens;
  int64_t k = kMaxTokens;
};

/// What can be wrong with an entry: the kinds of EntryFaults.
enum class SliceFault : size_t { form, ids, type, q_range, k_range };

/// Reads the entries of the list and collects what is wrong with them.
class SliceReader {
 public:
  explicit SliceReader(SliceBounds bounds) : bounds_(bounds) {}

  std::optional<MaskSlice> read(const TomlValue& value, int64_t index);
  const EntryFaults& faults() const { return faults_; }

 private:
  std::optional<SliceType> read_type(const TomlValue& value, int64_t index);
  bool check_range(SliceFault fault, const TomlValue& value, int64_t index, int64_t begin,
                   int64_t end);

  SliceBounds bounds_;
  EntryFaults faults_;
};

std::optional<SliceType> SliceReader::read_type(const TomlValue& value, int64_t index) {
  for (const SliceType type : kSliceTypes) {
    if (value.kind() == TomlKind::text && value.text() == to_name(type)) return type;
  }
  faults_.add(static_cast<size_t>(SliceFault::type), index, [&] {
    std::vector<std::string_view> names;
    for (const SliceType type : kSliceTypes) names.push_back(to_name(type));
    return EntryFaults::Wording{value.position(), "has no such type", "entries have no such type",
                                show_value_of(value), "choose " + show_choices(names)};
  });
  return std::nullopt;
}

bool SliceReader::check_range(SliceFault fault, const TomlValue& value, int64_t index,
                              int64_t begin, int64_t end) {
  const bool is_q = fault == SliceFault::q_range;
  const int64_t limit = is_q ? bounds_.q : bounds_.k;
  if (0 <= begin && begin <= end && end <= limit) return true;
  faults_.add(static_cast<size_t>(fault), index, [&] {
    const std::string rule =
        fmt::format("must satisfy 0 <= {0}0 <= {0}1 <= {1}", is_q ? "q" : "k", limit);
    return EntryFaults::Wording{value.position(), rule, "entries " + rule,
                                fmt::format("{}, {}", begin, end),
                                "ids count the valid tokens through the batch"};
  });
  return false;
}

std::optional<MaskSlice> SliceReader::read(const TomlValue& value, int64_t index) {
  const auto reject = [&](SliceFault fault, const TomlValue& at, const char* one,
                          const char* many) {
    faults_.add(static_cast<size_t>(fault), index, [&] {
      return EntryFaults::Wording{at.position(), one, many, show_value_of(at),
                                  R"(write [q0, q1, k0, k1, "full"])"};
    });
    return std::nullopt;
  };
  if (value.kind() != TomlKind::array || value.size() != kSliceEntries) {
    return reject(SliceFault::form, value, "must be a list of 5 entries",
                  "entries must be lists of 5 entries");
  }
  std::array<int64_t, 4> ids = {};
  for (int64_t i = 0; i < 4; ++i) {
    const TomlValue entry = value.item(i);
    if (entry.kind() != TomlKind::integer) {
      return reject(SliceFault::ids, entry, "must begin with 4 integers",
                    "entries must begin with 4 integers");
    }
    ids[static_cast<size_t>(i)] = entry.integer();
  }
  const std::optional<SliceType> type = read_type(value.item(4), index);
  const bool has_rows = check_range(SliceFault::q_range, value, index, ids[0], ids[1]);
  const bool has_columns = check_range(SliceFault::k_range, value, index, ids[2], ids[3]);
  if (!type || !has_rows || !has_columns) return std::nullopt;
  return MaskSlice{ids[0], ids[1], ids[2], ids[3], *type};
}

/// True if one slice could replace both: rectangles with a common side.
bool can_merge(const MaskSlice& a, const MaskSlice& b) {
  if (a.type != SliceType::full || b.type != SliceType::full) return false;
  const bool same_rows = a.q0 == b.q0 && a.q1 == b.q1, same_columns = a.k0 == b.k0 && a.k1 == b.k1;
  return (same_rows && (a.k1 == b.k0 || b.k1 == a.k0)) ||
         (same_columns && (a.q1 == b.q0 || b.q1 == a.q0));
}

/// What to do about a list that is too long.
std::string advise_fewer(const TomlValue& list) {
  SliceReader reader({});
  std::optional<MaskSlice> before;
  int64_t first = -1, count = 0;
  for (int64_t i = 0; i < list.size(); ++i) {
    const std::optional<MaskSlice> slice = reader.read(list.item(i), i);
    if (slice && before && can_merge(*before, *slice) && count++ == 0) first = i - 1;
    before = slice;
  }
  if (count == 0) {
    return "no neighbours in the list touch, so none can be merged: give a shorter batch";
  }
  return fmt::format("merge neighbours that touch: {} in the list do, first [{}] and [{}]", count,
                     first, first + 1);
}

void check_overlaps(const TableReader& table, const std::vector<MaskSlice>& slices) {
  const SliceOverlapReport report = find_slice_overlaps(slices, kCountedOverlaps);
  if (!report.overlaps.empty()) {
    const SliceOverlap& overlap = report.overlaps.front();
    const size_t count = report.overlaps.size();
    std::string hint = "each visible pair must be in one slice only";
    if (count > 1) {
      hint += fmt::format("; {}{} pairs of slices overlap",
                          count == kCountedOverlaps ? "at least " : "", count);
    }
    table.complaints().add(
        table.find("slices").item(overlap.second).position(),
        fmt::format("{0}[{1}] and {0}[{2}] overlap, first at query {3}, key {4}",
                    table.full_name("slices"), overlap.first, overlap.second, overlap.q, overlap.k),
        std::move(hint));
  }
  if (!report.is_complete) {
    table.complain(
        "slices",
        fmt::format("has too many overlapping rectangles to check: {} slices", slices.size()),
        "give fewer slices, or rectangles that lie apart");
  }
}

}  // namespace

void read_slices(const ScenarioTables& tables, const Batch* batch, Attention& attention) {
  const TableReader& table = tables.attention;
  const int64_t limit = tables.is_plan_document() ? kMaxFileSlices : kMaxSlices;
  const TomlValue value = table.find("slices");
  if (value.kind() == TomlKind::none) return;
  if (value.kind() != TomlKind::array) {
    table.complain("slices", "must be a list of slices: " + show_value_of(value),
                   R"(write [[q0, q1, k0, k1, "full"], ...])");
    return;
  }
  if (value.size() > limit) {
    table.complain("slices",
                   fmt::format("has more entries than the limit of {}: {}", limit, value.size()),
                   advise_fewer(value));
    return;
  }
  SliceBounds bounds;
  if (batch != nullptr) {
    bounds.q = std::reduce(batch->lengths.begin(), batch->lengths.end(), int64_t{0});
    bounds.k = std::reduce(batch->kv_lengths.begin(), batch->kv_lengths.end(), int64_t{0});
  }
  SliceReader reader(bounds);
  std::vector<MaskSlice> slices;
  for (int64_t i = 0; i < value.size(); ++i) {
    if (const auto slice = reader.read(value.item(i), i)) slices.push_back(*slice);
  }
  reader.faults().report_to(table.complaints(), table.full_name("slices"));
  if (batch == nullptr || slices.size() != static_cast<size_t>(value.size())) return;
  check_overlaps(table, slices);
  attention.slices = std::move(slices);
}

}  // namespace cpscope
