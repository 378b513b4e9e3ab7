#include "sim/plan/plan.h"

#include "sim/plan/scale_reductions.h"
#include "sim/scenario/scenario_file.h"

#include <cstring>
#include <optional>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Hashes 64-bit words; order matters. Multiply-rotate as in wyhash and FNV; not cryptographic.
class Mixer {
 public:
  void add(uint64_t word) {
    state_ = (state_ ^ word) * 0x9E3779B97F4A7C15ULL;
    state_ ^= state_ >> 29;
  }
  void add_all(std::initializer_list<int64_t> words) {
    for (const int64_t word : words) add(static_cast<uint64_t>(word));
  }
  void add_text(std::string_view text) {
    for (const char c : text) add(static_cast<unsigned char>(c));
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0xCBF29CE484222325ULL;
};

int64_t pack(HeadRange heads) { return (static_cast<int64_t>(heads.begin) << 32) | heads.end; }

void mix_pass(const Pass& pass, Mixer& mixer) {
  mixer.add_all({pass.num_steps});
  for (const Stage& stage : pass.stages) {
    mixer.add_all({to_index(stage.step), static_cast<int64_t>(stage.kind), stage.begin, stage.end});
  }
  for (const ComputeItem& item : pass.computes) {
    mixer.add_all({to_index(item.rank), to_index(item.q), to_index(item.kv), to_index(item.out),
                   to_index(item.d_out), to_index(item.dq), to_index(item.dkv),
                   to_index(item.q_tokens), to_index(item.kv_tokens), pack(item.heads),
                   item.first_slice, item.num_slices, item.visible_pairs});
  }
  for (const TransferItem& item : pass.transfers) {
    mixer.add_all({to_index(item.src), to_index(item.dst), to_index(item.from), to_index(item.to),
                   to_index(item.from_rows), to_index(item.to_rows), to_index(item.tokens),
                   pack(item.heads), item.bytes,
                   static_cast<int64_t>(item.payload) * 64 + static_cast<int64_t>(item.link) * 8 +
                       static_cast<int64_t>(item.landing) * 2 + item.wire_fp32});
  }
  for (const ReorderItem& item : pass.reorders) {
    mixer.add_all(
        {to_index(item.rank), to_index(item.from), to_index(item.to), to_index(item.order)});
  }
  for (const MergeItem& item : pass.merges) {
    mixer.add_all({to_index(item.rank), to_index(item.partial), to_index(item.into), item.order});
    if (item.into_rows != kAllRows) mixer.add_all({to_index(item.into_rows)});
  }
  for (const FinishItem& item : pass.finishes)
    mixer.add_all({to_index(item.rank), to_index(item.buffer)});
}

}  // namespace

BufferKind kind_of(Payload payload) {
  if (payload == Payload::lse) return BufferKind::stats;
  return payload == Payload::partial ? BufferKind::out : static_cast<BufferKind>(payload);
}

HeadRange kv_heads_of(const Attention& attention, HeadRange heads) {
  const int32_t group = attention.heads / attention.kv_heads;
  return {heads.begin / group, (heads.end + group - 1) / group};
}

int64_t lanes_of(BufferKind kind, const Attention& attention) {
  switch (kind) {
    case BufferKind::q:
    case BufferKind::dq:
      return attention.head_dim_qk;
    case BufferKind::out:
    case BufferKind::d_out:
      return attention.head_dim_v;
    case BufferKind::kv:
    case BufferKind::dkv:
      return attention.key_dim() + attention.own_head_dim_v();
    case BufferKind::stats:
      return 0;
  }
  return 0;
}

bool has_all_heads(const Plan& plan, const MergeItem& item) {
  return plan.buffer(item.partial).heads == plan.buffer(item.into).heads;
}

bool has_lse_alone(const Plan& plan, const MergeItem& item) {
  return item.partial != kNoBuffer && plan.buffer(item.partial).kind == BufferKind::stats &&
         plan.buffer(item.into).kind == BufferKind::out;
}

Dtype wire_dtype(const TransferItem& item, const Numerics& numerics) {
  return item.wire_fp32 && numerics.dtype != Dtype::fp64 ? Dtype::fp32 : numerics.dtype;
}

bool sends_fp8(const TransferItem& item, const Scenario& scenario) {
  const std::optional<Fp8>& fp8 = scenario.numerics.fp8;
  if (!fp8 || fp8->recipe == Fp8Recipe::mxfp8 || fp8->kv_wire == Fp8KvWire::bf16) return false;
  if (has_head_groups(scenario.parallel.comm_type) && item.link == LinkClass::group) return false;
  return item.payload == Payload::q || item.payload == Payload::kv ||
         item.payload == Payload::d_out;
}

int64_t wire_element_bytes(const TransferItem& item, const Scenario& scenario) {
  return sends_fp8(item, scenario) ? 1 : element_bytes(wire_dtype(item, scenario.numerics));
}

int64_t scale_bytes(const Scenario& scenario, Direction direction) {
  int64_t bytes = 0;
  for (const ScaleReduction& one : scale_reductions(scenario, direction)) bytes += one.bytes;
  return bytes;
}

int64_t small_bytes(const TransferItem& item, int64_t rows, const Numerics& numerics) {
  if (item.src == item.dst) return 0;
  const bool is_one = item.payload == Payload::partial || item.payload == Payload::lse;
  const int64_t values = is_one ? 1 : item.payload == Payload::stats ? 2 : 0;
  return rows * item.heads.size() * values * (numerics.dtype == Dtype::fp64 ? 8 : 4);
}

int64_t wire_bytes(const Plan& plan, const TransferItem& item) {
  if (item.src == item.dst) return 0;
  const Numerics& numerics = plan.scenario.numerics;
  const int64_t rows = plan.rows_of(item);
  const int64_t row_elements =
      item.heads.size() * lanes_of(plan.buffer(item.to).kind, plan.scenario.attention);
  return rows * row_elements * wire_element_bytes(item, plan.scenario) +
         small_bytes(item, rows, numerics);
}

uint64_t hash_plan(const Plan& plan) {
  Mixer mixer;
  mixer.add_text(print_scenario(plan.scenario));
  for (const TokenRun& run : plan.runs) mixer.add_all({run.begin, run.end, run.stride});
  for (const RunList& list : plan.run_lists) mixer.add_all({list.first, list.count});
  for (const BandSlice& band : plan.slices) {
    mixer.add_all({(static_cast<int64_t>(band.q0) << 32) | band.q1,
                   (static_cast<int64_t>(band.k0) << 32) | band.k1,
                   (static_cast<int64_t>(band.lo) << 32) ^ static_cast<uint32_t>(band.hi)});
  }
  for (const BufferSpec& buffer : plan.buffers) {
    mixer.add_all({to_index(buffer.rank),
                   static_cast<int64_t>(buffer.kind) * 16 + static_cast<int64_t>(buffer.role),
                   to_index(buffer.tokens), buffer.rows, pack(buffer.heads)});
  }
  mix_pass(plan.forward, mixer);
  mix_pass(plan.backward, mixer);
  return mixer.value();
}

std::string to_hex(uint64_t value) { return fmt::format("{:016x}", value); }

std::string_view to_name(BufferKind value) {
  constexpr std::string_view kNames[] = {"q", "kv", "out", "d_out", "dq", "dkv", "stats"};
  return kNames[static_cast<size_t>(value)];
}

std::string_view to_name(BufferRole value) {
  constexpr std::string_view kNames[] = {"home",    "ring_a",     "ring_b",         "outer_a",
                                         "outer_b", "rank_order", "sequence_order", "received",
                                         "moved",   "partial",    "round"};
  static_assert(std::size(kNames) == static_cast<size_t>(BufferRole::round) + 1);
  return kNames[static_cast<size_t>(value)];
}

std::string_view to_name(Payload value) {
  if (value == Payload::lse) return "lse";
  return value == Payload::partial ? "partial" : to_name(kind_of(value));
}

std::string_view to_name(LinkClass value) {
  constexpr std::string_view kNames[] = {"self", "ring", "group", "direct", "outer_ring"};
  static_assert(std::size(kNames) == static_cast<size_t>(LinkClass::outer_ring) + 1);
  return kNames[static_cast<size_t>(value)];
}

std::string_view to_name(StageKind value) {
  constexpr std::string_view kNames[] = {"transfer", "reorder", "compute", "merge", "finish"};
  return kNames[static_cast<size_t>(value)];
}

}  // namespace cpscope
