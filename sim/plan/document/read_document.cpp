#include "sim/plan/document/document_parts.h"
#include "sim/plan/document/plan_document.h"
#include "sim/plan/planner/plan_builder.h"
#include "sim/scenario/text_file.h"

#include <fstream>
#include <limits>

namespace cpscope {
namespace {

constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxStored = std::numeric_limits<int64_t>::max() / 4;

template <class Id>
Id read_id(JsonReader& json) {
  return Id{static_cast<int32_t>(json.integer(0, kMaxId))};
}

/// Reads a text that is the name of one of the values 0, 1, ..., last.
template <class Choice>
Choice read_choice(JsonReader& json, Choice last) {
  const std::string_view text = json.text();
  if (json.has_failed()) return {};
  for (int32_t i = 0; i <= static_cast<int32_t>(last); ++i) {
    if (to_name(static_cast<Choice>(i)) == text) return static_cast<Choice>(i);
  }
  std::vector<std::string_view> names;
  for (int32_t i = 0; i <= static_cast<int32_t>(last); ++i)
    names.push_back(to_name(static_cast<Choice>(i)));
  json.fail("it is none of " + show_choices(names) + ": " + show_text(text));
  return {};
}

HeadRange read_heads(JsonReader& json) {
  const auto [begin, end] = read_numbers<2>(json, 0, kMaxHeads);
  if (!json.has_failed() && begin >= end)
    json.fail(fmt::format("heads [{}, {}) are none", begin, end), "write [first, last + 1]");
  return {static_cast<int32_t>(begin), static_cast<int32_t>(end)};
}

/// [begin, end] or [begin, end, stride].
TokenRun read_run(JsonReader& json) {
  TokenRun run;
  int64_t count = 0;
  read_array(json, 3, [&](int64_t i) {
    (i == 0 ? run.begin : i == 1 ? run.end : run.stride) = json.integer(i == 2 ? 1 : 0, kMaxId);
    ++count;
  });
  if (json.has_failed()) return run;
  if (count < 2)
    json.fail("a run is [begin, end] or [begin, end, stride]");
  else if (run.begin >= run.end)
    json.fail(fmt::format("the run [{}, {}) is empty", run.begin, run.end), "leave it out");
  return run;
}

void read_runs(JsonReader& json, int64_t& room, std::vector<TokenRun>& runs) {
  read_array(json, kMaxRuns, [&](int64_t) {
    runs.push_back(read_run(json));
    if (--room < 0) json.fail(fmt::format("the document has more than {} runs", kMaxRuns));
  });
}

/// Reads one document; the parts may come in any order.
class DocumentReader {
 public:
  DocumentReader(std::string_view text, const std::string& path) : json_(text), path_(path) {}

  std::optional<Error> read(RawDocument& raw) {
    raw_ = &raw;
    constexpr auto kKeys = std::to_array<std::string_view>(
        {"schema", "kind", "scenario", "lists", "buffers", "forward", "layout", "positions",
         "slices", "backward", "hash"});
    read_object(json_, kKeys, 6, [&](size_t key) { read_part(kKeys[key]); });
    json_.end();
    if (scenario_error_) return scenario_error_;
    if (json_.has_failed()) return json_.error(path_);
    return std::nullopt;
  }

 private:
  Plan& plan() { return raw_->plan; }

  void read_part(std::string_view key) {
    if (key == "schema") {
      const int64_t schema = json_.integer(0, kMaxId);
      if (!json_.has_failed() && schema != kPlanSchema)
        json_.fail(
            fmt::format("this program reads plan documents of schema {}: {}", kPlanSchema, schema));
    } else if (key == "kind") {
      const std::string_view kind = json_.text();
      if (!json_.has_failed() && kind != kPlanKind)
        json_.fail(
            fmt::format("a plan document is of kind \"{}\": {}", kPlanKind, show_text(kind)));
    } else if (key == "scenario") {
      scenario_error_ = read_scenario(json_, path_, plan().scenario);
      if (scenario_error_) json_.fail("the scenario is wrong");
    } else if (key == "layout") {
      read_layout();
    } else if (key == "positions") {
      constexpr auto kKeys = std::to_array<std::string_view>({"q", "kv"});
      read_object(json_, kKeys, 2, [&](size_t side) {
        std::vector<int64_t>& list = side == 0 ? raw_->q_positions : raw_->kv_positions;
        read_array(json_, kMaxTokens,
                   [&](int64_t) { list.push_back(json_.integer(0, kMaxTokens)); });
      });
    } else if (key == "lists") {
      read_array(json_, kMaxPlanItems, [&](int64_t) {
        const size_t first = plan().runs.size();
        read_runs(json_, room_for_runs_, plan().runs);
        plan().run_lists.push_back(
            {static_cast<int64_t>(first), static_cast<int64_t>(plan().runs.size() - first), 0});
      });
    } else if (key == "slices") {
      read_array(json_, kMaxPlanSlices, [&](int64_t) { plan().slices.push_back(read_band()); });
    } else if (key == "buffers") {
      read_array(json_, kMaxPlanItems, [&](int64_t) { plan().buffers.push_back(read_buffer()); });
    } else if (key == "hash") {
      raw_->hash = json_.text();
    } else {
      read_pass(plan().pass(key == "forward" ? Direction::forward : Direction::backward));
    }
  }

  void read_layout() {
    constexpr auto kKeys = std::to_array<std::string_view>(
        {"cp_size", "tokens", "kv_tokens", "sequences", "ranks", "schema"});
    raw_->has_layout = true;
    Layout& layout = plan().layout;
    read_object(json_, kKeys, 5, [&](size_t key) {
      switch (key) {
        case 0:
          layout.cp_size = static_cast<int32_t>(json_.integer(1, kMaxRanks));
          return;
        case 1:
          layout.slots.tokens = json_.integer(0, kMaxTokens);
          return;
        case 2:
          layout.slots.kv_tokens = json_.integer(0, kMaxTokens);
          return;
        case 3:
          read_array(json_, kMaxTokens,
                     [&](int64_t) { layout.slots.sequences.push_back(read_slot()); });
          return;
        case 4:
          read_array(json_, kMaxRanks, [&](int64_t rank) { read_rank(layout, rank); });
          return;
        default:
          json_.integer(1, 1);
      }
    });
  }

  SequenceSlot read_slot() {
    constexpr auto kKeys =
        std::to_array<std::string_view>({"q_begin", "q_valid", "q_slot", "kv_begin", "kv_valid",
                                         "kv_slot", "q_valid_begin", "kv_valid_begin"});
    SequenceSlot slot;
    int64_t* const fields[] = {&slot.q_begin,  &slot.q_valid, &slot.q_slot,  &slot.kv_begin,
                               &slot.kv_valid, &slot.kv_slot, &slot.q_front, &slot.kv_front};
    slot.q_front = slot.kv_front = kLeftOut;
    read_object(json_, kKeys, 6, [&](size_t key) { *fields[key] = json_.integer(0, kMaxTokens); });
    slot.q_front = slot.q_front == kLeftOut ? 0 : slot.q_front - slot.q_begin;
    slot.kv_front = slot.kv_front == kLeftOut ? 0 : slot.kv_front - slot.kv_begin;
    return slot;
  }

  void read_rank(Layout& layout, int64_t rank) {
    constexpr auto kKeys = std::to_array<std::string_view>({"q_runs", "kv_runs", "rank"});
    std::vector<TokenRun> q, kv;
    read_object(json_, kKeys, 2, [&](size_t key) {
      if (key == 2)
        json_.integer(rank, rank);
      else
        read_runs(json_, room_for_runs_, key == 0 ? q : kv);
    });
    layout.q_runs.push_back(std::move(q));
    layout.kv_runs.push_back(std::move(kv));
  }

  BandSlice read_band() {
    const auto numbers = read_numbers<6>(json_, -kMaxTokens, kMaxTokens);
    const auto at = [&](size_t i) { return static_cast<int32_t>(numbers[i]); };
    const BandSlice band{at(0), at(1), at(2), at(3), at(4), at(5)};
    if (!json_.has_failed() && (band.q0 < 0 || band.k0 < 0 || band.q0 >= band.q1 ||
                                band.k0 >= band.k1 || band.lo > band.hi))
      json_.fail("a slice is [q0, q1, k0, k1, lo, hi] with q0 < q1, k0 < k1 and lo <= hi");
    return band;
  }

  BufferSpec read_buffer() {
    constexpr auto kKeys =
        std::to_array<std::string_view>({"rank", "kind", "role", "tokens", "rows", "heads"});
    BufferSpec spec{{}, {}, {}, kNoTokens, kLeftOut, kNoHeads};
    read_object(json_, kKeys, 3, [&](size_t key) {
      switch (key) {
        case 0:
          spec.rank = read_id<RankId>(json_);
          return;
        case 1:
          spec.kind = read_choice(json_, BufferKind::stats);
          return;
        case 2:
          spec.role = read_choice(json_, BufferRole::round);
          return;
        case 3:
          spec.tokens = read_id<RunListId>(json_);
          return;
        case 4:
          spec.rows = json_.integer(0, kMaxTokens);
          return;
        default:
          spec.heads = read_heads(json_);
      }
    });
    return spec;
  }

  void read_pass(Pass& pass) {
    constexpr auto kKeys = std::to_array<std::string_view>(
        {"steps", "stages", "transfers", "computes", "merges", "reorders", "finishes"});
    read_object(json_, kKeys, 2, [&](size_t key) {
      switch (key) {
        case 0:
          pass.num_steps = static_cast<int32_t>(json_.integer(0, kMaxId));
          return;
        case 1:
          return read_items(pass.stages, [&] { return read_stage(); });
        case 2:
          make_room(pass, StageKind::transfer, pass.transfers);
          return read_items(pass.transfers, [&] { return read_transfer(); });
        case 3:
          make_room(pass, StageKind::compute, pass.computes);
          return read_items(pass.computes, [&] { return read_compute(); });
        case 4:
          make_room(pass, StageKind::merge, pass.merges);
          return read_items(pass.merges, [&] { return read_merge(); });
        case 5:
          make_room(pass, StageKind::reorder, pass.reorders);
          return read_items(pass.reorders, [&] { return read_reorder(); });
        default:
          return read_items(pass.finishes, [&] { return read_finish(); });
      }
    });
  }

  /// Sets memory aside for the items that the stages name, as many as the rest can hold.
  template <class Items>
  void make_room(const Pass& pass, StageKind kind, Items& items) {
    constexpr int64_t kLeastItemBytes = 32;
    int64_t count = 0;
    for (const Stage& stage : pass.stages)
      count = std::max(count, stage.kind == kind ? stage.end : 0);
    items.reserve(static_cast<size_t>(std::min(count, json_.bytes_left() / kLeastItemBytes)));
  }

  template <class Items, class Read>
  void read_items(Items& items, Read&& read) {
    read_array(json_, kMaxPlanItems, [&](int64_t) {
      items.push_back(read());
      if (--room_for_items_ < 0)
        json_.fail(fmt::format("the document has more than {} items", kMaxPlanItems));
    });
  }

  Stage read_stage() {
    constexpr auto kKeys = std::to_array<std::string_view>({"step", "kind", "begin", "end"});
    Stage stage;
    read_object(json_, kKeys, 4, [&](size_t key) {
      if (key == 0)
        stage.step = read_id<StepId>(json_);
      else if (key == 1)
        stage.kind = read_choice(json_, StageKind::finish);
      else
        (key == 2 ? stage.begin : stage.end) = json_.integer(0, kMaxPlanItems);
    });
    return stage;
  }

  TransferItem read_transfer() {
    constexpr auto kKeys = std::to_array<std::string_view>(
        {"src", "dst", "payload", "from", "to", "step", "from_rows", "to_rows", "tokens", "heads",
         "bytes", "link", "adds", "fp32"});
    TransferItem item;
    item.step = kNoStep;
    item.heads = kNoHeads;
    item.bytes = kLeftOut;
    bool has_link = false;
    read_object(json_, kKeys, 5, [&](size_t key) {
      switch (key) {
        case 0:
          item.src = read_id<RankId>(json_);
          return;
        case 1:
          item.dst = read_id<RankId>(json_);
          return;
        case 2:
          item.payload = read_choice(json_, Payload::lse);
          return;
        case 3:
          item.from = read_id<BufferId>(json_);
          return;
        case 4:
          item.to = read_id<BufferId>(json_);
          return;
        case 5:
          item.step = read_id<StepId>(json_);
          return;
        case 6:
          item.from_rows = read_id<RunListId>(json_);
          return;
        case 7:
          item.to_rows = read_id<RunListId>(json_);
          return;
        case 8:
          item.tokens = read_id<RunListId>(json_);
          return;
        case 9:
          item.heads = read_heads(json_);
          return;
        case 10:
          item.bytes = json_.integer(0, kMaxStored);
          return;
        case 11:
          item.link = read_choice(json_, LinkClass::outer_ring);
          has_link = true;
          return;
        case 12:
          item.landing = json_.boolean() ? Landing::add : Landing::replace;
          return;
        default:
          item.wire_fp32 = json_.boolean();
      }
    });
    if (!has_link) item.link = usual_link(item);
    return item;
  }

  ComputeItem read_compute() {
    constexpr auto kKeys = std::to_array<std::string_view>(
        {"rank", "q", "kv", "out", "step", "d_out", "dq", "dkv", "q_tokens", "kv_tokens", "heads",
         "slice_range", "slices", "visible_pairs"});
    ComputeItem item;
    item.step = kNoStep;
    item.q_tokens = item.kv_tokens = kNoTokens;
    item.heads = kNoHeads;
    item.num_slices = item.visible_pairs = kLeftOut;
    BufferId* const buffers[] = {&item.q,     &item.kv, &item.out, nullptr,
                                 &item.d_out, &item.dq, &item.dkv};
    read_object(json_, kKeys, 4, [&](size_t key) {
      switch (key) {
        case 0:
          item.rank = read_id<RankId>(json_);
          return;
        case 4:
          item.step = read_id<StepId>(json_);
          return;
        case 8:
          item.q_tokens = read_id<RunListId>(json_);
          return;
        case 9:
          item.kv_tokens = read_id<RunListId>(json_);
          return;
        case 10:
          item.heads = read_heads(json_);
          return;
        case 11:
        case 12:
          return read_slices(key == 12, item);
        case 13:
          item.visible_pairs = json_.integer(0, kMaxStored);
          return;
        default:
          *buffers[key - 1] = read_id<BufferId>(json_);
      }
    });
    return item;
  }

  /// The slices of an item: written out, or a range of the pool.
  void read_slices(bool are_written_out, ComputeItem& item) {
    if (item.num_slices != kLeftOut)
      return json_.fail("slices are given twice", "give slices or slice_range");
    if (!are_written_out) {
      const auto [begin, end] = read_numbers<2>(json_, 0, kMaxPlanSlices);
      if (!json_.has_failed() && end < begin) json_.fail("the range ends before it begins");
      item.first_slice = begin;
      item.num_slices = end - begin;
      return;
    }
    const int64_t first = std::ssize(raw_->own_slices);
    read_array(json_, kMaxPlanSlices, [&](int64_t) {
      raw_->own_slices.push_back(read_band());
      if (std::ssize(raw_->own_slices) > kMaxPlanSlices)
        json_.fail(fmt::format("the document has more than {} slices", kMaxPlanSlices));
    });
    item.first_slice = -2 - first;
    item.num_slices = std::ssize(raw_->own_slices) - first;
  }

  MergeItem read_merge() {
    constexpr auto kKeys =
        std::to_array<std::string_view>({"rank", "into", "order", "step", "partial", "into_rows"});
    MergeItem item;
    item.step = kNoStep;
    item.partial = kNoBuffer;
    read_object(json_, kKeys, 3, [&](size_t key) {
      switch (key) {
        case 0:
          item.rank = read_id<RankId>(json_);
          return;
        case 1:
          item.into = read_id<BufferId>(json_);
          return;
        case 2:
          item.order = static_cast<int32_t>(json_.integer(0, kMaxPlanItems));
          return;
        case 3:
          item.step = read_id<StepId>(json_);
          return;
        case 4:
          item.partial = read_id<BufferId>(json_);
          return;
        default:
          item.into_rows = read_id<RunListId>(json_);
      }
    });
    return item;
  }

  ReorderItem read_reorder() {
    constexpr auto kKeys = std::to_array<std::string_view>({"rank", "from", "to", "order", "step"});
    ReorderItem item;
    item.step = kNoStep;
    read_object(json_, kKeys, 4, [&](size_t key) {
      switch (key) {
        case 0:
          item.rank = read_id<RankId>(json_);
          return;
        case 1:
          item.from = read_id<BufferId>(json_);
          return;
        case 2:
          item.to = read_id<BufferId>(json_);
          return;
        case 3:
          item.order = read_id<RunListId>(json_);
          return;
        default:
          item.step = read_id<StepId>(json_);
      }
    });
    return item;
  }

  FinishItem read_finish() {
    constexpr auto kKeys = std::to_array<std::string_view>({"rank", "buffer", "step"});
    FinishItem item;
    item.step = kNoStep;
    read_object(json_, kKeys, 2, [&](size_t key) {
      if (key == 0)
        item.rank = read_id<RankId>(json_);
      else if (key == 1)
        item.buffer = read_id<BufferId>(json_);
      else
        item.step = read_id<StepId>(json_);
    });
    return item;
  }

  JsonReader json_;
  const std::string& path_;
  RawDocument* raw_ = nullptr;
  std::optional<Error> scenario_error_;
  int64_t room_for_runs_ = kMaxRuns;
  int64_t room_for_items_ = kMaxPlanItems;
};

}  // namespace

Result<PlanDocument> read_plan_document(std::string_view text, const std::string& path) {
  RawDocument raw;
  if (auto error = DocumentReader(text, path).read(raw)) return *error;
  if (auto error = complete_document(raw, path)) return *error;
  PlanDocument document{std::move(raw.plan), {}};
  if (!raw.hash.empty() && raw.hash != to_hex(document.plan.hash))
    document.warnings.push_back(
        fmt::format("the document was changed after its hash was written: {} there, {} now",
                    show_text(raw.hash), to_hex(document.plan.hash)));
  return document;
}

Result<PlanDocument> load_plan_document(const std::string& path) {
  const Result<std::string> text = read_text_file(path, kMaxPlanDocumentBytes);
  if (!text) return text.error();
  return read_plan_document(text.value(), path);
}

bool is_plan_document(const std::string& path) {
  std::ifstream file(path);
  char first = '\0';
  return (file >> first) && first == '{';
}

}  // namespace cpscope
