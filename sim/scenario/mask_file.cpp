#include "sim/scenario/mask_file.h"

#include "sim/scenario/complaints.h"
#include "sim/scenario/integer_events.h"
#include "sim/scenario/mask_matrix.h"
#include "sim/scenario/text_file.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include <fmt/format.h>

namespace cpscope {
namespace {

// A matrix of the largest size and its header.
constexpr int64_t kMaxMaskBytes = 260LL << 20;
constexpr size_t kMaxEntries = size_t{1} << 24;
constexpr int64_t kDefaultBlock = 128;  // torch's _DEFAULT_SPARSE_BLOCK_SIZE
constexpr std::array<std::string_view, 6> kFileKeys = {
    "keys", "kv_num_blocks", "kv_indices", "block_size", "full_kv_num_blocks", "full_kv_indices"};

/// The innermost lists of one value, whatever they are nested in; one after the other.
struct NestedLists {
  std::vector<int64_t> values;
  std::vector<size_t> ends = {0};  // [list + 1] offsets into values
  int64_t depth = 0;               // brackets around the innermost entries; 0 = a number

  size_t count() const { return ends.size() - 1; }
  std::span<const int64_t> list(size_t i) const {
    return std::span(values).subspan(ends[i], ends[i + 1] - ends[i]);
  }
};

class MaskEvents final : public IntegerEvents {
 public:
  std::array<std::optional<NestedLists>, kFileKeys.size()> found;  // by kFileKeys

  MaskEvents() : IntegerEvents("a mask file") {}
  bool null() override {
    // What BlockMask has for parts that it lacks.
    if (open_ == nullptr || depth_ > 0) return take_other("null");
    found[key_].reset();
    open_ = nullptr;
    return true;
  }
  bool number_integer(int64_t number) override { return take(number); }
  bool number_unsigned(uint64_t number) override {
    if (number > static_cast<uint64_t>(kMaxTokens))
      return stop(fmt::format("a number is larger than {}: {}", kMaxTokens, number));
    return take(static_cast<int64_t>(number));
  }
  bool start_object(size_t) override {
    if (has_root_) return stop("values must not be objects");
    has_root_ = true;
    return true;
  }
  bool key(std::string& name) override;
  bool start_array(size_t) override;
  bool end_array() override;
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    offset = position;
    return stop("neither a .npy file nor JSON");
  }

 private:
  bool take(int64_t number);

  size_t key_ = 0;
  NestedLists* open_ = nullptr;  // of the present key
  int64_t depth_ = 0;            // arrays open
  bool is_innermost_ = false;    // the open array holds no array
  bool has_root_ = false;
};

bool MaskEvents::key(std::string& name) {
  const auto known = std::find(kFileKeys.begin(), kFileKeys.end(), name);
  if (known == kFileKeys.end()) return stop("unknown key: " + show_text(name));
  key_ = static_cast<size_t>(known - kFileKeys.begin());
  if (found[key_]) return stop("a key is given twice: " + show_text(name));
  open_ = &found[key_].emplace();
  return true;
}

bool MaskEvents::start_array(size_t) {
  if (open_ == nullptr) return stop("the file must be an object: a list");
  has_root_ = true;
  if (is_innermost_ && open_->values.size() > open_->ends.back())
    return stop("a list mixes numbers and lists");
  constexpr int64_t kMostDimensions = 4;  // batch, head, row, column
  if (++depth_ > kMostDimensions) return stop("lists are nested too deeply");
  is_innermost_ = true;
  return true;
}

bool MaskEvents::end_array() {
  const int64_t depth = depth_--;
  if (!is_innermost_) return true;
  is_innermost_ = false;
  if (open_->count() > 0 && open_->depth != depth) return stop("lists of different depth");
  if (open_->count() >= kMaxEntries)
    return stop(fmt::format("more lists than the limit of {}", kMaxEntries));
  open_->depth = depth;
  open_->ends.push_back(open_->values.size());
  return true;
}

bool MaskEvents::take(int64_t number) {
  if (open_ == nullptr) return stop("the file must be an object: a number");
  if (depth_ > 0 && !is_innermost_) return stop("a list mixes numbers and lists");
  if (number < -1) return stop(fmt::format("a number is negative: {}", number));
  if (open_->values.size() >= kMaxEntries)
    return stop(fmt::format("more numbers than the limit of {}", kMaxEntries));
  open_->values.push_back(number);
  if (depth_ == 0) open_->ends.push_back(open_->values.size());
  return true;
}

/// Joins neighbours of an ascending list of columns into runs.
void join_columns(const std::vector<int64_t>& columns, std::vector<MaskRun>& runs) {
  runs.clear();
  for (const int64_t column : columns) {
    if (!runs.empty() && runs.back().end == column) {
      ++runs.back().end;
    } else {
      runs.push_back({column, column + 1});
    }
  }
}

/// Rows with a list of columns each.
struct ColumnLists {
  std::vector<int64_t> values;  // ascending in each row
  std::vector<size_t> ends = {0};

  std::vector<int64_t> row(int64_t i) const {
    const auto at = static_cast<size_t>(i);
    return {values.begin() + static_cast<std::ptrdiff_t>(ends[at]),
            values.begin() + static_cast<std::ptrdiff_t>(ends[at + 1])};
  }
};

/// Adds a row; says what is wrong with its columns. -1 is left out.
std::optional<std::string> add_row(std::span<const int64_t> columns, ColumnLists& lists) {
  const size_t begin = lists.values.size();
  std::copy_if(columns.begin(), columns.end(), std::back_inserter(lists.values),
               [](int64_t column) { return column >= 0; });
  const auto first = lists.values.begin() + static_cast<std::ptrdiff_t>(begin);
  std::sort(first, lists.values.end());
  const auto twin = std::adjacent_find(first, lists.values.end());
  if (twin != lists.values.end())
    return fmt::format("row {} names {} twice", lists.ends.size() - 1, *twin);
  lists.ends.push_back(lists.values.size());
  return std::nullopt;
}

MaskRows rows_of_lists(ColumnLists lists) {
  MaskRows mask;
  mask.rows = std::ssize(lists.ends) - 1;
  mask.has_all_columns = false;
  for (const int64_t column : lists.values) mask.columns = std::max(mask.columns, column + 1);
  mask.read = [kept = std::make_shared<const ColumnLists>(std::move(lists))](
                  int64_t row, std::vector<MaskRun>& runs) { join_columns(kept->row(row), runs); };
  return mask;
}

MaskRows rows_of_matrix(MaskMatrix matrix) {
  MaskRows mask;
  mask.rows = matrix.rows;
  mask.columns = matrix.columns;
  mask.read = [kept = std::make_shared<const MaskMatrix>(std::move(matrix))](
                  int64_t row, std::vector<MaskRun>& runs) {
    runs.clear();
    bool was_set = false;
    for (int64_t column = 0; column < kept->columns; ++column) {
      const bool is_set = kept->is_set(row, column);
      if (is_set && !was_set) runs.push_back({column, column});
      if (is_set) runs.back().end = column + 1;
      was_set = is_set;
    }
  };
  return mask;
}

using Found = std::array<std::optional<NestedLists>, kFileKeys.size()>;

/// The lists of a key; nothing if the file lacks it.
const NestedLists* lists_of(const Found& found, std::string_view key) {
  const auto at =
      static_cast<size_t>(std::find(kFileKeys.begin(), kFileKeys.end(), key) - kFileKeys.begin());
  return found[at] ? &*found[at] : nullptr;
}

/// Keys of every query. The result is filled unless a sentence is returned.
std::optional<std::string> build_key_lists(const NestedLists& keys, MaskRows& mask) {
  const bool is_empty = keys.depth == 1 && keys.values.empty();
  if (keys.depth != 2 && !is_empty) return "keys must be a list of lists, one for each query";
  ColumnLists lists;
  for (size_t row = 0; row < (is_empty ? 0 : keys.count()); ++row) {
    if (auto fault = add_row(keys.list(row), lists)) return fault;
  }
  mask = rows_of_lists(std::move(lists));
  return std::nullopt;
}

/// Checks that counts and indices are those of one BlockMask of one batch entry and head.
std::optional<std::string> find_block_fault(const NestedLists& counts, const NestedLists& indices,
                                            std::string_view prefix) {
  if (counts.depth == 0 || indices.depth == 0)
    return fmt::format("{0}kv_num_blocks must be a list, and {0}kv_indices a list of lists",
                       prefix);
  if (counts.count() != 1)
    return fmt::format(
        "a mask for each batch entry or head is not supported: {}kv_num_blocks has "
        "{} lists",
        prefix, counts.count());
  const std::span<const int64_t> rows = counts.list(0);
  if (rows.size() != indices.count())
    return fmt::format(
        "{0}kv_num_blocks and {0}kv_indices have different numbers of rows: {1}, {2}", prefix,
        rows.size(), indices.count());
  for (size_t row = 0; row < rows.size(); ++row) {
    const int64_t held = std::ssize(indices.list(row));
    if (rows[row] < 0 || rows[row] > held)
      return fmt::format(
          "{0}kv_num_blocks[{1}] must be from 0 to the {2} entries of "
          "{0}kv_indices[{1}]: {3}",
          prefix, row, held, rows[row]);
    const auto used = indices.list(row).first(static_cast<size_t>(rows[row]));
    if (std::find(used.begin(), used.end(), -1) != used.end())
      return fmt::format("{}kv_indices[{}] has a negative entry: -1", prefix, row);
  }
  return std::nullopt;
}

/// Reads the sides of a block: [queries, keys] or one number.
std::optional<std::string> take_block_size(const NestedLists* size, MaskRows& mask) {
  mask.row_tile = mask.column_tile = kDefaultBlock;
  if (size == nullptr) return std::nullopt;
  const bool has_sides = size->depth < 2 && (size->values.size() == 2 || size->depth == 0);
  const bool is_positive =
      std::all_of(size->values.begin(), size->values.end(), [](int64_t side) { return side > 0; });
  if (!has_sides || size->values.empty() || !is_positive)
    return "block_size must be two numbers above 0, for queries and keys, or one for both";
  mask.row_tile = size->values.front();
  mask.column_tile = size->values.back();
  return std::nullopt;
}

/// The whole blocks of a BlockMask. The result is filled unless a sentence is returned.
std::optional<std::string> build_blocks(const Found& found, MaskRows& mask) {
  const NestedLists *counts = lists_of(found, "kv_num_blocks"),
                    *indices = lists_of(found, "kv_indices"),
                    *full_counts = lists_of(found, "full_kv_num_blocks"),
                    *full_indices = lists_of(found, "full_kv_indices");
  if (counts == nullptr || indices == nullptr)
    return "the mask is missing: keys, or kv_num_blocks and kv_indices";
  if ((full_counts == nullptr) != (full_indices == nullptr))
    return "full_kv_num_blocks and full_kv_indices belong together";
  if (auto fault = find_block_fault(*counts, *indices, "")) return fault;
  if (full_counts != nullptr) {
    for (size_t row = 0; row < counts->values.size(); ++row) {
      if (counts->values[row] > 0)
        return fmt::format(
            "row {} has blocks that are visible in part, and the file does not say "
            "which part: {}",
            row, counts->values[row]);
    }
    if (auto fault = find_block_fault(*full_counts, *full_indices, "full_")) return fault;
    counts = full_counts;
    indices = full_indices;
  }
  ColumnLists lists;
  for (size_t row = 0; row < counts->values.size(); ++row) {
    const auto used = indices->list(row).first(static_cast<size_t>(counts->values[row]));
    if (auto fault = add_row(used, lists)) return fault;
  }
  mask = rows_of_lists(std::move(lists));
  return take_block_size(lists_of(found, "block_size"), mask);
}

std::optional<std::string> build_rows(const Found& found, MaskRows& mask) {
  const NestedLists* keys = lists_of(found, "keys");
  if (keys == nullptr) return build_blocks(found, mask);
  const auto given = std::count_if(found.begin(), found.end(),
                                   [](const auto& lists) { return lists.has_value(); });
  if (given > 1) return "give keys alone, or the parts of a block mask";
  return build_key_lists(*keys, mask);
}

}  // namespace

bool MaskRows::fits(int64_t queries, int64_t keys) const {
  const int64_t tile_rows = (queries + row_tile - 1) / row_tile;
  const int64_t tile_columns = (keys + column_tile - 1) / column_tile;
  return rows == tile_rows && (has_all_columns ? columns == tile_columns : columns <= tile_columns);
}

Result<MaskRows> parse_mask_rows(std::string bytes, const std::string& path) {
  if (bytes.starts_with('\x93')) {
    Result<MaskMatrix> matrix = parse_mask_matrix(std::move(bytes), path);
    if (!matrix) return matrix.error();
    return rows_of_matrix(std::move(matrix).value());
  }
  MaskEvents events;
  try {
    nlohmann::json::sax_parse(bytes, &events);
  } catch (const std::exception& error) {
    events.problem = std::string("not JSON: ") + error.what();
  }
  MaskRows mask;
  std::string problem = events.problem;
  if (problem.empty()) {
    if (auto fault = build_rows(events.found, mask)) problem = *fault;
  }
  if (problem.empty()) return mask;
  const SourcePosition place = events.offset ? find_stop(bytes, *events.offset) : SourcePosition{};
  return make_bad_input(
      problem,
      R"(give a .npy of bool, {"keys": [[0], [0, 1]]}, or a BlockMask's kv_num_blocks and )"
      "kv_indices",
      show_place(path, place));
}

Result<MaskRows> load_mask_rows(const std::string& path) {
  Result<std::string> bytes = read_named_file(path, kMaxMaskBytes);
  if (!bytes) return bytes.error();
  return parse_mask_rows(std::move(bytes).value(), path);
}

}  // namespace cpscope
