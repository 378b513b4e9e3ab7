#include "sim/clock/cluster.h"

#include "sim/scenario/scenario_folder.h"
#include "sim/scenario/table_reader.h"
#include "sim/scenario/text_file.h"
#include "sim/scenario/toml_document.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

constexpr int64_t kMaxClusterBytes = 4LL << 20;
constexpr int64_t kMaxStacks = 64;
constexpr int64_t kMaxPoints = 4096;

constexpr std::array<std::string_view, 11> kClusterKeys = {
    "schema", "name",   "title",   "gpus_per_node", "max_nodes", "nics_per_node",
    "device", "inside", "between", "stacks",        "note"};
constexpr std::array<std::string_view, 6> kDeviceKeys = {
    "name", "source", "multiprocessors", "memory_gib", "copy_gb_s", "sustained"};
constexpr std::array<std::string_view, 4> kLinkKeys = {"name", "source", "one_peer", "many_peers"};
constexpr std::array<std::string_view, 20> kStackKeys = {"name",
                                                         "title",
                                                         "source",
                                                         "item_us",
                                                         "message_us",
                                                         "pass_us",
                                                         "kernels",
                                                         "row_launch_us",
                                                         "read_gb_s",
                                                         "merge_passes",
                                                         "packs",
                                                         "overlaps",
                                                         "first_merge_passes",
                                                         "transfer_multiprocessors",
                                                         "calls_by_rank",
                                                         "fuses_rows",
                                                         "cuts_heads",
                                                         "backward_item_us",
                                                         "call_us",
                                                         "backward_call_us"};
constexpr std::array<std::string_view, 6> kKernelKeys = {"head_dim_qk", "head_dim_v", "bits",
                                                         "latent",      "forward",    "backward"};
constexpr std::array<std::string_view, 7> kTileKeys = {
    "tile_rows", "tile_keys", "launch_us", "owned_us", "whole_us", "masked_us", "tail_share"};

double need_number(const TableReader& table, std::string_view key, std::string hint) {
  table.require(key, std::move(hint));
  return table.number(key).value_or(0.0);
}

int32_t need_integer(const TableReader& table, std::string_view key, int64_t max,
                     std::string hint) {
  table.require(key, std::move(hint));
  return static_cast<int32_t>(table.integer(key, 1, max).value_or(1));
}

std::string need_text(const TableReader& table, std::string_view key, std::string hint) {
  table.require(key, std::move(hint));
  return table.text(key).value_or("");
}

std::string need_source(const TableReader& table) {
  return need_text(table, "source", "say where the numbers come from");
}

std::optional<double> number_of(const TomlValue& value) {
  if (value.kind() == TomlKind::floating) return value.floating();
  if (value.kind() == TomlKind::integer) return static_cast<double>(value.integer());
  return std::nullopt;
}

/// [[bytes, us], ...]
LinkCurve read_curve(const TableReader& table, std::string_view key) {
  constexpr const char* kHint = "write [[bytes, microseconds], ...], both ascending, two or more";
  table.require(key, kHint);
  LinkCurve curve;
  const TomlValue value = table.find(key);
  if (value.kind() == TomlKind::none) return curve;
  if (value.kind() != TomlKind::array || value.size() < 2 || value.size() > kMaxPoints) {
    table.complain(key, fmt::format("must be a list of points: {}", show_value_of(value)), kHint);
    return curve;
  }
  for (int64_t i = 0; i < value.size(); ++i) {
    const TomlValue point = value.item(i);
    const std::optional<double> bytes = number_of(point.item(0)), us = number_of(point.item(1));
    const bool is_point = point.kind() == TomlKind::array && point.size() == 2 && bytes && us;
    const bool ascends = is_point && std::isfinite(*bytes) && std::isfinite(*us) && *bytes >= 0 &&
                         *us > 0 &&
                         (curve.points.empty() ||
                          (*bytes > curve.points.back().bytes && *us >= curve.points.back().us));
    if (!ascends) {
      table.complain(key, fmt::format("[{}] is no point that ascends: {}", i, show_value_of(point)),
                     kHint);
      return curve;
    }
    curve.points.push_back({*bytes, *us});
  }
  return curve;
}

Link read_link(TomlValue value, const std::string& name, Complaints& complaints) {
  const std::optional<TableReader> table = open_table(value, name, kLinkKeys, complaints);
  Link link;
  if (!table) return link;
  link.name = need_text(*table, "name", "for example \"NVLink\"");
  link.source = need_source(*table);
  link.one_peer = read_curve(*table, "one_peer");
  link.many_peers = read_curve(*table, "many_peers");
  return link;
}

TileCost read_tiles(TomlValue value, const std::string& name, Complaints& complaints) {
  const std::optional<TableReader> table = open_table(value, name, kTileKeys, complaints);
  TileCost cost;
  if (!table) return cost;
  cost.tile_rows = need_integer(*table, "tile_rows", 65536, "query rows of a tile, often 128");
  cost.tile_keys = need_integer(*table, "tile_keys", 65536, "keys taken at a time, often 128");
  cost.launch_us = need_number(*table, "launch_us", "microseconds of a launch");
  cost.owned_us = need_number(*table, "owned_us", "microseconds of a tile of queries");
  cost.whole_us = need_number(*table, "whole_us", "microseconds of a tile of keys");
  cost.masked_us = need_number(*table, "masked_us", "microseconds of a tile with a mask");
  cost.tail_share = table->number("tail_share").value_or(0.0);
  if (cost.tail_share > 1.0)
    table->complain("tail_share", fmt::format("must be 0 to 1: {}", cost.tail_share), "");
  if (cost.whole_us == 0.0 && table->has("whole_us"))
    table->complain("whole_us", "must be above 0: 0", "a kernel time must be above 0");
  return cost;
}

std::vector<KernelCost> read_kernels(const TableReader& stack, const std::string& name,
                                     Complaints& complaints) {
  std::vector<KernelCost> kernels;
  stack.require("kernels", "write a table [[stacks.kernels]]");
  const TomlValue list = stack.find("kernels");
  if (list.kind() != TomlKind::none && (list.kind() != TomlKind::array || list.size() == 0)) {
    stack.complain("kernels", fmt::format("must be tables: {}", show_value_of(list)),
                   "write a table [[stacks.kernels]]");
  }
  for (int64_t i = 0; i < std::min(list.size(), kMaxStacks); ++i) {
    const std::string here = fmt::format("{}.kernels[{}]", name, i);
    const std::optional<TableReader> table =
        open_table(list.item(i), here, kKernelKeys, complaints);
    if (!table) continue;
    KernelCost kernel;
    kernel.head_dim_qk =
        need_integer(*table, "head_dim_qk", 1024, "the largest head_dim that the kernel supports");
    kernel.head_dim_v =
        need_integer(*table, "head_dim_v", 1024, "the largest head_dim that the kernel supports");
    kernel.bits = static_cast<int32_t>(table->integer("bits", 8, 32).value_or(16));
    if (kernel.bits != 8 && kernel.bits != 16 && kernel.bits != 32)
      table->complain("bits", fmt::format("must be 8, 16 or 32: {}", kernel.bits), "bf16 has 16");
    kernel.is_latent = table->boolean("latent").value_or(false);
    for (const std::string_view pass : {"forward", "backward"})
      table->require(pass, "write its tile costs");
    kernel.forward = read_tiles(table->find("forward"), here + ".forward", complaints);
    kernel.backward = read_tiles(table->find("backward"), here + ".backward", complaints);
    kernels.push_back(kernel);
  }
  std::stable_sort(kernels.begin(), kernels.end(), [](const KernelCost& a, const KernelCost& b) {
    return a.head_dim_qk + a.head_dim_v < b.head_dim_qk + b.head_dim_v;
  });
  return kernels;
}

Stack read_stack(TomlValue value, const std::string& name, int32_t multiprocessors,
                 Complaints& complaints) {
  const std::optional<TableReader> table = open_table(value, name, kStackKeys, complaints);
  Stack stack;
  if (!table) return stack;
  stack.name = need_text(*table, "name", "what --stack calls it");
  stack.title = table->text("title").value_or(stack.name);
  stack.source = need_source(*table);
  stack.kernels = read_kernels(*table, name, complaints);
  stack.item_us = table->number("item_us").value_or(0.0);
  stack.backward_item_us = table->number("backward_item_us").value_or(stack.item_us);
  stack.message_us = table->number("message_us").value_or(0.0);
  stack.pass_us = table->number("pass_us").value_or(0.0);
  stack.row_launch_us = table->number("row_launch_us").value_or(0.0);
  stack.read_gb_s = table->number("read_gb_s").value_or(0.0);
  stack.first_merge_passes = table->number("first_merge_passes").value_or(stack.first_merge_passes);
  stack.merge_passes = table->number("merge_passes").value_or(stack.merge_passes);
  stack.packs = table->boolean("packs").value_or(stack.packs);
  stack.overlaps = table->boolean("overlaps").value_or(stack.overlaps);
  stack.fuses_rows = table->boolean("fuses_rows").value_or(stack.fuses_rows);
  stack.cuts_heads = table->boolean("cuts_heads").value_or(stack.cuts_heads);
  stack.calls_by_rank = table->boolean("calls_by_rank").value_or(stack.calls_by_rank);
  stack.call_us = table->number("call_us").value_or(stack.item_us);
  stack.backward_call_us = table->number("backward_call_us").value_or(stack.backward_item_us);
  // At least one multiprocessor is left for computes.
  const int64_t most = std::max(0, multiprocessors - 1);
  stack.transfer_multiprocessors =
      static_cast<int32_t>(table->integer("transfer_multiprocessors", 0, most).value_or(0));
  return stack;
}

void read_stacks(const TableReader& root, Cluster& cluster, Complaints& complaints) {
  root.require("stacks", "write a table [[stacks]]");
  const TomlValue list = root.find("stacks");
  if (list.kind() == TomlKind::none) return;
  if (list.kind() != TomlKind::array || list.size() == 0 || list.size() > kMaxStacks) {
    root.complain("stacks", fmt::format("must be tables: {}", show_value_of(list)),
                  "write a table [[stacks]]");
    return;
  }
  for (int64_t i = 0; i < list.size(); ++i) {
    Stack stack = read_stack(list.item(i), fmt::format("stacks[{}]", i),
                             cluster.device.multiprocessors, complaints);
    const bool is_taken = std::any_of(cluster.stacks.begin(), cluster.stacks.end(),
                                      [&](const Stack& other) { return other.name == stack.name; });
    if (is_taken && !stack.name.empty()) {
      complaints.add(list.item(i).position(),
                     fmt::format("two stacks have one name: {}", show_text(stack.name)),
                     "give each its own");
    }
    cluster.stacks.push_back(std::move(stack));
  }
}

/// [[microseconds, share], ...]
std::vector<DeviceCost::Speed> read_speeds(const TableReader& table) {
  constexpr const char* kHint =
      "write [[microseconds of computing, share of the speed], ...], ascending";
  const TomlValue value = table.find("sustained");
  std::vector<DeviceCost::Speed> speeds;
  if (value.kind() == TomlKind::none) return speeds;
  if (value.kind() != TomlKind::array || value.size() > kMaxPoints) {
    table.complain("sustained", "must be a list of points: " + show_value_of(value), kHint);
    return speeds;
  }
  for (int64_t i = 0; i < value.size(); ++i) {
    const TomlValue point = value.item(i);
    const bool is_pair = point.kind() == TomlKind::array && point.size() == 2;
    const std::optional<double> us = is_pair ? number_of(point.item(0)) : std::nullopt;
    const std::optional<double> share = is_pair ? number_of(point.item(1)) : std::nullopt;
    const bool is_good = us && share && *us >= 0 && *share > 0 && *share <= 1 &&
                         (speeds.empty() || *us > speeds.back().busy_us);
    if (!is_good) {
      table.complain("sustained", fmt::format("[{}] is no such point: {}", i, show_value_of(point)),
                     kHint);
      return speeds;
    }
    speeds.push_back({*us, *share});
  }
  return speeds;
}

DeviceCost read_device(const TableReader& root, Complaints& complaints) {
  root.require("device", "write a table [device]");
  const std::optional<TableReader> table =
      open_table(root.find("device"), "device", kDeviceKeys, complaints);
  DeviceCost device;
  if (!table) return device;
  device.name = need_text(*table, "name", "for example \"NVIDIA H200\"");
  device.source = need_source(*table);
  device.multiprocessors =
      need_integer(*table, "multiprocessors", 65536, "streaming multiprocessors of one GPU");
  device.memory_gib = need_number(*table, "memory_gib", "GiB of one GPU");
  device.copy_gb_s = need_number(*table, "copy_gb_s", "GB/s read plus written by a device copy");
  if (table->has("copy_gb_s") && device.copy_gb_s == 0.0)
    table->complain("copy_gb_s", "must be above 0: 0", "GB/s read plus written by a device copy");
  device.sustained = read_speeds(*table);
  return device;
}

Cluster read_cluster(TomlValue value, Complaints& complaints) {
  const TableReader root(value, "", kClusterKeys, complaints);
  root.complain_of_unknown();
  root.require("schema", "write schema = 1");
  root.integer("schema", 1, 1);
  Cluster cluster;
  cluster.name = need_text(root, "name", "what --cluster calls it");
  cluster.title = root.text("title").value_or(cluster.name);
  cluster.gpus_per_node = need_integer(root, "gpus_per_node", 65536, "GPUs of one node");
  cluster.max_nodes = static_cast<int32_t>(root.integer("max_nodes", 1, 65536).value_or(1));
  cluster.nics_per_node =
      static_cast<int32_t>(root.integer("nics_per_node", 1, 65536).value_or(cluster.gpus_per_node));
  cluster.device = read_device(root, complaints);
  root.require("inside", "write a table [inside]: the wires of a node");
  cluster.inside = read_link(root.find("inside"), "inside", complaints);
  if (root.has("between")) {
    cluster.between = read_link(root.find("between"), "between", complaints);
  } else if (cluster.max_nodes > 1) {
    root.require("between", "write a table [between]: the wires from node to node");
  }
  read_stacks(root, cluster, complaints);
  return cluster;
}

std::string print_curve(const LinkCurve& curve) {
  std::string text = "[";
  for (const LinkCurve::Point& point : curve.points)
    text += fmt::format("{}[{}, {}]", text.size() > 1 ? ", " : "", point.bytes, point.us);
  return text + "]";
}

std::string print_link(std::string_view table, const Link& link) {
  return fmt::format("\n[{}]\nname       = {}\nsource     = {}\none_peer   = {}\nmany_peers = {}\n",
                     table, print_toml_text(link.name), print_toml_text(link.source),
                     print_curve(link.one_peer), print_curve(link.many_peers));
}

std::string print_tiles(std::string_view pass, const TileCost& cost) {
  return fmt::format(
      "{:<8} = {{ tile_rows = {}, tile_keys = {}, launch_us = {}, owned_us = {}, whole_us = {}, "
      "masked_us = {}, tail_share = {} }}\n",
      pass, cost.tile_rows, cost.tile_keys, cost.launch_us, cost.owned_us, cost.whole_us,
      cost.masked_us, cost.tail_share);
}

std::string print_stack(const Stack& stack) {
  std::string text =
      fmt::format("\n[[stacks]]\nname = {}\ntitle = {}\nsource = {}\n", print_toml_text(stack.name),
                  print_toml_text(stack.title), print_toml_text(stack.source));
  text += fmt::format(
      "item_us = {}\nbackward_item_us = {}\nmessage_us = {}\npass_us = {}\nrow_launch_us = "
      "{}\nread_gb_s = {}\nfirst_merge_passes = {}\n"
      "merge_passes = {}\npacks = {}\noverlaps = {}\ntransfer_multiprocessors = {}\nfuses_rows "
      "= {}\ncuts_heads = {}\ncalls_by_rank = {}\n",
      stack.item_us, stack.backward_item_us, stack.message_us, stack.pass_us, stack.row_launch_us,
      stack.read_gb_s, stack.first_merge_passes, stack.merge_passes, stack.packs, stack.overlaps,
      stack.transfer_multiprocessors, stack.fuses_rows, stack.cuts_heads, stack.calls_by_rank);
  if (stack.calls_by_rank)
    text +=
        fmt::format("call_us = {}\nbackward_call_us = {}\n", stack.call_us, stack.backward_call_us);
  for (const KernelCost& kernel : stack.kernels) text += print_kernel(kernel);
  return text;
}

std::string names_of(const std::vector<Stack>& stacks) {
  std::vector<std::string_view> names;
  for (const Stack& stack : stacks) names.emplace_back(stack.name);
  return show_choices(names);
}

/// "a" or, if `folder` is the shipped one, "a or b": all places where it was sought.
std::string name_searched_folders(const std::string& folder) {
  const std::vector<std::string> folders = list_cluster_folders();
  return folder == shipped_clusters() ? fmt::format("{}", fmt::join(folders, " or ")) : folder;
}

}  // namespace

double DeviceCost::speed_share(double busy_us) const {
  if (sustained.empty()) return 1.0;
  if (busy_us <= sustained.front().busy_us) return sustained.front().share;
  for (size_t i = 1; i < sustained.size(); ++i) {
    const Speed& low = sustained[i - 1];
    const Speed& high = sustained[i];
    if (busy_us > high.busy_us) continue;
    return low.share +
           (high.share - low.share) * (busy_us - low.busy_us) / (high.busy_us - low.busy_us);
  }
  return sustained.back().share;
}

double LinkCurve::time_us(double bytes) const {
  const auto above =
      std::find_if(points.begin(), points.end(), [&](const Point& p) { return p.bytes >= bytes; });
  if (above == points.begin()) return points.front().us;
  const auto upper = above == points.end() ? std::prev(points.end()) : above;
  const Point& low = *std::prev(upper);
  const double slope = (upper->us - low.us) / (upper->bytes - low.bytes);
  return low.us + slope * (bytes - low.bytes);
}

Result<Cluster> parse_cluster(std::string_view text, const std::string& path) {
  const Result<TomlDocument> document = TomlDocument::parse(text, path);
  if (!document) return document.error();
  Complaints complaints(path);
  Cluster cluster = read_cluster(document.value().root(), complaints);
  if (complaints.count() > 0) return complaints.to_error();
  return cluster;
}

std::vector<std::string> list_clusters(const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed)) {
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<Cluster> load_cluster(const std::string& name, const std::string& folder) {
  std::string path = name;
  if (!name.ends_with(".toml")) {
    const std::vector<std::string> known = list_clusters(folder);
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      const std::vector<std::string_view> views(known.begin(), known.end());
      const auto nearest = find_nearest_name(name, views);
      std::string hint = nearest ? fmt::format("did you mean {}? ", *nearest) : "";
      hint += known.empty() ? fmt::format("no cluster file is in {}; name a .toml file",
                                          name_searched_folders(folder))
                            : fmt::format("there are {} (in {}), and any .toml file",
                                          show_choices(views), folder);
      return make_error(ErrorKind::bad_input,
                        fmt::format("no cluster has this name: {}", show_text(name)), hint);
    }
    path = join_path(folder, name + ".toml");
  }
  const Result<std::string> text = read_text_file(path, kMaxClusterBytes);
  if (!text) return text.error();
  return parse_cluster(text.value(), path);
}

Result<const Stack*> find_stack(const Cluster& cluster, std::string_view name) {
  if (name.empty()) return &cluster.stacks.front();
  for (const Stack& stack : cluster.stacks) {
    if (stack.name == name) return &stack;
  }
  return make_error(ErrorKind::bad_input,
                    fmt::format("cluster {} has no such stack: {}", cluster.name, show_text(name)),
                    "it has " + names_of(cluster.stacks));
}

Result<const KernelCost*> find_kernel_cost(const Stack& stack, const Scenario& scenario) {
  const Attention& attention = scenario.attention;
  const Numerics& numerics = scenario.numerics;
  const auto find = [&](int64_t bits, bool is_latent) -> const KernelCost* {
    const auto found =
        std::find_if(stack.kernels.begin(), stack.kernels.end(), [&](const KernelCost& kernel) {
          return kernel.bits == bits && kernel.is_latent == is_latent &&
                 kernel.head_dim_qk >= attention.head_dim_qk &&
                 kernel.head_dim_v >= attention.head_dim_v;
        });
    return found == stack.kernels.end() ? nullptr : &*found;
  };
  const bool is_narrow = numerics.fp8 && numerics.fp8->recipe != Fp8Recipe::mxfp8;
  for (const bool is_latent : {true, false}) {
    if (is_latent && !attention.has_v_in_k()) continue;
    const KernelCost* narrow = is_narrow ? find(8, is_latent) : nullptr;
    if (narrow != nullptr) return narrow;
    const KernelCost* plain = find(8 * element_bytes(numerics.dtype), is_latent);
    if (plain != nullptr) return plain;
  }
  return make_error(
      ErrorKind::unavailable,
      fmt::format("stack {} has no kernel times for {} and head_dims {} and {}", stack.name,
                  to_name(numerics.dtype), attention.head_dim_qk, attention.head_dim_v),
      "choose another stack, or measure one with `cpscope calibrate`");
}

namespace {

/// What a scenario does to logits and weights that no stack has figures of.
std::vector<std::string_view> untimed_parts(const Attention& attention) {
  std::vector<std::string_view> parts;
  if (attention.softcap != 0) parts.emplace_back("softcap");
  if (attention.alibi) parts.emplace_back("ALiBi");
  if (attention.bias != BiasShape::none) parts.emplace_back("bias");
  if (attention.dropout > 0) parts.emplace_back("dropout");
  return parts;
}

}  // namespace

std::string note_on_times(const Stack& stack, const Scenario& scenario) {
  const Result<const KernelCost*> kernel = find_kernel_cost(stack, scenario);
  if (!kernel) return "";
  std::string note;
  if (scenario.numerics.fp8 && kernel.value()->bits != 8) {
    note = fmt::format(
        "bytes are those of dtype fp8; kernels are timed, and buffers counted, as in bf16, because "
        "stack {} has no figures of such 8-bit kernels",
        stack.name);
  }
  const std::vector<std::string_view> parts = untimed_parts(scenario.attention);
  if (parts.empty()) return note;
  return fmt::format("{}{}kernels are timed without {}, of which no stack has figures", note,
                     note.empty() ? "" : "; ", fmt::join(parts, ", "));
}

std::string print_kernel(const KernelCost& kernel) {
  return fmt::format("\n[[stacks.kernels]]\nhead_dim_qk = {}\nhead_dim_v = {}\nbits = {}\n{}",
                     kernel.head_dim_qk, kernel.head_dim_v, kernel.bits,
                     kernel.is_latent ? "latent = true\n" : "") +
         print_tiles("forward", kernel.forward) + print_tiles("backward", kernel.backward);
}

std::string print_cluster(const Cluster& cluster) {
  std::string text = fmt::format(
      "schema        = 1\nname          = {}\ntitle         = {}\ngpus_per_node = {}\n"
      "max_nodes     = {}\nnics_per_node = {}\n",
      print_toml_text(cluster.name), print_toml_text(cluster.title), cluster.gpus_per_node,
      cluster.max_nodes, cluster.nics_per_node);
  const DeviceCost& device = cluster.device;
  text += fmt::format(
      "\n[device]\nname            = {}\nsource          = {}\nmultiprocessors = {}\n"
      "memory_gib      = {}\ncopy_gb_s       = {}\n",
      print_toml_text(device.name), print_toml_text(device.source), device.multiprocessors,
      device.memory_gib, device.copy_gb_s);
  if (!device.sustained.empty()) {
    std::string points;
    for (const DeviceCost::Speed& speed : device.sustained)
      points += fmt::format("{}[{}, {}]", points.empty() ? "" : ", ", speed.busy_us, speed.share);
    text += fmt::format("sustained       = [{}]\n", points);
  }
  text += print_link("inside", cluster.inside);
  if (cluster.between) text += print_link("between", *cluster.between);
  for (const Stack& stack : cluster.stacks) text += print_stack(stack);
  return text;
}

}  // namespace cpscope
