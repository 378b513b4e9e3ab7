#include "sim/app/cli/commands.h"
#include "sim/app/cli/import_attention_mask.h"
#include "sim/app/cli/import_mask.h"
#include "sim/base/whole_file.h"
#include "sim/documents/verdict_text.h"
#include "sim/plan/order/order_import.h"
#include "sim/run/record/foreign_record.h"
#include "sim/run/record/integer_file.h"

#include <iostream>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

struct ImportArguments {
  std::vector<std::string> paths;
  std::string from, layout, order_path;
  int64_t cp_size = 0, tokens = 0, ulysses_degree = 1;
  std::vector<int64_t> cu_seqlens;
  std::string mask_path;            // a mask file, in place of a framework
  std::string attention_mask_path;  // a mask of tokens, in place of a framework
  bool json = false;
};

/// What all files hold. Lists without a name, one a file, are those of the ranks in turn; with
/// `is_by_rank` those with a name too.
Result<std::vector<NamedLists>> read_lists(const std::vector<std::string>& paths, bool is_by_rank) {
  std::vector<NamedLists> all;
  for (const std::string& path : paths) {
    Result<std::vector<NamedLists>> lists = read_integer_file(path);
    if (!lists) return lists.error();
    for (NamedLists& entry : lists.value()) {
      const auto same = std::find_if(all.begin(), all.end(), [&](const NamedLists& other) {
        return other.name == entry.name;
      });
      if (same == all.end()) {
        all.push_back(std::move(entry));
      } else if (entry.name.empty() || is_by_rank) {
        same->lists.insert(same->lists.end(), entry.lists.begin(), entry.lists.end());
      } else {
        return make_error(ErrorKind::bad_input, "two files hold the same name: " + entry.name, "",
                          path);
      }
    }
  }
  return all;
}

/// A number that a file may hold next to its lists, or every file of a rank.
void take_number(std::vector<NamedLists>& lists, const char* name, int64_t& value) {
  for (const NamedLists& entry : lists) {
    const bool is_number =
        !entry.lists.empty() && entry.lists[0].size() == 1 &&
        std::all_of(entry.lists.begin(), entry.lists.end(),
                    [&](const auto& list) { return list == entry.lists.front(); });
    if (entry.name == name && is_number && value == 0) value = entry.lists[0][0];
  }
}

void write_lengths(const char* key, const std::vector<int64_t>& values, std::ostream& out) {
  constexpr size_t kShown = 64;
  if (values.empty()) return;
  if (values.size() > kShown) {
    out << fmt::format("  # {}: {} sequences, see --json\n", key, values.size());
    return;
  }
  out << fmt::format("  {} = [{}]\n", key, fmt::join(values, ", "));
}

/// The layout that has the same keys on each rank of a decoder, in rows by request.
void write_stripes(const OrderImport& order, std::ostream& out) {
  constexpr size_t kShown = 64;
  if (order.interleaves.empty() || !order.differences.empty() || order.lengths.size() > kShown)
    return;
  const int64_t stripe = order.interleaves.front().first, round = stripe * order.cp_size;
  std::vector<int64_t> slots = order.kv_lengths.empty() ? order.lengths : order.kv_lengths;
  for (int64_t& slot : slots) slot = (slot + round - 1) / round * round;
  out << fmt::format(
      "  # the same keys on each rank, in rows by request: layout = \"striped\", stripe = {}, "
      "kv_slots = [{}]\n",
      stripe, fmt::join(slots, ", "));
}

void write_import_text(const OrderImport& order, const ImportArguments& options,
                       std::ostream& out) {
  out << fmt::format("{}: {} ranks, {} tokens, each has one owner\n", options.from, order.cp_size,
                     order.tokens());
  for (const std::string& note : order.notes) out << "checked: " << note << '\n';
  for (const std::string& difference : order.differences) out << "differs: " << difference << '\n';
  if (!order.ignored.empty()) out << fmt::format("ignored: {}\n", fmt::join(order.ignored, ", "));
  out << "for a scenario:\n";
  if (options.from == "vllm" && !order.kv_lengths.empty())
    out << "  [attention]\n  attn_mask_type = \"causal_bottom_right\"  # the last query of a "
           "request "
           "is at its last key\n";
  out << "  [batch]\n";
  write_lengths("lengths", order.lengths, out);
  if (order.slots != order.lengths) write_lengths("slots", order.slots, out);
  write_lengths("kv_lengths", order.kv_lengths, out);
  if (order.kv_slots != order.kv_lengths) write_lengths("kv_slots", order.kv_slots, out);
  out << fmt::format("  [parallel]\n  cp_size = {}\n", order.cp_size);
  if (options.from == "vllm") {
    out << "  cp_comm_type = \"gather_q\"\n  q_owner = \"heads\"  # every rank has all queries, by "
           "heads; kv_ranks of the order, or ranks without it, are the keys\n";
    write_stripes(order, out);
  }
  if (!order.same_layout.empty()) {
    out << fmt::format("  layout = \"{}\"  # owns the same tokens\n", order.same_layout);
  } else {
    out << fmt::format("  layout = \"indices\"\n  indices_file = \"{}\"\n",
                       options.order_path.empty() ? "order.json" : options.order_path);
  }
  if (options.from == "vllm") out << "  [numerics]\n  backward = false\n";
  if (options.order_path.empty()) out << "no file was written: --out names one\n";
}

int command_import(const ImportArguments& options, const Tools&) {
  if (!options.mask_path.empty()) return import_mask(options.mask_path, options.json);
  if (!options.attention_mask_path.empty())
    return import_attention_mask(options.attention_mask_path, options.json);
  if (options.from.empty())
    return report(
        make_bad_input("nothing to import: --from, --mask and --attention-mask are missing",
                       "--from te reads a token order, --mask mask.npy a mask, --attention-mask "
                       "mask.npy padding"));
  const bool is_by_rank = options.from == "vllm";
  if (is_by_rank) {
    std::vector<NamedRecord> files;
    for (const std::string& path : options.paths) files.push_back({.path = path, .record = {}});
    if (const auto error = sort_by_rank(files)) return report(*error);
  }
  Result<std::vector<NamedLists>> lists = read_lists(options.paths, is_by_rank);
  if (!lists) return report(lists.error());
  ImportRequest request{.source = *find_order_source(options.from),
                        .layout = options.layout,
                        .cp_size = options.cp_size,
                        .ulysses_degree = options.ulysses_degree,
                        .tokens = options.tokens,
                        .cu_seqlens = options.cu_seqlens};
  take_number(lists.value(), "cp_size", request.cp_size);
  take_number(lists.value(), "local_cp_size", request.cp_size);  // of PackedSeqParams
  request.given = std::move(lists).value();
  const Result<OrderImport> order = import_order(request);
  if (!order) {
    Error error = order.error();
    for (Complaint& complaint : error.complaints) {
      if (complaint.where.empty() && !options.paths.empty())
        complaint.where = options.paths.front();
    }
    return report(error);
  }
  if (!options.order_path.empty()) {
    if (const auto written =
            write_whole_file(options.order_path, print_order_file(order.value()), "the order file");
        !written)
      return report(written.error());
  }
  if (options.json) {
    std::cout << print_json(order_json(order.value(), request.source)) << '\n';
  } else {
    write_import_text(order.value(), options, std::cout);
  }
  // What the framework's own formula says otherwise is a finding.
  return order.value().differences.empty() ? 0 : 1;
}

}  // namespace

Command add_import(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<ImportArguments>();
  CLI::App* import = app.add_subcommand(
      "import",
      "makes an order file (layout = \"indices\") of how a framework splits its tokens, "
      "or the lines of a scenario with a mask or the padding of a file");
  import->add_option(
      "FILE", options->paths,
      "lists of whole numbers: JSON, .safetensors, .pt, .npz or .npy, several for one list a "
      "rank. te: cu_seqlens, cu_seqlens_padded, indices (a list a rank); megatron: "
      "vars(packed_seq_params); torch: rearrange or restore; magi: position_ids (a list a rank); "
      "vllm: query_start_loc, slot_mapping (a list a rank, -1 for tokens of other ranks), "
      "block_table and block_size, seq_lens, num_computed_tokens or positions, "
      "dcp_local_seq_lens, cp_kv_cache_interleave_size, as far as they are there: one file, or one "
      "a rank; "
      "all others: position_ids of the whole batch in place of cu_seqlens");
  import
      ->add_option("--from", options->from,
                   "te (TransformerEngine), megatron, torch, ring-flash-attention, usp, magi "
                   "(MagiAttention) or vllm (its caches under decode context parallelism)")
      ->check(CLI::IsMember(
          {"te", "megatron", "torch", "ring-flash-attention", "usp", "magi", "vllm"}));
  import->add_option(
      "--layout", options->layout,
      "ring-flash-attention: ring, zigzag, stripe (each sequence by itself) or llama3 "
      "(the packed buffer); usp: basic, zigzag or strip");
  import->add_option("--cp-size", options->cp_size, "ranks, where the lists do not say")
      ->check(whole_number(1, kMaxRanks));
  import
      ->add_option("--ulysses-degree", options->ulysses_degree,
                   "usp: ranks that share the heads (rank = ring index * degree + its index)")
      ->check(whole_number(1, kMaxRanks));
  import->add_option("--tokens", options->tokens, "tokens of a single sequence")
      ->check(whole_number(1, int64_t{1} << 25));
  import->add_option("--cu-seqlens", options->cu_seqlens, "padded boundaries, e.g. 0,8,12")
      ->delimiter(',')
      ->check(whole_number());
  import->add_option("--out", options->order_path, "write the order file here")->check(kNotEmpty);
  import
      ->add_option("--mask", options->mask_path,
                   "a mask: .npy of bool [queries, keys], or JSON with keys (a list a query, "
                   "top-k) or a BlockMask's kv_num_blocks, kv_indices, block_size")
      ->check(kNotEmpty)
      ->excludes("FILE")
      ->excludes("--from")
      ->excludes("--out");
  import
      ->add_option("--attention-mask", options->attention_mask_path,
                   "which tokens of a padded batch are no padding: [batch, seqlen] of 0 and 1, as "
                   "Hugging Face's attention_mask, in the same types of files")
      ->check(kNotEmpty)
      ->excludes("FILE")
      ->excludes("--from")
      ->excludes("--mask")
      ->excludes("--out");
  add_json(import, options->json);
  import->footer(
      "Example: cpscope import --from usp --layout zigzag --cp-size 8 --ulysses-degree 2 --tokens "
      "4096 --out order.json\n"
      "         cpscope import --mask mask.npy");
  return {import, [options, tools] { return command_import(*options, tools); }};
}

}  // namespace cpscope
