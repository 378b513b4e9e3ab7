#include "sim/run/record/row_axes.h"

#include "sim/run/record/record_header.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

/// One way to lay out a tensor of tokens. `axes` has a letter per dimension: t tokens, b sequences,
/// s positions, h heads, d elements of a head, x heads and elements together, 1 an extent of one.
struct Pattern {
  RowFormat format;
  LseLayout lse;  // of patterns without d and x
  std::string_view axes;
};

constexpr LseLayout kAfter = LseLayout::tokens_heads, kBefore = LseLayout::heads_tokens;
constexpr std::array kRowPatterns = {
    Pattern{RowFormat::thd, kAfter, "thd"}, Pattern{RowFormat::thd, kAfter, "tx"},
    Pattern{RowFormat::thd, kAfter, "1thd"}, Pattern{RowFormat::thd, kAfter, "1tx"},
    Pattern{RowFormat::bshd, kAfter, "bshd"}, Pattern{RowFormat::bshd, kAfter, "bsx"},
    Pattern{RowFormat::sbhd, kAfter, "sbhd"}, Pattern{RowFormat::sbhd, kAfter, "sbx"},
    Pattern{RowFormat::bhsd, kAfter, "bhsd"},
    // Documents packed into a batch of one, as FlexAttention's callers hold them.
    Pattern{RowFormat::bshd, kAfter, "1thd"}, Pattern{RowFormat::bshd, kAfter, "1tx"},
    Pattern{RowFormat::sbhd, kAfter, "t1hd"}, Pattern{RowFormat::sbhd, kAfter, "t1x"},
    Pattern{RowFormat::bhsd, kAfter, "1htd"}};
constexpr std::array kLsePatterns = {
    Pattern{RowFormat::thd, kAfter, "th"},     Pattern{RowFormat::thd, kAfter, "th1"},
    Pattern{RowFormat::thd, kAfter, "1th"},    Pattern{RowFormat::thd, kBefore, "ht"},
    Pattern{RowFormat::thd, kBefore, "1ht"},   Pattern{RowFormat::bshd, kAfter, "bsh"},
    Pattern{RowFormat::bshd, kAfter, "bsh1"},  Pattern{RowFormat::bshd, kBefore, "bhs"},
    Pattern{RowFormat::bshd, kBefore, "bhs1"}, Pattern{RowFormat::sbhd, kAfter, "sbh"},
    Pattern{RowFormat::sbhd, kBefore, "bhs"},  Pattern{RowFormat::sbhd, kBefore, "bhs1"},
    Pattern{RowFormat::bhsd, kBefore, "bhs"},  Pattern{RowFormat::bhsd, kBefore, "bhs1"},
    Pattern{RowFormat::bshd, kAfter, "1th"},   Pattern{RowFormat::bshd, kBefore, "1ht"},
    Pattern{RowFormat::sbhd, kBefore, "1ht"},  Pattern{RowFormat::bhsd, kBefore, "1ht"},
    Pattern{RowFormat::bhsd, kBefore, "1ht1"}};

/// Strides of sequence, position, head and element.
struct Strides {
  int64_t sequence = 0, position = 0, head = 0, lane = 0;
  friend bool operator==(const Strides&, const Strides&) = default;
};

/// A pattern that fits a shape, and how its rows are counted.
struct Fit {
  const Pattern* pattern = nullptr;
  int64_t sequences = 1, positions = 1;  // extents of b and s; one sequence of all tokens for t
  bool joined_by_position = false;       // the ranks' buffers were joined along s, not b
  Strides strides;
};

std::string describe_axes(std::string_view axes) {
  std::vector<std::string_view> words;
  for (const char axis : axes) {
    words.push_back(axis == 't'   ? "tokens"
                    : axis == 'b' ? "sequences"
                    : axis == 's' ? "positions"
                    : axis == 'h' ? "heads"
                    : axis == 'd' ? "head_dim"
                    : axis == 'x' ? "heads*head_dim"
                                  : "1");
  }
  return fmt::format("[{}]", fmt::join(words, ", "));
}

std::optional<Fit> try_pattern(const Pattern& pattern, const std::vector<int64_t>& shape,
                               const RowExtents& extents, Fit fit) {
  if (shape.size() != pattern.axes.size()) return std::nullopt;
  fit.pattern = &pattern;
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    const char axis = pattern.axes[i];
    const int64_t extent = axis == 't'   ? extents.rows
                           : axis == 'b' ? fit.sequences
                           : axis == 's' ? fit.positions
                           : axis == 'h' ? extents.heads
                           : axis == 'd' ? extents.lanes
                           : axis == 'x' ? extents.heads * extents.lanes
                                         : 1;
    if (shape[i] != extent) return std::nullopt;
    // A dimension of extent one has no stride.
    const int64_t step = extent > 1 ? stride : 0;
    if (axis == 't' || axis == 's') fit.strides.position = step;
    if (axis == 'b') fit.strides.sequence = step;
    if (axis == 'h') fit.strides.head = step;
    if (axis == 'd') fit.strides.lane = step;
    if (axis == 'x') {
      fit.strides.head = extents.heads > 1 ? extents.lanes * stride : 0;
      fit.strides.lane = extents.lanes > 1 ? stride : 0;
    }
    stride *= extent;
  }
  return fit;
}

/// The rows of a batch into which documents are packed, one row after another, if the shape has
/// them: only the shape says how many there are. Otherwise 0.
int64_t rows_of_documents(const Pattern& pattern, const std::vector<int64_t>& shape,
                          const RowExtents& extents) {
  const size_t axis = pattern.axes.find('b');
  if (axis >= shape.size() || extents.ranks > 1) return 0;
  const int64_t batch = shape[axis];
  const bool is_known = batch < 2 || batch == extents.sequences;  // by another reading
  return is_known || extents.rows % batch != 0 || extents.sequences % batch != 0 ? 0 : batch;
}

/// Every reading of the shape under a pattern: ranks joined along sequences, or along positions, or
/// rows of a batch of packed documents.
void add_fits(const Pattern& pattern, const std::vector<int64_t>& shape, const RowExtents& extents,
              const RowChoices& choices, std::vector<Fit>& fits) {
  if (pattern.axes.find('t') != std::string_view::npos) {
    if (auto fit = try_pattern(pattern, shape, extents, {nullptr, 1, extents.rows, false, {}}))
      fits.push_back(*fit);
    return;
  }
  const int64_t batch =
      choices.preferred == RowFormat::thd ? rows_of_documents(pattern, shape, extents) : 0;
  if (batch > 0) {
    if (auto fit =
            try_pattern(pattern, shape, extents, {nullptr, batch, extents.rows / batch, false, {}}))
      fits.push_back(*fit);
  }
  if (extents.sequences == 0) return;
  const int64_t all = extents.sequences * extents.ranks;
  if (extents.rows % all != 0) return;
  const int64_t positions = extents.rows / all;
  if (auto fit = try_pattern(pattern, shape, extents, {nullptr, all, positions, false, {}}))
    fits.push_back(*fit);
  if (extents.ranks == 1) return;
  if (auto fit = try_pattern(pattern, shape, extents,
                             {nullptr, extents.sequences, positions * extents.ranks, true, {}}))
    fits.push_back(*fit);
}

/// Place of the first value of a row of the ranks' buffers.
int64_t row_begin(const Fit& fit, const RowExtents& extents, int64_t row) {
  if (fit.pattern->axes.find('t') != std::string_view::npos) return row * fit.strides.position;
  if (!fit.joined_by_position) {
    return row / fit.positions * fit.strides.sequence + row % fit.positions * fit.strides.position;
  }
  const int64_t local = fit.positions / extents.ranks, of_rank = extents.sequences * local;
  const int64_t rank = row / of_rank, sequence = row % of_rank / local;
  return sequence * fit.strides.sequence + (rank * local + row % local) * fit.strides.position;
}

/// True if two readings of one shape give the same numbers.
bool read_alike(const Fit& a, const Fit& b, const RowExtents& extents) {
  if (a.strides.head != b.strides.head || a.strides.lane != b.strides.lane) return false;
  for (int64_t row = 0; row < extents.rows; ++row) {
    if (row_begin(a, extents, row) != row_begin(b, extents, row)) return false;
  }
  return true;
}

/// True if the values already follow each other by row, head and element.
bool is_in_order(const Fit& fit, const RowExtents& extents) {
  const int64_t lanes = std::max<int64_t>(1, extents.lanes), width = extents.heads * lanes;
  if (lanes > 1 && fit.strides.lane != 1) return false;
  if (extents.heads > 1 && fit.strides.head != lanes) return false;
  for (int64_t row = 0; row < extents.rows; ++row) {
    if (row_begin(fit, extents, row) != row * width) return false;
  }
  return true;
}

std::string describe_shape(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Error no_fit(const Tensor& tensor, const RowExtents& extents, const RowChoices& choices) {
  const bool is_lse = extents.lanes == 0;
  std::string wanted = fmt::format("[{}, {}{}]", extents.rows, extents.heads,
                                   is_lse ? std::string() : fmt::format(", {}", extents.lanes));
  if (choices.format && *choices.format != RowFormat::thd) {
    wanted =
        extents.sequences == 0
            ? fmt::format("{} with {} tokens in one or more rows of a batch, {} heads",
                          to_name(*choices.format), extents.rows, extents.heads)
            : fmt::format("{} with {} sequences of {} positions, {} heads",
                          to_name(*choices.format), extents.sequences,
                          extents.rows / std::max<int64_t>(1, extents.sequences * extents.ranks),
                          extents.heads);
  }
  return make_error(ErrorKind::bad_input,
                    fmt::format("tensor \"{}\" has a shape that fits nothing: {}",
                                printable_name(tensor.name), describe_shape(tensor.shape)),
                    "the scenario's batch gives " + wanted);
}

Error ambiguous(const Tensor& tensor, const std::vector<Fit>& fits, bool is_lse) {
  std::vector<std::string> readings;
  for (const Fit& fit : fits) readings.push_back(describe_axes(fit.pattern->axes));
  return make_error(ErrorKind::bad_input,
                    fmt::format("tensor \"{}\" can be read in several ways: {} as {}",
                                printable_name(tensor.name), describe_shape(tensor.shape),
                                fmt::join(readings, " or ")),
                    is_lse ? "say --lse-layout tokens_heads or heads_tokens (or --format)"
                           : "say --format thd, bshd, sbhd or bhsd");
}

/// The readings that the shape and the choices allow, equivalent ones only once.
std::vector<Fit> find_fits(const Tensor& tensor, const RowExtents& extents,
                           const RowChoices& choices) {
  std::vector<Fit> fits;
  const auto add = [&](const auto& patterns) {
    for (const Pattern& pattern : patterns) {
      if (choices.format && pattern.format != *choices.format) continue;
      if (extents.lanes == 0 && choices.lse_layout && pattern.lse != *choices.lse_layout) continue;
      add_fits(pattern, tensor.shape, extents, choices, fits);
    }
  };
  if (extents.lanes == 0) {
    add(kLsePatterns);
  } else {
    add(kRowPatterns);
  }
  std::vector<Fit> distinct;
  for (const Fit& fit : fits) {
    const bool is_known = std::any_of(distinct.begin(), distinct.end(), [&](const Fit& other) {
      return read_alike(fit, other, extents);
    });
    if (!is_known) distinct.push_back(fit);
  }
  return distinct;
}

}  // namespace

std::string_view to_name(RowFormat value) {
  constexpr std::string_view kNames[] = {"thd", "bshd", "sbhd", "bhsd"};
  return kNames[static_cast<size_t>(value)];
}

std::string_view to_name(LseLayout value) {
  return value == LseLayout::tokens_heads ? "tokens_heads" : "heads_tokens";
}

std::optional<RowFormat> find_row_format(std::string_view name) {
  for (const RowFormat format :
       {RowFormat::thd, RowFormat::bshd, RowFormat::sbhd, RowFormat::bhsd}) {
    if (name == to_name(format)) return format;
  }
  return std::nullopt;
}

std::optional<LseLayout> find_lse_layout(std::string_view name) {
  for (const LseLayout layout : {LseLayout::tokens_heads, LseLayout::heads_tokens}) {
    if (name == to_name(layout)) return layout;
  }
  return std::nullopt;
}

Result<RowsRead> read_rows(Tensor tensor, const RowExtents& extents, const RowChoices& choices) {
  std::vector<Fit> fits = find_fits(tensor, extents, choices);
  if (fits.empty()) return no_fit(tensor, extents, choices);
  if (fits.size() > 1) {
    // The scenario names the format, but not where lse has its heads.
    std::vector<Fit> preferred;
    std::copy_if(fits.begin(), fits.end(), std::back_inserter(preferred), [&](const Fit& fit) {
      return extents.lanes > 0 && fit.pattern->format == choices.preferred;
    });
    if (preferred.size() != 1) return ambiguous(tensor, fits, extents.lanes == 0);
    fits = preferred;
  }
  const Fit& fit = fits.front();
  const int64_t lanes = std::max<int64_t>(1, extents.lanes);
  RowsRead read;
  read.axes = describe_axes(fit.pattern->axes);
  if (fit.joined_by_position) read.axes += " with the ranks joined along positions";
  if (is_in_order(fit, extents)) {
    read.values = std::move(tensor.values);
    return read;
  }
  read.values.reserve(static_cast<size_t>(extents.rows * extents.heads * lanes));
  for (int64_t row = 0; row < extents.rows; ++row) {
    const int64_t begin = row_begin(fit, extents, row);
    for (int64_t head = 0; head < extents.heads; ++head) {
      for (int64_t lane = 0; lane < lanes; ++lane)
        read.values.push_back(
            tensor.values[begin + head * fit.strides.head + lane * fit.strides.lane]);
    }
  }
  return read;
}

}  // namespace cpscope
