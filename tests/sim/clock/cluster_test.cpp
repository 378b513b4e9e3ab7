#include "sim/clock/cluster.h"

#include "sim/scenario/scenario_file.h"
#include "tests/sim/clock/replaced_text.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

const std::string kSmall = R"(schema = 1
name = "bench"
gpus_per_node = 4
[device]
name = "GPU"
source = "made up"
multiprocessors = 10
memory_gib = 1
copy_gb_s = 1000
[inside]
name = "wire"
source = "made up"
one_peer = [[0, 10], [1e6, 110]]
many_peers = [[0, 20], [1e6, 220]]
[[stacks]]
name = "plain"
source = "made up"
[[stacks.kernels]]
head_dim_qk = 128
head_dim_v = 128
forward = { tile_rows = 128, tile_keys = 128, launch_us = 5, owned_us = 1, whole_us = 2, masked_us = 3 }
backward = { tile_rows = 128, tile_keys = 128, launch_us = 5, owned_us = 1, whole_us = 2, masked_us = 3 }
)";

TEST(Cluster, NotesWhatItsKernelsWereTimedWithout) {
  const Cluster cluster = parse_cluster(kSmall, "small.toml").value();
  const auto note_with = [&](const std::string& attention, const std::string& dtype = "bf16") {
    const std::string text =
        "schema = 1\ntitle = \"t\"\nquestion = \"q?\"\n[attention]\nheads = 4\nhead_dim = 64\n" +
        attention + "[batch]\nlengths = [160]\n[parallel]\ncp_size = 1\n[numerics]\ndtype = \"" +
        dtype + "\"\n";
    return note_on_times(cluster.stacks.front(),
                         parse_scenario(text, "noted.toml").value().scenario);
  };
  EXPECT_EQ(note_with(""), "");
  for (const auto& [key, name] :
       {std::pair{"softcap = 2.0\n", "softcap"}, std::pair{"alibi = true\n", "ALiBi"},
        std::pair{"bias = \"1hss\"\n", "bias"}, std::pair{"dropout = 0.1\n", "dropout"}}) {
    EXPECT_EQ(note_with(key),
              std::string("kernels are timed without ") + name + ", of which no stack has figures");
  }
  EXPECT_NE(note_with("alibi = true\ndropout = 0.1\n", "fp8")
                .find("8-bit kernels; kernels are timed without ALiBi, dropout"),
            std::string::npos);
}

TEST(Cluster, IsReadBackAsItWasPrinted) {
  for (const std::string& name : list_clusters(CPSCOPE_CLUSTERS)) {
    const Result<Cluster> first = load_cluster(name, CPSCOPE_CLUSTERS);
    ASSERT_TRUE(first.ok()) << to_text(first.error());
    const std::string text = print_cluster(first.value());
    const Result<Cluster> second = parse_cluster(text, "printed.toml");
    ASSERT_TRUE(second.ok()) << to_text(second.error()) << text;
    EXPECT_EQ(print_cluster(second.value()), text) << name;
  }
}

TEST(Cluster, ShipsTheMachinesThatPeopleHave) {
  const std::vector<std::string> names = list_clusters(CPSCOPE_CLUSTERS);
  for (const char* wanted : {"b200_ib", "b200x8", "h100_ib", "h100x8", "h200_ib", "h200x8"})
    EXPECT_NE(std::find(names.begin(), names.end(), wanted), names.end()) << wanted;
  for (const std::string& name : names) {
    const Result<Cluster> cluster = load_cluster(name, CPSCOPE_CLUSTERS);
    ASSERT_TRUE(cluster.ok()) << to_text(cluster.error());
    EXPECT_EQ(cluster.value().name, name) << "a file is called what its cluster is called";
    EXPECT_EQ(cluster.value().max_nodes, name.ends_with("_ib") ? 512 : 1) << name;
  }
}

TEST(Cluster, SaysWhatIsWrongAndWhere) {
  struct Case {
    std::string from, to, where, what;
  };
  const std::vector<Case> cases = {
      {"source = \"made up\"\nmulti", "multi", "f.toml:4:1", "device.source"},
      {"whole_us = 2", "whole_us = 0", "f.toml:21:", "must be above 0"},
      {"[1e6, 110]", "[0, 110]", "f.toml:13:12", "[1] is no point that ascends"},
      {"[[0, 10], [1e6, 110]]", "[[0, 10]]", "f.toml:13:12", "must be a list of points"},
      {"copy_gb_s = 1000", "copy_gb_s = -1", "f.toml:9:13", "copy_gb_s"},
      {"copy_gb_s = 1000", "copy_gbs = 1000", "f.toml:9:1", "unknown key"},
      {"gpus_per_node = 4", "max_nodes = 2\ngpus_per_node = 4", "f.toml:1:1", "between"},
      {"name = \"plain\"", "name = \"plain\"\ntransfer_multiprocessors = 10",
       "f.toml:17:", "transfer_multiprocessors"},
      {"head_dim_v = 128", "head_dim_v = 128\nbits = 24", "f.toml:21:8", "must be 8, 16 or 32"},
      {"schema = 1", "schema = 2", "f.toml:1:10", "schema"},
  };
  for (const Case& wrong : cases) {
    const Result<Cluster> cluster =
        parse_cluster(replace_part(kSmall, wrong.from, wrong.to), "f.toml");
    ASSERT_FALSE(cluster.ok()) << wrong.to;
    EXPECT_EQ(cluster.error().kind, ErrorKind::bad_input);
    EXPECT_NE(to_text(cluster.error()).find(wrong.what), std::string::npos)
        << to_text(cluster.error());
    EXPECT_NE(to_text(cluster.error()).find(wrong.where), std::string::npos)
        << to_text(cluster.error());
  }
}

TEST(Cluster, SaysInWhichFoldersItWasSought) {
  const Result<Cluster> nowhere = load_cluster("h200x8", "/no/such/folder");
  ASSERT_FALSE(nowhere.ok());
  EXPECT_EQ(to_text(nowhere.error()),
            "no cluster has this name: \"h200x8\"; no cluster file is in /no/such/folder; name a "
            ".toml file");
  const Result<Cluster> wrong = load_cluster("nonsense", CPSCOPE_CLUSTERS);
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(to_text(wrong.error()).find("(in " CPSCOPE_CLUSTERS "), and any .toml file"),
            std::string::npos)
      << to_text(wrong.error());
}

TEST(Cluster, HintsAtTheNearestNameWhenThereIsNone) {
  const Result<Cluster> cluster = load_cluster("h200x88", CPSCOPE_CLUSTERS);
  ASSERT_FALSE(cluster.ok());
  EXPECT_EQ(cluster.error().kind, ErrorKind::bad_input);
  EXPECT_NE(to_text(cluster.error()).find("did you mean h200x8"), std::string::npos)
      << to_text(cluster.error());
  const Result<Cluster> parsed = parse_cluster(kSmall, "f.toml");
  ASSERT_TRUE(parsed.ok()) << to_text(parsed.error());
  EXPECT_FALSE(find_stack(parsed.value(), "fancy").ok());
  EXPECT_EQ(find_stack(parsed.value(), "").value()->name, "plain");
}

TEST(LinkCurve, IsStraightBetweenPointsAndGoesOnAbove) {
  const LinkCurve curve{{{100, 10}, {200, 30}, {400, 40}}};
  EXPECT_DOUBLE_EQ(curve.time_us(0), 10);
  EXPECT_DOUBLE_EQ(curve.time_us(150), 20);
  EXPECT_DOUBLE_EQ(curve.time_us(300), 35);
  EXPECT_DOUBLE_EQ(curve.time_us(800), 60);
}

}  // namespace
}  // namespace cpscope
