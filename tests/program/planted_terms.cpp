// Mistakes in bias, ALiBi and dropout: what the oracle's plain run gives for another question.

#include "reference/dense_oracle.h"
#include "sim/run/kept_weights.h"
#include "tests/program/planted_mistakes.h"

#include <utility>

namespace cpscope::tests {
namespace {

/// The answer for an altered scenario, with a gradient of zeros where it has no bias.
Answer answer_of(const Plan& plan, const Scenario& other, const RunInputs& inputs) {
  Answer answer = reference::plain_answer(other, inputs, {});
  const bool lacks_dbias = plan.scenario.attention.bias != BiasShape::none &&
                           plan.scenario.numerics.backward && answer.dbias.values.empty();
  if (lacks_dbias) answer.dbias = make_filled_tensor("dbias", inputs.bias.shape, Dtype::fp32, 0.0);
  return answer;
}

PlantedMistake with_attention(std::string name, std::string cause, std::string attention,
                              std::function<void(Attention&)> change, std::string parallel = {}) {
  return {.name = std::move(name),
          .cause = std::move(cause),
          .attention = std::move(attention),
          .parallel = std::move(parallel),
          .plant = [change = std::move(change)](const Plan& plan, const RunInputs& inputs) {
            Scenario other = plan.scenario;
            change(other.attention);
            return answer_of(plan, other, inputs);
          }};
}

/// The bias with its columns in the order in which ranks hold the keys of a sequence.
Answer plant_local_columns(const Plan& plan, const RunInputs& inputs) {
  RunInputs other = inputs;
  const auto places = token_places(plan, Side::kv);
  const Tensor& bias = inputs.bias;
  for (size_t id = 0; id < places.size(); ++id) {
    const TokenPlace& place = places[id];
    if (place.sequence < 0) continue;
    for (int64_t row = 0; row < bias.shape[2] * bias.shape[1]; ++row) {
      const int64_t first = (place.sequence * bias.shape[1] * bias.shape[2] + row) * bias.shape[3];
      other.bias.values[static_cast<size_t>(first + place.position)] =
          bias.values[static_cast<size_t>(first + place.local_of_slot)];
    }
  }
  return answer_of(plan, plan.scenario, other);
}

/// Draws of a kernel that knows its own call alone.
Answer plant_draws_of_items(const Plan& plan, const RunInputs& inputs) {
  Plan drawing = plan;
  drawing.scenario.attention.dropout_mode = DropoutMode::framework;
  RunInputs other = inputs;
  other.kept = draw_by_item(drawing);
  return answer_of(plan, drawing.scenario, other);
}

}  // namespace

std::vector<PlantedMistake> planted_terms() {
  std::vector<PlantedMistake> all;
  all.push_back(with_attention("AlibiIgnored", "alibi_ignored", "alibi = true\n",
                               [](Attention& other) { other.alibi = false; }));
  all.push_back(with_attention("BiasIgnored", "bias_ignored", "bias = \"1hss\"\n",
                               [](Attention& other) { other.bias = BiasShape::none; }));
  all.push_back(with_attention("DropoutIgnored", "dropout_ignored", "dropout = 0.3\n",
                               [](Attention& other) { other.dropout = 0.0; }));
  all.push_back({.name = "DropoutByItem",
                 .cause = "dropout_by_item",
                 .attention = "dropout = 0.3\n",
                 .plant = plant_draws_of_items});
  all.push_back({.name = "BiasByLocalColumn",
                 .cause = "terms_by_local_place",
                 .attention = "bias = \"bhss\"\n",
                 .parallel = "layout = \"dual_chunk\"",
                 .plant = plant_local_columns});
  return all;
}

}  // namespace cpscope::tests
