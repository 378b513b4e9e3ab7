#include "sim/scenario/foreign_keys.h"
#include "tests/sim/scenario/scenario_text.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

// Keys and values of other frameworks are answered with ours.

namespace cpscope {
namespace {

/// The hint for a line of [parallel].
std::string hint_of(const std::string& line) {
  ScenarioText text;
  text.parallel += line + "\n";
  const Result<LoadedScenario> loaded = parse(text);
  if (loaded) {
    ADD_FAILURE() << "accepted: " << line;
    return "";
  }
  EXPECT_EQ(loaded.error().complaints.size(), 1u) << to_text(loaded.error());
  return loaded.error().complaints.front().hint;
}

struct Translation {
  const char* theirs;
  const char* hint;
};

TEST(ForeignNames, AnswersKeysOfOtherFrameworksWithTheValue) {
  const std::vector<Translation> cases = {
      // Megatron.
      {"num_attention_heads = 8", "num_attention_heads = 8: use heads = 8 in [attention]"},
      {"num_query_groups = 2", "num_query_groups = 2: use kv_heads = 2 in [attention]"},
      {"kv_channels = 128", "kv_channels = 128: use head_dim = 128 in [attention]"},
      {"seq_length = 4096",
       "seq_length = 4096: use seqlen = 4096 with batch_size, or lengths = [4096] in [batch]"},
      {"context_parallel_size = 4", "context_parallel_size = 4: use cp_size = 4"},
      {"hierarchical_context_parallel_sizes = [2, 4]",
       "hierarchical_context_parallel_sizes = [2, 4]: use a2a_size = 2, cp_size = 8 and "
       "cp_comm_type = \"a2a+p2p\""},
      {"micro_batch_size = 2", "micro_batch_size = 2: use batch_size = 2 in [batch]"},
      {"rotary_base = 10000.0", "rotary_base = 10000.0: use rope_theta = 10000.0 in [attention]"},
      {"attention_softmax_in_fp32 = true",
       "attention_softmax_in_fp32 = true: the softmax is always computed in fp32 or fp64"},
      {"bias_type = \"alibi\"", "bias_type = \"alibi\": use alibi = true in [attention]"},
      {"bias_type = \"post_scale_bias\"",
       "bias_type = \"post_scale_bias\": use bias in [attention]"},
      {"use_alibi_mask = true", "use_alibi_mask = true: use alibi = true in [attention]"},
      // vLLM, Helix.
      {"decode_context_parallel_size = 4",
       "decode_context_parallel_size = 4: use cp_size = 4 (decode steps: cp_comm_type = "
       "\"gather_q\", q_owner = \"heads\")"},
      {"kvp_size = 4",
       "kvp_size = 4: use cp_size = 4 (Helix: cp_comm_type = \"gather_q\", q_owner = "
       "\"heads_replicated\")"},
      {"cp_kv_cache_interleave_size = 16",
       "cp_kv_cache_interleave_size = 16: use stripe = 16 (of layout = \"striped\")"},
      {"context_lens = [5, 9]", "context_lens = [5, 9]: use kv_lengths = [5, 9] in [batch]"},
      {"max_token_len_per_gpu = 4096",
       "max_token_len_per_gpu = 4096: use max_tokens_per_rank = 4096"},
      // Hugging Face.
      {"num_key_value_heads = 2", "num_key_value_heads = 2: use kv_heads = 2 in [attention]"},
      {"sliding_window = 4096",
       "sliding_window = 4096: use window_size = [4095, 0] in [attention] (their window counts the "
       "token itself)"},
      {"attn_logit_softcapping = 50.0",
       "attn_logit_softcapping = 50.0: use softcap = 50.0 in [attention]"},
      {"attention_chunk_size = 8192",
       "attention_chunk_size = 8192: use chunk_size = 8192 in [attention]"},
      {"query_pre_attn_scalar = 256",
       "query_pre_attn_scalar = 256: use softmax_scale = 0.0625 in [attention]"},
      {"padding_side = \"left\"", "padding_side = \"left\": use pad_side = \"left\" in [batch]"},
      {"left_pad = false", "left_pad = false: use pad_side = \"right\" in [batch]"},
      {"max_position_embeddings = 8192",
       "max_position_embeddings = 8192: lengths may have any size; leave it out"},
      {"torch_dtype = \"bfloat16\"",
       "torch_dtype = \"bfloat16\": use dtype = \"bf16\" in [numerics]"},
      // TransformerEngine.
      {"num_gqa_groups = 2", "num_gqa_groups = 2: use kv_heads = 2 in [attention]"},
      {"cu_seqlens_q = [0, 5, 14]", "cu_seqlens_q = [0, 5, 14]: use lengths = [5, 9] in [batch]"},
      {"cu_seqlens_q_padded = [[0, 8, 20]]",
       "cu_seqlens_q_padded = [[0, 8, 20]]: use slots = [8, 12] in [batch]"},
      {"cu_seqlens_kv = [0, 5]", "cu_seqlens_kv = [0, 5]: use kv_lengths = [5] in [batch]"},
      {"max_seqlen_q = 9", "max_seqlen_q = 9: it follows from lengths and slots; leave it out"},
      // ring-flash-attention.
      {"cu_seqlens = [0, 5, 14]", "cu_seqlens = [0, 5, 14]: use lengths = [5, 9] in [batch]"},
      {"causal = true", "causal = true: use attn_mask_type = \"causal\" in [attention]"},
      {"causal = false", "causal = false: use attn_mask_type = \"no_mask\" in [attention]"},
      {"zigzag = true", "zigzag = true: use layout = \"dual_chunk\""},
      // USP and xDiT.
      {"ulysses_degree = 2",
       "ulysses_degree = 2: use cp_comm_type = \"a2a+p2p\" and a2a_size = 2, or without a ring "
       "cp_comm_type = \"a2a\" and cp_size = 2"},
      {"ring_degree = 4",
       "ring_degree = 4: use cp_comm_type = \"p2p\" and cp_size = 4, or with Ulysses cp_comm_type "
       "= "
       "\"a2a+p2p\" and cp_size = a2a_size * 4"},
      {"ulysses = true", "ulysses = true: use cp_comm_type = \"a2a\""},
      {"ring_impl_type = \"strip\"", "ring_impl_type = \"strip\": use layout = \"striped\""},
      // PyTorch and JAX.
      {"is_causal = true", "is_causal = true: use attn_mask_type = \"causal\" in [attention]"},
      {"scale = 0.125", "scale = 0.125: use softmax_scale = 0.125 in [attention]"},
      {"enable_gqa = true",
       "enable_gqa = true: use kv_heads in [attention] (query heads share KV heads where "
       "kv_heads is below heads)"},
      {"rotate_method = \"alltoall\"", "rotate_method = \"alltoall\": use cp_comm_type = \"p2p\""},
      {"segment_ids = [1, 1, 1, 2, 2]",
       "segment_ids = [1, 1, 1, 2, 2]: use lengths = [3, 2] in [batch]"},
      {"position_ids = [0, 1, 2, 0, 1]",
       "position_ids = [0, 1, 2, 0, 1]: use lengths = [3, 2] in [batch] (a document begins where "
       "they restart)"},
      // What a scenario does not have.
      {"tp_size = 2",
       "tp_size = 2: there is no tensor parallelism here; heads and kv_heads are those of one of "
       "its ranks"},
      {"rank = 3", "rank = 3: every rank is planned; cp_size is their number"},
      {"world_size = 4", "world_size = 4: use cp_size = 4"},
      {"stripe_size = 16", "stripe_size = 16: use stripe = 16"},
  };
  for (const Translation& each : cases) EXPECT_EQ(hint_of(each.theirs), each.hint);
  for (const char* line : {"block_size = 128", "heads_k_stride = 1", "softmax_offset = 1.0",
                           "use_ulysses_low = false", "attention_mask = [1]"})
    expect_contains(hint_of(line), std::string(line) + ": ");
}

TEST(ForeignNames, AreTheOnlyComplaintAboutTheirKey) {
  ScenarioText text;
  text.attention = "num_attention_heads = 8\nkv_channels = 64\n";
  text.parallel = "context_parallel_size = 4\n";
  for (const char* batch : {"cu_seqlens = [0, 8]\n", "micro_batch_size = 2\nseqlen = 8\n",
                            "batch_size = 2\nseq_length = 8\n"}) {
    text.batch = batch;
    const Result<LoadedScenario> loaded = parse(text);
    ASSERT_FALSE(loaded.ok());
    EXPECT_EQ(loaded.error().complaints.size(), 4u) << to_text(loaded.error());
    EXPECT_EQ(to_text(loaded.error()).find("missing"), std::string::npos)
        << to_text(loaded.error());
  }
}

TEST(ForeignNames, NamesTheKeyAloneForAValueOfAnotherType) {
  EXPECT_EQ(hint_of("context_parallel_size = \"4\""), "context_parallel_size = \"4\": use cp_size");
  EXPECT_EQ(hint_of("causal = 1"), "causal = 1: use attn_mask_type in [attention]");
  EXPECT_EQ(hint_of("cu_seqlens = [3, 1]"), "cu_seqlens = [3, 1]: use lengths in [batch]");
  EXPECT_EQ(hint_of("ranks = { count = 4 }"), "ranks: use cp_size");
  EXPECT_EQ(hint_of("hierarchical_context_parallel_sizes = [4294967296, 4294967296]"),
            "hierarchical_context_parallel_sizes = [4294967296, 4294967296]: use a2a_size");
}

TEST(ForeignNames, CutsLongValues) {
  std::string bounds = "cu_seqlens = [0";
  for (int i = 1; i < 1000; ++i) bounds += ", " + std::to_string(i);
  EXPECT_EQ(hint_of(bounds + "]"),
            "cu_seqlens = [0, 1, 2, 3, 4, 5, 6, 7, ...]: use lengths = [1, 1, 1, 1, 1, 1, 1, 1, "
            "...] in [batch]");
}

TEST(ForeignNames, AnswersValuesOfOtherFrameworks) {
  struct Case {
    const char* key;
    const char* theirs;
    const char* ours;
  };
  const std::vector<Case> cases = {{"cp_comm_type", "ring", "p2p"},
                                   {"cp_comm_type", "P2P", "p2p"},
                                   {"cp_comm_type", "ulysses", "a2a"},
                                   {"cp_comm_type", "allgather", "all_gather"},
                                   {"cp_comm_type", "all-gather", "all_gather"},
                                   {"cp_comm_type", "usp", "a2a+p2p"},
                                   {"layout", "head_tail", "dual_chunk_packed"},
                                   {"layout", "ring", "contiguous"},
                                   {"layout", "sequential", "contiguous"},
                                   {"layout", "basic", "contiguous"},
                                   {"layout", "stripe", "striped"}};
  for (const Case& each : cases) {
    const std::string line = std::string(each.key) + " = \"" + each.theirs + "\"";
    EXPECT_EQ(hint_of(line), line + ": use " + each.key + " = \"" + each.ours + "\"");
  }
  EXPECT_EQ(hint_of("layout = \"zigzag\""),
            "layout = \"zigzag\": use layout = \"dual_chunk\" (it cuts every sequence; "
            "\"dual_chunk_packed\" cuts the whole packed buffer in the same way)");
}

TEST(ForeignNames, AnswersMasksFormatsAndNumberTypes) {
  const auto answer = [](std::string ScenarioText::*table, const std::string& line) {
    ScenarioText text;
    text.*table += line + "\n";
    return parse_invalid(text);
  };
  expect_contains(answer(&ScenarioText::attention, "attn_mask_type = \"full\""),
                  "attn_mask_type = \"full\": use attn_mask_type = \"no_mask\"");
  expect_contains(answer(&ScenarioText::attention, "attn_mask_type = \"bottom_right\""),
                  "use attn_mask_type = \"causal_bottom_right\"");
  expect_contains(answer(&ScenarioText::attention, "softmax_type = \"off-by-one\""),
                  "use softmax_type = \"off_by_one\"");
  expect_contains(answer(&ScenarioText::batch, "qkv_format = \"sbh3d\""),
                  "use qkv_format = \"sbhd\"");
  for (const auto& [theirs, ours] : {std::pair{"bfloat16", "bf16"},
                                     {"torch.bfloat16", "bf16"},
                                     {"float16", "fp16"},
                                     {"half", "fp16"},
                                     {"float", "fp32"},
                                     {"float32", "fp32"},
                                     {"float64", "fp64"}}) {
    const std::string line = std::string("dtype = \"") + theirs + "\"";
    expect_contains(answer(&ScenarioText::numerics, line), line + ": use dtype = \"" + ours + "\"");
  }
}

TEST(ForeignNames, LeavesOtherNamesToTheNearestKey) {
  EXPECT_EQ(hint_of("cp_sise = 4"), "did you mean cp_size?");
  EXPECT_FALSE(explain_foreign_key("cp_sise", {}, "parallel").has_value());
  EXPECT_FALSE(explain_foreign_key("heads", {}, "parallel").has_value());
  EXPECT_EQ(explain_foreign_key("num_heads", {}, std::nullopt), "num_heads: use heads");
}

}  // namespace
}  // namespace cpscope
