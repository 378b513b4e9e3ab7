#include "tests/program/planted_mistakes.h"

#include "sim/run/dtype.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include <fmt/format.h>

namespace cpscope::tests {
namespace {

constexpr double kNone = -HUGE_VAL;

/// Everything that one wrong computation needs.
struct Wrong {
  const Plan& plan;
  const RunInputs& inputs;
  const WrongAttention& how;
  std::vector<TokenPlace> q, k;
  const Attention& attention;
  int64_t heads, kv_heads, d, dv, tokens, kv_tokens;

  Wrong(const Plan& p, const RunInputs& in, const WrongAttention& w)
      : plan(p),
        inputs(in),
        how(w),
        q(token_places(p, Side::q)),
        k(token_places(p, Side::kv)),
        attention(p.scenario.attention),
        heads(attention.heads),
        kv_heads(attention.kv_heads),
        d(attention.head_dim_qk),
        dv(attention.head_dim_v),
        tokens(std::ssize(q)),
        kv_tokens(std::ssize(k)) {}

  int64_t kv_head(int64_t head) const {
    return how.interleaves_kv_heads ? head % kv_heads : head / (heads / kv_heads);
  }
  std::vector<double> row(const Tensor& tensor, int64_t token, int64_t head, int64_t lanes) const {
    const auto first = tensor.values.begin() + (token * tensor.shape[1] + head) * lanes;
    return {first, first + lanes};
  }
  void rotate(std::vector<double>& values, double position, double direction) const {
    if (attention.rope_theta == 0 || !how.has_rope) return;
    for (int64_t l = 0; l < d / 2; ++l) {
      const double angle =
          direction * position *
          std::pow(attention.rope_theta, -2.0 * static_cast<double>(l) / static_cast<double>(d));
      const double a = values[l], b = values[l + d / 2];
      values[l] = a * std::cos(angle) - b * std::sin(angle);
      values[l + d / 2] = a * std::sin(angle) + b * std::cos(angle);
    }
  }
  double position(const TokenPlace& place, int64_t token,
                  const std::function<double(int64_t)>& other) const {
    return other ? other(token) : static_cast<double>(place.position);
  }
  /// Queries under a bottom-right mask are rotated as the last rows of their keys.
  double offset_of(int64_t i) const {
    const bool is_bottom_right = attention.mask_type == MaskType::causal_bottom_right ||
                                 attention.mask_type == MaskType::padding_causal_bottom_right;
    if (!is_bottom_right || how.query_position || q[i].slot < 0) return 0.0;
    const SequenceSlot& slot = plan.layout.slots.sequences[q[i].slot];
    return static_cast<double>(slot.kv_valid - slot.q_valid);
  }
  bool is_visible(int64_t i, int64_t j) const {
    const TokenPlace &a = q[i], &b = k[j];
    if (a.sequence < 0 || a.sequence != b.sequence) return false;
    const SequenceSlot& slot = plan.layout.slots.sequences[a.sequence];
    return sees(attention, a.position, b.position, slot.kv_valid - slot.q_valid);
  }
  static bool sees(const Attention& asked, int64_t i, int64_t j, int64_t longer) {
    switch (asked.mask_type) {
      case MaskType::causal:
      case MaskType::padding_causal:
        if (j > i) return false;
        break;
      case MaskType::causal_bottom_right:
      case MaskType::padding_causal_bottom_right:
        if (j > i + longer) return false;
        break;
      default:
        break;
    }
    if (asked.window_left >= 0 && j < i + longer - asked.window_left) return false;
    if (asked.window_right >= 0 && j > i + longer + asked.window_right) return false;
    return asked.chunk_size == 0 || i / asked.chunk_size == j / asked.chunk_size;
  }
};

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void round_all(Tensor& tensor, Dtype dtype) {
  for (double& value : tensor.values)
    if (std::isfinite(value)) value = round_to(dtype, value);
}

}  // namespace

std::vector<TokenPlace> token_places(const Plan& plan, Side side) {
  std::vector<TokenPlace> places(static_cast<size_t>(plan.layout.slots.tokens_of(side)));
  const auto& sequences = plan.layout.slots.sequences;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const SlotSide slot = sequences[s].side(side);
    for (int64_t id = slot.begin; id < slot.end(); ++id) {
      places[id].slot = static_cast<int32_t>(s);
      places[id].position = id - slot.valid_begin();
      if (slot.is_valid(id)) places[id].sequence = static_cast<int32_t>(s);
    }
  }
  int32_t rank = 0;
  for (const auto& runs : plan.layout.runs(side).values()) {
    int64_t local = 0;
    std::vector<int64_t> of_slot(sequences.size(), 0);
    for (const TokenRun& run : runs) {
      for (int64_t id = run.begin; id < run.end; id += run.stride) {
        places[id].rank = rank;
        places[id].local = local++;
        if (places[id].slot >= 0) places[id].local_of_slot = of_slot[places[id].slot]++;
      }
    }
    ++rank;
  }
  return places;
}

Answer compute_wrongly(const Plan& plan, const RunInputs& inputs, const WrongAttention& how) {
  const Wrong w(plan, inputs, how);
  const auto times = [&](int64_t i, int64_t j) {
    return how.times ? how.times(i, j) : (w.is_visible(i, j) ? 1.0 : 0.0);
  };
  const bool has_sink = w.attention.softmax_type != SoftmaxType::vanilla;
  const double scale = how.scale != 0 ? how.scale : w.attention.effective_scale();
  const bool has_backward = plan.scenario.numerics.backward;
  Answer answer;
  answer.out = make_filled_tensor("out", {w.tokens, w.heads, w.dv}, Dtype::fp64, 0.0);
  answer.lse = make_filled_tensor("lse", {w.tokens, w.heads}, Dtype::fp64, kNone);
  if (has_backward) {
    answer.dq = make_filled_tensor("dq", {w.tokens, w.heads, w.d}, Dtype::fp64, 0.0);
    answer.dk = make_filled_tensor("dk", {w.kv_tokens, w.kv_heads, w.d}, Dtype::fp64, 0.0);
    answer.dv = make_filled_tensor("dv", {w.kv_tokens, w.kv_heads, w.dv}, Dtype::fp64, 0.0);
  }
  for (int64_t head = 0; head < w.heads; ++head) {
    const int64_t kv = w.kv_head(head);
    std::vector<std::vector<double>> keys;
    for (int64_t j = 0; j < w.kv_tokens; ++j) {
      keys.push_back(w.row(inputs.k, j, kv, w.d));
      w.rotate(keys.back(), w.position(w.k[j], j, how.key_position), +1);
    }
    for (int64_t i = 0; i < w.tokens; ++i) {
      std::vector<double> query = w.row(inputs.q, i, head, w.d);
      const double at = w.position(w.q[i], i, how.query_position) + w.offset_of(i);
      w.rotate(query, at, +1);
      std::vector<double> logits(w.kv_tokens, kNone), bend(w.kv_tokens, 1.0), count(w.kv_tokens);
      double top = kNone;
      for (int64_t j = 0; j < w.kv_tokens; ++j) {
        count[j] = times(i, j);
        const double of_keys = how.times_of_keys ? how.times_of_keys(i, j) : 0.0;
        if (count[j] == 0 && of_keys == 0) continue;
        logits[j] = scale * dot(query, keys[j]);
        if (w.attention.softcap != 0 && how.has_cap) {
          const double bent = std::tanh(logits[j] / w.attention.softcap);
          logits[j] = w.attention.softcap * bent;
          bend[j] = 1 - bent * bent;
        }
        if (count[j] > 0) top = std::max(top, logits[j]);
      }
      if (top == kNone) continue;
      const double sink = inputs.sink.empty() ? 0.0 : inputs.sink[head];
      double sum = has_sink ? how.sinks * std::exp(sink - top) : 0.0;
      std::vector<double> out(w.dv, 0.0);
      const int32_t ranks = plan.layout.cp_size;
      std::vector<double> part_sum(ranks, 0.0);
      std::vector<std::vector<double>> part_out(ranks, std::vector<double>(w.dv, 0.0));
      for (int64_t j = 0; j < w.kv_tokens; ++j) {
        if (count[j] == 0) continue;
        const double weight = count[j] * std::exp(logits[j] - top);
        const std::vector<double> value = w.row(inputs.v, j, kv, w.dv);
        sum += weight;
        part_sum[w.k[j].rank] += weight;
        for (int64_t l = 0; l < w.dv; ++l) {
          out[l] += weight * value[l];
          part_out[w.k[j].rank][l] += weight * value[l];
        }
      }
      const double lse = top + std::log(sum);
      for (double& value : out) value /= sum;
      if (!how.merge.empty()) {
        std::fill(out.begin(), out.end(), 0.0);
        double weights = 0;
        for (int32_t rank = 0; rank < ranks; ++rank) {
          if (part_sum[rank] == 0) continue;
          const double weight =
              how.merge == "base_e" ? std::pow(part_sum[rank], 1.4426950408889634) : 1.0;
          weights += weight;
          for (int64_t l = 0; l < w.dv; ++l) out[l] += weight * part_out[rank][l] / part_sum[rank];
        }
        if (how.merge != "sum")
          for (double& value : out) value /= weights;
      }
      answer.lse.values[i * w.heads + head] = lse;
      std::copy(out.begin(), out.end(), answer.out.values.begin() + (i * w.heads + head) * w.dv);
      if (!has_backward) continue;
      const std::vector<double> d_out = w.row(inputs.d_out, i, head, w.dv);
      const double delta = dot(d_out, out);
      std::vector<double> dq(w.d, 0.0);
      for (int64_t j = 0; j < w.kv_tokens; ++j) {
        const double of_keys = how.times_of_keys ? how.times_of_keys(i, j) : count[j];
        if (count[j] == 0 && of_keys == 0) continue;
        const double weight = std::exp(logits[j] - lse);
        const double slope =
            weight * (dot(d_out, w.row(inputs.v, j, kv, w.dv)) - delta) * bend[j] * scale;
        for (int64_t l = 0; l < w.d; ++l) {
          dq[l] += count[j] * slope * keys[j][l];
          answer.dk.values[(j * w.kv_heads + kv) * w.d + l] += of_keys * slope * query[l];
        }
        for (int64_t l = 0; l < w.dv; ++l)
          answer.dv.values[(j * w.kv_heads + kv) * w.dv + l] += of_keys * weight * d_out[l];
      }
      w.rotate(dq, at, -1);
      std::copy(dq.begin(), dq.end(), answer.dq.values.begin() + (i * w.heads + head) * w.d);
    }
  }
  for (int64_t j = 0; has_backward && j < w.kv_tokens; ++j) {
    for (int64_t kv = 0; kv < w.kv_heads; ++kv) {
      std::vector<double> dk = w.row(answer.dk, j, kv, w.d);
      w.rotate(dk, w.position(w.k[j], j, how.key_position), -1);
      std::copy(dk.begin(), dk.end(), answer.dk.values.begin() + (j * w.kv_heads + kv) * w.d);
    }
  }
  for (Tensor* tensor : {&answer.out, &answer.dq, &answer.dk, &answer.dv})
    round_all(*tensor, plan.scenario.numerics.dtype);
  round_all(answer.lse, Dtype::fp32);
  return answer;
}

namespace {

using Plant = std::function<Answer(const Plan&, const RunInputs&)>;

/// A mistake that changes the attention itself; `make` may keep the places by reference.
Plant by_attention(std::function<WrongAttention(const Plan&, const Wrong& asked)> make) {
  return [make = std::move(make)](const Plan& plan, const RunInputs& inputs) {
    const WrongAttention nothing;
    const Wrong asked(plan, inputs, nothing);
    return compute_wrongly(plan, inputs, make(plan, asked));
  };
}

/// A mistake in what is visible: which (query, key) pairs, from the places.
Plant by_pairs(std::function<double(const Wrong&, int64_t i, int64_t j)> times) {
  return by_attention([times](const Plan&, const Wrong& asked) {
    WrongAttention wrong;
    wrong.times = [times, &asked](int64_t i, int64_t j) { return times(asked, i, j); };
    return wrong;
  });
}

/// The mask with other settings.
Plant by_mask(std::function<void(Attention&)> change) {
  return by_pairs([change](const Wrong& asked, int64_t i, int64_t j) {
    const TokenPlace &a = asked.q[i], &b = asked.k[j];
    if (a.sequence < 0 || a.sequence != b.sequence) return 0.0;
    Attention other = asked.attention;
    change(other);
    const SequenceSlot& slot = asked.plan.layout.slots.sequences[a.sequence];
    return Wrong::sees(other, a.position, b.position, slot.kv_valid - slot.q_valid) ? 1.0 : 0.0;
  });
}

/// A right answer, spoiled afterwards.
Plant afterwards(std::function<void(const Plan&, const RunInputs&, Answer&)> spoil) {
  return [spoil](const Plan& plan, const RunInputs& inputs) {
    Answer answer = compute_wrongly(plan, inputs, {});
    spoil(plan, inputs, answer);
    return answer;
  };
}

/// Row `to` of the tensor becomes row `from` of what it was.
void move_rows(Tensor& tensor, const std::function<int64_t(int64_t to)>& from) {
  const Tensor old = tensor;
  const int64_t width = tensor.size() / tensor.shape[0];
  for (int64_t to = 0; to < tensor.shape[0]; ++to)
    std::copy_n(old.values.begin() + from(to) * width, width, tensor.values.begin() + to * width);
}

int64_t token_at(const std::vector<TokenPlace>& places, int32_t rank, int64_t local) {
  for (size_t id = 0; id < places.size(); ++id)
    if (places[id].rank == rank && places[id].local == local) return static_cast<int64_t>(id);
  return -1;
}

Plant ranks_exchanged(std::string name) {
  return afterwards([name](const Plan& plan, const RunInputs&, Answer& answer) {
    Tensor& tensor = name == "out" ? answer.out : answer.dk;
    const auto places = token_places(plan, name == "out" ? Side::q : Side::kv);
    move_rows(tensor, [&](int64_t to) {
      const int64_t from =
          token_at(places, (places[to].rank + 1) % plan.layout.cp_size, places[to].local);
      return from < 0 ? to : from;
    });
  });
}

std::vector<PlantedMistake> make_mistakes() {
  const std::string documents = "lengths = [41, 17, 33, 29]", one = "lengths = [96]",
                    cross = "lengths = [23, 31]\nkv_lengths = [47, 40]",
                    padded = "lengths = [29, 37]\nslots = [48, 48]";
  const std::string causal = "attn_mask_type = \"causal\"\n",
                    full = "attn_mask_type = \"no_mask\"\n",
                    bottom = "attn_mask_type = \"causal_bottom_right\"\n";
  std::vector<PlantedMistake> all;
  const auto add = [&](std::string name, std::string cause, std::string attention,
                       std::string batch, Plant plant, std::string parallel = "") {
    all.push_back({std::move(name), std::move(cause), std::move(attention), std::move(batch),
                   std::move(parallel), std::move(plant)});
  };
  add("DocumentsIgnored", "documents_ignored", causal, documents,
      by_pairs([](const Wrong& asked, int64_t i, int64_t j) {
        return asked.q[i].sequence >= 0 && asked.k[j].sequence >= 0 && j <= i ? 1.0 : 0.0;
      }));
  add("DocumentsIgnoredWithPadding", "documents_ignored", full, padded,
      by_pairs([](const Wrong&, int64_t, int64_t) { return 1.0; }));
  add("CausalIgnored", "causal_ignored", causal, "",
      by_mask([](Attention& other) { other.mask_type = MaskType::no_mask; }));
  add("CausalAdded", "causal_added", full, "",
      by_mask([](Attention& other) { other.mask_type = MaskType::causal; }));
  add("AlignedTopLeft", "aligned_top_left", bottom, cross,
      by_mask([](Attention& other) { other.mask_type = MaskType::causal; }));
  add("AlignedBottomRight", "aligned_bottom_right", causal, cross,
      by_mask([](Attention& other) { other.mask_type = MaskType::causal_bottom_right; }));
  add("WindowIgnored", "window_ignored", causal + "window_size = [9, 0]\n", "",
      by_mask([](Attention& other) { other.window_left = other.window_right = -1; }));
  add("ChunkIgnored", "chunk_ignored", causal + "chunk_size = 16\n", "",
      by_mask([](Attention& other) { other.chunk_size = 0; }));
  add("DiagonalShifted", "mask_shifted", causal, "",
      by_pairs([](const Wrong& asked, int64_t i, int64_t j) {
        const TokenPlace &a = asked.q[i], &b = asked.k[j];
        return a.sequence >= 0 && a.sequence == b.sequence && b.position < a.position ? 1.0 : 0.0;
      }));
  add("MaskByLocalPlace", "mask_by_local_place", causal, one,
      by_pairs([](const Wrong& asked, int64_t i, int64_t j) {
        const TokenPlace &a = asked.q[i], &b = asked.k[j];
        return a.sequence >= 0 && a.sequence == b.sequence && b.local <= a.local ? 1.0 : 0.0;
      }),
      "layout = \"dual_chunk\"");
  add("ChunkByLocalPlace", "mask_by_local_place", causal + "chunk_size = 8\n", one,
      by_pairs([](const Wrong& asked, int64_t i, int64_t j) {
        const TokenPlace &a = asked.q[i], &b = asked.k[j];
        return a.sequence >= 0 && a.sequence == b.sequence && b.position <= a.position &&
                       a.local / 8 == b.local / 8
                   ? 1.0
                   : 0.0;
      }),
      "layout = \"dual_chunk\"");
  add("PaddingVisible", "padding_visible", full, padded,
      by_pairs([](const Wrong& asked, int64_t i, int64_t j) {
        return asked.q[i].sequence >= 0 && asked.q[i].slot == asked.k[j].slot ? 1.0 : 0.0;
      }));
  add("RankAlone", "rank_alone", "", "", by_pairs([](const Wrong& asked, int64_t i, int64_t j) {
        return asked.is_visible(i, j) && asked.q[i].rank == asked.k[j].rank ? 1.0 : 0.0;
      }));
  add("GroupAlone", "rank_alone", "", "", by_pairs([](const Wrong& asked, int64_t i, int64_t j) {
        return asked.is_visible(i, j) && asked.q[i].rank / 2 == asked.k[j].rank / 2 ? 1.0 : 0.0;
      }),
      "cp_size = 4");
  const std::string rope = "rope_theta = 100.0\n";
  add("RopeIgnored", "rope_ignored", rope, "",
      by_attention([](const Plan&, const Wrong&) { return WrongAttention{.has_rope = false}; }));
  add("RopeByLocalPlace", "rope_by_local_place", rope, one,
      by_attention([](const Plan&, const Wrong& asked) {
        WrongAttention wrong;
        wrong.query_position = [&](int64_t i) { return static_cast<double>(asked.q[i].local); };
        wrong.key_position = [&](int64_t j) { return static_cast<double>(asked.k[j].local); };
        return wrong;
      }));
  add("RopeFromStart", "rope_from_start", rope + bottom, cross,
      by_attention([](const Plan&, const Wrong& asked) {
        WrongAttention wrong;
        wrong.query_position = [&](int64_t i) { return static_cast<double>(asked.q[i].position); };
        return wrong;
      }));
  add("KeysCountedTwice", "keys_counted_twice", "", "",
      by_pairs([](const Wrong& asked, int64_t i, int64_t j) {
        return asked.is_visible(i, j) ? 2.0 : 0.0;
      }));
  const std::string sink = "softmax_type = \"off_by_one\"\n";
  add("SinkIgnored", "sink_ignored", sink, "",
      by_attention([](const Plan&, const Wrong&) { return WrongAttention{.sinks = 0.0}; }));
  add("SinkCountedTwice", "sink_counted_twice", sink, "",
      by_attention([](const Plan&, const Wrong&) { return WrongAttention{.sinks = 2.0}; }));
  add("ScaleIgnored", "scale_ignored", "", "",
      by_attention([](const Plan&, const Wrong&) { return WrongAttention{.scale = 1.0}; }));
  add("ScaleOneOverHeadDim", "scale_ignored", "", "",
      by_attention([](const Plan&, const Wrong& asked) {
        return WrongAttention{.scale = 1.0 / static_cast<double>(asked.d)};
      }));
  add("SoftcapIgnored", "softcap_ignored", "softcap = 0.7\n", "",
      by_attention([](const Plan&, const Wrong&) { return WrongAttention{.has_cap = false}; }));
  add("KvHeadsInterleaved", "kv_heads_interleaved", "", "",
      by_attention(
          [](const Plan&, const Wrong&) { return WrongAttention{.interleaves_kv_heads = true}; }));
  add("PartialOfAStepMissing", "partial_missing", "", "",
      by_pairs([](const Wrong& asked, int64_t i, int64_t j) {
        const int32_t ranks = asked.plan.layout.cp_size;
        const bool is_missing = (asked.q[i].rank - asked.k[j].rank + ranks) % ranks == 1;
        return asked.is_visible(i, j) && !is_missing ? 1.0 : 0.0;
      }),
      "cp_size = 4");
  add("PartialOfARankMissing", "partial_missing", "", "",
      by_pairs([](const Wrong& asked, int64_t i, int64_t j) {
        const bool is_missing = asked.k[j].rank == 2 && asked.q[i].rank != 2;
        return asked.is_visible(i, j) && !is_missing ? 1.0 : 0.0;
      }),
      "cp_size = 4");
  add("ChunkOfKeysLeftOut", "partial_missing", causal, "",
      by_pairs([](const Wrong& asked, int64_t i, int64_t j) {
        const auto is_chunk_1 = [&slots = asked.plan.layout.slots.sequences](const TokenPlace& at) {
          return at.rank == 1 && at.slot >= 0 && at.local_of_slot * 8 < slots[at.slot].q_slot;
        };
        const bool is_seen = is_chunk_1(asked.q[i]) || !is_chunk_1(asked.k[j]);
        return asked.is_visible(i, j) && is_seen ? 1.0 : 0.0;
      }),
      "cp_size = 4\nlayout = \"dual_chunk\"");
  add("PartialMergedTwice", "keys_counted_twice", "", "",
      by_pairs([](const Wrong& asked, int64_t i, int64_t j) {
        const int32_t ranks = asked.plan.layout.cp_size;
        const bool is_twice = (asked.q[i].rank - asked.k[j].rank + ranks) % ranks == 1;
        return asked.is_visible(i, j) ? (is_twice ? 2.0 : 1.0) : 0.0;
      }),
      "cp_size = 4");
  add("RingTurnsTheOtherWay", "ranks_exchanged", causal, "",
      by_pairs([](const Wrong& asked, int64_t i, int64_t j) {
        // The mask is that of the rank on the other side, at the same row.
        const int32_t ranks = asked.plan.layout.cp_size;
        const int32_t meant = (2 * asked.q[i].rank - asked.k[j].rank + ranks) % ranks;
        const int64_t key = token_at(asked.k, meant, asked.k[j].local);
        return key >= 0 && asked.is_visible(i, key) ? 1.0 : 0.0;
      }),
      "cp_size = 4\ncp_comm_type = \"p2p\"");
  add("DiagonalWithoutMask", "causal_ignored", causal, "",
      by_pairs([](const Wrong& asked, int64_t i, int64_t j) {
        const TokenPlace &a = asked.q[i], &b = asked.k[j];
        const bool is_own = a.sequence >= 0 && a.sequence == b.sequence && a.rank == b.rank;
        return is_own || asked.is_visible(i, j) ? 1.0 : 0.0;
      }));
  // A causal ring over two chunks a rank that takes the wrong halves of later steps.
  for (const auto& [name, cut, is_late] : std::initializer_list<std::tuple<const char*, int, bool>>{
           {"RingStepTakenForLater", 0, true}, {"HalvesCutOneRowEarly", -1, false}})
    add(name, "mask_shifted", causal, "",
        by_pairs([cut, is_late](const Wrong& asked, int64_t i, int64_t j) {
          const TokenPlace &a = asked.q[i], &b = asked.k[j];
          if (a.sequence < 0 || a.sequence != b.sequence) return 0.0;
          if (a.rank == b.rank) return asked.is_visible(i, j) ? 1.0 : 0.0;
          const Layout& layout = asked.plan.layout;
          const auto& slot = layout.slots.sequences[static_cast<size_t>(a.slot)];
          const int64_t half = slot.q_slot / (2 * layout.cp_size) + cut;
          const bool is_earlier = b.rank < a.rank && !(is_late && b.rank == 0);
          return (is_earlier ? b.local_of_slot < half : a.local_of_slot >= half) ? 1.0 : 0.0;
        }),
        "cp_comm_type = \"p2p\"\nlayout = \"dual_chunk\"");
  for (const char* how : {"mean", "sum", "base_e"})
    add(fmt::format("PartialsMergedBy_{}", how), "merge_without_lse", "", "",
        by_attention([how](const Plan&, const Wrong&) { return WrongAttention{.merge = how}; }),
        "cp_size = 4");
  add("LocalGradientsOnly", "local_gradients_only", "", "",
      by_attention([](const Plan&, const Wrong& asked) {
        WrongAttention wrong;
        wrong.times_of_keys = [&](int64_t i, int64_t j) {
          return asked.is_visible(i, j) && asked.q[i].rank == asked.k[j].rank ? 1.0 : 0.0;
        };
        return wrong;
      }));
  add("ShareOfARankNotSummed", "partial_missing", "", "",
      by_attention([](const Plan&, const Wrong& asked) {
        WrongAttention wrong;
        wrong.times_of_keys = [&](int64_t i, int64_t j) {
          return asked.is_visible(i, j) && (asked.q[i].rank != 1 || asked.k[j].rank == 1) ? 1.0
                                                                                          : 0.0;
        };
        return wrong;
      }),
      "cp_size = 4");
  add("LseInBaseTwo", "lse_base_2", "", "",
      afterwards([](const Plan&, const RunInputs&, Answer& answer) {
        for (double& value : answer.lse.values)
          value = round_to(Dtype::fp32, value * 1.4426950408889634);
      }));
  add("LseCountsKeysTwice", "keys_counted_twice", "", "",
      afterwards([](const Plan&, const RunInputs&, Answer& answer) {
        for (double& value : answer.lse.values)
          value = round_to(Dtype::fp32, value + std::log(2.0));
      }));
  add("LseInBf16", "rounded_to_bf16", "", "",
      afterwards([](const Plan&, const RunInputs&, Answer& answer) {
        round_all(answer.lse, Dtype::bf16);
      }));
  add("Zeros", "zeros", "", "", afterwards([](const Plan&, const RunInputs&, Answer& answer) {
        std::fill(answer.out.values.begin(), answer.out.values.end(), 0.0);
      }));
  add("UnwrittenRows", "unwritten_rows", "", "",
      afterwards([](const Plan& plan, const RunInputs&, Answer& answer) {
        const auto places = token_places(plan, Side::q);
        const int64_t width = answer.out.size() / answer.out.shape[0];
        for (size_t id = 0; id < places.size(); ++id)
          if (places[id].local % 5 == 3)
            std::fill_n(answer.out.values.begin() + static_cast<int64_t>(id) * width, width, 0.0);
      }));
  add("Factor", "factor", "", "",
      afterwards([](const Plan& plan, const RunInputs&, Answer& answer) {
        for (Tensor* tensor : {&answer.dk, &answer.dv})
          for (double& value : tensor->values) value *= plan.layout.cp_size;
      }),
      "cp_size = 4");
  add("RanksExchangedInOut", "ranks_exchanged", "", "", ranks_exchanged("out"));
  add("GradientsOneHopFromHome", "ranks_exchanged", "", "", ranks_exchanged("dk"));
  add("HeadsExchanged", "heads_exchanged", "", "",
      afterwards([](const Plan&, const RunInputs&, Answer& answer) {
        const int64_t heads = answer.out.shape[1], lanes = answer.out.shape[2];
        for (int64_t row = 0; row < answer.out.shape[0] * heads; row += heads)
          std::swap_ranges(answer.out.values.begin() + row * lanes,
                           answer.out.values.begin() + (row + 1) * lanes,
                           answer.out.values.begin() + (row + heads - 1) * lanes);
      }));
  add("HalvesExchanged", "rows_exchanged", "", one,
      afterwards([](const Plan& plan, const RunInputs&, Answer& answer) {
        const auto places = token_places(plan, Side::q);
        const int64_t rows = std::ssize(places) / plan.layout.cp_size;
        move_rows(answer.out, [&](int64_t to) {
          return token_at(places, places[to].rank, (places[to].local + rows / 2) % rows);
        });
      }),
      "layout = \"dual_chunk\"");
  add("RowsInAnotherLayout", "other_layout", "", one,
      afterwards([](const Plan& plan, const RunInputs&, Answer& answer) {
        // Computed in order, r-th part on rank r, and put back as if by chunks r and 2P - 1 - r.
        const auto places = token_places(plan, Side::q);
        const int64_t rows = std::ssize(places) / plan.layout.cp_size;
        move_rows(answer.out,
                  [&](int64_t to) { return places[to].rank * rows + places[to].local; });
      }),
      "layout = \"dual_chunk\"");
  add("KeyGradientsAddedUp", "dk_dv_added", "", "",
      afterwards([](const Plan&, const RunInputs&, Answer& answer) {
        for (size_t i = 0; i < answer.dk.values.size(); ++i)
          answer.dk.values[i] = answer.dk.values[i] + answer.dv.values[i];
      }));
  for (auto* others : {planted_terms, planted_faults})
    for (PlantedMistake& mistake : others()) all.push_back(std::move(mistake));
  return all;
}

}  // namespace

const std::vector<PlantedMistake>& planted_mistakes() {
  static const std::vector<PlantedMistake> all = make_mistakes();
  return all;
}

std::string random_scenario_of(const PlantedMistake& mistake, const std::string& dtype,
                               uint64_t seed) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15u + mistake.name.size());
  const auto one_of = [&](std::vector<std::string> choices) {
    return choices[random() % choices.size()];
  };
  std::string attention = "heads = 4\nkv_heads = 2\nhead_dim = 16\n" + mistake.attention;
  if (mistake.attention.find("attn_mask_type") == std::string::npos)
    attention += one_of({"attn_mask_type = \"causal\"\n", "attn_mask_type = \"no_mask\"\n"});
  std::string batch = mistake.batch;
  if (batch.empty()) {
    batch = "lengths = [";
    const uint64_t sequences = 1 + random() % 3;
    for (uint64_t s = 0; s < sequences; ++s)
      batch += fmt::format("{}{}", s == 0 ? "" : ", ", 24 + random() % 40);
    batch += "]";
  }
  std::string parallel = mistake.parallel;
  if (parallel.find("cp_size") == std::string::npos)
    parallel += "\ncp_size = " + one_of({"2", "3", "4"});
  if (parallel.find("layout") == std::string::npos)
    parallel += "\nlayout = " + one_of({"\"dual_chunk\"", "\"contiguous\"", "\"striped\"",
                                        "\"dual_chunk_packed\""});
  if (parallel.find("cp_comm_type") == std::string::npos)
    parallel += "\ncp_comm_type = " + one_of({"\"p2p\"", "\"all_gather\"", "\"group_cast\""});
  return fmt::format(
      "schema = 1\n[attention]\n{}[batch]\n{}\n[parallel]\n{}\n[numerics]\ndtype = \"{}\"\n"
      "seed = {}\n{}\n",
      attention, batch, parallel, dtype, random() % 1000, mistake.numerics);
}

}  // namespace cpscope::tests
