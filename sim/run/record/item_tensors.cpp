#include "sim/run/record/item_tensors.h"

#include "sim/plan/direction.h"
#include "sim/plan/item_uses.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr std::array<std::string_view, 5> kArrays = {"out", "lse", "dq", "dk", "dv"};
constexpr std::array kShownKinds = {StageKind::compute, StageKind::finish};

/// Parses a name from its front. After the first error it finds nothing more.
class NameReader {
 public:
  explicit NameReader(std::string_view text) : rest_(text) {}

  /// The text up to the next dot, or to the end.
  std::string_view take_word() {
    const size_t dot = std::min(rest_.find('.'), rest_.size());
    const std::string_view word = rest_.substr(0, dot);
    rest_.remove_prefix(std::min(rest_.size(), dot + 1));
    return word;
  }

  /// Parses `prefix` and a number that is not negative, as one word.
  template <class Number>
  Number take_number(std::string_view prefix) {
    std::string_view word = take_word();
    Number number = 0;
    if (!word.starts_with(prefix)) {
      is_broken_ = true;
      return number;
    }
    word.remove_prefix(prefix.size());
    const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (word.empty() || failure != std::errc() || end != word.data() + word.size() || number < 0)
      is_broken_ = true;
    return number;
  }

  bool is_broken() const { return is_broken_; }

 private:
  std::string_view rest_;
  bool is_broken_ = false;
};

void add_array(int64_t rows, const BufferSpec& spec, int64_t lanes, ItemResultsSize& size) {
  // Estimated bytes of the name, the shape and the tensor's own fields, with their allocations.
  constexpr int64_t kBesideValues = 256;
  ++size.arrays;
  size.bytes += rows * spec.heads.size() * lanes * int64_t{sizeof(double)} + kBesideValues;
}

/// The arrays of the first `rows` rows of a result buffer.
void add_buffer(const Plan& plan, BufferId buffer, int64_t rows, ItemResultsSize& size) {
  const Attention& attention = plan.scenario.attention;
  const BufferSpec& spec = plan.buffer(buffer);
  add_array(rows, spec,
            spec.kind == BufferKind::out   ? attention.head_dim_v
            : spec.kind == BufferKind::dkv ? attention.key_dim()
                                           : attention.head_dim_qk,
            size);
  if (spec.kind == BufferKind::out) add_array(rows, spec, 1, size);
  if (spec.kind == BufferKind::dkv && attention.own_head_dim_v() > 0)
    add_array(rows, spec, attention.head_dim_v, size);
}

void add_pass(const Plan& plan, const Pass& pass, ItemResultsSize& size) {
  for (const ComputeItem& item : pass.computes) {
    visit_writes(item, [&](BufferId id) {
      const bool is_of_keys = plan.buffer(id).kind == BufferKind::dkv;
      add_buffer(plan, id, plan.rows(is_of_keys ? item.kv_tokens : item.q_tokens), size);
    });
  }
  for (const FinishItem& item : pass.finishes)
    add_buffer(plan, item.buffer, plan.buffer(item.buffer).rows, size);
}

}  // namespace

std::string print_item_name(const ItemTensorName& name) {
  return fmt::format("{}.{}.{}.rank{}.step{}.{}", to_name(name.item.direction),
                     to_name(name.item.kind), name.item.index, to_index(name.rank),
                     to_index(name.step), name.array);
}

std::optional<ItemTensorName> parse_item_name(std::string_view text) {
  NameReader reader(text);
  ItemTensorName name;
  if (reader.take_word() == to_name(Direction::backward)) name.item.direction = Direction::backward;
  const std::string_view kind = reader.take_word();
  for (const StageKind shown : kShownKinds) {
    if (kind == to_name(shown)) name.item.kind = shown;
  }
  name.item.index = reader.take_number<int64_t>("");
  name.rank = RankId{reader.take_number<int32_t>("rank")};
  name.step = StepId{reader.take_number<int32_t>("step")};
  name.array = std::string(reader.take_word());
  const bool is_known = std::find(kArrays.begin(), kArrays.end(), name.array) != kArrays.end();
  // Printing it back detects every other error: a wrong word, a leading zero, text after the end.
  if (reader.is_broken() || !is_known || print_item_name(name) != text) return std::nullopt;
  return name;
}

Tensor make_item_tensor(const ItemResult& result, Dtype dtype) {
  Tensor tensor{print_item_name({result.item, result.rank, result.step, result.array}),
                result.shape,
                dtype,
                {}};
  tensor.values.assign(result.values.begin(), result.values.end());
  return tensor;
}

std::optional<ItemPlace> place_in_item(const Plan& plan, const ItemTensorName& name, int64_t row,
                                       int64_t buffer_head) {
  const Pass& pass = plan.pass(name.item.direction);
  const size_t index = static_cast<size_t>(name.item.index);
  BufferId buffer = kNoBuffer;
  RunListId tokens = kNoTokens;
  if (name.item.kind == StageKind::compute && index < pass.computes.size()) {
    const ComputeItem& item = pass.computes[index];
    const bool is_of_keys = name.array == "dk" || name.array == "dv";
    buffer = name.item.direction == Direction::forward ? item.out : is_of_keys ? item.dkv : item.dq;
    tokens = is_of_keys ? item.kv_tokens : item.q_tokens;
  } else if (name.item.kind == StageKind::finish && index < pass.finishes.size()) {
    buffer = pass.finishes[index].buffer;
    tokens = plan.buffer(buffer).tokens;
  }
  if (buffer == kNoBuffer) return std::nullopt;
  const HeadRange heads = plan.buffer(buffer).heads;
  if (row < 0 || buffer_head < 0 || buffer_head >= heads.size()) return std::nullopt;
  ItemPlace place{-1, heads.begin + static_cast<int32_t>(buffer_head)};
  if (tokens == kNoTokens) return place;
  for (const TokenRun& run : plan.list(tokens)) {
    if (row < run.count()) {
      place.token = run.at(row);
      return place;
    }
    row -= run.count();
  }
  return std::nullopt;
}

ItemResultsSize measure_item_results(const Plan& plan) {
  ItemResultsSize size;
  add_pass(plan, plan.forward, size);
  if (plan.scenario.numerics.backward) add_pass(plan, plan.backward, size);
  return size;
}

}  // namespace cpscope
