#include "sim/scenario/generator.h"

#include "sim/scenario/complaints.h"
#include "sim/scenario/length_file.h"
#include "sim/scenario/length_tables.h"
#include "sim/scenario/portable_random.h"
#include "sim/scenario/scenario_names.h"
#include "sim/scenario/text_file.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>

#include <fmt/format.h>

namespace cpscope {
namespace {

// Independent random words of one document.
constexpr uint64_t kShapeStream = 0;
constexpr uint64_t kPlaceStream = 1;

/// Returns the length of the document with that number, before the last one is cut.
using DrawLength = std::function<int64_t(uint64_t document)>;

int64_t round_length(double length, const Generator& generator) {
  const auto limit = static_cast<double>(kMaxTokens);
  const auto rounded = static_cast<int64_t>(std::floor(std::min(length, limit) + 0.5));
  return std::clamp(rounded, generator.min, generator.max);
}

int64_t draw_lognormal(const Generator& generator, uint64_t document) {
  const double normal = find_normal_quantile(draw_unit(generator.seed, kPlaceStream, document));
  return round_length(portable_exp(generator.mu + generator.sigma * normal), generator);
}

int64_t draw_pareto(const Generator& generator, uint64_t document) {
  // 1-u is uniform because u is: length = xm * u^(-1/alpha).
  const double unit = draw_unit(generator.seed, kPlaceStream, document);
  const double stretch = portable_exp(-portable_log(unit) / generator.alpha);
  return round_length(static_cast<double>(generator.tail_from) * stretch, generator);
}

int64_t draw_uniform(const Generator& generator, uint64_t document) {
  const auto choices = static_cast<double>(generator.max - generator.min + 1);
  const double unit = draw_unit(generator.seed, kPlaceStream, document);
  return std::min(generator.max, generator.min + static_cast<int64_t>(unit * choices));
}

/// Empty if no generator has that name.
DrawLength choose_draw(const Generator& generator) {
  if (generator.name == "equal") return [&](uint64_t) { return generator.max; };
  if (generator.name == "uniform") {
    return [&](uint64_t document) { return draw_uniform(generator, document); };
  }
  if (generator.name == "lognormal") {
    return [&](uint64_t document) { return draw_lognormal(generator, document); };
  }
  if (generator.name == "lognormal+pareto") {
    return [&](uint64_t document) {
      const double unit = draw_unit(generator.seed, kShapeStream, document);
      return unit < generator.tail_share ? draw_pareto(generator, document)
                                         : draw_lognormal(generator, document);
    };
  }
  if (const LengthTable* table = find_length_table(generator.name)) {
    return [&generator, table](uint64_t document) {
      const int64_t length =
          draw_table_length(*table, draw_unit(generator.seed, kShapeStream, document),
                            draw_unit(generator.seed, kPlaceStream, document));
      const int64_t longest = std::max<int64_t>(1, generator.tokens / table->pack_parts);
      return std::clamp(std::min(length, longest), generator.min, generator.max);
    };
  }
  return {};
}

std::optional<Error> find_bad_shape(const Generator& generator) {
  const auto bad_number = [](std::string_view key, double value, std::string_view wanted) {
    return make_bad_input(fmt::format("generator.{} must be {}: {}", key, wanted, value),
                          "see the scenario format");
  };
  if (generator.min < 1 || generator.min > generator.max || generator.max > kMaxTokens) {
    return make_bad_input(
        fmt::format("generator.min and max must satisfy 1 <= min <= max <= {}: {}, {}", kMaxTokens,
                    generator.min, generator.max),
        "give lengths in that order");
  }
  if (!std::isfinite(generator.mu)) return bad_number("mu", generator.mu, "finite");
  if (!std::isfinite(generator.sigma) || generator.sigma < 0.0) {
    return bad_number("sigma", generator.sigma, "at least 0");
  }
  if (!std::isfinite(generator.alpha) || generator.alpha <= 0.0) {
    return bad_number("alpha", generator.alpha, "above 0");
  }
  if (!(generator.tail_share >= 0.0 && generator.tail_share <= 1.0)) {
    return bad_number("tail_share", generator.tail_share, "a probability from 0 to 1");
  }
  if (generator.tail_from < 1 || generator.tail_from > kMaxTokens) {
    return make_bad_input(fmt::format("generator.tail_from must be from 1 to {}: {}", kMaxTokens,
                                      generator.tail_from),
                          "give the first length of the tail");
  }
  if (generator.count < 0 || generator.count > kMaxSequences) {
    return make_bad_input(
        fmt::format("generator.count must be from 0 to {}: {}", kMaxSequences, generator.count),
        "0 means as many as fit");
  }
  return std::nullopt;
}

/// Draws documents until their lengths sum to `tokens`; the last one is cut.
Result<std::vector<int64_t>> fill_tokens(int64_t tokens, const DrawLength& draw) {
  std::vector<int64_t> lengths;
  int64_t left = tokens;
  while (left > 0) {
    if (static_cast<int64_t>(lengths.size()) == kMaxSequences) {
      return make_bad_input(
          fmt::format("the generator makes more documents than the limit: {}", kMaxSequences),
          "ask for fewer tokens or longer documents");
    }
    lengths.push_back(std::min(left, draw(lengths.size())));
    left -= lengths.back();
  }
  return lengths;
}

Result<std::vector<int64_t>> split_equally(const Generator& generator) {
  if (generator.count > generator.tokens) {
    return make_bad_input(fmt::format("generator.count is larger than generator.tokens: {}, {}",
                                      generator.count, generator.tokens),
                          "give every sequence at least one token");
  }
  // The remainder goes to the first sequences, one token each.
  std::vector<int64_t> lengths(static_cast<size_t>(generator.count),
                               generator.tokens / generator.count);
  for (int64_t i = 0; i < generator.tokens % generator.count; ++i)
    ++lengths[static_cast<size_t>(i)];
  return lengths;
}

Result<std::vector<int64_t>> read_lengths(const Generator& generator, const std::string& base_dir) {
  if (generator.file.empty()) {
    return make_bad_input("generator.file is missing for the generator \"csv\"",
                          "name a file of lengths, as seen from the scenario file");
  }
  Result<std::vector<int64_t>> file = load_length_file(join_path(base_dir, generator.file));
  if (!file || generator.tokens == 0) return file;
  const std::vector<int64_t>& listed = file.value();
  // A list of zeros would never reach the requested sum.
  if (std::all_of(listed.begin(), listed.end(), [](int64_t length) { return length == 0; })) {
    return make_bad_input(
        fmt::format("the lengths of the file sum to 0 and cannot fill generator.tokens: "
                    "{}",
                    generator.tokens),
        "leave tokens out, or give lengths above 0");
  }
  return fill_tokens(generator.tokens,
                     [&](uint64_t document) { return listed[document % listed.size()]; });
}

}  // namespace

Result<std::vector<int64_t>> generate_lengths(const Generator& generator,
                                              const std::string& base_dir) {
  const bool is_file = generator.name == "csv";
  const DrawLength draw = choose_draw(generator);
  if (!is_file && !draw) {
    return make_bad_input("unknown generator: " + show_text(generator.name),
                          "choose " + show_choices(kGeneratorNames));
  }
  if (generator.tokens < (is_file ? 0 : 1) || generator.tokens > kMaxTokens) {
    return make_bad_input(fmt::format("generator.tokens must be from {} to {}: {}", is_file ? 0 : 1,
                                      kMaxTokens, generator.tokens),
                          "give the number of tokens in all");
  }
  if (std::optional<Error> error = find_bad_shape(generator)) return *error;
  if (is_file) return read_lengths(generator, base_dir);
  if (generator.name == "equal" && generator.count > 0) return split_equally(generator);
  return fill_tokens(generator.tokens, draw);
}

}  // namespace cpscope
