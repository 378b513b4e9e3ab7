#include "kernels/run/rank_results.h"

#include "kernels/group/byte_stream.h"

#include <algorithm>
#include <array>
#include <string>

namespace cpscope::kernels {
namespace {

/// Rows of an answer tensor that one rank computed.
struct AnswerPart {
  Tensor Answer::*tensor;
  RunListId tokens;
  HeadRange heads;
};

std::vector<AnswerPart> parts_of(const Plan& plan, std::span<const RankId> ranks) {
  std::vector<AnswerPart> parts;
  for (const RankId rank : ranks) {
    const HomeBuffers& home = plan.home[rank];
    const auto add = [&](Tensor Answer::*tensor, BufferId buffer, RunListId tokens) {
      if (buffer != kNoBuffer) parts.push_back({tensor, tokens, plan.buffer(buffer).heads});
    };
    add(&Answer::out, home.out, plan.q_lists[rank]);
    add(&Answer::dq, home.dq, plan.q_lists[rank]);
    add(&Answer::dk, home.dkv, plan.kv_lists[rank]);
    add(&Answer::dv, home.dkv, plan.kv_lists[rank]);
    // lse is not sent: it is on the rank that computed it.
    for (const FinishItem& item : plan.forward.finishes) {
      const BufferSpec& spec = plan.buffer(item.buffer);
      if (item.rank == rank && spec.kind == BufferKind::out)
        parts.push_back({&Answer::lse, spec.tokens, spec.heads});
    }
  }
  return parts;
}

/// Calls visit(first value, number of values) for every row of a part.
template <class TensorType, class Visit>
void for_each_row(const Plan& plan, const AnswerPart& part, TensorType& tensor, Visit visit) {
  if (tensor.values.empty()) return;  // a pass that was not requested
  const int64_t heads = tensor.shape[1], lanes = tensor.shape.size() > 2 ? tensor.shape[2] : 1;
  for (const TokenRun& run : plan.list(part.tokens)) {
    for (int64_t token = run.begin; token < run.end; token += run.stride) {
      visit(tensor.values.data() + (token * heads + part.heads.begin) * lanes,
            part.heads.size() * lanes);
    }
  }
}

template <class T, class Combine>
void combine(std::vector<T>& into, const std::vector<T>& from, Combine two) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) into[i] = two(into[i], from[i]);
}

constexpr std::array<const char*, 5> kArrays = {"out", "lse", "dq", "dk", "dv"};

}  // namespace

Bytes encode_results(const Plan& plan, std::span<const RankId> ranks, const RunOutput& output) {
  Bytes bytes;
  std::vector<float> row;
  for (const AnswerPart& part : parts_of(plan, ranks)) {
    for_each_row(plan, part, output.answer.*part.tensor, [&](const double* values, int64_t count) {
      row.assign(values, values + count);
      put_values<float>(bytes, row);
    });
  }
  put_list(bytes, output.answer.max_logit);
  put_list(bytes, output.answer.d_sink);
  put_list(bytes, output.answer.dbias.values);
  put_list(bytes, output.events);
  put_list(bytes, output.forward_seconds);
  put_list(bytes, output.backward_seconds);
  put_list(bytes, std::vector<int64_t>{output.tile_flops});
  put_list(bytes, std::vector<double>{output.tile_seconds});
  return bytes;
}

bool add_results(const Plan& plan, std::span<const RankId> ranks, std::span<const uint8_t> bytes,
                 RunOutput& output) {
  ByteReader reader(bytes);
  for (const AnswerPart& part : parts_of(plan, ranks)) {
    for_each_row(plan, part, output.answer.*part.tensor, [&](double* values, int64_t count) {
      for (int64_t i = 0; i < count; ++i) values[i] = reader.take<float>();
    });
  }
  const auto larger = [](double a, double b) { return std::max(a, b); };
  const auto sum = [](double a, double b) { return a + b; };
  combine(output.answer.max_logit, reader.take_list<double>(), larger);
  combine(output.answer.d_sink, reader.take_list<double>(), sum);
  combine(output.answer.dbias.values, reader.take_list<double>(), sum);
  for (const ItemEvent& event : reader.take_list<ItemEvent>()) output.events.push_back(event);
  combine(output.forward_seconds, reader.take_list<double>(), larger);
  combine(output.backward_seconds, reader.take_list<double>(), larger);
  for (const int64_t flops : reader.take_list<int64_t>()) output.tile_flops += flops;
  for (const double seconds : reader.take_list<double>()) output.tile_seconds += seconds;
  std::stable_sort(output.events.begin(), output.events.end(),
                   [](const ItemEvent& a, const ItemEvent& b) { return a.start_ns < b.start_ns; });
  return !reader.is_short() && reader.is_at_end();
}

Bytes encode_items(const std::vector<ItemResult>& results) {
  Bytes bytes;
  for (const ItemResult& result : results) {
    const auto name = std::find(kArrays.begin(), kArrays.end(), std::string(result.array));
    put_list(bytes, std::vector<int64_t>{result.item.direction == Direction::backward ? 1 : 0,
                                         static_cast<int64_t>(result.item.kind), result.item.index,
                                         to_index(result.rank), to_index(result.step),
                                         name - kArrays.begin()});
    put_list(bytes, result.shape);
    put_list(bytes, result.values);
  }
  return bytes;
}

std::vector<ItemResult> decode_items(std::span<const uint8_t> bytes) {
  std::vector<ItemResult> results;
  ByteReader reader(bytes);
  while (!reader.is_at_end()) {
    const std::vector<int64_t> head = reader.take_list<int64_t>();
    std::vector<int64_t> shape = reader.take_list<int64_t>();
    std::vector<double> values = reader.take_list<double>();
    if (reader.is_short() || head.size() != 6 || head[5] < 0 ||
        head[5] >= static_cast<int64_t>(kArrays.size())) {
      break;
    }
    results.push_back({{head[0] != 0 ? Direction::backward : Direction::forward,
                        static_cast<StageKind>(head[1]), head[2]},
                       RankId{static_cast<int32_t>(head[3])},
                       StepId{static_cast<int32_t>(head[4])},
                       kArrays[static_cast<size_t>(head[5])],
                       std::move(shape),
                       std::move(values)});
  }
  return results;
}

}  // namespace cpscope::kernels
