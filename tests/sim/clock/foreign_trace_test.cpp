#include "sim/clock/foreign_trace.h"

#include "sim/clock/trace_align.h"
#include "sim/clock/trace_events.h"
#include "tests/support/kineto_trace.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace cpscope {
namespace {

using testing_support::kAttentionBackward;
using testing_support::kAttentionForward;
using testing_support::KinetoTrace;
using testing_support::kSendRecv;

/// A file that is there as long as the object.
class TraceFile {
 public:
  explicit TraceFile(const std::string& bytes)
      : path_((std::filesystem::temp_directory_path() / fmt::format("trace-{}.json", ::getpid()))
                  .string()) {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  ~TraceFile() { std::remove(path_.c_str()); }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  Result<ForeignTrace> read() const { return read_foreign_trace(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Result<ForeignTrace> read_text_trace(const std::string& text) { return TraceFile(text).read(); }

TEST(KernelNames, TellAttentionCommunicationAndThePass) {
  struct Expected {
    const char* name;
    TraceWork work;
    std::optional<Direction> direction;
    HelperPlace helper;
  };
  const auto kForward = Direction::forward, kBackward = Direction::backward;
  const Expected cases[] = {
      {kAttentionForward.c_str(), TraceWork::attention, kForward, HelperPlace::none},
      {kAttentionBackward.c_str(), TraceWork::attention, kBackward, HelperPlace::none},
      {"void flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<128>>(Flash_bwd_params)",
       TraceWork::attention, kBackward, HelperPlace::behind},
      {"void flash_bwd_convert_dq_kernel<Flash_bwd_kernel_traits<128>>(Flash_bwd_params, int)",
       TraceWork::attention, kBackward, HelperPlace::before},
      {"void flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<64>>(Flash_fwd_params)",
       TraceWork::attention, kForward, HelperPlace::before},
      {"void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<x>>>(x)",
       TraceWork::attention, kForward, HelperPlace::none},
      {"cudnn_generated_fort_native_sdpa_sm80_flash_bprop_wmma_f16_knob_3_64x64x256_kernel0_0",
       TraceWork::attention, kBackward, HelperPlace::none},
      {"fmha_cutlassB_bf16_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel)",
       TraceWork::attention, kBackward, HelperPlace::none},
      {"triton_tem_fused_flex_attention_0", TraceWork::attention, std::nullopt, HelperPlace::none},
      {"triton_poi_fused__scaled_dot_product_flash_attention_clone_3", TraceWork::other,
       std::nullopt, HelperPlace::none},
      {"ampere_bf16_s16816gemm_bf16_128x128", TraceWork::other, std::nullopt, HelperPlace::none},
      {kSendRecv.c_str(), TraceWork::exchange, std::nullopt, HelperPlace::none},
      {"ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", TraceWork::all_gather,
       std::nullopt, HelperPlace::none},
      {"ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", TraceWork::reduce_scatter, std::nullopt,
       HelperPlace::none},
      {"ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", TraceWork::other_collective, std::nullopt,
       HelperPlace::none},
      {"gloo:send", TraceWork::send, std::nullopt, HelperPlace::none},
      {"gloo:recv", TraceWork::receive, std::nullopt, HelperPlace::none},
      {"Memcpy PtoP (Device -> Device)", TraceWork::exchange, std::nullopt, HelperPlace::none},
  };
  for (const Expected& expected : cases) {
    const NamedWork named = name_work(expected.name);
    EXPECT_EQ(named.work, expected.work) << expected.name << ": " << to_name(named.work);
    EXPECT_EQ(named.direction, expected.direction) << expected.name;
    EXPECT_EQ(named.helper, expected.helper) << expected.name;
  }
  EXPECT_EQ(element_bytes_of("c10::BFloat16"), 2);
  EXPECT_EQ(element_bytes_of("float"), 4);
  EXPECT_EQ(element_bytes_of("Float8_e4m3fn"), 1);
  EXPECT_EQ(element_bytes_of("complex"), 0);
}

TEST(ForeignTrace, ReadsKinetosTimesExactlyAndItsBytesAsAPlanCountsThem) {
  KinetoTrace kineto(1, 2);
  kineto.add_kernel(kAttentionForward, 1'234, 5'678);
  kineto.add_kernel("void at::native::elementwise(int)", 8'000, 100);
  kineto.add_kernel("void at::native::elementwise(int)", 8'050, 100);
  kineto.add_collective("ncclDevKernel_AllGather_RING_LL(x)", "_allgather_base", 9'000, 10, 100,
                        400, 4);
  kineto.add_collective("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)", "_reduce_scatter_base",
                        9'100, 10, 400, 100, 4, "Float");
  kineto.add_collective(kSendRecv, "all_to_all", 9'200, 10, 400, 400, 4);
  kineto.add_collective(kSendRecv, "send", 9'300, 10, 70, 70, 2);
  kineto.add_batch(20'000, 10, {{"send", 100}, {"recv", 300}, {"send", 50}, {"recv", 20}});
  kineto.add_batch(30'000, 10, {{"send", 7}});
  const Result<ForeignTrace> read = read_text_trace(kineto.text());
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  const ForeignTrace& trace = read.value();
  EXPECT_EQ(trace.format, "Kineto");
  EXPECT_EQ(trace.rank, 1);
  EXPECT_EQ(trace.world_size, 2);
  EXPECT_EQ(trace.groups, (std::vector<std::vector<int64_t>>{{0, 1}}));
  EXPECT_FALSE(trace.is_cpu);
  ASSERT_EQ(trace.processes.size(), 1U);
  const std::vector<TraceSpan>& spans = trace.processes[0].spans;
  ASSERT_EQ(spans.size(), 7U);
  EXPECT_EQ(spans[0].time.start_ns, kineto.base_ns + 1'234);
  EXPECT_EQ(spans[0].time.end_ns, kineto.base_ns + 1'234 + 5'678);
  ASSERT_EQ(trace.processes[0].other.size(), 1U) << "overlapping kernels are joined";
  EXPECT_EQ(trace.processes[0].other[0].end_ns, kineto.base_ns + 8'150);
  const std::vector<int64_t> sent = {-1, 3 * 200, 3 * 400, 3 * 200, 140, 300, 14};
  for (size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(spans[i].sent_bytes, sent[i]) << i;
  EXPECT_EQ(spans[3].work, TraceWork::all_to_all) << "NCCL's kernel is that of an exchange";
  EXPECT_EQ(spans[4].work, TraceWork::send);
  EXPECT_EQ(spans[5].received_bytes, 640);
}

/// Of rank 5, in a group that it is the second rank of.
std::string all_to_all(const char* sent, const char* received, const char* group) {
  return fmt::format(
      R"(, "Collective name": "all_to_allv", "In msg nelems": 400, "Out msg nelems": 800, )"
      R"("Group size": 2, "dtype": "Half", "In split size": "{}", "Out split size": "{}"{})",
      sent, received, group);
}

TEST(ForeignTrace, KnowsWhichOfUnequalSharesStaysFromTheRanksPlaceInTheGroup) {
  const char* group = R"(, "Process Group Ranks": "[2, 5]")";
  KinetoTrace kineto(5, 8);
  kineto.add_kernel(kSendRecv, 0, 10, all_to_all("[3, 1]", "[1, 1]", group));
  kineto.add_kernel(kSendRecv, 20, 10, all_to_all("[400, 0]", "[800, 0]", group));
  const Result<ForeignTrace> read = read_text_trace(kineto.text());
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  const std::vector<TraceSpan>& spans = read.value().processes[0].spans;
  EXPECT_EQ(spans[0].work, TraceWork::all_to_all);
  EXPECT_EQ(spans[0].sent_bytes, 600);
  EXPECT_EQ(spans[0].received_bytes, 800);
  EXPECT_EQ(spans[1].work, TraceWork::exchange) << "everything goes to one rank: a hop of a ring";
  EXPECT_EQ(spans[1].sent_bytes, 800);
  EXPECT_EQ(spans[1].received_bytes, 1600);
}

TEST(ForeignTrace, DoesNotGuessTheBytesOfUnequalShares) {
  const char* group = R"(, "Process Group Ranks": "[2, 5]")";
  KinetoTrace kineto(5, 8);
  kineto.add_kernel(kSendRecv, 0, 10, all_to_all("[3, 1]", "[3, 1]", ""));
  kineto.add_kernel(kSendRecv, 20, 10, all_to_all("[3, ..., 1]", "[3, 1]", group));
  kineto.add_kernel(kSendRecv, 40, 10, all_to_all("[3, -1]", "[0, 0]", group));
  kineto.add_kernel(kSendRecv, 60, 10);
  const Result<ForeignTrace> read = read_text_trace(kineto.text());
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  for (const TraceSpan& span : read.value().processes[0].spans) EXPECT_EQ(span.sent_bytes, -1);
}

TEST(ForeignTrace, TakesThePassFromTheInnermostAnnotationWhereTheNameDoesNotTell) {
  KinetoTrace kineto(0, 1);
  kineto.add("gpu_user_annotation", "## forward ##", 0, 7, 0, 1'000, "\"External id\": 1");
  kineto.add("gpu_user_annotation", "recompute backward", 0, 7, 200, 300, "\"External id\": 1");
  kineto.add_kernel("flex_attention_kernel", 100, 50);
  kineto.add_kernel("flex_attention_kernel", 300, 50);
  kineto.add_kernel("flex_attention_kernel", 700, 50);
  kineto.add_kernel("flex_attention_kernel", 1'200, 50);
  const Result<ForeignTrace> read = read_text_trace(kineto.text());
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  const std::vector<TraceSpan>& spans = read.value().processes[0].spans;
  ASSERT_EQ(spans.size(), 4U);
  EXPECT_EQ(spans[0].direction, Direction::forward);
  EXPECT_EQ(spans[1].direction, Direction::backward);
  EXPECT_EQ(spans[2].direction, Direction::forward);
  EXPECT_EQ(spans[3].direction, std::nullopt);
}

TEST(ForeignTrace, TakesTheInnermostOperatorOfACpuRun) {
  KinetoTrace kineto(0, 2);
  kineto.add("cpu_op", "ZigZagRingFlashAttnFunc", 40, 40, 0, 1'000, "\"External id\": 1");
  kineto.add("user_annotation", "flash_attn_fwd", 40, 40, 100, 50, "\"External id\": 2");
  kineto.add("user_annotation", "flash_attn_fwd", 40, 40, 300, 50, "\"External id\": 3");
  kineto.add("user_annotation", "gloo:send", 40, 40, 90, 500,
             R"("Input type": ["c10::BFloat16"], "Input Dims": [[1, 128, 2, 64]])");
  kineto.add("user_annotation", "gloo:send", 40, 40, 91, 500,
             R"("Input type": ["TensorList"], "Input Dims": [[[1, 128, 2, 64]]])");
  const Result<ForeignTrace> read = read_text_trace(kineto.text());
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  EXPECT_TRUE(read.value().is_cpu);
  const std::vector<TraceSpan>& spans = read.value().processes[0].spans;
  ASSERT_EQ(spans.size(), 4U);
  EXPECT_EQ(spans[0].sent_bytes, 1 * 128 * 2 * 64 * 2);
  EXPECT_EQ(spans[1].sent_bytes, -1) << "a list of tensors does not say what is sent";
  EXPECT_EQ(spans[2].direction, Direction::forward);
}

TEST(ForeignTrace, ReadsABareListOfEventsAndRanksFromTheNamesOfProcesses) {
  const Result<ForeignTrace> read =
      read_text_trace(R"([{"ph":"M","name":"process_name","pid":"a","args":{"name":"Rank: 3"}},)"
                      R"({"ph":"X","name":"flash fwd","pid":"a","tid":1,"ts":1e3,"dur":2},)"
                      R"({"ph":"X","name":"flash fwd","pid":"b","tid":1,"ts":5,"dur":0.5}])");
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  EXPECT_EQ(read.value().format, "Chrome trace");
  ASSERT_EQ(read.value().processes.size(), 2U);
  EXPECT_EQ(read.value().processes[0].rank, 3);
  EXPECT_EQ(read.value().processes[0].spans[0].time.start_ns, 1'000'000);
  EXPECT_EQ(read.value().processes[1].rank, std::nullopt);
  EXPECT_EQ(read.value().processes[1].spans[0].time.end_ns, 5'500);
}

TEST(ForeignTrace, RejectsWhatIsNoTraceAndSaysWhy) {
  const auto event = [](const std::string& fields) {
    return R"({"traceEvents":[{"ph":"X","cat":"kernel","name":"flash_fwd",)" + fields + "}]}";
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "the JSON is broken at byte"},
      {R"({"traceEvents":[{"ph":"X")", "the JSON is broken at byte"},
      {event(R"("pid":1,"ts":NaN,"dur":1)"), "the JSON is broken at byte"},
      {"{}", "no list `traceEvents`"},
      {"[]", "nothing in this trace is attention"},
      {R"({"traceEvents":[]})", "nothing in this trace is attention"},
      {event(R"("pid":1,"dur":1)"), "event 1 (\"flash_fwd\"): it has no time `ts`"},
      {event(R"("pid":1,"ts":1)"), "it has no duration `dur`"},
      {event(R"("pid":1,"ts":-1,"dur":1)"), "its time `ts` is not from 0"},
      {event(R"("pid":1,"ts":-0.001,"dur":1)"), "its time `ts` is not from 0"},
      {event(R"("pid":1,"ts":1,"dur":-2.5)"), "its duration `dur` is not from 0"},
      {event(R"("pid":1,"ts":1e300,"dur":1)"), "its time `ts` is not from 0"},
      {event(R"("pid":1,"ts":99999999999999999999,"dur":1)"), "its time `ts` is not from 0"},
      {event(R"("pid":1,"ts":9223372036854775807,"dur":9223372036854775807)"), "is not from 0"},
      {event(R"("pid":1,"ts":"12","dur":1)"), "`ts` is no number: \"12\""},
      {R"({"baseTimeNanoseconds":-5,)" + event(R"("pid":1,"ts":1,"dur":1)").substr(1),
       "baseTimeNanoseconds is not from 0"},
      {std::string("\x1f\x8b\x08\x00 no gzip", 12), ""},
  };
  for (const auto& [text, words] : cases) {
    const TraceFile file(text);
    const Result<ForeignTrace> read = file.read();
    ASSERT_FALSE(read.ok()) << text;
    const Complaint& complaint = read.error().complaints.front();
    EXPECT_NE(complaint.what.find(words), std::string::npos) << text << ": " << complaint.what;
    EXPECT_EQ(complaint.where, file.path());
  }
  EXPECT_FALSE(read_foreign_trace("/nowhere/trace.json").ok());
  EXPECT_FALSE(read_foreign_trace(std::filesystem::temp_directory_path().string()).ok());
}

TEST(ForeignTrace, EndsAtATokenThatIsTooLong) {
  const std::string name(static_cast<size_t>(kMostTokenBytes) + 10, 'x');
  const Result<ForeignTrace> read =
      read_text_trace(R"({"traceEvents":[{"name":")" + name + R"("}]})");
  ASSERT_FALSE(read.ok());
  EXPECT_NE(to_text(read.error()).find("a string or number is longer than"), std::string::npos)
      << to_text(read.error()).substr(0, 200);
}

TEST(ForeignTrace, IsReadInLinearTimeHoweverOperatorsOverlap) {
  // Attention that no other ends inside of: every one is still open when the next begins.
  std::string text = R"({"traceEvents":[)";
  for (int i = 0; i < 60'000; ++i)
    text += fmt::format(R"({}{{"ph":"X","cat":"cpu_op","name":"flash","pid":1,"tid":1,"ts":{},)"
                        R"("dur":1000000}})",
                        i == 0 ? "" : ",", i);
  const Result<ForeignTrace> read = read_text_trace(text + "]}");
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  EXPECT_EQ(read.value().processes[0].spans.size(), 60'000U);
}

TEST(RankInLabel, FindsTheNumberBehindTheWord) {
  EXPECT_EQ(rank_in_label("rank 3, predicted"), 3);
  EXPECT_EQ(rank_in_label("[Rank:12] GPU 4"), 12);
  EXPECT_EQ(rank_in_label("rank_0"), 0);
  EXPECT_EQ(rank_in_label("python"), std::nullopt);
  EXPECT_EQ(rank_in_label("ranks"), std::nullopt);
  EXPECT_EQ(integers_of("[0, 2,4]"), (std::vector<int64_t>{0, 2, 4}));
  EXPECT_FALSE(integers_of("[0, x]").has_value());
}

/// Spans of these bytes, one after the other, and stages of these.
std::vector<AlignedPlace> align(const std::vector<int64_t>& spans,
                                const std::vector<int64_t>& stages) {
  std::vector<AlignedSpan> list;
  for (const int64_t bytes : spans)
    list.push_back({bytes, static_cast<int64_t>(10 * list.size()),
                    static_cast<int64_t>(10 * list.size() + 5), 1});
  std::vector<AlignedStage> wanted;
  for (const int64_t bytes : stages) wanted.push_back({bytes, 0, 1'000'000, 1});
  return align_stages(list, wanted);
}

std::string show_places(const std::vector<AlignedPlace>& places) {
  std::string text;
  for (const AlignedPlace& place : places)
    text += place.is_unknown    ? "? "
            : !place.is_found() ? "- "
                                : fmt::format("{}-{} ", place.first, place.end);
  return text;
}

TEST(TraceAlign, FindsPartsWholesAndPairsOfStages) {
  EXPECT_EQ(show_places(align({8, 4, 4, 8}, {8, 8, 8})), "0-1 1-3 3-4 ");
  EXPECT_EQ(show_places(align({12, 3}, {8, 4, 3})), "0-1 0-1 1-2 ") << "one message for two stages";
  EXPECT_EQ(show_places(align({5, 8, 7, 4, 4}, {8, 8})), "1-2 3-5 ") << "others lie between";
  EXPECT_EQ(show_places(align({-1, 8, -1}, {6, 8, 7})), "0-1 1-2 2-3 ") << "unknown bytes";
  EXPECT_EQ(show_places(align({}, {6})), "- ");
  EXPECT_EQ(show_places(align({6}, {})), "");
}

TEST(TraceAlign, SaysWhatIsMissingAndWhatIsUnknown) {
  EXPECT_EQ(show_places(align({8, 3}, {8, 6, 3})), "0-1 - 1-2 ");
  EXPECT_EQ(show_places(align({8, 8}, {8})), "? ") << "either may be it";
  EXPECT_EQ(show_places(align({8, 8}, {8, 8, 8})), "? ? ? ") << "any of them may be missing";
  EXPECT_EQ(show_places(align({8, 2, 8}, {8, 2, 8, 9})), "0-1 1-2 2-3 - ");
}

}  // namespace
}  // namespace cpscope
