#include "sim/scenario/generator.h"
#include "sim/scenario/scenario_names.h"
#include "sim/scenario/scenario_parts.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include <fmt/format.h>

namespace cpscope {
namespace {

using Lengths = std::vector<int64_t>;

/// [batch] as written, each value checked by itself.
struct BatchRequest {
  std::optional<Lengths> lengths, kv_lengths, slots, kv_slots;
  std::optional<int64_t> batch_size, seqlen, kv_seqlen;
  std::optional<Generator> generator;
};

Generator read_generator(const TableReader& table) {
  Generator generator;
  table.require("name", "choose " + show_choices(kGeneratorNames));
  if (const auto name = table.text("name")) {
    generator.name = *name;
    if (std::find(kGeneratorNames.begin(), kGeneratorNames.end(), *name) == kGeneratorNames.end()) {
      table.complain("name", "is not one of its choices: " + show_text(*name),
                     "choose " + show_choices(kGeneratorNames));
    }
  }
  const bool is_file = generator.name == "csv";
  table.require(is_file ? "file" : "tokens",
                is_file ? "name a file of lengths" : "give the number of tokens in all");
  take_value(table.integer("tokens", 1, kMaxTokens), generator.tokens);
  take_value(table.number("mu", true), generator.mu);
  take_value(table.number("sigma"), generator.sigma);
  take_value(table.number("alpha"), generator.alpha);
  take_value(table.integer("tail_from", 1, kMaxTokens), generator.tail_from);
  take_value(table.number("tail_share"), generator.tail_share);
  take_value(table.integer("min", 1, kMaxTokens), generator.min);
  take_value(table.integer("max", 1, kMaxTokens), generator.max);
  take_value(table.integer("count", 0, kMaxSequences), generator.count);
  if (const auto seed = table.integer("seed", 0, std::numeric_limits<int64_t>::max())) {
    generator.seed = static_cast<uint64_t>(*seed);
  }
  take_value(table.text("file"), generator.file);
  return generator;
}

BatchRequest read_request(const ScenarioTables& tables, Batch& batch) {
  const TableReader& table = tables.batch;
  if (const auto format = table.choice<QkvFormat>("qkv_format", kQkvFormats)) {
    batch.qkv_format = *format;
  }
  take_value(table.boolean("pad_between_seqs"), batch.pad_between_seqs);
  take_value(table.choice<PadSide>("pad_side", kPadSides), batch.pad_side);
  take_value(table.integer("slot_multiple", 1, kMaxTokens), batch.slot_multiple);
  if (has_given_slots(table)) batch.slot_multiple = 1;
  take_value(table.text("positions_file"), batch.positions_file);
  BatchRequest request;
  request.lengths = table.integers("lengths", 0, kMaxTokens, kMaxSequences);
  request.kv_lengths = table.integers("kv_lengths", 0, kMaxTokens, kMaxSequences);
  request.slots = table.integers("slots", 0, kMaxTokens, kMaxSequences);
  request.kv_slots = table.integers("kv_slots", 0, kMaxTokens, kMaxSequences);
  request.batch_size = table.integer("batch_size", 1, kMaxSequences);
  request.seqlen = table.integer("seqlen", 0, kMaxTokens);
  request.kv_seqlen = table.integer("kv_seqlen", 0, kMaxTokens);
  if (tables.generator.is_table()) request.generator = read_generator(tables.generator);
  return request;
}

/// Slots of at least these sizes.
Lengths round_slots(Lengths sizes, int64_t multiple) {
  for (int64_t& size : sizes) size = (size + multiple - 1) / multiple * multiple;
  return sizes;
}

/// Turns a request into lengths and slots; every rule that is broken is a complaint.
class BatchBuilder {
 public:
  BatchBuilder(const ScenarioTables& tables, const BatchRequest& request, Batch& batch)
      : tables_(tables), table_(tables.batch), request_(request), batch_(batch) {}

  void build(const std::string& base_dir);

 private:
  bool fill_lengths(const std::string& base_dir);
  bool repeat_seqlen();
  bool fill_kv_lengths();
  bool fill_slots();
  bool fill_kv_slots();
  bool check_lengths(const Lengths& lengths, std::string_view key,
                     const std::optional<int64_t>& seqlen, std::string_view seqlen_key) const;
  bool check_slots(const Lengths& slots, const Lengths& lengths, std::string_view key,
                   const std::optional<int64_t>& seqlen, std::string_view seqlen_key) const;
  bool check_sum(const Lengths& slots, std::string_view key) const;
  bool is_padded() const { return batch_.qkv_format != QkvFormat::thd; }
  /// The key that messages name for the query lengths.
  std::string_view length_key() const {
    return request_.generator ? "generator" : request_.lengths ? "lengths" : "seqlen";
  }
  bool fail(std::string_view key, const std::string& what, std::string hint) const {
    table_.complain(key, what, std::move(hint));
    return false;
  }

  const ScenarioTables& tables_;
  const TableReader& table_;
  const BatchRequest& request_;
  Batch& batch_;
};

bool BatchBuilder::check_sum(const Lengths& slots, std::string_view key) const {
  // At most 2^22 slots of less than 2^31 each: the sum cannot overflow.
  const int64_t sum = std::reduce(slots.begin(), slots.end(), int64_t{0});
  if (sum <= kMaxTokens) return true;
  return fail(key, fmt::format("sums to more tokens than the limit of {}: {}", kMaxTokens, sum),
              "frameworks count tokens in 32 bits (cu_seqlens)");
}

bool BatchBuilder::repeat_seqlen() {
  if (!request_.batch_size || !request_.seqlen) {
    for (const std::string_view key : {"lengths", "batch_size", "seqlen"}) {
      if (table_.has_foreign(key)) return false;
    }
    const bool has_half = request_.batch_size || request_.seqlen;
    table_.require(has_half ? (request_.batch_size ? "seqlen" : "batch_size") : "lengths",
                   "give lengths, or batch_size and seqlen, or generator");
    return false;
  }
  // Checked before the lists are built: the product is what would be allocated and summed.
  const int64_t longest = std::max(*request_.seqlen, request_.kv_seqlen.value_or(0));
  if (*request_.batch_size * longest > kMaxTokens) {
    return fail("batch_size",
                fmt::format("times seqlen is more tokens than the limit of {}: {}", kMaxTokens,
                            *request_.batch_size * longest),
                "frameworks count tokens in 32 bits (cu_seqlens)");
  }
  batch_.lengths.assign(static_cast<size_t>(*request_.batch_size), *request_.seqlen);
  return true;
}

bool BatchBuilder::fill_lengths(const std::string& base_dir) {
  const bool is_made = request_.lengths && request_.generator && tables_.is_plan_document();
  if (request_.lengths && request_.generator && !is_made) {
    return fail("generator", "is given next to lengths: a table", "give one of the two");
  }
  if (is_made) {
    batch_.lengths = *request_.lengths;
    batch_.generator = request_.generator;
  } else if (tables_.is_plan_document() && request_.generator &&
             !request_.generator->file.empty()) {
    return fail("generator", "reads a file, whose lengths a plan document must hold: a table",
                "give lengths next to it");
  } else if (request_.generator) {
    Result<Lengths> lengths = generate_lengths(*request_.generator, base_dir);
    if (!lengths) {
      table_.complaints().add_all(lengths.error(), table_.place("generator"));
      return false;
    }
    batch_.lengths = std::move(lengths).value();
    batch_.generator = request_.generator;
  } else if (request_.lengths) {
    batch_.lengths = *request_.lengths;
  } else if (!repeat_seqlen()) {
    return false;
  }
  if (batch_.lengths.empty()) {
    return fail("lengths", "has no sequence: an empty list",
                "write [0] for a sequence of no token");
  }
  return check_lengths(batch_.lengths, length_key(), request_.seqlen, "seqlen");
}

bool BatchBuilder::check_lengths(const Lengths& lengths, std::string_view key,
                                 const std::optional<int64_t>& seqlen,
                                 std::string_view seqlen_key) const {
  const auto count = static_cast<int64_t>(lengths.size());
  if (request_.batch_size && count != *request_.batch_size) {
    return fail(
        key,
        fmt::format("does not have batch_size sequences: {} and {}", count, *request_.batch_size),
        "leave batch_size out, or make the counts agree");
  }
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  if (seqlen && longest > *seqlen) {
    return fail(
        key, fmt::format("has a sequence longer than {}: {} and {}", seqlen_key, longest, *seqlen),
        fmt::format("{} is the padded length of every sequence", seqlen_key));
  }
  return true;
}

bool BatchBuilder::fill_kv_lengths() {
  if (request_.kv_lengths) {
    batch_.kv_lengths = *request_.kv_lengths;
    if (batch_.kv_lengths.size() != batch_.lengths.size()) {
      return fail("kv_lengths",
                  fmt::format("must have one entry per sequence: {} entries, {} sequences",
                              batch_.kv_lengths.size(), batch_.lengths.size()),
                  "write 0 for a sequence without keys");
    }
  } else if (request_.kv_seqlen && length_key() == "seqlen") {
    batch_.kv_lengths.assign(batch_.lengths.size(), *request_.kv_seqlen);
  } else {
    batch_.kv_lengths = batch_.lengths;
  }
  const std::string_view key = request_.kv_lengths ? "kv_lengths" : length_key();
  return check_lengths(batch_.kv_lengths, key, request_.kv_seqlen, "kv_seqlen");
}

bool BatchBuilder::check_slots(const Lengths& slots, const Lengths& lengths, std::string_view key,
                               const std::optional<int64_t>& seqlen,
                               std::string_view seqlen_key) const {
  if (slots.size() != lengths.size()) {
    return fail(key,
                fmt::format("must have one entry per sequence: {} entries, {} sequences",
                            slots.size(), lengths.size()),
                "a slot is the padded length of one sequence");
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < lengths[i]) {
      return fail(
          key, fmt::format("[{}] is smaller than its sequence: {} and {}", i, slots[i], lengths[i]),
          fmt::format("a slot holds its valid tokens and the padding {} them",
                      batch_.pad_side == PadSide::left ? "before" : "behind"));
    }
    if (is_padded() && slots[i] != slots[0]) {
      return fail(key,
                  fmt::format("must all be equal in {}: {} and {}", to_name(batch_.qkv_format),
                              slots[0], slots[i]),
                  "use qkv_format = \"thd\" for slots of different size");
    }
  }
  if (is_padded() && seqlen && slots[0] != *seqlen) {
    return fail(key, fmt::format("must equal {}: {} and {}", seqlen_key, slots[0], *seqlen),
                fmt::format("leave {} or {} out", key, seqlen_key));
  }
  return true;
}

bool BatchBuilder::fill_slots() {
  if (request_.slots) {
    batch_.slots = *request_.slots;
    return check_slots(batch_.slots, batch_.lengths, "slots", request_.seqlen, "seqlen") &&
           check_sum(batch_.slots, "slots");
  }
  batch_.slots =
      is_padded() && request_.seqlen
          ? round_slots(Lengths(batch_.lengths.size(), *request_.seqlen), batch_.slot_multiple)
          : find_default_slots(batch_, batch_.lengths);
  return check_sum(batch_.slots, length_key());
}

bool BatchBuilder::fill_kv_slots() {
  if (request_.kv_slots) {
    batch_.kv_slots = *request_.kv_slots;
    return check_slots(batch_.kv_slots, batch_.kv_lengths, "kv_slots", request_.kv_seqlen,
                       "kv_seqlen") &&
           check_sum(batch_.kv_slots, "kv_slots");
  }
  if (is_padded() && request_.kv_seqlen) {
    batch_.kv_slots =
        round_slots(Lengths(batch_.kv_lengths.size(), *request_.kv_seqlen), batch_.slot_multiple);
  } else if (batch_.kv_lengths == batch_.lengths) {
    // Self attention: KV has the same slots as Q.
    batch_.kv_slots = batch_.slots;
  } else {
    batch_.kv_slots = find_default_slots(batch_, batch_.kv_lengths);
  }
  return check_sum(batch_.kv_slots, request_.kv_lengths ? "kv_lengths" : "kv_seqlen");
}

void BatchBuilder::build(const std::string& base_dir) {
  if (fill_lengths(base_dir) && fill_kv_lengths() && fill_slots() && fill_kv_slots()) {
    batch_.self_attention = batch_.kv_lengths == batch_.lengths && batch_.kv_slots == batch_.slots;
    return;
  }
  // Slices and orders must not be checked against a half-filled batch.
  batch_.lengths.clear();
}

}  // namespace

Lengths find_default_slots(const Batch& batch, const Lengths& lengths) {
  if (batch.qkv_format == QkvFormat::thd || lengths.empty())
    return round_slots(lengths, batch.slot_multiple);
  return round_slots(Lengths(lengths.size(), *std::max_element(lengths.begin(), lengths.end())),
                     batch.slot_multiple);
}

bool has_given_slots(const TableReader& batch) {
  return batch.has("slots") || (batch.has("lengths") && batch.has("seqlen"));
}

void read_batch(const ScenarioTables& tables, const std::string& base_dir, Batch& batch) {
  const int64_t complaints_before = tables.batch.complaints().count();
  const BatchRequest request = read_request(tables, batch);
  // Rules between keys would only repeat the error of one of them.
  const bool is_readable = tables.batch.complaints().count() == complaints_before;
  const bool has_wrong_generator = tables.batch.has("generator") && !tables.generator.is_table();
  if (!is_readable || has_wrong_generator || !tables.batch.is_table()) return;
  BatchBuilder(tables, request, batch).build(base_dir);
}

}  // namespace cpscope
