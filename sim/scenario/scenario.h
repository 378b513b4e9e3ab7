#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

enum class MaskType {
  no_mask,
  causal,
  causal_bottom_right,
  padding,
  padding_causal,
  padding_causal_bottom_right,
  slices
};
enum class SliceType { full, causal, inv_causal, bi_causal };
enum class SoftmaxType { vanilla, off_by_one, learnable };
enum class BiasShape {  // [sequences or 1, heads or 1, queries, keys]
  none,
  one_h,
  one_one,
  b_one,
  b_h
};
enum class DropoutMode { split_invariant, framework };
enum class QkvFormat { bshd, sbhd, thd };
enum class PadSide { right, left };
enum class CommType {
  p2p,
  a2a,
  all_gather,
  a2a_p2p,
  group_cast,
  pass_q,           // queries travel in a ring, partial results return at the end
  token_ring,       // the same; each partial result returns during the next step
  helper_ring,      // DistFlashAttention: ranks without visible keys help others
  mesh,             // tiles of mesh_q query chunks by cp_size / mesh_q key chunks
  gather_q,         // queries are gathered, keys stay
  double_ring,      // LoongTrain: rings inside windows of ring_window ranks, and a ring of windows
  a2a_double_ring,  // the same over groups of a2a_size ranks, which exchange heads
  custom            // a schedule that no planner makes; only in a plan document
};
enum class LayoutKind {
  contiguous,
  dual_chunk,
  dual_chunk_packed,
  striped,
  lpt,
  lpt_local,
  indices
};
enum class RopeQPosition { automatic, start, end };
enum class Dispatch { tokens, queries };
enum class BackwardKv { refetch, saved };
enum class Dtype { bf16, fp16, fp32, fp64 };
enum class Fp8Recipe { delayed, current, mxfp8 };
enum class Fp8Format { hybrid, e4m3 };
enum class Fp8KvWire { fp8, bf16 };
enum class WireFormat { dtype, fp32 };
enum class DkvHops { home, ring };
enum class InputKind { normal, peaked };
enum class RingBackward { kv, q };
enum class Combine { all_to_all, reduce_scatter, tree };
/// What a rank owns of the queries and results of gather_q: rows with all heads; some heads of all
/// rows, as in a tensor-parallel group; or the results of some heads, while every rank has all
/// heads of the queries.
enum class QOwner { rows, heads, heads_replicated };
/// The ranks of each sequence: all of them, as many as cp_sizes says for each (given) or for all
/// (fixed: data-parallel replicas of one context_parallel_size), by Megatron's scheduler, or as
/// FlexSP or ByteScale choose them.
enum class GroupRule { all_ranks, given, fixed, hybrid, flexsp, bytescale };
enum class Accumulate { fp32, dtype };

/// Rows [q0, q1) see columns [k0, k1) as `type` says; ids count valid tokens through the batch
/// (MagiAttention's AttnSlice). causal is aligned bottom-right, inv_causal top-left, bi_causal
/// both.
struct MaskSlice {
  int64_t q0 = 0, q1 = 0, k0 = 0, k1 = 0;
  SliceType type = SliceType::full;

  friend bool operator==(const MaskSlice&, const MaskSlice&) = default;
};

/// Valid tokens [begin, end), counted through the batch.
struct TokenGroup {
  int64_t begin = 0;
  int64_t end = 0;

  friend bool operator==(const TokenGroup&, const TokenGroup&) = default;
};

/// How mask slices were requested: by name or from a file. Kept so that a scenario prints back as
/// it was written. mask_slices.h defines the names, mask_file.h the files.
struct MaskGenerator {
  std::string name;                     // one of kMaskNames, empty with a file
  int64_t block = 0;                    // block_causal, block_diffusion, block_top_k: its tokens
  std::vector<int64_t> parents = {};    // prefix_tree: [segment] its parent, -1 for a root
  std::vector<int64_t> lengths = {};    // prefix_tree: [segment] tokens
  std::vector<TokenGroup> groups = {};  // image_groups
  int64_t count = 0;         // global_tokens, top_k: tokens at the front of each sequence
  bool causal = true;        // global_tokens: the other rows see no key after them
  int64_t window_left = -1;  // global_tokens: window of the other rows, -1 unbounded; top_k: keys
                             // left of the diagonal that each row sees, -1 none
  int64_t window_right = -1;
  int64_t keys = 0;       // top_k: keys of a row
  int64_t blocks = 0;     // block_top_k: earlier blocks that a block of queries sees
  uint64_t seed = 1;      // top_k, block_top_k
  int64_t sequence = -1;  // prefix_tree, file: the one sequence it is of; -1 = every sequence alike
  std::string file = {};  // path relative to the scenario file

  friend bool operator==(const MaskGenerator&, const MaskGenerator&) = default;
};

struct Attention {
  int32_t heads = 0;        // query heads
  int32_t kv_heads = 0;     // divides heads
  int32_t head_dim_qk = 0;  // elements of a head of q and k
  int32_t head_dim_v = 0;   // elements of a head of v and out
  MaskType mask_type = MaskType::causal;
  std::vector<MaskSlice> slices;           // mask_type = slices only; always filled after loading
  std::optional<MaskGenerator> generator;  // what made the slices, if not the user
  int64_t window_left = -1;                // keys left of the diagonal, -1 unbounded
  int64_t window_right = -1;               // keys right of the diagonal, -1 unbounded
  int64_t chunk_size = 0;                  // 0 = off
  double softmax_scale = 0.0;              // 0 = 1/sqrt(head_dim_qk)
  double softcap = 0.0;                    // 0 = off
  SoftmaxType softmax_type = SoftmaxType::vanilla;
  double rope_theta = 0.0;  // 0 = off
  // Position of query i: i (start) or i + skv - sq (end); automatic: end under bottom-right masks
  RopeQPosition rope_q_position = RopeQPosition::automatic;
  bool alibi = false;                // logits get -m_h * |i + skv - sq - j|
  BiasShape bias = BiasShape::none;  // logits get a bias, after scale and cap
  double dropout = 0.0;              // probability that a weight is dropped, below 1; 0 = off
  DropoutMode dropout_mode = DropoutMode::split_invariant;
  // 0 = off; else one tensor k with one KV head stands for keys and values, and RoPE turns only the
  // elements behind its first latent_dim. Absorbed form: v is these elements.
  int32_t latent_dim = 0;
  // > 0: expanded form, the elements of a head of k that its weights make of the latent ones where
  // a row is used; its other elements are the rotated ones of the row, and other weights make v.
  int32_t latent_nope_dim = 0;

  /// Elements that a row of v has in addition to one of k: 0 if k stands for both.
  int32_t own_head_dim_v() const { return latent_dim > 0 ? 0 : head_dim_v; }
  /// True if k and v of every head are made of the latent rows where these are used.
  bool expands_rows() const { return latent_dim > 0 && latent_nope_dim > 0; }
  /// True if v is the first latent_dim elements of k.
  bool has_v_in_k() const { return latent_dim > 0 && latent_nope_dim == 0; }
  /// Elements of a row of k as it is stored and travels: head_dim_qk, but of rows that are expanded
  /// the latent elements and the rotated ones.
  int32_t key_dim() const {
    return expands_rows() ? latent_dim + head_dim_qk - latent_nope_dim : head_dim_qk;
  }
  /// RoPE turns this element of q, or of a row of k, and those behind it.
  int32_t first_rotated_of_q() const { return latent_nope_dim > 0 ? latent_nope_dim : latent_dim; }
  int32_t first_rotated_of_k() const { return latent_dim > 0 ? latent_dim : latent_nope_dim; }
  /// This attention of rows that have been expanded: k and v of `heads` heads of their own.
  Attention with_expanded_rows(int32_t heads_of_keys) const;

  /// The scale that multiplies q.k: softmax_scale, or 1/sqrt(head_dim_qk) when that is 0.
  double effective_scale() const;
  /// True if the last query of a sequence is rotated by the position of its last key.
  bool rotates_queries_from_end() const;
  friend bool operator==(const Attention&, const Attention&) = default;
};

/// How `lengths` were requested; kept so that a scenario prints back as it was written.
struct Generator {
  std::string name;           // one of kGeneratorNames
  int64_t tokens = 0;         // sum of the lengths
  double mu = 7.8;            // lognormal: mean of ln(length)
  double sigma = 1.06;        // lognormal: standard deviation of ln(length)
  double alpha = 2.2;         // lognormal+pareto: tail exponent
  int64_t tail_from = 16384;  // lognormal+pareto: first length of the tail (xm)
  double tail_share = 0.01;   // lognormal+pareto: probability that a document is in the tail
  int64_t min = 1;
  int64_t max = 131072;
  int64_t count = 0;  // equal: number of sequences (0 = as many of length max as fit)
  uint64_t seed = 1;
  std::string file;  // csv: path relative to the scenario file

  friend bool operator==(const Generator&, const Generator&) = default;
};

struct Batch {
  QkvFormat qkv_format = QkvFormat::thd;
  std::vector<int64_t> lengths;     // [sequence] valid query tokens; always filled after loading
  std::vector<int64_t> kv_lengths;  // [sequence] valid key tokens; always filled after loading
  std::vector<int64_t>
      slots;  // [sequence] requested slot, before the layout rounds it; always filled after loading
  std::vector<int64_t> kv_slots;      // [sequence] the same for KV
  bool self_attention = true;         // q and kv have the same lengths and slots
  PadSide pad_side = PadSide::right;  // where the padding of a slot is: behind its valid tokens,
                                      // or before them (left), of queries and of keys
  bool pad_between_seqs = true;
  int64_t slot_multiple = 1;  // slots are rounded up to a multiple of this too; 1 if they are given
  std::string positions_file;        // as written, relative to the scenario file
  std::vector<int64_t> q_positions;  // positions_file: of valid query tokens through the batch
  std::vector<int64_t> kv_positions;
  std::optional<Generator> generator;

  friend bool operator==(const Batch&, const Batch&) = default;
};

/// An imported token order: local slot -> packed padded token id, per rank.
struct ImportedOrder {
  std::vector<std::vector<int64_t>> ranks;  // [rank][slot]
  std::vector<std::vector<int64_t>>
      kv_ranks;  // [rank][slot], equal to `ranks` for self attention unless given

  friend bool operator==(const ImportedOrder&, const ImportedOrder&) = default;
};

struct Parallel {
  int32_t cp_size = 0;
  CommType comm_type = CommType::p2p;
  LayoutKind layout = LayoutKind::dual_chunk;
  int32_t a2a_size = 2;  // a2a+p2p, a2a+double_ring: ranks of the a2a level; rank = p2p_index *
                         // a2a_size + a2a_index
  int64_t dispatch_chunk = 512;  // lpt, lpt_local: tokens of one dispatched chunk
  int64_t stripe = 1;            // striped: consecutive tokens of one stripe
  std::string indices_file;      // indices: as written, relative to the scenario file
  ImportedOrder imported;        // indices: content of indices_file
  Dispatch dispatch = Dispatch::tokens;
  BackwardKv backward_kv = BackwardKv::refetch;
  WireFormat partial_wire = WireFormat::dtype;    // o of a partial result that another rank merges
  int32_t mesh_q = 2;                             // mesh: query chunks of a tile
  int32_t ring_window = 2;                        // double rings: consecutive positions of a window
  RingBackward ring_backward = RingBackward::kv;  // p2p, double_ring: what travels in the backward
  Combine combine = Combine::all_to_all;          // gather_q: how partial results come together
  QOwner q_owner = QOwner::rows;                  // gather_q
  int32_t heads_per_stage = 0;  // a2a: query heads of a rank in a stage; all_gather: KV heads of a
                                // stage; 0 = all at once
  int64_t kv_replicated = 0;    // the first valid keys of each sequence that every rank holds
  GroupRule group_rule = GroupRule::all_ranks;
  std::vector<int64_t> cp_sizes;    // given: ranks of each sequence; fixed: of every one, one entry
  int64_t max_tokens_per_rank = 0;  // hybrid, fixed: of one sequence; flexsp, bytescale: of a round

  friend bool operator==(const Parallel&, const Parallel&) = default;
};

/// dtype fp8: which tensors are quantised with which scales (TransformerEngine's recipes).
struct Fp8 {
  Fp8Recipe recipe = Fp8Recipe::current;
  Fp8Format format = Fp8Format::hybrid;
  Fp8KvWire kv_wire = Fp8KvWire::fp8;  // what K and V travel in; mxfp8: always bf16

  friend bool operator==(const Fp8&, const Fp8&) = default;
};

struct Numerics {
  Dtype dtype = Dtype::bf16;  // of inputs and answers; bf16 with fp8
  std::optional<Fp8> fp8;     // attention is computed in 8 bits
  bool backward = true;
  uint64_t seed = 1;
  WireFormat dkv_wire = WireFormat::dtype;
  DkvHops dkv_hops = DkvHops::home;
  Accumulate accumulate = Accumulate::fp32;
  InputKind inputs = InputKind::normal;

  friend bool operator==(const Numerics&, const Numerics&) = default;
};

/// One scenario: what is computed, on which batch, split how, in which number formats. Plain data,
/// valid after loading.
struct Scenario {
  std::string title;
  std::string question;
  Attention attention;
  Batch batch;
  Parallel parallel;
  Numerics numerics;

  friend bool operator==(const Scenario&, const Scenario&) = default;
};

/// The contract's limits, checked before anything is allocated.
inline constexpr int64_t kMaxTokens = 2'147'483'647;
inline constexpr int32_t kMaxRanks = 65'536;
inline constexpr int32_t kMaxHeads = 65'536;
inline constexpr int32_t kMaxHeadDim = 1'024;

std::string_view to_name(MaskType value);
std::string_view to_name(SliceType value);
std::string_view to_name(SoftmaxType value);
std::string_view to_name(BiasShape value);
std::string_view to_name(DropoutMode value);
std::string_view to_name(QkvFormat value);
std::string_view to_name(PadSide value);
std::string_view to_name(CommType value);
std::string_view to_name(LayoutKind value);
std::string_view to_name(RopeQPosition value);
std::string_view to_name(Dispatch value);
std::string_view to_name(BackwardKv value);
std::string_view to_name(Dtype value);
std::string_view to_name(Fp8Recipe value);
std::string_view to_name(Fp8Format value);
std::string_view to_name(Fp8KvWire value);
std::string_view to_name(WireFormat value);
std::string_view to_name(DkvHops value);
std::string_view to_name(InputKind value);
std::string_view to_name(RingBackward value);
std::string_view to_name(Combine value);
std::string_view to_name(QOwner value);
std::string_view to_name(GroupRule value);
std::string_view to_name(Accumulate value);

/// The mask for readers: its type, and the window and the chunk that cut it further:
/// "padding_causal, window [511, 0], chunk 192".
std::string describe_mask(const Attention& attention);

/// What a scenario says of its dtype: fp8, or the dtype of its inputs and answers.
std::string_view dtype_name(const Numerics& numerics);
/// Bytes of one element of dtype.
int64_t element_bytes(Dtype dtype);
/// True where a rank merges partial results that other ranks computed for its queries; a custom
/// schedule may.
bool sends_partials(CommType type);
/// True where groups of a2a_size ranks exchange heads, and rings join the groups.
bool has_head_groups(CommType type);
/// True where rings have windows of ring_window positions.
bool has_windows(CommType type);
/// True where ring_backward is read.
bool has_ring_backward(CommType type);
/// True where other ranks compute with a rank's queries in the backward, from its d_out and
/// statistics.
bool sends_queries_backward(const Scenario& scenario);
/// True where every rank scales its partial results by the lse of all ranks, and the owners of the
/// rows only add them.
bool adds_scaled_partials(const Parallel& parallel);
/// True if ranks own heads of all queries, not rows.
bool owns_heads(const Parallel& parallel);
/// True where keys that every rank holds (kv_replicated) can be planned.
bool may_replicate_keys(CommType type);
/// True where groups of ranks work in rounds, each on sequences of its own (cp_sizes).
bool has_rounds(const Parallel& parallel);
/// True where rounds can be planned.
bool may_work_in_rounds(CommType type);
bool may_work_in_rounds(LayoutKind layout);
/// True where heads may be exchanged or gathered in stages (heads_per_stage).
bool has_head_stages(CommType type);

/// The dtype of dK/dV partials on the wire, by numerics.dkv_wire; with dtype fp64 always fp64.
Dtype dkv_wire_dtype(const Numerics& numerics);

}  // namespace cpscope
