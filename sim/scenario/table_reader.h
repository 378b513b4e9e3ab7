#pragma once

#include "sim/scenario/complaints.h"
#include "sim/scenario/key_list.h"
#include "sim/scenario/toml_document.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// Reads the keys of one table by name. Each reader returns nothing if the key is absent or wrong.
/// Errors go to the complaints, with their place and a hint.
class TableReader {
 public:
  /// `name` is the table's full name ("batch.generator", "" for the top level); `value` may be
  /// missing. `known` must outlive the reader. Every key that is asked for goes to `log`, if given.
  TableReader(TomlValue value, std::string name, std::span<const std::string_view> known,
              Complaints& complaints, std::vector<ReadKey>* log = nullptr);

  const std::string& name() const { return name_; }
  bool is_table() const { return is_table_; }
  bool has(std::string_view key) const { return find(key).kind() != TomlKind::none; }
  /// True if the key is given by its name in another framework, which is a complaint by itself.
  bool has_foreign(std::string_view key) const;
  TomlValue find(std::string_view key) const;
  /// The position of the value; the position of the table if there is no value.
  SourcePosition place(std::string_view key) const;
  /// The full name, for example "attention.heads".
  std::string full_name(std::string_view key) const;
  const std::vector<TomlMember>& members() const { return members_; }

  std::optional<int64_t> integer(std::string_view key, int64_t min, int64_t max) const;
  /// A finite number of at least 0 (or any finite value). Integers are accepted.
  std::optional<double> number(std::string_view key, bool may_be_negative = false) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  /// A list of integers in [min, max], at most `max_count` of them.
  std::optional<std::vector<int64_t>> integers(std::string_view key, int64_t min, int64_t max,
                                               int64_t max_count) const;
  /// A string that is the to_name of one of `values`.
  template <class Choice>
  std::optional<Choice> choice(std::string_view key, std::span<const Choice> values) const {
    std::vector<std::string_view> names;
    for (const Choice value : values) names.push_back(to_name(value));
    note(key, "string", names);
    const std::optional<size_t> index = find_choice(key, names);
    if (!index) return std::nullopt;
    return values[*index];
  }

  /// Complains if the key is absent, under its name in another framework too.
  void require(std::string_view key, std::string hint) const;
  /// Complains about a key's value: the full name, then `what`.
  void complain(std::string_view key, const std::string& what, std::string hint) const;
  bool is_known(std::string_view key) const;
  /// Complains about a key that is not known, with the nearest known one as the hint; `elsewhere`
  /// is the better hint if it is not empty.
  void complain_unknown(const TomlMember& member, const std::string& elsewhere) const;

  /// Complains about every key that is not known.
  void complain_of_unknown() const;

  Complaints& complaints() const { return complaints_; }

 private:
  /// Writes down that a key of this type was asked for.
  void note(std::string_view key, std::string type,
            const std::vector<std::string_view>& choices = {}) const;
  void complain_type(std::string_view key, const TomlValue& value, std::string_view wanted) const;
  std::optional<size_t> find_choice(std::string_view key,
                                    std::span<const std::string_view> names) const;
  bool check_integer(const std::string& name, const TomlValue& value, int64_t min,
                     int64_t max) const;

  std::string name_;
  SourcePosition position_;
  bool is_table_ = false;
  std::vector<TomlMember> members_;
  std::span<const std::string_view> known_;
  Complaints& complaints_;
  std::vector<ReadKey>* log_;
};

/// Replaces the default by the value, if the value could be read.
template <class Read, class Field>
void take_value(const std::optional<Read>& value, Field& field) {
  if (value) field = static_cast<Field>(*value);
}

/// The table of a value, with complaints about its unknown keys; nothing if there is no table.
std::optional<TableReader> open_table(TomlValue value, std::string name,
                                      std::span<const std::string_view> known,
                                      Complaints& complaints);

}  // namespace cpscope
