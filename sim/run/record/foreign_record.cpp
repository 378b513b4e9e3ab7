#include "sim/run/record/foreign_record.h"

#include "sim/run/record/foreign_parts.h"
#include "sim/run/record/record_header.h"
#include "sim/scenario/score_terms.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

/// Local buffers of one side, as the extents of its tensors describe them.
struct SideShape {
  std::vector<int64_t> rows;     // [rank] rows of the local buffer
  std::vector<int64_t> grouped;  // [rank] sequences of equal local slots, 0 if they are not equal
  std::vector<int64_t> ids;      // [row of the rank-ordered buffer] packed padded id
  int64_t tokens = 0;
  int64_t sequences = 0;  // of equal slots in the whole packed buffer; 0: not equal
};

/// Sequence of every packed padded id; ids of the tail have the number of sequences.
std::vector<int64_t> sequence_ids(const BatchSlots& slots, Side side) {
  std::vector<int64_t> ids(static_cast<size_t>(slots.tokens_of(side)),
                           static_cast<int64_t>(slots.sequences.size()));
  for (size_t s = 0; s < slots.sequences.size(); ++s) {
    const SlotSide slot = slots.sequences[s].side(side);
    std::fill_n(ids.begin() + slot.begin, slot.slot, static_cast<int64_t>(s));
  }
  return ids;
}

/// The number of sequences if rows [begin, end) hold the same number of rows of each, one sequence
/// after the other; else 0.
int64_t count_grouped(const std::vector<int64_t>& sequence_of_row, int64_t begin, int64_t end,
                      int64_t sequences) {
  const int64_t rows = end - begin;
  if (sequences == 0 || rows == 0 || rows % sequences != 0) return 0;
  for (int64_t i = 0; i < rows; ++i) {
    if (sequence_of_row[begin + i] != i / (rows / sequences)) return 0;
  }
  return sequences;
}

SideShape shape_side(const Layout& layout, Side side) {
  const auto sequences = static_cast<int64_t>(layout.slots.sequences.size());
  SideShape shape;
  const auto runs_by_rank = partition_of(layout, side);
  shape.ids = rank_order_ids(runs_by_rank.values());
  shape.tokens = static_cast<int64_t>(shape.ids.size());
  const std::vector<int64_t> packed = sequence_ids(layout.slots, side);
  std::vector<int64_t> by_rank(packed.size());
  for (size_t row = 0; row < shape.ids.size(); ++row) by_rank[row] = packed[shape.ids[row]];
  int64_t begin = 0;
  for (const auto& rank_runs : runs_by_rank) {
    shape.rows.push_back(count_ids(rank_runs));
    shape.grouped.push_back(count_grouped(by_rank, begin, begin + shape.rows.back(), sequences));
    begin += shape.rows.back();
  }
  shape.sequences = count_grouped(packed, 0, shape.tokens, sequences);
  return shape;
}

/// The value that all ranks share, or 0.
int64_t common(const std::vector<int64_t>& values) {
  return std::all_of(values.begin(), values.end(),
                     [&](int64_t value) { return value == values.front(); })
             ? values.front()
             : 0;
}

/// Collects the parts of one contract tensor and puts them into packed order.
class Gatherer {
 public:
  Gatherer(const Plan& plan, const RowChoices& choices, RowOrder order)
      : plan_(plan),
        choices_(choices),
        order_(order),
        q_(shape_side(plan.layout, Side::q)),
        kv_(shape_side(plan.layout, Side::kv)) {}

  /// `parts` are the parts by rank, or the one whole tensor, of `records`, whose values are taken.
  Result<Tensor> gather(const TensorKind& kind, const std::vector<const Tensor*>& parts,
                        bool is_by_rank, std::vector<NamedRecord>& records,
                        std::string& reading) const {
    const bool is_by_owned_heads =
        is_by_rank && kind.side == Side::q && plan_.layout.q_heads.size() > 0;
    if (kind.is_by_head) return gather_by_head(kind, parts, is_by_owned_heads, records, reading);
    if (kind.is_whole) return take_whole(kind, parts, records, reading);
    if (is_by_owned_heads) return gather_owned_heads(kind, parts, records, reading);
    const SideShape& side = kind.side == Side::q ? q_ : kv_;
    RowExtents extents = extents_of(kind);
    const bool in_rank_order = is_by_rank || order_ == RowOrder::rank;
    Tensor tensor = shape_tensor(kind, *parts.front());
    const bool is_whole = !in_rank_order && parts.size() == 1;
    if (!is_whole) tensor.values.resize(static_cast<size_t>(tensor.size()));
    int64_t begin = 0;
    std::string axes;
    for (size_t r = 0; r < parts.size(); ++r) {
      if (is_by_rank) {
        extents.rows = side.rows[r];
        extents.sequences = side.grouped[r];
      } else {
        extents.rows = side.tokens;
        extents.sequences = in_rank_order ? common(side.grouped) : side.sequences;
        extents.ranks = in_rank_order ? plan_.layout.cp_size : 1;
        if (extents.ranks > 1 && common(side.rows) == 0) extents.sequences = 0;
      }
      Tensor part = take_tensor(*parts[r], records);
      if (is_by_rank) part.name = fmt::format("{}.rank{}", kind.name, r);
      Result<RowsRead> read = read_rows(std::move(part), extents, choices_);
      if (!read) return explain_shape(read.error(), *parts[r], kind.side, !is_by_rank, records);
      axes = read.value().axes;
      if (is_whole) {
        tensor.values = std::move(read.value().values);
      } else {
        scatter(read.value().values, begin, extents.rows, side, tensor.values);
      }
      begin += extents.rows;
    }
    reading = fmt::format("{} {} as {}, {}", stored_type_name(parts.front()->dtype),
                          describe_shape(*parts.front()), axes,
                          is_by_rank      ? "one part a rank"
                          : in_rank_order ? "in rank order"
                                          : "in packed order");
    return tensor;
  }

 private:
  /// What a tensor of all heads has; its rows are not counted.
  RowExtents extents_of(const TensorKind& kind) const {
    const Attention& attention = plan_.scenario.attention;
    return {.heads = kind.side == Side::q ? attention.heads : attention.kv_heads,
            .lanes = kind.is_lse             ? 0
                     : kind.has_v_lanes      ? attention.head_dim_v
                     : kind.side == Side::kv ? attention.key_dim()
                                             : attention.head_dim_qk};
  }

  /// The gathered tensor in its contract's shape, without values yet.
  Tensor shape_tensor(const TensorKind& kind, const Tensor& part) const {
    const RowExtents extents = extents_of(kind);
    Tensor tensor{std::string(kind.name),
                  {kind.side == Side::q ? q_.tokens : kv_.tokens, extents.heads},
                  part.dtype,
                  {}};
    if (!kind.is_lse) tensor.shape.push_back(extents.lanes);
    return tensor;
  }

  /// Parts of ranks that own heads of all queries: [tokens, heads of the rank, head_dim]. Queries
  /// that every rank has with all heads (q_owner = "heads_replicated") must be the same on all.
  Result<Tensor> gather_owned_heads(const TensorKind& kind, const std::vector<const Tensor*>& parts,
                                    std::vector<NamedRecord>& records, std::string& reading) const {
    const bool is_replicated =
        kind.name == "q" && plan_.scenario.parallel.q_owner == QOwner::heads_replicated;
    const int64_t elements = std::max<int64_t>(1, extents_of(kind).lanes);
    Tensor tensor = shape_tensor(kind, *parts.front());
    const int64_t width = tensor.shape[1] * elements;
    std::string axes;
    for (size_t r = 0; r < parts.size(); ++r) {
      const HeadRange own = owned_heads(r);
      RowExtents extents = extents_of(kind);
      extents.rows = q_.tokens;
      extents.sequences = q_.sequences;
      if (!is_replicated) extents.heads = own.size();
      Tensor part = take_tensor(*parts[r], records);
      part.name = fmt::format("{}.rank{}", kind.name, r);
      Result<RowsRead> read = read_rows(std::move(part), extents, choices_);
      if (!read) {
        Error error = explain_shape(read.error(), *parts[r], kind.side, true, records);
        error.complaints.front().hint +=
            is_replicated ? "; with q_owner = \"heads_replicated\" every rank has all heads of q"
                          : fmt::format(
                                "; rank {} owns heads [{}, {}) of all queries (q_owner = "
                                "\"{}\")",
                                r, own.begin, own.end, to_name(plan_.scenario.parallel.q_owner));
        return error;
      }
      axes = read.value().axes;
      std::vector<double>& values = read.value().values;
      if (is_replicated && r == 0) tensor.values = std::move(values);
      if (is_replicated && r > 0) {
        if (const int64_t at = first_difference(tensor.values, values); at >= 0)
          return make_bad_input(
              fmt::format("the ranks give different values of \"{}\", which all of them have with "
                          "all heads: token {}, head {}, rank 0 {:.9g}, rank {} {:.9g}",
                          kind.name, at / width, at % width / elements, tensor.values[at], r,
                          values[at]),
              "with q_owner = \"heads\" a rank has its own heads alone",
              path_of(*parts[r], records));
      }
      if (is_replicated) continue;
      tensor.values.resize(static_cast<size_t>(tensor.size()));
      const int64_t count = extents.heads * elements;
      for (int64_t row = 0; row < q_.tokens; ++row)
        std::copy_n(values.begin() + row * count, count,
                    tensor.values.begin() + row * width + own.begin * elements);
    }
    reading = fmt::format(
        "{} {} as {}, {}", stored_type_name(parts.front()->dtype), describe_shape(*parts.front()),
        axes, is_replicated ? "the same on every rank" : "one part a rank, of its heads");
    return tensor;
  }

  /// The tensor with its values, which `records` then no longer hold.
  static Tensor take_tensor(const Tensor& part, std::vector<NamedRecord>& records) {
    for (NamedRecord& named : records) {
      for (Tensor& tensor : named.record.tensors) {
        if (&tensor != &part) continue;
        Tensor taken{tensor.name, tensor.shape, tensor.dtype, std::move(tensor.values)};
        if (taken.values.empty() && named.load) taken.values = named.load(taken);
        return taken;
      }
    }
    return part;
  }

  /// The file that a part comes from.
  static std::string path_of(const Tensor& part, const std::vector<NamedRecord>& records) {
    for (const NamedRecord& named : records) {
      for (const Tensor& tensor : named.record.tensors) {
        if (&tensor == &part) return named.path;
      }
    }
    return "";
  }

  HeadRange owned_heads(size_t rank) const {
    return plan_.layout.q_heads[RankId{static_cast<int32_t>(rank)}];
  }

  /// Index of the first value that differs, -1 if none does. NaN is the same as NaN.
  static int64_t first_difference(const std::vector<double>& a, const std::vector<double>& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i] != b[i] && !(std::isnan(a[i]) && std::isnan(b[i]))) return static_cast<int64_t>(i);
    }
    return -1;
  }

  static std::string describe_shape(const Tensor& tensor) {
    return fmt::format("[{}]", fmt::join(tensor.shape, ", "));
  }

  /// An error for a shape that fits nothing, with a guess at what it is.
  Error explain_shape(Error error, const Tensor& part, Side side, bool has_all_rows,
                      const std::vector<NamedRecord>& records) const {
    const int64_t tokens = plan_.layout.slots.tokens_of(side);
    error.complaints.front().where = path_of(part, records);
    int64_t valid = 0;
    for (const SequenceSlot& slot : plan_.layout.slots.sequences) valid += slot.side(side).valid;
    if (has_all_rows && !part.shape.empty() && part.shape.front() == valid && valid != tokens)
      error.complaints.front().hint = fmt::format(
          "these are as many rows as there are valid tokens: put each sequence at the "
          "{} of its slot, {} rows in all",
          plan_.scenario.batch.pad_side == PadSide::left ? "end" : "front", tokens);
    return error;
  }

  /// Copies rows [begin, begin + count) of the rank-ordered buffer to their packed padded ids.
  static void scatter(const std::vector<double>& rows, int64_t begin, int64_t count,
                      const SideShape& side, std::vector<double>& packed) {
    if (count == 0) return;
    const auto width = static_cast<int64_t>(rows.size()) / count;
    for (int64_t row = 0; row < count; ++row)
      std::copy_n(rows.begin() + row * width, width,
                  packed.begin() + side.ids[static_cast<size_t>(begin + row)] * width);
  }

  Result<Tensor> gather_by_head(const TensorKind& kind, const std::vector<const Tensor*>& parts,
                                bool is_by_owned_heads, std::vector<NamedRecord>& records,
                                std::string& reading) const {
    const int64_t heads = plan_.scenario.attention.heads;
    std::vector<Tensor> by_rank;
    for (const Tensor* part : parts) by_rank.push_back(take_tensor(*part, records));
    if (is_by_owned_heads && by_rank.front().size() != heads)
      return join_owned_heads(kind, parts, by_rank, records, reading);
    for (size_t r = 0; r < by_rank.size(); ++r) {
      const Tensor& part = by_rank[r];
      const bool is_vector = std::all_of(part.shape.begin(), part.shape.end(), [&](int64_t extent) {
        return extent == 1 || extent == heads;
      });
      if (!is_vector || part.size() != heads) {
        return make_bad_input(fmt::format("tensor \"{}\" has a shape that fits nothing: {}",
                                          kind.name, describe_shape(part)),
                              fmt::format("one value a query head: [{}]", heads));
      }
      for (int64_t head = 0; head < heads; ++head) {
        const double first = by_rank.front().values[head], value = part.values[head];
        if (value == first || (std::isnan(value) && std::isnan(first))) continue;
        return make_bad_input(
            fmt::format("the ranks give different values of \"{}\", which has one a head: "
                        "head {}, rank 0 {:.9g}, rank {} {:.9g}",
                        kind.name, head, first, r, value),
            kind.name == "max_logit" ? "reduce it by maximum over the ranks first"
                                     : "add it up over the ranks first");
      }
    }
    reading = fmt::format("{} {} as [heads]", stored_type_name(by_rank.front().dtype),
                          describe_shape(by_rank.front()));
    return Tensor{
        std::string(kind.name), {heads}, by_rank.front().dtype, std::move(by_rank.front().values)};
  }

  /// One value a head, from ranks that have those of their own heads.
  Result<Tensor> join_owned_heads(const TensorKind& kind, const std::vector<const Tensor*>& parts,
                                  const std::vector<Tensor>& by_rank,
                                  const std::vector<NamedRecord>& records,
                                  std::string& reading) const {
    Tensor joined{
        std::string(kind.name), {plan_.scenario.attention.heads}, by_rank.front().dtype, {}};
    for (size_t r = 0; r < by_rank.size(); ++r) {
      const Tensor& part = by_rank[r];
      const HeadRange own = owned_heads(r);
      if (part.shape != std::vector<int64_t>{own.size()})
        return make_bad_input(
            fmt::format("tensor \"{}.rank{}\" has a shape that fits nothing: {}", kind.name, r,
                        describe_shape(part)),
            fmt::format("one value for each of the rank's heads [{}, {}): [{}], or the same on "
                        "every rank, one for each query head: [{}]",
                        own.begin, own.end, own.size(), plan_.scenario.attention.heads),
            path_of(*parts[r], records));
      joined.values.insert(joined.values.end(), part.values.begin(), part.values.end());
    }
    reading = fmt::format("{} {} as [heads], one part a rank, of its heads",
                          stored_type_name(joined.dtype), describe_shape(by_rank.front()));
    return joined;
  }

  /// The shape of a bias, of its gradient, or of the weights that expand latent rows; empty extents
  /// if the scenario has none.
  std::vector<int64_t> whole_shape(const TensorKind& kind) const {
    const Attention& attention = plan_.scenario.attention;
    if (kind.side == Side::kv) {
      const int64_t made = kind.name == "w_k" ? attention.latent_nope_dim : attention.head_dim_v;
      return attention.expands_rows()
                 ? std::vector<int64_t>{attention.heads, made, attention.latent_dim}
                 : std::vector<int64_t>{0, 0, 0};
    }
    const BiasExtents extents = bias_extents(attention, plan_.scenario.batch);
    return {extents.sequences, extents.heads, extents.queries, extents.keys};
  }

  /// A bias or its gradient, or weights, whole; parts by rank are all the same.
  Result<Tensor> take_whole(const TensorKind& kind, const std::vector<const Tensor*>& parts,
                            std::vector<NamedRecord>& records, std::string& reading) const {
    const std::vector<int64_t> wanted = whole_shape(kind);
    const bool is_of_bias = kind.side == Side::q;
    std::vector<Tensor> by_rank;
    for (const Tensor* part : parts) by_rank.push_back(take_tensor(*part, records));
    Tensor& given = by_rank.front();
    for (size_t rank = 1; rank < by_rank.size(); ++rank) {
      const auto is_same = [](double a, double b) {
        return a == b || (std::isnan(a) && std::isnan(b));  // NaN beyond a sequence
      };
      if (by_rank[rank].shape == given.shape && std::equal(given.values.begin(), given.values.end(),
                                                           by_rank[rank].values.begin(), is_same))
        continue;
      return make_bad_input(
          fmt::format("the ranks give different \"{}\": ranks 0 and {}", kind.name, rank),
          is_of_bias ? "put the rows of all ranks in the order of positions: one tensor [b or 1, h "
                       "or 1, queries, keys]"
                     : "give the weights of all heads: one tensor [heads, elements, latent_dim]");
    }
    if (given.shape != wanted) {
      return make_bad_input(
          fmt::format("tensor \"{}\" has a shape that fits nothing: {}", kind.name,
                      describe_shape(given)),
          !is_of_bias && wanted[0] == 0 ? "the scenario expands no latent rows (latent_nope_dim)"
          : wanted[1] == 0              ? "the scenario has no bias"
          : is_of_bias
              ? fmt::format("bias = \"{}\": [{}]", to_name(plan_.scenario.attention.bias),
                            fmt::join(wanted, ", "))
              : fmt::format("[heads, elements, latent_dim]: [{}]", fmt::join(wanted, ", ")));
    }
    reading = fmt::format("{} {}{}", stored_type_name(given.dtype), describe_shape(given),
                          is_of_bias ? " by positions" : "");
    given.name = kind.name;
    return std::move(given);
  }

  const Plan& plan_;
  const RowChoices& choices_;
  RowOrder order_;
  SideShape q_, kv_;
};

/// True for {"format": "pt"}, which safetensors' own libraries write: it names no dimensions.
bool names_library(const std::string& key, const std::string& value) {
  constexpr std::string_view kLibraries[] = {"pt", "np", "tf", "flax", "mlx"};
  return key == "format" &&
         std::find(std::begin(kLibraries), std::end(kLibraries), value) != std::end(kLibraries);
}

/// The metadata value of a key, if all files that have it agree.
Result<std::string> find_metadata(const std::vector<NamedRecord>& records, const std::string& key) {
  std::string value;
  for (const NamedRecord& named : records) {
    const auto found = named.record.metadata.find(key);
    if (found == named.record.metadata.end() || names_library(key, found->second)) continue;
    if (!value.empty() && value != found->second) {
      return make_bad_input(fmt::format("the files disagree about metadata \"{}\": {} and {}", key,
                                        printable_name(value), printable_name(found->second)),
                            "", named.path);
    }
    value = found->second;
  }
  return value;
}

/// One choice: the caller's, else the metadata's.
template <class Choice>
std::optional<Error> choose(const std::vector<NamedRecord>& records, const std::string& key,
                            std::optional<Choice> (*find)(std::string_view), const char* names,
                            std::optional<Choice>& choice, std::string& source) {
  const Result<std::string> text = find_metadata(records, key);
  if (!text) return text.error();
  const std::optional<Choice> said = find(text.value());
  if (!text.value().empty() && !said) {
    return make_bad_input(
        fmt::format("metadata \"{}\" has an unknown value: {}", key, printable_name(text.value())),
        names, records.front().path);
  }
  if (choice) {
    source = "the command line";
    if (said && *said != *choice)
      source += fmt::format(" (the record's metadata says {})", text.value());
  } else if (said) {
    choice = said;
    source = "the record's metadata";
  }
  return std::nullopt;
}

RowFormat preferred_format(QkvFormat format) {
  return format == QkvFormat::bshd   ? RowFormat::bshd
         : format == QkvFormat::sbhd ? RowFormat::sbhd
                                     : RowFormat::thd;
}

}  // namespace

std::string_view to_name(RowOrder value) { return value == RowOrder::packed ? "packed" : "rank"; }

std::optional<RowOrder> find_row_order(std::string_view name) {
  if (name == "packed") return RowOrder::packed;
  if (name == "rank") return RowOrder::rank;
  return std::nullopt;
}

const Tensor* ForeignRecord::find(std::string_view name) const {
  for (const Tensor& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

Tensor* ForeignRecord::find(std::string_view name) {
  return const_cast<Tensor*>(std::as_const(*this).find(name));
}

std::vector<int64_t> rank_order_ids(std::span<const std::vector<TokenRun>> runs_by_rank) {
  std::vector<int64_t> ids;
  for (const auto& runs : runs_by_rank) {
    const std::vector<int64_t> of_rank = expand(runs);
    ids.insert(ids.end(), of_rank.begin(), of_rank.end());
  }
  return ids;
}

Result<ForeignRecord> read_foreign(std::vector<NamedRecord> records, const Plan& plan,
                                   const ForeignChoices& choices) {
  const int32_t cp_size = plan.layout.cp_size;
  if (records.size() > 1 && records.size() != static_cast<size_t>(cp_size))
    return make_bad_input(fmt::format("one record, or one for each rank: {} files, {} ranks",
                                      records.size(), cp_size));
  ForeignRecord foreign;
  foreign.executor = records.front().record.executor;
  for (const NamedRecord& named : records)
    foreign.absent.insert(foreign.absent.end(), named.absent.begin(), named.absent.end());
  std::optional<RowOrder> order = choices.order;
  RowChoices row_choices{choices.format, choices.lse_layout,
                         preferred_format(plan.scenario.batch.qkv_format)};
  std::string ignored_source;
  if (auto error =
          choose(records, "order", &find_row_order, "packed or rank", order, foreign.order_source))
    return *error;
  if (auto error = choose(records, "format", &find_row_format, "thd, bshd, sbhd or bhsd",
                          row_choices.format, ignored_source))
    return *error;
  if (auto error = choose(records, "lse_layout", &find_lse_layout, "tokens_heads or heads_tokens",
                          row_choices.lse_layout, ignored_source))
    return *error;
  const bool is_ours = !records.front().record.plan_hash.empty();
  if (!order) {
    foreign.order_source = is_ours ? "cpscope wrote the record" : "packed is the default order";
  }
  if (is_ours && !row_choices.lse_layout) row_choices.lse_layout = LseLayout::tokens_heads;
  foreign.order = order.value_or(RowOrder::packed);

  FoundTensors found;
  std::set<std::string> ignored;
  if (auto error = collect_tensors(records, cp_size, choices.aliases, found, ignored))
    return *error;
  foreign.ignored.assign(ignored.begin(), ignored.end());
  const Gatherer gatherer(plan, row_choices, foreign.order);
  for (size_t t = 0; t < kTensorKinds.size(); ++t) {
    const TensorKind& kind = kTensorKinds[t];
    if (found[t].whole == nullptr && found[t].parts.empty()) continue;
    const bool is_by_rank = found[t].whole == nullptr;
    std::string reading;
    Result<Tensor> tensor = gatherer.gather(
        kind, is_by_rank ? found[t].parts : std::vector<const Tensor*>{found[t].whole}, is_by_rank,
        records, reading);
    if (!tensor) {
      Error error = tensor.error();
      for (Complaint& complaint : error.complaints) {
        if (complaint.where.empty()) complaint.where = records.front().path;
      }
      return error;
    }
    for (const TensorAlias& alias : choices.aliases) {
      if (alias.name == kind.name) reading = printable_name(alias.theirs) + ": " + reading;
    }
    foreign.tensors.push_back(std::move(tensor).value());
    foreign.readings.push_back(std::move(reading));
  }
  foreign.is_by_rank =
      !order && !foreign.tensors.empty() &&
      std::all_of(found.begin(), found.end(), [](const auto& one) { return one.whole == nullptr; });
  return foreign;
}

}  // namespace cpscope
