#include "gui/app/document/document.h"
#include "gui/panel/panels.h"
#include "sim/scenario/scenario_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <imgui_stdlib.h>

namespace cpscope::gui {
namespace {

constexpr float kLabelWidth = 112;

/// What a choice means; empty for names that say it themselves.
std::string_view explain_choice(LayoutKind kind) {
  switch (kind) {
    case LayoutKind::contiguous:
      return "Rank r owns the r-th part of the packed buffer";
    case LayoutKind::dual_chunk:
      return "Zigzag in each sequence: rank r owns chunks r and 2P-1-r of 2P (TransformerEngine)";
    case LayoutKind::dual_chunk_packed:
      return "Zigzag over the packed buffer: rank r owns chunks r and 2P-1-r of 2P (PyTorch)";
    case LayoutKind::striped:
      return "Tokens are assigned to ranks round-robin";
    case LayoutKind::lpt:
      return "Chunks of equal size, the largest attention area first, to the least loaded rank";
    case LayoutKind::lpt_local:
      return "Like lpt, but chunks stay where their keys are, if that costs little balance";
    case LayoutKind::indices:
      return "An order from a file, or of chunks that were dragged to other ranks";
  }
  return "";
}
std::string_view explain_choice(CommType type) {
  switch (type) {
    case CommType::p2p:
      return "A ring: keys and values go from rank to rank, one hop a step";
    case CommType::a2a:
      return "All-to-all: each rank gets all tokens of some heads (Ulysses)";
    case CommType::all_gather:
      return "Every rank gathers all keys and values first";
    case CommType::group_cast:
      return "Every rank is sent only the keys and values that its queries see";
    case CommType::pass_q:
      return "A ring of queries; partial results go home";
    default:
      return "";
  }
}
template <class E>
std::string_view explain_choice(E) {
  return "";
}

/// Gives a layout of dispatched chunks enough of them for balance: with the usual 512 tokens a
/// small batch would be padded to one chunk a rank.
void fit_dispatch_chunk(Scenario& scenario) {
  constexpr int64_t kLeastChunks = 4;  // of each rank
  Parallel& parallel = scenario.parallel;
  if (parallel.layout != LayoutKind::lpt && parallel.layout != LayoutKind::lpt_local) return;
  int64_t tokens = 0;
  for (const int64_t slot : scenario.batch.slots) tokens += slot;
  const int64_t most = std::max<int64_t>(1, tokens / (kLeastChunks * parallel.cp_size));
  while (parallel.dispatch_chunk > most)
    parallel.dispatch_chunk = std::max<int64_t>(1, parallel.dispatch_chunk / 2);
}

/// A rule that chooses the ranks of each sequence needs the tokens that a rank may hold: at first a
/// quarter of the longest sequence. Groups of one size have at first half of the ranks, or all.
void fit_groups(Scenario& scenario) {
  Parallel& parallel = scenario.parallel;
  const std::vector<int64_t>& lengths = scenario.batch.lengths;
  if (parallel.group_rule == GroupRule::fixed) {
    if (parallel.cp_sizes.size() != 1)
      parallel.cp_sizes = {parallel.cp_size % 2 == 0 ? parallel.cp_size / 2 : parallel.cp_size};
    return;
  }
  if (!has_rounds(parallel) || parallel.max_tokens_per_rank > 0 || lengths.empty()) return;
  const int64_t parts = std::min(4, parallel.cp_size);
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  parallel.max_tokens_per_rank = std::max<int64_t>(1, (longest + parts - 1) / parts);
}

/// The fields of one frame: each change passes a changed copy of the scenario to the document at
/// once.
class Editor {
 public:
  Editor(Ui& ui, TypedText& typed)
      : ui_(ui), typed_(typed), scenario_(ui.state.document.scenario()) {}

  Scenario& scenario() { return scenario_; }

  void heading(const char* title) {
    ImGui::Spacing();
    const WithFont font(ui_, Face::strong, kSmallSize);
    show_text(ui_, title, Role::faint_text);
  }

  template <class E, size_t N>
  void choice(const char* label, const char* key, E& value, const std::array<E, N>& all,
              const char* tip) {
    begin(label, tip);
    if (ImGui::BeginCombo(id(key).c_str(), std::string(to_name(value)).c_str())) {
      for (const E one : all) {
        if (menu_item(std::string(to_name(one)), {}, one == value) && one != value) {
          value = one;
          changed(key, true);
        }
        name_item(ui_, "edit/" + std::string(key) + "/" + std::string(to_name(one)));
        show_tip(ui_, explain_choice(one));
      }
      ImGui::EndCombo();
    }
    finish(key);
  }

  /// dtype, of which fp8 is a choice that leaves inputs and answers in bf16.
  void dtype(const char* tip) {
    constexpr const char* kKey = "numerics.dtype";
    Numerics& numerics = scenario_.numerics;
    begin("dtype", tip);
    const std::string now(dtype_name(numerics));
    if (ImGui::BeginCombo(id(kKey).c_str(), now.c_str())) {
      const auto offer = [&](const std::string& name, Dtype of_answers, bool is_fp8) {
        if (menu_item(name, {}, name == now) && name != now) {
          numerics.dtype = of_answers;
          numerics.fp8 = is_fp8 ? std::optional(Fp8{}) : std::nullopt;
          changed(kKey, true);
        }
        name_item(ui_, "edit/" + std::string(kKey) + "/" + name);
      };
      for (const Dtype one : kDtypes) offer(std::string(to_name(one)), one, false);
      offer("fp8", Dtype::bf16, true);
      ImGui::EndCombo();
    }
    finish(kKey);
  }

  template <class Int>
  void number(const char* label, const char* key, Int& value, Int step, const char* tip) {
    begin(label, tip);
    constexpr ImGuiDataType type = sizeof(Int) == 8 ? ImGuiDataType_S64 : ImGuiDataType_S32;
    if (ImGui::InputScalar(id(key).c_str(), type, &value, &step)) changed(key, false);
    end_edit();
    finish(key);
  }

  void decimal(const char* label, const char* key, double& value, const char* tip) {
    begin(label, tip);
    if (ImGui::InputDouble(id(key).c_str(), &value, 0, 0, "%g")) changed(key, false);
    end_edit();
    finish(key);
  }

  void flag(const char* label, const char* key, bool& value, const char* tip) {
    begin(label, tip);
    if (ImGui::Checkbox(id(key).c_str(), &value)) changed(key, true);
    finish(key);
  }

  /// Buttons that halve and double the value, because numbers of ranks are usually powers of two.
  void powers(const char* key, int32_t& value) {
    const std::string name = "edit/" + std::string(key);
    ImGui::SetCursorPosX(ui_.px(10 + kLabelWidth));
    if (named_button(ui_, name + "/half", "/ 2", value > 1)) {
      value = std::max(1, value / 2);
      changed(key, true);
    }
    ImGui::SameLine();
    if (named_button(ui_, name + "/double", "x 2", value <= kMaxRanks / 2)) {
      value *= 2;
      changed(key, true);
    }
  }

  /// A list such as "698, 1024": taken over as soon as the text is a valid list of numbers.
  void list(const char* label, const char* key, std::vector<int64_t>& values, const char* tip) {
    begin(label, tip);
    const bool is_typed = typed_.field == key;
    std::string text = is_typed ? typed_.text : print_list(values);
    if (ImGui::InputText(id(key).c_str(), &text)) {
      typed_ = {key, text, ""};
      std::vector<int64_t> read;
      if (read_list(text, read)) {
        values = std::move(read);
        changed(key, false);
      } else {
        typed_.complaint = "Write numbers divided by commas, such as 512, 300, 96";
      }
    }
    if (is_typed && ImGui::IsItemDeactivated()) typed_ = {};
    end_edit();
    finish(key);
    if (typed_.field == key && !typed_.complaint.empty())
      show_wrapped(ui_, typed_.complaint, Role::error);
  }

 private:
  static std::string id(const char* key) { return "##" + std::string(key); }

  static constexpr size_t kMostPrinted = 64;

  static std::string print_list(std::span<const int64_t> values) {
    std::string text;
    for (size_t i = 0; i < values.size() && i < kMostPrinted; ++i)
      text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
    return text;
  }

  static bool read_list(std::string_view text, std::vector<int64_t>& values) {
    while (!text.empty()) {
      const size_t comma = std::min(text.find(','), text.size());
      std::string_view word = text.substr(0, comma);
      while (word.starts_with(' ')) word.remove_prefix(1);
      while (word.ends_with(' ')) word.remove_suffix(1);
      int64_t value = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
      if (error != std::errc() || end != word.data() + word.size()) return false;
      values.push_back(value);
      text.remove_prefix(std::min(text.size(), comma + 1));
    }
    return !values.empty();
  }

  void begin(const char* label, const char* tip) {
    ImGui::AlignTextToFramePadding();
    show_text(ui_, label, Role::faint_text);
    show_tip(ui_, tip);
    tip_ = tip;
    ImGui::SameLine(ui_.px(10 + kLabelWidth));
    ImGui::SetNextItemWidth(-FLT_MIN);
  }

  void changed(const char* key, bool is_whole) {
    if (std::string_view(key) == "parallel.layout") fit_dispatch_chunk(scenario_);
    if (std::string_view(key) == "parallel.cp_sizes") fit_groups(scenario_);
    edit_scenario(ui_.state, scenario_, key);
    if (is_whole) ui_.state.document.end_edit();
  }

  void end_edit() {
    if (ImGui::IsItemDeactivatedAfterEdit()) ui_.state.document.end_edit();
  }

  /// Shows the field's name, and the planner's complaint about its value next to it.
  void finish(const char* key) {
    name_item(ui_, "edit/" + std::string(key));
    show_tip(ui_, tip_);
    const Complaint* complaint = find_complaint(ui_.state.document.refusal(), key);
    if (complaint == nullptr) return;
    const ImVec2 lo = ImGui::GetItemRectMin(), hi = ImGui::GetItemRectMax();
    ImGui::GetWindowDrawList()->AddRect(lo, hi, color_of(ui_, Role::error), 0, 0, ui_.px(2));
    show_wrapped(ui_, "! " + complaint->what, Role::error);
    if (!complaint->hint.empty()) show_wrapped(ui_, complaint->hint, Role::faint_text);
  }

  Ui& ui_;
  TypedText& typed_;
  Scenario scenario_;
  std::string_view tip_;  // of the field that is being built
};

/// How many ranks share each sequence: all, or as a rule chooses them.
void edit_rounds(Editor& editor, Parallel& parallel) {
  // Sizes that a file lists are of its sequences, and stay as they are.
  if (parallel.group_rule == GroupRule::given) return;
  constexpr std::array kRules = {GroupRule::all_ranks, GroupRule::fixed, GroupRule::hybrid,
                                 GroupRule::flexsp, GroupRule::bytescale};
  editor.choice("ranks of each", "parallel.cp_sizes", parallel.group_rule, kRules,
                "How many ranks share each sequence: all of them, or groups that work in rounds");
  if (parallel.group_rule == GroupRule::all_ranks) return;
  if (parallel.group_rule == GroupRule::fixed)
    editor.number<int64_t>("ranks a group", "parallel.cp_sizes/ranks", parallel.cp_sizes.front(), 1,
                           "Ranks of every group; they divide all ranks");
  editor.number<int64_t>("tokens a rank", "parallel.max_tokens_per_rank",
                         parallel.max_tokens_per_rank, 256, "Tokens that a rank may hold");
}

void edit_parallel(Ui& ui, Editor& editor) {
  Parallel& parallel = editor.scenario().parallel;
  editor.heading("PARALLEL");
  editor.number("ranks", "parallel.cp_size", parallel.cp_size, 1, "GPUs that share one attention");
  editor.powers("parallel.cp_size", parallel.cp_size);
  editor.choice("communication", "parallel.cp_comm_type", parallel.comm_type, kCommTypes,
                "How keys and values, or heads, are sent");
  editor.choice("layout", "parallel.layout", parallel.layout, kLayoutKinds,
                "Which rank owns which tokens");
  if (has_head_groups(parallel.comm_type))
    editor.number("a2a ranks", "parallel.a2a_size", parallel.a2a_size, 1,
                  "Ranks that exchange heads; the others form rings");
  if (parallel.comm_type == CommType::mesh)
    editor.number("query chunks", "parallel.mesh_q", parallel.mesh_q, 1,
                  "Query chunks of a tile; it has ranks / query chunks key chunks");
  if (has_windows(parallel.comm_type))
    editor.number("window", "parallel.ring_window", parallel.ring_window, 1,
                  "Consecutive ranks, or groups of a2a ranks, of one window, which is a host");
  if (has_ring_backward(parallel.comm_type))
    editor.choice("backward ring", "parallel.ring_backward", parallel.ring_backward, kRingBackwards,
                  "What travels in the backward: keys and values, or queries");
  if (may_replicate_keys(parallel.comm_type))
    editor.number<int64_t>("shared keys", "parallel.kv_replicated", parallel.kv_replicated, 16,
                           "The first keys of each sequence that every rank holds");
  if (parallel.comm_type == CommType::gather_q) {
    editor.choice("combine", "parallel.combine", parallel.combine, kCombines,
                  "Results are merged by the owners of the queries, or scaled first and added, or "
                  "merged by halves of heads");
    editor.choice("owner", "parallel.q_owner", parallel.q_owner, kQOwners,
                  "A rank owns rows of queries, or heads of all rows, which it may have all of");
  }
  if (has_head_stages(parallel.comm_type))
    editor.number("heads a stage", "parallel.heads_per_stage", parallel.heads_per_stage, 1,
                  parallel.comm_type == CommType::a2a
                      ? "Query heads that a rank exchanges and computes at a time, 0: all"
                      : "KV heads that are gathered at a time, 0: all");
  if (sends_partials(parallel.comm_type))
    editor.choice("partial wire", "parallel.partial_wire", parallel.partial_wire, kWireFormats,
                  "The format in which partial results are sent to the owners of the queries");
  if (parallel.layout == LayoutKind::striped)
    editor.number<int64_t>("stripe", "parallel.stripe", parallel.stripe, 1,
                           "Consecutive tokens of one stripe");
  if (parallel.layout == LayoutKind::lpt || parallel.layout == LayoutKind::lpt_local)
    editor.number<int64_t>("chunk", "parallel.dispatch_chunk", parallel.dispatch_chunk, 64,
                           "Tokens that are dispatched together");
  if (may_work_in_rounds(parallel.comm_type) && may_work_in_rounds(parallel.layout))
    edit_rounds(editor, parallel);
  if (parallel.comm_type == CommType::group_cast)
    editor.choice("dispatch", "parallel.dispatch", parallel.dispatch, kDispatches,
                  "What the dispatch assigns to ranks to balance work");
  (void)ui;
}

void edit_mask(Editor& editor) {
  Attention& attention = editor.scenario().attention;
  editor.heading("MASK");
  editor.choice("mask", "attention.attn_mask_type", attention.mask_type, kMaskTypes,
                "Which keys a query may see");
  // Both fields belong to one key: the two halves of a window are one list in the file.
  editor.number<int64_t>("window left", "attention.window_size", attention.window_left, 16,
                         "Keys to the left of the diagonal that are seen, -1: all");
  ImGui::PushID("right");
  editor.number<int64_t>("window right", "attention.window_size", attention.window_right, 16,
                         "Keys to the right of the diagonal that are seen, -1: all");
  ImGui::PopID();
  editor.number<int64_t>("chunk", "attention.chunk_size", attention.chunk_size, 64,
                         "Chunked attention: keys of the same chunk only; 0: off");
}

void edit_batch(Editor& editor) {
  Batch& batch = editor.scenario().batch;
  editor.heading("BATCH");
  editor.choice("format", "batch.qkv_format", batch.qkv_format, kQkvFormats,
                "thd: packed sequences; bshd, sbhd: equal ones");
  editor.list("lengths", "batch.lengths", batch.lengths, "Valid tokens of every sequence");
  if (!batch.self_attention)
    editor.list("key lengths", "batch.kv_lengths", batch.kv_lengths,
                "Valid keys of every sequence");
  editor.list("slots", "batch.slots", batch.slots,
              "Places of every sequence, padding included; the layout rounds them up");
  editor.choice("pad side", "batch.pad_side", batch.pad_side, kPadSides,
                "right: padding of a slot behind its valid tokens; left: before them");
  editor.flag("pad between", "batch.pad_between_seqs", batch.pad_between_seqs,
              "May the layout add padding between sequences?");
}

void edit_heads(Editor& editor) {
  Attention& attention = editor.scenario().attention;
  editor.heading("HEADS");
  editor.number("query heads", "attention.heads", attention.heads, 1, "Heads of Q");
  editor.number("KV heads", "attention.kv_heads", attention.kv_heads, 1,
                "Heads of K and V; several query heads may share one");
  editor.number("head dim", "attention.head_dim", attention.head_dim_qk, 8, "head_dim of Q and K");
  editor.number("value dim", "attention.head_dim_v", attention.head_dim_v, 8,
                "head_dim of V and O");
  editor.number("latent dim", "attention.latent_dim", attention.latent_dim, 8,
                "V is this many elements at the front of K; 0: V is a tensor of its own");
  editor.number(
      "latent nope dim", "attention.latent_nope_dim", attention.latent_nope_dim, 8,
      "Rows are expanded where they are used: so many elements of K are made of the latent "
      "ones, and V too; 0: V is a part of K");
  editor.choice("softmax", "attention.softmax_type", attention.softmax_type, kSoftmaxTypes,
                "vanilla, or with a sink that takes a share of every row");
  editor.decimal("softcap", "attention.softcap", attention.softcap, "0: off");
  editor.decimal("rope theta", "attention.rope_theta", attention.rope_theta,
                 "Rotary positions; 0: off");
  editor.flag("ALiBi", "attention.alibi", attention.alibi,
              "Logits fall with the distance of query and key, by a slope of each head");
  editor.choice("bias", "attention.bias", attention.bias, kBiasShapes,
                "Added to logits: one for each sequence (b) and head (h), or for all (1)");
  editor.decimal("dropout", "attention.dropout", attention.dropout,
                 "Share of weights that are dropped; 0: off");
}

void edit_numerics(Editor& editor) {
  Numerics& numerics = editor.scenario().numerics;
  editor.heading("NUMERICS");
  editor.dtype("Of inputs and answers; fp8: these are bf16, attention is computed in 8 bits");
  if (numerics.fp8) {
    editor.choice("recipe", "fp8.recipe", numerics.fp8->recipe, kFp8Recipes,
                  "When the scales of 8-bit values are found, and for how many values");
    editor.choice("format", "fp8.format", numerics.fp8->format, kFp8Formats,
                  "hybrid: E4M3 forward, E5M2 gradients");
  }
  editor.flag("backward", "numerics.backward", numerics.backward, "Also dQ, dK and dV");
  editor.choice("dKV wire", "numerics.dkv_wire", numerics.dkv_wire, kWireFormats,
                "dtype of dK and dV on the wire");
  editor.choice("dKV hops", "numerics.dkv_hops", numerics.dkv_hops, kDkvHops,
                "Straight home, or round the ring");
  editor.choice("inputs", "numerics.inputs", numerics.inputs, kInputKinds,
                "peaked: few keys hold a row's weight");
}

/// Shows why there is no plan. The fields at fault also show their complaint, but they may be
/// scrolled out of sight.
void show_refusal(Ui& ui) {
  const auto& refusal = ui.state.document.refusal();
  if (!refusal) return;
  show_wrapped(
      ui,
      ui.state.plan() == nullptr
          ? "! This scenario has no plan."
          : "! This scenario has no plan; the greyed pictures are of the last one that had.",
      Role::error);
  for (const Complaint& complaint : refusal->complaints) {
    show_wrapped(ui, complaint.what, Role::error);
    if (!complaint.hint.empty()) show_wrapped(ui, complaint.hint, Role::faint_text);
  }
}

}  // namespace

void build_editor(Ui& ui, const Box& box, TypedText& typed) {
  if (begin_panel(ui, "editor", box, true)) {
    panel_heading(ui, "Scenario", "every change replans and proves");
    Document& document = ui.state.document;
    if (!document.is_open()) {
      show_wrapped(ui, "No scenario is open. Open one with Ctrl+O, or drop a .toml file here.",
                   Role::faint_text);
      command_button(ui, "file.open");
      ImGui::SameLine();
      command_button(ui, "lesson.list");
    } else {
      command_button(ui, "edit.undo");
      ImGui::SameLine();
      command_button(ui, "edit.redo");
      ImGui::SameLine();
      command_button(ui, "file.save", "Save");
      if (!ui.state.services.clusters.empty()) {
        ImGui::SameLine();
        command_button(ui, "view.ways", "Ways", ui.state.shows_ways);
      }
      if (document.is_planning()) {
        ImGui::ProgressBar(static_cast<float>(document.progress()), {-FLT_MIN, ui.px(16)},
                           "planning and proving");
      }
      show_refusal(ui);
      Editor editor(ui, typed);
      edit_parallel(ui, editor);
      edit_mask(editor);
      edit_batch(editor);
      edit_heads(editor);
      edit_numerics(editor);
    }
  }
  end_panel();
}

}  // namespace cpscope::gui
