#include "sim/scenario/table_reader.h"

#include "sim/scenario/entry_faults.h"
#include "sim/scenario/foreign_keys.h"
#include "sim/scenario/foreign_values.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace cpscope {
namespace {

bool is_integer_in(const TomlValue& value, int64_t min, int64_t max) {
  return value.kind() == TomlKind::integer && value.integer() >= min && value.integer() <= max;
}

/// "integer from 1 to 65536"; an upper bound that no value reaches is left out.
std::string describe_range(std::string_view what, int64_t min, int64_t max) {
  if (min == max) return fmt::format("{} {}", what, min);
  return max == std::numeric_limits<int64_t>::max()
             ? fmt::format("{} from {}", what, min)
             : fmt::format("{} from {} to {}", what, min, max);
}

/// Why a value that is_integer_in rejects is one: the kind of EntryFaults.
enum class BadInteger : size_t { other_type, below, above };

BadInteger find_bad_integer(const TomlValue& value, int64_t min) {
  if (value.kind() != TomlKind::integer) return BadInteger::other_type;
  return value.integer() < min ? BadInteger::below : BadInteger::above;
}

EntryFaults::Wording describe_bad_integer(const TomlValue& value, int64_t min, int64_t max) {
  EntryFaults::Wording wording{.position = value.position(),
                               .one = fmt::format("must be an integer from {} to {}", min, max),
                               .many = "values are no integers",
                               .shown = show_value_of(value),
                               .hint = fmt::format("this is {}", describe_kind(value.kind()))};
  const BadInteger why = find_bad_integer(value, min);
  if (why == BadInteger::below) wording.many = fmt::format("values are below {}", min);
  if (why == BadInteger::above) wording.many = fmt::format("values are above {}", max);
  if (why != BadInteger::other_type) {
    wording.hint = fmt::format("give a value from {} to {}", min, max);
  }
  if (value.kind() == TomlKind::floating) {
    wording.hint = "write it without a decimal point or exponent";
  }
  return wording;
}

}  // namespace

TableReader::TableReader(TomlValue value, std::string name, std::span<const std::string_view> known,
                         Complaints& complaints, std::vector<ReadKey>* log)
    : name_(std::move(name)), known_(known), complaints_(complaints), log_(log) {
  if (value.kind() == TomlKind::none) return;
  position_ = value.position();
  if (value.kind() == TomlKind::table) {
    is_table_ = true;
    members_ = value.members();
    return;
  }
  complaints_.add(position_, fmt::format("{} must be a table: {}", name_, show_value_of(value)),
                  fmt::format("write its keys below a line [{}]", name_));
}

void TableReader::note(std::string_view key, std::string type,
                       const std::vector<std::string_view>& choices) const {
  if (log_ == nullptr) return;
  log_->push_back({name_, std::string(key), std::move(type), {choices.begin(), choices.end()}});
}

TomlValue TableReader::find(std::string_view key) const {
  for (const TomlMember& member : members_) {
    if (member.key == key) return member.value;
  }
  return {};
}

SourcePosition TableReader::place(std::string_view key) const {
  const TomlValue value = find(key);
  return value.kind() == TomlKind::none ? position_ : value.position();
}

std::string TableReader::full_name(std::string_view key) const {
  return name_.empty() ? std::string(key) : fmt::format("{}.{}", name_, key);
}

bool TableReader::is_known(std::string_view key) const {
  return std::find(known_.begin(), known_.end(), key) != known_.end();
}

void TableReader::complain(std::string_view key, const std::string& what, std::string hint) const {
  // "lengths[3] is ..." names an entry of the list; otherwise the key itself is meant.
  const std::string_view gap = what.starts_with("[") ? "" : " ";
  complaints_.add(place(key), fmt::format("{}{}{}", full_name(key), gap, what), std::move(hint));
}

bool TableReader::has_foreign(std::string_view key) const {
  return std::any_of(members_.begin(), members_.end(), [&](const TomlMember& member) {
    return !is_known(member.key) && find_own_key(member.key) == key;
  });
}

void TableReader::require(std::string_view key, std::string hint) const {
  if (has(key) || has_foreign(key)) return;
  complaints_.add(position_, fmt::format("a required key is missing: {}", full_name(key)),
                  std::move(hint));
}

void TableReader::complain_type(std::string_view key, const TomlValue& value,
                                std::string_view wanted) const {
  complain(key, fmt::format("must be {}: {}", wanted, show_value_of(value)),
           fmt::format("{} is {}", show_value_of(value), describe_kind(value.kind())));
}

void TableReader::complain_unknown(const TomlMember& member, const std::string& elsewhere) const {
  const std::optional<std::string_view> nearest = find_nearest_name(member.key, known_);
  const std::string where = name_.empty() ? "the top level" : "[" + name_ + "]";
  std::string hint = "known keys are " + show_choices(known_);
  if (nearest) hint = fmt::format("did you mean {}?", *nearest);
  if (!elsewhere.empty()) hint = elsewhere;
  complaints_.add(member.key_position,
                  fmt::format("unknown key in {}: {}", where, show_text(member.key)), hint);
}

void TableReader::complain_of_unknown() const {
  for (const TomlMember& member : members_) {
    if (!is_known(member.key)) complain_unknown(member, "");
  }
}

bool TableReader::check_integer(const std::string& name, const TomlValue& value, int64_t min,
                                int64_t max) const {
  if (is_integer_in(value, min, max)) return true;
  const EntryFaults::Wording wording = describe_bad_integer(value, min, max);
  complaints_.add(wording.position, fmt::format("{} {}: {}", name, wording.one, wording.shown),
                  wording.hint);
  return false;
}

std::optional<int64_t> TableReader::integer(std::string_view key, int64_t min, int64_t max) const {
  note(key, describe_range("integer", min, max));
  const TomlValue value = find(key);
  if (value.kind() == TomlKind::none) return std::nullopt;
  if (!check_integer(full_name(key), value, min, max)) return std::nullopt;
  return value.integer();
}

std::optional<double> TableReader::number(std::string_view key, bool may_be_negative) const {
  note(key, may_be_negative ? "number" : "number of at least 0");
  const TomlValue value = find(key);
  if (value.kind() == TomlKind::none) return std::nullopt;
  double number = 0.0;
  if (value.kind() == TomlKind::floating) {
    number = value.floating();
  } else if (value.kind() == TomlKind::integer) {
    number = static_cast<double>(value.integer());
  } else {
    complain_type(key, value, "a number");
    return std::nullopt;
  }
  if (!std::isfinite(number) || (number < 0.0 && !may_be_negative)) {
    complain(key,
             fmt::format("must be a finite number{}: {}", may_be_negative ? "" : " of at least 0",
                         show_value_of(value)),
             may_be_negative ? "give a finite number" : "0 means the default or off");
    return std::nullopt;
  }
  // -0.0 is normalised to 0.0.
  return number == 0.0 ? 0.0 : number;
}

std::optional<bool> TableReader::boolean(std::string_view key) const {
  note(key, "true or false");
  const TomlValue value = find(key);
  if (value.kind() == TomlKind::none) return std::nullopt;
  if (value.kind() == TomlKind::boolean) return value.boolean();
  complain_type(key, value, "true or false");
  return std::nullopt;
}

std::optional<std::string> TableReader::text(std::string_view key) const {
  note(key, "string");
  const TomlValue value = find(key);
  if (value.kind() == TomlKind::none) return std::nullopt;
  if (value.kind() == TomlKind::text) return std::string(value.text());
  complain_type(key, value, "a string");
  return std::nullopt;
}

std::optional<std::vector<int64_t>> TableReader::integers(std::string_view key, int64_t min,
                                                          int64_t max, int64_t max_count) const {
  note(key, "list of " + describe_range("integers", min, max));
  const TomlValue value = find(key);
  if (value.kind() == TomlKind::none) return std::nullopt;
  if (value.kind() != TomlKind::array) {
    complain_type(key, value, "a list of integers");
    return std::nullopt;
  }
  if (value.size() > max_count) {
    complain(key, fmt::format("has more entries than the limit of {}: {}", max_count, value.size()),
             "give fewer entries");
    return std::nullopt;
  }
  std::vector<int64_t> numbers;
  numbers.reserve(static_cast<size_t>(value.size()));
  EntryFaults faults;
  for (int64_t i = 0; i < value.size(); ++i) {
    const TomlValue item = value.item(i);
    if (is_integer_in(item, min, max)) {
      numbers.push_back(item.integer());
    } else {
      faults.add(static_cast<size_t>(find_bad_integer(item, min)), i,
                 [&] { return describe_bad_integer(item, min, max); });
    }
  }
  if (faults.is_empty()) return numbers;
  faults.report_to(complaints_, full_name(key));
  return std::nullopt;
}

std::optional<size_t> TableReader::find_choice(std::string_view key,
                                               std::span<const std::string_view> names) const {
  const TomlValue value = find(key);
  if (value.kind() == TomlKind::none) return std::nullopt;
  if (value.kind() == TomlKind::text) {
    const auto found = std::find(names.begin(), names.end(), value.text());
    if (found != names.end()) return static_cast<size_t>(found - names.begin());
  }
  std::string hint = "choose " + show_choices(names);
  if (value.kind() == TomlKind::text) {
    if (const auto foreign = explain_foreign_value(key, value.text(), names)) {
      hint = *foreign;
    } else if (const auto nearest = find_nearest_name(value.text(), names)) {
      hint =
          fmt::format("did you mean {}? Choices are {}", show_text(*nearest), show_choices(names));
    }
  }
  complain(key, fmt::format("is not one of its choices: {}", show_value_of(value)),
           std::move(hint));
  return std::nullopt;
}

std::optional<TableReader> open_table(TomlValue value, std::string name,
                                      std::span<const std::string_view> known,
                                      Complaints& complaints) {
  TableReader table(value, std::move(name), known, complaints);
  if (!table.is_table()) return std::nullopt;
  table.complain_of_unknown();
  return table;
}

}  // namespace cpscope
