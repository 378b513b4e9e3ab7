#include "sim/scenario/scenario.h"

#include <cmath>

#include <fmt/format.h>

namespace cpscope {

double Attention::effective_scale() const {
  if (softmax_scale != 0.0 || head_dim_qk <= 0) return softmax_scale;
  return 1.0 / std::sqrt(static_cast<double>(head_dim_qk));
}

Attention Attention::with_expanded_rows(int32_t heads_of_keys) const {
  Attention expanded = *this;
  expanded.latent_dim = 0;  // latent_nope_dim still says what RoPE turns
  expanded.kv_heads = heads_of_keys;
  return expanded;
}

bool Attention::rotates_queries_from_end() const {
  if (rope_q_position != RopeQPosition::automatic) return rope_q_position == RopeQPosition::end;
  return mask_type == MaskType::causal_bottom_right ||
         mask_type == MaskType::padding_causal_bottom_right;
}

// The switches have no default: a new enumerator without a name is a compiler warning.
std::string_view to_name(MaskType value) {
  switch (value) {
    case MaskType::no_mask:
      return "no_mask";
    case MaskType::causal:
      return "causal";
    case MaskType::causal_bottom_right:
      return "causal_bottom_right";
    case MaskType::padding:
      return "padding";
    case MaskType::padding_causal:
      return "padding_causal";
    case MaskType::padding_causal_bottom_right:
      return "padding_causal_bottom_right";
    case MaskType::slices:
      return "slices";
  }
  return "unknown";
}

std::string_view to_name(SliceType value) {
  switch (value) {
    case SliceType::full:
      return "full";
    case SliceType::causal:
      return "causal";
    case SliceType::inv_causal:
      return "inv_causal";
    case SliceType::bi_causal:
      return "bi_causal";
  }
  return "unknown";
}

std::string_view to_name(SoftmaxType value) {
  switch (value) {
    case SoftmaxType::vanilla:
      return "vanilla";
    case SoftmaxType::off_by_one:
      return "off_by_one";
    case SoftmaxType::learnable:
      return "learnable";
  }
  return "unknown";
}

std::string_view to_name(BiasShape value) {
  switch (value) {
    case BiasShape::none:
      return "none";
    case BiasShape::one_h:
      return "1hss";
    case BiasShape::one_one:
      return "11ss";
    case BiasShape::b_one:
      return "b1ss";
    case BiasShape::b_h:
      return "bhss";
  }
  return "unknown";
}

std::string_view to_name(DropoutMode value) {
  return value == DropoutMode::split_invariant ? "split_invariant" : "framework";
}

std::string_view to_name(Fp8Recipe value) {
  switch (value) {
    case Fp8Recipe::delayed:
      return "delayed";
    case Fp8Recipe::current:
      return "current";
    case Fp8Recipe::mxfp8:
      return "mxfp8";
  }
  return "unknown";
}

std::string_view to_name(Fp8Format value) { return value == Fp8Format::hybrid ? "hybrid" : "e4m3"; }

std::string_view to_name(Fp8KvWire value) { return value == Fp8KvWire::fp8 ? "fp8" : "bf16"; }

std::string_view to_name(QkvFormat value) {
  switch (value) {
    case QkvFormat::bshd:
      return "bshd";
    case QkvFormat::sbhd:
      return "sbhd";
    case QkvFormat::thd:
      return "thd";
  }
  return "unknown";
}

std::string_view to_name(CommType value) {
  switch (value) {
    case CommType::p2p:
      return "p2p";
    case CommType::a2a:
      return "a2a";
    case CommType::all_gather:
      return "all_gather";
    case CommType::a2a_p2p:
      return "a2a+p2p";
    case CommType::group_cast:
      return "group_cast";
    case CommType::pass_q:
      return "pass_q";
    case CommType::token_ring:
      return "token_ring";
    case CommType::helper_ring:
      return "helper_ring";
    case CommType::mesh:
      return "mesh";
    case CommType::gather_q:
      return "gather_q";
    case CommType::double_ring:
      return "double_ring";
    case CommType::a2a_double_ring:
      return "a2a+double_ring";
    case CommType::custom:
      return "custom";
  }
  return "unknown";
}

std::string_view to_name(LayoutKind value) {
  switch (value) {
    case LayoutKind::contiguous:
      return "contiguous";
    case LayoutKind::dual_chunk:
      return "dual_chunk";
    case LayoutKind::dual_chunk_packed:
      return "dual_chunk_packed";
    case LayoutKind::striped:
      return "striped";
    case LayoutKind::lpt:
      return "lpt";
    case LayoutKind::lpt_local:
      return "lpt_local";
    case LayoutKind::indices:
      return "indices";
  }
  return "unknown";
}

std::string_view to_name(RopeQPosition value) {
  switch (value) {
    case RopeQPosition::automatic:
      return "auto";
    case RopeQPosition::start:
      return "start";
    case RopeQPosition::end:
      return "end";
  }
  return "unknown";
}

std::string_view to_name(PadSide value) { return value == PadSide::right ? "right" : "left"; }

std::string_view to_name(Dispatch value) {
  return value == Dispatch::tokens ? "tokens" : "queries";
}

std::string_view to_name(BackwardKv value) {
  return value == BackwardKv::refetch ? "refetch" : "saved";
}

std::string_view to_name(Dtype value) {
  switch (value) {
    case Dtype::bf16:
      return "bf16";
    case Dtype::fp16:
      return "fp16";
    case Dtype::fp32:
      return "fp32";
    case Dtype::fp64:
      return "fp64";
  }
  return "unknown";
}

std::string_view to_name(WireFormat value) { return value == WireFormat::dtype ? "dtype" : "fp32"; }

std::string_view to_name(DkvHops value) { return value == DkvHops::home ? "home" : "ring"; }

std::string_view to_name(InputKind value) {
  return value == InputKind::normal ? "normal" : "peaked";
}

std::string_view to_name(RingBackward value) { return value == RingBackward::kv ? "kv" : "q"; }
std::string_view to_name(Combine value) {
  switch (value) {
    case Combine::all_to_all:
      return "all_to_all";
    case Combine::reduce_scatter:
      return "reduce_scatter";
    case Combine::tree:
      return "tree";
  }
  return "unknown";
}

std::string_view to_name(QOwner value) {
  switch (value) {
    case QOwner::rows:
      return "rows";
    case QOwner::heads:
      return "heads";
    case QOwner::heads_replicated:
      return "heads_replicated";
  }
  return "unknown";
}

std::string_view to_name(GroupRule value) {
  switch (value) {
    case GroupRule::all_ranks:
      return "all_ranks";
    case GroupRule::given:
      return "given";
    case GroupRule::fixed:
      return "fixed";
    case GroupRule::hybrid:
      return "hybrid";
    case GroupRule::flexsp:
      return "flexsp";
    case GroupRule::bytescale:
      return "bytescale";
  }
  return "unknown";
}

std::string_view to_name(Accumulate value) { return value == Accumulate::fp32 ? "fp32" : "dtype"; }

std::string describe_mask(const Attention& attention) {
  std::string mask(to_name(attention.mask_type));
  if (attention.window_left >= 0 || attention.window_right >= 0)
    mask += fmt::format(", window [{}, {}]", attention.window_left, attention.window_right);
  if (attention.chunk_size > 0) mask += fmt::format(", chunk {}", attention.chunk_size);
  return mask;
}

bool sends_partials(CommType type) {
  switch (type) {
    case CommType::pass_q:
    case CommType::token_ring:
    case CommType::helper_ring:
    case CommType::mesh:
    case CommType::gather_q:
    case CommType::custom:
      return true;
    default:
      return false;
  }
}

bool has_head_groups(CommType type) {
  return type == CommType::a2a_p2p || type == CommType::a2a_double_ring;
}

bool has_windows(CommType type) {
  return type == CommType::double_ring || type == CommType::a2a_double_ring;
}

bool has_ring_backward(CommType type) {
  return type == CommType::p2p || type == CommType::double_ring;
}

bool sends_queries_backward(const Scenario& scenario) {
  const Parallel& parallel = scenario.parallel;
  const bool is_ring_of_queries =
      has_ring_backward(parallel.comm_type) && parallel.ring_backward == RingBackward::q;
  return scenario.numerics.backward && (sends_partials(parallel.comm_type) || is_ring_of_queries);
}

bool adds_scaled_partials(const Parallel& parallel) {
  return parallel.comm_type == CommType::gather_q && parallel.combine == Combine::reduce_scatter;
}

bool owns_heads(const Parallel& parallel) {
  return parallel.comm_type == CommType::gather_q && parallel.q_owner != QOwner::rows;
}

bool has_rounds(const Parallel& parallel) { return parallel.group_rule != GroupRule::all_ranks; }

bool may_work_in_rounds(CommType type) {
  return type == CommType::p2p || type == CommType::a2a || type == CommType::all_gather ||
         type == CommType::custom;
}

bool may_work_in_rounds(LayoutKind layout) {
  return layout == LayoutKind::dual_chunk || layout == LayoutKind::contiguous ||
         layout == LayoutKind::striped;
}

bool may_replicate_keys(CommType type) {
  return type == CommType::p2p || type == CommType::a2a || type == CommType::a2a_p2p ||
         type == CommType::all_gather;
}

bool has_head_stages(CommType type) {
  return type == CommType::a2a || type == CommType::all_gather;
}

std::string_view dtype_name(const Numerics& numerics) {
  return numerics.fp8 ? "fp8" : to_name(numerics.dtype);
}

int64_t element_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16:
    case Dtype::fp16:
      return 2;
    case Dtype::fp32:
      return 4;
    case Dtype::fp64:
      return 8;
  }
  return 0;
}

Dtype dkv_wire_dtype(const Numerics& numerics) {
  // fp32 on the wire would round fp64 partials, so fp64 scenarios always send fp64.
  const bool is_dtype = numerics.dkv_wire == WireFormat::dtype || numerics.dtype == Dtype::fp64;
  return is_dtype ? numerics.dtype : Dtype::fp32;
}

}  // namespace cpscope
