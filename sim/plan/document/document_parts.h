#pragma once

// Private to the reader and the writer of plan documents.

#include "sim/plan/document/json_reader.h"
#include "sim/plan/plan.h"
#include "sim/scenario/complaints.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace cpscope {

// Values of fields that are left out, until they are filled in. Ids have -1.
inline constexpr int64_t kLeftOut = -1;
inline constexpr HeadRange kNoHeads{0, -1};
inline constexpr StepId kNoStep{-1};

/// The heads of a buffer if it names none: all of its side.
HeadRange usual_heads(const Attention& attention, BufferKind kind);
/// The heads that both buffers of a transfer hold.
HeadRange usual_heads(const Plan& plan, const TransferItem& item);
/// `self` on one rank, else `direct`.
LinkClass usual_link(const TransferItem& item);

/// The scenario as a JSON object: the tables and keys of its file, and what generators and files
/// have made next to their names.
std::string scenario_json(const Scenario& scenario);

/// Reads the object that scenario_json prints. What a document holds elsewhere (an imported order,
/// rotary positions) is not filled in. Errors name keys as JSON pointers.
std::optional<Error> read_scenario(JsonReader& json, const std::string& path, Scenario& scenario);

/// A document as read, before what it leaves out is filled in.
struct RawDocument {
  Plan plan;
  bool has_layout = false;
  std::vector<BandSlice> own_slices;  // of computes that list their slices: first_slice -2, -3, ...
  std::vector<int64_t> q_positions, kv_positions;
  std::string hash;
};

/// Fills in what the document leaves out. Errors: ids of what does not exist, and limits.
std::optional<Error> complete_document(RawDocument& raw, const std::string& path);

/// The refusal of a plan whose proof would take hours or more memory than a machine has, as no plan
/// of a planner does.
std::optional<Error> refuse_large_proof(const Plan& plan);

/// Reads an object with these keys; `read(i)` reads the value of keys[i]. Fails for other keys, for
/// keys given twice, and if one of the first `required` is missing.
template <size_t N, class Read>
void read_object(JsonReader& json, const std::array<std::string_view, N>& keys, size_t required,
                 Read&& read) {
  static_assert(N <= 32);
  if (!json.begin_object()) return;
  uint32_t seen = 0;
  size_t next = 0;
  std::string_view key;
  while (json.next_key(key)) {
    // Most documents have keys in the order of their names here.
    size_t i = next < N && keys[next] == key
                   ? next
                   : static_cast<size_t>(std::find(keys.begin(), keys.end(), key) - keys.begin());
    if (i == N) {
      const auto nearest = find_nearest_name(key, keys);
      return json.fail("there is no such key here: " + show_text(key),
                       nearest ? "did you mean " + show_text(*nearest) + "?"
                               : "the keys are " + show_choices(keys));
    }
    if ((seen >> i & 1U) != 0) return json.fail("a key is given twice: " + show_text(key));
    seen |= uint32_t{1} << i;
    read(i);
    if (json.has_failed()) return json.name_place(keys[i]);
    next = i + 1;
  }
  for (size_t i = 0; i < required && !json.has_failed(); ++i) {
    if ((seen >> i & 1U) == 0)
      return json.fail("a key is missing before the end: " + show_text(keys[i]));
  }
}

/// Reads an array of at most `limit` values; `read(i)` reads the i-th.
template <class Read>
void read_array(JsonReader& json, int64_t limit, Read&& read) {
  if (!json.begin_array()) return;
  for (int64_t i = 0; json.next_item(); ++i) {
    if (i >= limit) return json.fail(fmt::format("the list has more than {} entries", limit));
    read(i);
    if (json.has_failed()) return json.name_place(i);
  }
}

/// Reads an array of exactly N whole numbers.
template <size_t N>
std::array<int64_t, N> read_numbers(JsonReader& json, int64_t low, int64_t high) {
  std::array<int64_t, N> numbers{};
  int64_t count = 0;
  read_array(json, N, [&](int64_t i) {
    numbers[static_cast<size_t>(i)] = json.integer(low, high);
    ++count;
  });
  if (!json.has_failed() && count != N) json.fail(fmt::format("{} numbers are due: {}", N, count));
  return numbers;
}

}  // namespace cpscope
