#include "sim/scenario/mask_file.h"
#include "sim/scenario/mask_slices.h"
#include "sim/scenario/scenario_names.h"
#include "sim/scenario/scenario_parts.h"
#include "sim/scenario/text_file.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Checks a mask by name against the batch and the sequence rules, key by key.
class MaskReader {
 public:
  MaskReader(const TableReader& table, const Batch* batch) : table_(table), batch_(batch) {}

  /// Reads all keys; nothing if one of them is wrong.
  std::optional<MaskGenerator> read() const;
  /// Checks what the mask needs of the batch.
  bool fits(const MaskGenerator& mask) const;

 private:
  void read_source(MaskGenerator& mask) const;
  void read_tree(MaskGenerator& mask) const;
  void read_groups(MaskGenerator& mask) const;
  void read_window(MaskGenerator& mask) const;
  bool check_tree(const MaskGenerator& mask) const;
  bool check_groups(const MaskGenerator& mask) const;
  bool check_halves() const;
  bool check_top_k(const MaskGenerator& mask) const;
  bool fail(std::string_view key, const std::string& what, std::string hint) const {
    table_.complain(key, what, std::move(hint));
    return false;
  }

  const TableReader& table_;
  const Batch* batch_;
};

void MaskReader::read_source(MaskGenerator& mask) const {
  const std::string choices = "choose " + show_choices(kMaskNames);
  take_value(table_.text("name"), mask.name);
  take_value(table_.text("file"), mask.file);
  if (table_.has("name") && table_.has("file")) {
    fail("file", "is given next to name: " + show_text(mask.file), "give one of the two");
  } else if (table_.has("file")) {
    if (mask.file.empty()) fail("file", "is empty: \"\"", "name a .npy or .json file");
  } else if (!table_.has("name")) {
    table_.require("name", choices + ", or give file");
  } else if (std::find(kMaskNames.begin(), kMaskNames.end(), mask.name) == kMaskNames.end()) {
    const auto nearest = find_nearest_name(mask.name, kMaskNames);
    fail("name", "is not one of its choices: " + show_text(mask.name),
         nearest ? fmt::format("did you mean {}? Choices are {}", show_text(*nearest),
                               show_choices(kMaskNames))
                 : choices);
  }
}

void MaskReader::read_tree(MaskGenerator& mask) const {
  take_value(table_.integers("parents", -1, kMaxSegments - 1, kMaxSegments), mask.parents);
  take_value(table_.integers("lengths", 1, kMaxTokens, kMaxSegments), mask.lengths);
  for (size_t i = 0; i < mask.parents.size(); ++i) {
    if (mask.parents[i] < static_cast<int64_t>(i)) continue;
    table_.complaints().add(table_.find("parents").item(static_cast<int64_t>(i)).position(),
                            fmt::format("{}[{}] must be an earlier segment: {}",
                                        table_.full_name("parents"), i, mask.parents[i]),
                            "a parent comes before its children, -1 is no parent");
    return;
  }
  if (!mask.parents.empty() && !mask.lengths.empty() &&
      mask.parents.size() != mask.lengths.size()) {
    fail("parents",
         fmt::format("must have one entry per segment: {} entries, {} lengths", mask.parents.size(),
                     mask.lengths.size()),
         "lengths[i] are the tokens of segment i, parents[i] its parent");
  }
}

void MaskReader::read_groups(MaskGenerator& mask) const {
  const TomlValue list = table_.find("groups");
  if (list.kind() == TomlKind::none) return;
  const std::string form = "write [[begin, end], ...], valid tokens counted through the batch";
  if (list.kind() != TomlKind::array || list.size() > kMaxSlices) {
    fail("groups",
         fmt::format("must be a list of at most {} groups: {}", kMaxSlices, show_value_of(list)),
         form);
    return;
  }
  for (int64_t i = 0; i < list.size(); ++i) {
    const TomlValue group = list.item(i);
    const bool is_pair = group.kind() == TomlKind::array && group.size() == 2 &&
                         group.item(0).kind() == TomlKind::integer &&
                         group.item(1).kind() == TomlKind::integer;
    if (is_pair && 0 <= group.item(0).integer() &&
        group.item(0).integer() <= group.item(1).integer() &&
        group.item(1).integer() <= kMaxTokens) {
      mask.groups.push_back({group.item(0).integer(), group.item(1).integer()});
      continue;
    }
    const std::string shown =
        is_pair ? fmt::format("[{}, {}]", group.item(0).integer(), group.item(1).integer())
                : show_value_of(group);
    table_.complaints().add(group.position(),
                            fmt::format("{}[{}] must be two tokens, begin and end: {}",
                                        table_.full_name("groups"), i, shown),
                            form);
    return;
  }
}

void MaskReader::read_window(MaskGenerator& mask) const {
  const auto window = table_.integers("window", -1, kMaxTokens, 2);
  if (!window) return;
  if (window->size() != 2) {
    fail("window", fmt::format("must have 2 entries, left and right: {}", window->size()),
         "write [-1, -1] for an unbounded window");
    return;
  }
  mask.window_left = (*window)[0];
  mask.window_right = (*window)[1];
}

std::optional<MaskGenerator> MaskReader::read() const {
  const int64_t complaints_before = table_.complaints().count();
  MaskGenerator mask;
  read_source(mask);
  take_value(table_.integer("block", 1, kMaxTokens), mask.block);
  read_tree(mask);
  read_groups(mask);
  take_value(table_.integer("count", 0, kMaxTokens), mask.count);
  take_value(table_.boolean("causal"), mask.causal);
  read_window(mask);
  take_value(table_.integer("keys", 1, kMaxTokens), mask.keys);
  take_value(table_.integer("blocks", 0, kMaxTokens), mask.blocks);
  take_value(table_.integer("seed", 0, std::numeric_limits<int64_t>::max()), mask.seed);
  take_value(table_.integer("sequence", 0, kMaxSequences - 1), mask.sequence);
  if (mask.name == "block_causal" || mask.name == "block_diffusion" || mask.name == "block_top_k")
    table_.require("block", "give the tokens of a block");
  if (mask.name == "prefix_tree") {
    table_.require("parents", "write [-1, 0, 0]: the parent of each segment, -1 for none");
    table_.require("lengths", "write the tokens of each segment");
  }
  if (mask.name == "image_groups")
    table_.require("groups", "write [[begin, end], ...], valid tokens counted through the batch");
  if (mask.name == "global_tokens")
    table_.require("count", "give the number of global tokens at the front of each sequence");
  if (mask.name == "top_k") table_.require("keys", "give the number of keys that a row sees");
  if (mask.name == "block_top_k")
    table_.require("blocks", "give the number of earlier blocks that a block of queries sees");
  if (table_.complaints().count() != complaints_before) return std::nullopt;
  return mask;
}

bool MaskReader::check_tree(const MaskGenerator& mask) const {
  // At most 2^14 lengths of less than 2^31: the sum cannot overflow.
  const int64_t sum = std::reduce(mask.lengths.begin(), mask.lengths.end(), int64_t{0});
  for (size_t s = 0; s < batch_->lengths.size(); ++s) {
    if (mask.sequence >= 0 && mask.sequence != static_cast<int64_t>(s)) continue;
    if (batch_->lengths[s] == sum) continue;
    return fail(
        "lengths",
        fmt::format("must sum to the tokens of sequence {}: {} and {}", s, sum, batch_->lengths[s]),
        mask.sequence < 0 && batch_->lengths.size() > 1
            ? "sequence = N gives one sequence the tree, the others are then causal"
            : "every valid token is in one segment");
  }
  return true;
}

bool MaskReader::check_groups(const MaskGenerator& mask) const {
  const std::vector<ValidTokens> sequences = find_valid_tokens(*batch_);
  const auto complain = [&](size_t i, const std::string& what, std::string hint) {
    table_.complaints().add(table_.find("groups").item(static_cast<int64_t>(i)).position(),
                            fmt::format("{}[{}] {}", table_.full_name("groups"), i, what),
                            std::move(hint));
    return false;
  };
  std::vector<size_t> order(mask.groups.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto key = [&](size_t i) {
    return std::tuple(mask.groups[i].begin, mask.groups[i].end, i);
  };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
  int64_t end_before = 0;
  for (const size_t i : order) {
    const TokenGroup& group = mask.groups[i];
    if (group.begin == group.end) continue;
    const auto after = std::upper_bound(
        sequences.begin(), sequences.end(), group.begin,
        [](int64_t token, const ValidTokens& sequence) { return token < sequence.q; });
    const ValidTokens& sequence = *(after - 1);
    if (group.end > sequence.q + sequence.queries)
      return complain(i,
                      fmt::format("must lie in one sequence: [{}, {}), sequence {} is [{}, {})",
                                  group.begin, group.end, after - 1 - sequences.begin(), sequence.q,
                                  sequence.q + sequence.queries),
                      "attention never crosses a sequence; ids count valid tokens");
    if (group.begin < end_before)
      return complain(i,
                      fmt::format("overlaps another group: [{}, {}), that one ends at {}",
                                  group.begin, group.end, end_before),
                      "a token is in one group at most");
    end_before = group.end;
  }
  return true;
}

bool MaskReader::check_halves() const {
  for (size_t s = 0; s < batch_->lengths.size(); ++s) {
    if (batch_->lengths[s] % 2 == 0) continue;
    return fail("name",
                fmt::format("block_diffusion needs an even number of tokens: sequence {} has {}", s,
                            batch_->lengths[s]),
                "a sequence holds its noisy tokens and then the same clean ones");
  }
  return true;
}

bool MaskReader::check_top_k(const MaskGenerator& mask) const {
  if (mask.window_right > 0)
    return fail("window", fmt::format("has no right side in top_k: {}", mask.window_right),
                "write [left, 0]: a row of top_k sees no later key");
  const int64_t kept = mask.count + mask.window_left + 1;
  if (mask.keys >= kept) return true;
  return fail(
      "keys",
      fmt::format("must hold the window and the first keys: {} is less than {}", mask.keys, kept),
      "keys counts all keys of a row");
}

bool MaskReader::fits(const MaskGenerator& mask) const {
  const auto sequences = static_cast<int64_t>(batch_->lengths.size());
  if (mask.sequence >= sequences)
    return fail("sequence",
                fmt::format("is not in the batch: {}, the batch has {}", mask.sequence, sequences),
                "sequences count from 0");
  if (!mask.file.empty() || mask.name == "block_causal") return true;
  if (batch_->kv_lengths != batch_->lengths)
    return fail("name", mask.name + " needs self attention: kv_lengths differ from lengths",
                "use block_causal, slices or a mask from a file");
  if (mask.name == "prefix_tree") return check_tree(mask);
  if (mask.name == "image_groups") return check_groups(mask);
  if (mask.name == "block_diffusion") return check_halves();
  if (mask.name == "top_k") return check_top_k(mask);
  return true;
}

Result<std::vector<MaskSlice>> make_slices(const MaskGenerator& mask, const std::string& base_dir,
                                           const Batch& batch) {
  if (mask.file.empty()) return generate_slices(mask, batch);
  const Result<MaskRows> rows = load_mask_rows(join_path(base_dir, mask.file));
  if (!rows) return rows.error();
  Result<MaskCut> cut = cut_mask(rows.value(), batch, mask.sequence);
  if (!cut) return cut.error();
  return std::move(cut.value().slices);
}

/// Sets keys that the mask does not use to their defaults, so that it prints back as it is.
void drop_unused(MaskGenerator& mask) {
  const MaskGenerator usual;
  const bool is_tree = mask.name == "prefix_tree", is_global = mask.name == "global_tokens",
             is_top_k = mask.name == "top_k", is_block_top_k = mask.name == "block_top_k";
  if (mask.name != "block_causal" && mask.name != "block_diffusion" && !is_block_top_k)
    mask.block = usual.block;
  if (!is_tree) {
    mask.parents.clear();
    mask.lengths.clear();
  }
  if (mask.name != "image_groups") mask.groups.clear();
  if (!is_global) mask.causal = usual.causal;
  if (!is_top_k) mask.keys = usual.keys;
  if (!is_block_top_k) mask.blocks = usual.blocks;
  if (!is_top_k && !is_block_top_k) mask.seed = usual.seed;
  if (!is_global && !is_top_k) {
    mask.count = usual.count;
    mask.window_left = usual.window_left;
    mask.window_right = usual.window_right;
  }
  if (!is_tree && mask.file.empty()) mask.sequence = usual.sequence;
}

}  // namespace

void read_mask(const ScenarioTables& tables, const std::string& base_dir, const Batch* batch,
               Attention& attention) {
  if (!tables.attention.has("mask") || !tables.mask.is_table()) return;
  const bool has_slices = tables.attention.has("slices");
  if (has_slices && !tables.is_plan_document()) {
    tables.attention.complain("mask", "is given next to slices: a table", "give one of the two");
    return;
  }
  const MaskReader reader(tables.mask, batch);
  std::optional<MaskGenerator> mask = reader.read();
  if (!mask || batch == nullptr || !reader.fits(*mask)) return;
  drop_unused(*mask);
  if (has_slices) {
    attention.generator = std::move(mask);
    return;
  }
  if (tables.is_plan_document() && !mask->file.empty()) {
    tables.attention.require("slices", "a plan document holds the slices of a mask file");
    return;
  }
  Result<std::vector<MaskSlice>> slices = make_slices(*mask, base_dir, *batch);
  if (!slices) {
    const std::string_view key = !mask->file.empty()     ? "file"
                                 : mask->name == "top_k" ? "keys"
                                 : mask->block > 0       ? "block"
                                                         : "name";
    tables.mask.complaints().add_all(slices.error(), tables.mask.place(key));
    return;
  }
  attention.slices = std::move(slices).value();
  attention.generator = std::move(mask);
}

}  // namespace cpscope
