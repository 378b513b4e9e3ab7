#include "sim/plan/document/document_parts.h"
#include "sim/plan/document/plan_document.h"

#include <charconv>
#include <ostream>

namespace cpscope {
namespace {

/// Text for a stream, in large pieces.
class PieceWriter {
 public:
  explicit PieceWriter(std::ostream& out) : out_(out) {}
  PieceWriter(const PieceWriter&) = delete;
  PieceWriter& operator=(const PieceWriter&) = delete;
  ~PieceWriter() { flush(); }

  void text(std::string_view text) {
    piece_ += text;
    if (piece_.size() > kPieceBytes) flush();
  }
  void number(int64_t number) {
    char digits[24];
    const auto [end, error] = std::to_chars(digits, digits + sizeof digits, number);
    piece_.append(digits, end);
  }

 private:
  static constexpr size_t kPieceBytes = 1 << 16;
  void flush() {
    out_.write(piece_.data(), static_cast<std::streamsize>(piece_.size()));
    piece_.clear();
  }

  std::ostream& out_;
  std::string piece_;
};

/// Writes one object on a line of its own.
class ObjectWriter {
 public:
  ObjectWriter(PieceWriter& out, bool is_first) : out_(out) {
    out_.text(is_first ? "\n{" : ",\n{");
  }
  void end() { out_.text("}"); }

  void number(std::string_view key, int64_t value) {
    name(key);
    out_.number(value);
  }
  template <class Id>
  void id(std::string_view key, Id value) {
    number(key, to_index(value));
  }
  /// An id that may be missing.
  template <class Id>
  void id(std::string_view key, Id value, Id usual) {
    if (value != usual) id(key, value);
  }
  void text(std::string_view key, std::string_view value) {
    name(key);
    out_.text("\"");
    out_.text(value);
    out_.text("\"");
  }
  void range(std::string_view key, int64_t begin, int64_t end) {
    name(key);
    out_.text("[");
    out_.number(begin);
    out_.text(",");
    out_.number(end);
    out_.text("]");
  }
  void heads(HeadRange heads, HeadRange usual) {
    if (heads != usual) range("heads", heads.begin, heads.end);
  }
  void yes(std::string_view key, bool value) {
    if (!value) return;
    name(key);
    out_.text("true");
  }

 private:
  void name(std::string_view key) {
    out_.text(is_first_ ? "\"" : ",\"");
    out_.text(key);
    out_.text("\":");
    is_first_ = false;
  }

  PieceWriter& out_;
  bool is_first_ = true;
};

void write_runs(std::span<const TokenRun> runs, PieceWriter& out) {
  out.text("[");
  for (size_t i = 0; i < runs.size(); ++i) {
    out.text(i == 0 ? "[" : ",[");
    out.number(runs[i].begin);
    out.text(",");
    out.number(runs[i].end);
    if (runs[i].stride != 1) {
      out.text(",");
      out.number(runs[i].stride);
    }
    out.text("]");
  }
  out.text("]");
}

void write_layout(const Layout& layout, PieceWriter& out) {
  out.text(
      fmt::format(",\n\"layout\":{{\"cp_size\":{},\"tokens\":{},\"kv_tokens\":{},\n\"sequences\":[",
                  layout.cp_size, layout.slots.tokens, layout.slots.kv_tokens));
  bool is_first = true;
  for (const SequenceSlot& slot : layout.slots.sequences) {
    ObjectWriter object(out, is_first);
    object.number("q_begin", slot.q_begin);
    object.number("q_valid", slot.q_valid);
    object.number("q_slot", slot.q_slot);
    if (slot.q_front != 0) object.number("q_valid_begin", slot.q_valid_begin());
    object.number("kv_begin", slot.kv_begin);
    object.number("kv_valid", slot.kv_valid);
    object.number("kv_slot", slot.kv_slot);
    if (slot.kv_front != 0) object.number("kv_valid_begin", slot.kv_valid_begin());
    object.end();
    is_first = false;
  }
  out.text("],\n\"ranks\":[");
  for (const RankId rank : layout.q_runs.ids()) {
    out.text(rank == RankId{0} ? "\n{\"rank\":" : ",\n{\"rank\":");
    out.number(to_index(rank));
    out.text(",\"q_runs\":");
    write_runs(layout.q_runs[rank], out);
    out.text(",\"kv_runs\":");
    write_runs(layout.kv_runs[rank], out);
    out.text("}");
  }
  out.text("]}");
}

void write_positions(const Batch& batch, PieceWriter& out) {
  if (batch.positions_file.empty()) return;
  const auto write = [&](const std::vector<int64_t>& positions) {
    for (size_t i = 0; i < positions.size(); ++i) {
      if (i > 0) out.text(",");
      out.number(positions[i]);
    }
  };
  out.text(",\n\"positions\":{\"q\":[");
  write(batch.q_positions);
  out.text("],\"kv\":[");
  write(batch.kv_positions);
  out.text("]}");
}

void write_pools(const Plan& plan, PieceWriter& out) {
  out.text(",\n\"lists\":[");
  for (const RunListId id : plan.run_lists.ids()) {
    out.text(id == RunListId{0} ? "\n" : ",\n");
    write_runs(plan.list(id), out);
  }
  out.text("],\n\"slices\":[");
  bool is_first = true;
  for (const BandSlice& band : plan.slices) {
    out.text(is_first ? "\n[" : ",\n[");
    const int32_t numbers[] = {band.q0, band.q1, band.k0, band.k1, band.lo, band.hi};
    for (size_t i = 0; i < std::size(numbers); ++i) {
      if (i > 0) out.text(",");
      out.number(numbers[i]);
    }
    out.text("]");
    is_first = false;
  }
  out.text("]");
}

void write_buffers(const Plan& plan, PieceWriter& out) {
  out.text(",\n\"buffers\":[");
  for (const BufferId id : plan.buffers.ids()) {
    const BufferSpec& spec = plan.buffer(id);
    ObjectWriter object(out, id == BufferId{0});
    object.id("rank", spec.rank);
    object.text("kind", to_name(spec.kind));
    object.text("role", to_name(spec.role));
    object.id("tokens", spec.tokens, kNoTokens);
    if (spec.tokens == kNoTokens || plan.rows(spec.tokens) != spec.rows)
      object.number("rows", spec.rows);
    object.heads(spec.heads, usual_heads(plan.scenario.attention, spec.kind));
    object.end();
  }
  out.text("]");
}

void write_item(const Plan& plan, const TransferItem& item, ObjectWriter& object) {
  object.id("step", item.step);
  object.id("src", item.src);
  object.id("dst", item.dst);
  object.text("payload", to_name(item.payload));
  object.id("from", item.from);
  object.id("to", item.to);
  object.id("from_rows", item.from_rows, kAllRows);
  object.id("to_rows", item.to_rows, kAllRows);
  object.id("tokens", item.tokens, kNoTokens);
  object.heads(item.heads, usual_heads(plan, item));
  object.number("bytes", item.bytes);
  if (item.link != usual_link(item)) object.text("link", to_name(item.link));
  object.yes("adds", item.landing == Landing::add);
  object.yes("fp32", item.wire_fp32);
}

void write_item(const Plan& plan, const ComputeItem& item, ObjectWriter& object) {
  object.id("step", item.step);
  object.id("rank", item.rank);
  object.id("q", item.q);
  object.id("kv", item.kv);
  object.id("out", item.out);
  object.id("d_out", item.d_out, kNoBuffer);
  object.id("dq", item.dq, kNoBuffer);
  object.id("dkv", item.dkv, kNoBuffer);
  object.id("q_tokens", item.q_tokens, plan.buffer(item.q).tokens);
  object.id("kv_tokens", item.kv_tokens, plan.buffer(item.kv).tokens);
  object.heads(item.heads, plan.buffer(item.q).heads);
  object.range("slice_range", item.first_slice, item.first_slice + item.num_slices);
  object.number("visible_pairs", item.visible_pairs);
}

void write_item(const Plan&, const MergeItem& item, ObjectWriter& object) {
  object.id("step", item.step);
  object.id("rank", item.rank);
  object.id("partial", item.partial, kNoBuffer);
  object.id("into", item.into);
  object.number("order", item.order);
  object.id("into_rows", item.into_rows, kAllRows);
}

void write_item(const Plan&, const ReorderItem& item, ObjectWriter& object) {
  object.id("step", item.step);
  object.id("rank", item.rank);
  object.id("from", item.from);
  object.id("to", item.to);
  object.id("order", item.order);
}

void write_item(const Plan&, const FinishItem& item, ObjectWriter& object) {
  object.id("step", item.step);
  object.id("rank", item.rank);
  object.id("buffer", item.buffer);
}

template <class Items>
void write_list(const Plan& plan, std::string_view name, const Items& items, PieceWriter& out) {
  out.text(fmt::format(",\n\"{}\":[", name));
  bool is_first = true;
  for (const auto& item : items) {
    ObjectWriter object(out, is_first);
    write_item(plan, item, object);
    object.end();
    is_first = false;
  }
  out.text("]");
}

void write_pass(const Plan& plan, Direction direction, PieceWriter& out) {
  const Pass& pass = plan.pass(direction);
  out.text(
      fmt::format(",\n\"{}\":{{\"steps\":{},\n\"stages\":[", to_name(direction), pass.num_steps));
  bool is_first = true;
  for (const Stage& stage : pass.stages) {
    ObjectWriter object(out, is_first);
    object.id("step", stage.step);
    object.text("kind", to_name(stage.kind));
    object.number("begin", stage.begin);
    object.number("end", stage.end);
    object.end();
    is_first = false;
  }
  out.text("]");
  write_list(plan, "transfers", pass.transfers, out);
  write_list(plan, "computes", pass.computes, out);
  write_list(plan, "merges", pass.merges, out);
  write_list(plan, "reorders", pass.reorders, out);
  write_list(plan, "finishes", pass.finishes, out);
  out.text("}");
}

}  // namespace

HeadRange usual_heads(const Attention& attention, BufferKind kind) {
  const bool is_kv = kind == BufferKind::kv || kind == BufferKind::dkv;
  return {0, is_kv ? attention.kv_heads : attention.heads};
}

HeadRange usual_heads(const Plan& plan, const TransferItem& item) {
  const HeadRange from = plan.buffer(item.from).heads, to = plan.buffer(item.to).heads;
  return {std::max(from.begin, to.begin), std::min(from.end, to.end)};
}

LinkClass usual_link(const TransferItem& item) {
  return item.src == item.dst ? LinkClass::self : LinkClass::direct;
}

void write_plan_document(const Plan& plan, std::ostream& stream) {
  PieceWriter out(stream);
  out.text(fmt::format("{{\"schema\":{},\"kind\":\"{}\",\n\"scenario\":", kPlanSchema, kPlanKind));
  out.text(scenario_json(plan.scenario));
  write_layout(plan.layout, out);
  write_positions(plan.scenario.batch, out);
  write_pools(plan, out);
  write_buffers(plan, out);
  write_pass(plan, Direction::forward, out);
  if (plan.scenario.numerics.backward) write_pass(plan, Direction::backward, out);
  out.text(fmt::format(",\n\"hash\":\"{}\"}}\n", to_hex(plan.hash)));
}

}  // namespace cpscope
