#include "gui/app/export_csv.h"

#include "sim/scenario/scenario_file.h"
#include "tests/gui/model/random_plans.h"
#include "tests/support/walker_cases.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::PlanIndex;
using gui::RunView;
using gui::ViewKind;

/// A parsed table: names of columns and fields of lines.
struct Table {
  std::vector<std::string> names;
  std::vector<std::vector<std::string>> lines;

  const std::string& text(size_t line, const std::string& name) const {
    const auto it = std::find(names.begin(), names.end(), name);
    EXPECT_NE(it, names.end()) << name;
    return lines[line].at(static_cast<size_t>(it - names.begin()));
  }
  int64_t number(size_t line, const std::string& name) const {
    return std::stoll(text(line, name));
  }
};

/// Splits a line at commas; commas inside quotes do not count.
std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> fields(1);
  bool is_quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && is_quoted && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[++i];
    } else if (line[i] == '"') {
      is_quoted = !is_quoted;
    } else if (line[i] == ',' && !is_quoted) {
      fields.emplace_back();
    } else {
      fields.back() += line[i];
    }
  }
  return fields;
}

std::string csv_of(ViewKind kind, const PlanIndex& index, const RunView* a = nullptr,
                   const RunView* b = nullptr) {
  std::ostringstream out;
  write_csv(kind, index, a, b, out);
  return out.str();
}

Table table_of(ViewKind kind, const PlanIndex& index, const RunView* a = nullptr,
               const RunView* b = nullptr) {
  std::istringstream in(csv_of(kind, index, a, b));
  Table table;
  std::string line;
  std::getline(in, line);
  table.names = split(line);
  while (std::getline(in, line)) {
    table.lines.push_back(split(line));
    EXPECT_EQ(table.lines.back().size(), table.names.size()) << line;
  }
  return table;
}

TEST(ExportCsv, LayoutHoldsEveryTokenOnce) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t) {
    const Table table = table_of(ViewKind::layout, index);
    for (const Side side : {Side::q, Side::kv}) {
      std::vector<int> times(static_cast<size_t>(index.tokens(side)), 0);
      std::map<int64_t, int64_t> next_row;
      int64_t valid = 0, padding = 0;
      for (size_t l = 0; l < table.lines.size(); ++l) {
        if (table.text(l, "side") != (side == Side::q ? "query" : "key")) continue;
        int64_t count = 0, own_valid = 0;
        for (int64_t id = table.number(l, "token_begin"); id < table.number(l, "token_end");
             id += table.number(l, "token_stride")) {
          ++times.at(static_cast<size_t>(id));
          EXPECT_EQ(index.owner(side, id).rank, table.number(l, "rank"));
          EXPECT_EQ(index.owner(side, id).row, table.number(l, "row_begin") + count);
          own_valid += index.is_valid(side, id) ? 1 : 0;
          ++count;
        }
        EXPECT_EQ(table.number(l, "tokens"), count);
        EXPECT_EQ(table.number(l, "valid_tokens"), own_valid);
        EXPECT_EQ(table.number(l, "padding_tokens"), count - own_valid);
        EXPECT_EQ(table.number(l, "row_begin"), next_row[table.number(l, "rank")]);
        next_row[table.number(l, "rank")] = table.number(l, "row_end");
        valid += own_valid;
        padding += count - own_valid;
      }
      EXPECT_EQ(std::count(times.begin(), times.end(), 1), index.tokens(side));
      EXPECT_EQ(valid + padding, index.tokens(side));
    }
  });
}

TEST(ExportCsv, MaskAddsUpToAllVisiblePairs) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t) {
    const Table table = table_of(ViewKind::mask, index);
    int64_t forward = 0;
    for (size_t l = 0; l < table.lines.size(); ++l) {
      int64_t pairs = 0;
      for (int64_t q = table.number(l, "query_row_begin"); q < table.number(l, "query_row_end");
           ++q) {
        for (int64_t k = table.number(l, "key_row_begin"); k < table.number(l, "key_row_end"); ++k)
          pairs += k - q >= table.number(l, "lowest_key_minus_query_row") &&
                           k - q <= table.number(l, "highest_key_minus_query_row")
                       ? 1
                       : 0;
      }
      EXPECT_EQ(table.number(l, "visible_pairs_per_head"), pairs);
      const int64_t heads = table.number(l, "head_end") - table.number(l, "head_begin");
      EXPECT_EQ(table.number(l, "visible_pairs"), pairs * heads);
      if (table.text(l, "pass") == "forward") forward += pairs * heads;
      // The tokens of the rows.
      const bool is_backward = table.text(l, "pass") == "backward";
      const Direction direction = is_backward ? Direction::backward : Direction::forward;
      const ComputeItem& item =
          index.pass(direction).computes.at(static_cast<size_t>(table.number(l, "item")));
      const auto ids = expand(index.plan().list(item.kv_tokens));
      const auto [low, high] = std::minmax_element(ids.begin() + table.number(l, "key_row_begin"),
                                                   ids.begin() + table.number(l, "key_row_end"));
      EXPECT_EQ(table.number(l, "first_key_token"), *low);
      EXPECT_EQ(table.number(l, "last_key_token"), *high);
    }
    EXPECT_EQ(forward, index.summary().visible_pairs);
  });
}

TEST(ExportCsv, TrafficAddsUpToWhatRanksSend) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t) {
    const Table table = table_of(ViewKind::traffic, index);
    std::map<std::string, std::vector<int64_t>> sent;
    sent["forward"] = sent["backward"] =
        std::vector<int64_t>(static_cast<size_t>(index.num_ranks()), 0);
    for (size_t l = 0; l < table.lines.size(); ++l)
      sent[table.text(l, "pass")].at(static_cast<size_t>(table.number(l, "source_rank"))) +=
          table.number(l, "wire_bytes");
    EXPECT_EQ(table.lines.size(),
              index.plan().forward.transfers.size() + index.plan().backward.transfers.size());
    EXPECT_EQ(sent["forward"], index.summary().forward_bytes);
    EXPECT_EQ(sent["backward"], index.summary().backward_bytes);
  });
}

/// A run with an event for every second item.
RunView make_clock(const PlanIndex& index, bool is_simulated) {
  RunView run;
  run.name = "B: cuda, \"fast\"";
  run.is_simulated = is_simulated;
  int64_t now = 0;
  for (const gui::StageRef& stage : index.stages()) {
    for (int64_t i = stage.begin; i < stage.end; ++i, now += 10) {
      if (now % 20 == 0)
        run.events.push_back(
            {{stage.direction, stage.kind, i}, RankId{0}, StepId{stage.step}, now, now + 7});
    }
  }
  return run;
}

TEST(ExportCsv, TimelineHasEveryItemOnceWithItsTimes) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t) {
    const RunView a = make_clock(index, true), b = make_clock(index, false);
    const Table table = table_of(ViewKind::timeline, index, &a, &b);
    EXPECT_EQ(static_cast<int64_t>(table.lines.size()),
              index.plan().forward.num_items() + index.plan().backward.num_items());
    int64_t pairs = 0, bytes = 0, expected_bytes = 0;
    for (size_t l = 0; l < table.lines.size(); ++l) {
      const bool has_event = l % 2 == 0;
      const auto start = static_cast<int64_t>(l) * 10;
      EXPECT_EQ(table.text(l, "run_a_predicted_start_ns"), has_event ? std::to_string(start) : "");
      EXPECT_EQ(table.text(l, "run_b_end_ns"), has_event ? std::to_string(start + 7) : "");
      const bool is_forward = table.text(l, "pass") == "forward";
      if (is_forward && table.text(l, "kind") == "compute")
        pairs += table.number(l, "visible_pairs");
      if (table.text(l, "kind") == "transfer") bytes += table.number(l, "wire_bytes");
    }
    for (const auto* sent : {&index.summary().forward_bytes, &index.summary().backward_bytes})
      expected_bytes += std::accumulate(sent->begin(), sent->end(), int64_t{0});
    EXPECT_EQ(pairs, index.summary().visible_pairs);
    EXPECT_EQ(bytes, expected_bytes);
    // Without a clock there are no columns for one.
    EXPECT_EQ(table_of(ViewKind::timeline, index).names.back(), "wire_bytes");
  });
}

TEST(ExportCsv, BalanceAddsUpToTheSummary) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t) {
    const Table table = table_of(ViewKind::balance, index);
    ASSERT_EQ(static_cast<int32_t>(table.lines.size()), index.num_ranks());
    int64_t tokens = 0, sent = 0, received = 0;
    double share = 0;
    for (size_t r = 0; r < table.lines.size(); ++r) {
      EXPECT_EQ(table.number(r, "rank"), static_cast<int64_t>(r));
      EXPECT_EQ(table.number(r, "forward_visible_pairs"), index.summary().pairs_by_rank[r]);
      EXPECT_EQ(table.number(r, "forward_sent_bytes"), index.summary().forward_bytes[r]);
      EXPECT_EQ(table.number(r, "backward_sent_bytes"), index.summary().backward_bytes[r]);
      tokens += table.number(r, "query_tokens");
      share += std::stod(table.text(r, "forward_pairs_over_mean"));
      sent += table.number(r, "forward_sent_bytes") + table.number(r, "backward_sent_bytes");
      received +=
          table.number(r, "forward_received_bytes") + table.number(r, "backward_received_bytes");
    }
    EXPECT_EQ(tokens, index.tokens(Side::q));
    EXPECT_EQ(sent, received);
    if (index.summary().visible_pairs > 0) {
      EXPECT_NEAR(share, index.num_ranks(), 1e-6);
    }
  });
}

TEST(ExportCsv, NumbersHoldTheWorstRowOfEachBlockAndHead) {
  const PlanIndex index(*plan_unless_refused(walker_case({600}, 2)));
  const int64_t tokens = index.tokens(Side::q);
  Tensor expected{"out", {tokens, 4, 1}, Dtype::fp32, std::vector<double>(tokens * 4, 1.0)};
  Tensor seen = expected;
  const auto at = [&](int64_t token, int64_t head) -> double& {
    return seen.values[static_cast<size_t>(token * 4 + head)];
  };
  at(5, 1) = 1.25;
  at(255, 1) = 1.5;
  at(256, 1) = 1.75;
  at(599, 3) = std::numeric_limits<double>::quiet_NaN();
  at(598, 3) = std::numeric_limits<double>::infinity();
  RunView run;
  run.name = "A: cpu, \"odd\"";
  TensorGrade grade;
  grade.row_budgets.assign(static_cast<size_t>(tokens) * 4, 1.0f);
  run.errors.push_back(gui::measure_errors(seen, expected, "out", &grade));
  const Table table = table_of(ViewKind::numbers, index, &run);
  std::map<std::tuple<int64_t, int64_t>, std::vector<std::string>> blocks;
  size_t worst_rows = 0;
  for (size_t l = 0; l < table.lines.size(); ++l) {
    EXPECT_EQ(table.text(l, "run"), run.name);
    EXPECT_EQ(table.text(l, "tensor"), "out");
    if (table.text(l, "table") == "worst_row") {
      ++worst_rows;
      continue;
    }
    blocks[{table.number(l, "token_begin"), table.number(l, "head")}] = {
        table.text(l, "worst_token"), table.text(l, "error_l2"), table.text(l, "is_over_budget")};
  }
  using Fields = std::vector<std::string>;
  EXPECT_EQ(worst_rows, run.errors[0].worst.size());
  EXPECT_EQ(static_cast<int64_t>(blocks.size()), 4 * ((tokens + 255) / 256));
  EXPECT_EQ((blocks[{0, 1}]), (Fields{"255", "0.5", "0"}));
  EXPECT_EQ((blocks[{256, 1}]), (Fields{"256", "0.75", "0"}));
  EXPECT_EQ((blocks[{512, 3}]), (Fields{"599", "nan", "1"}));
  EXPECT_EQ((blocks[{512, 0}]), (Fields{"512", "0", "0"}));
}

TEST(ExportCsv, IsTheSameEachTime) {
  for_plans_of_seeds(10, [](const PlanIndex& index, uint64_t seed) {
    const PlanIndex again(*plan_unless_refused(random_scenario(seed)));
    for (const ViewKind kind : gui::kViewKinds) {
      const std::string text = csv_of(kind, index);
      EXPECT_EQ(text, csv_of(kind, again));
      EXPECT_EQ(text.back(), '\n');
      EXPECT_EQ(text.find('\r'), std::string::npos);
    }
  });
}

TEST(ExportCsv, SavesAFileOrSaysWhyNot) {
  gui::AppState state;
  const std::string path = testing::TempDir() + "cpscope_balance.csv";
  gui::TaskControl control;
  EXPECT_TRUE(save_csv(ViewKind::balance, csv_source(state), path, control).has_value());
  ASSERT_FALSE(state.document.load_text(print_scenario(walker_case({64}, 2)), "").has_value());
  settle(state);
  ASSERT_FALSE(save_csv(ViewKind::balance, csv_source(state), path, control).has_value());
  EXPECT_EQ(control.progress, 1.0);
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  EXPECT_EQ(text.str(), csv_of(ViewKind::balance, *state.plan()));
  std::filesystem::remove(path);
  EXPECT_TRUE(
      save_csv(ViewKind::balance, csv_source(state), "/no/such/folder/x.csv", control).has_value());
}

TEST(ExportCsv, LeavesNoFileWhenItIsStopped) {
  gui::AppState state;
  ASSERT_FALSE(state.document.load_text(print_scenario(walker_case({512}, 8)), "").has_value());
  settle(state);
  const std::string path = testing::TempDir() + "cpscope_stopped.csv";
  for (const ViewKind kind : gui::kViewKinds) {
    gui::TaskControl control;
    control.is_stopped = true;
    std::ostringstream text;
    write_csv(kind, *state.plan(), nullptr, nullptr, text, &control);
    const std::string written = text.str();
    EXPECT_LE(std::count(written.begin(), written.end(), '\n'), 1) << to_name(kind);
    const auto error = save_csv(kind, csv_source(state), path, control);
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->complaints[0].what, "The export was stopped");
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_FALSE(std::filesystem::exists(path + ".unfinished"));
  }
}

TEST(ExportCsv, WritesInTheBackgroundWhatWasShownWhenItBegan) {
  gui::AppState state;
  ASSERT_FALSE(state.document.load_text(print_scenario(walker_case({512}, 8)), "").has_value());
  settle(state);
  const std::string path = testing::TempDir() + "cpscope_background.csv";
  const std::string wanted = csv_of(ViewKind::timeline, *state.plan());
  start_saving_csv(state, ViewKind::timeline, path);
  EXPECT_TRUE(is_working(state));
  // The window shows another plan before the file is finished.
  ASSERT_FALSE(state.document.load_text(print_scenario(walker_case({64}, 2)), "").has_value());
  settle(state);
  for (int i = 0; i < 5000 && is_working(state); ++i) {
    update(state, 0.0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(state.messages.size(), 1U);
  EXPECT_EQ(state.messages[0].text, "Wrote " + path);
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  EXPECT_EQ(text.str(), wanted);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace cpscope::tests
