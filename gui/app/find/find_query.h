#pragma once

#include "sim/plan/plan.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope::gui {

/// The kinds of things that a word of a query can name.
enum class Noun : uint8_t {
  none,  // numbers without a word before them
  token,
  query,
  key,
  rank,
  link,
  step,
  sequence,
  position,
  head,
  item_kind,  // given by FindQuery::item_kind
  tensor      // given by FindQuery::tensor
};

struct QueryNumber {
  int64_t value = 0;
  bool is_group = false;  // exactly three digits, which may continue the number before: 131 072
};

/// A word and the numbers behind it, in groups divided by "-", "..", "," or "to".
struct Clause {
  Noun noun = Noun::none;
  std::vector<std::vector<QueryNumber>> groups;
};

/// A parsed query.
struct FindQuery {
  std::vector<Clause> clauses;
  StageKind item_kind{};
  int32_t tensor = 0;  // index in kErrorTensors
  bool has_forward = false, has_backward = false;
  bool has_arrow = false;  // true for "1 -> 2"

  /// The clause of a noun, preferably one with numbers; null when there is none.
  const Clause* find(Noun noun) const;
  bool has(Noun noun) const { return find(noun) != nullptr; }
};

struct QueryResult {
  FindQuery query;
  std::string error;  // the part that cannot be read; empty when all can
};

QueryResult parse_query(std::string_view text);

/// The value of a group: one number, or one in groups of three digits.
std::optional<int64_t> join_numbers(std::span<const QueryNumber> group);

/// ASCII only.
std::string to_lower(std::string_view text);
std::string trim(const std::string& text);

}  // namespace cpscope::gui
