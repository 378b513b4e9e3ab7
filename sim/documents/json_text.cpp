#include "sim/documents/json_text.h"

#include "sim/plan/layout.h"
#include "sim/plan/scale_reductions.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <cmath>
#include <ostream>
#include <span>
#include <string>

namespace cpscope {
namespace {

Json runs_json(std::span<const TokenRun> runs) {
  Json list = Json::array();
  for (const TokenRun& run : runs) list.push_back({run.begin, run.end, run.stride});
  return list;
}

Json heads_json(HeadRange heads) { return {heads.begin, heads.end}; }

/// The tokens of one side of one rank, written out.
void add_tokens(const Plan& plan, RankId rank, Side side, Json& json) {
  std::vector<int64_t> index = expand(plan.layout.runs(side)[rank]), sequence, position;
  const auto& sequences = plan.layout.slots.sequences;
  for (const int64_t token : index) {
    const auto after = std::upper_bound(
        sequences.begin(), sequences.end(), token,
        [&](int64_t id, const SequenceSlot& slot) { return id < slot.side(side).begin; });
    const int64_t s = (after - sequences.begin()) - 1;
    const SlotSide slot = s < 0 ? SlotSide{} : sequences[s].side(side);
    const bool is_valid = slot.is_valid(token);
    sequence.push_back(is_valid ? s : -1);
    position.push_back(is_valid ? token - slot.valid_begin() : -1);
  }
  const std::string prefix = side == Side::q ? "q" : "kv";
  json[prefix + "_index"] = std::move(index);
  json[prefix + "_sequence"] = std::move(sequence);
  json[prefix + "_position"] = std::move(position);
}

using RunsOfRanks = std::span<const std::vector<TokenRun>>;

/// Gather indices of one group of ranks.
Json reorder_json(const Plan& plan, RunsOfRanks q_runs, RunsOfRanks kv_runs) {
  const ReorderIndex q = reorder_to_sequence(q_runs);
  Json json;
  json["rank_to_sequence"] = expand(q.rank_to_sequence);
  json["sequence_to_rank"] = expand(q.sequence_to_rank);
  if (!plan.layout.same_kv) {
    const ReorderIndex kv = reorder_to_sequence(kv_runs);
    json["kv_rank_to_sequence"] = expand(kv.rank_to_sequence);
    json["kv_sequence_to_rank"] = expand(kv.sequence_to_rank);
  }
  return json;
}

/// The same for ranks that exchange all of their rows.
Json reorder_json(const Plan& plan, int32_t first_rank, int32_t count) {
  const auto runs_of = [&](Side side) {
    return std::span(plan.layout.runs(side).values())
        .subspan(static_cast<size_t>(first_rank), static_cast<size_t>(count));
  };
  return reorder_json(plan, runs_of(Side::q), runs_of(Side::kv));
}

/// The groups of cp_sizes; with `full` and a2a also their gather indices, over rows of the round.
Json rounds_json(const Plan& plan, bool full) {
  const auto q_rows = rows_of_rounds(plan.layout, Side::q),
             kv_rows = rows_of_rounds(plan.layout, Side::kv);
  Json rounds = Json::array();
  for (size_t k = 0; k < plan.layout.rounds.size(); ++k) {
    Json groups = Json::array();
    for (const CpGroup& group : plan.layout.rounds[k].groups) {
      Json json{
          {"first_rank", group.first_rank}, {"size", group.size}, {"sequences", group.sequences}};
      std::vector<std::vector<TokenRun>> q, kv;
      for (int32_t r = 0; r < group.size; ++r) {
        const RankId rank{group.first_rank + r};
        q.push_back(
            slice_rows(plan.layout.q_runs[rank], q_rows[k][rank].begin, q_rows[k][rank].end));
        kv.push_back(
            slice_rows(plan.layout.kv_runs[rank], kv_rows[k][rank].begin, kv_rows[k][rank].end));
      }
      if (full && plan.scenario.parallel.comm_type == CommType::a2a)
        json["a2a"] = reorder_json(plan, q, kv);
      groups.push_back(std::move(json));
    }
    rounds.push_back({{"groups", std::move(groups)}});
  }
  return rounds;
}

Json buffer_json(const Plan& plan, BufferId id) {
  const BufferSpec& spec = plan.buffer(id);
  Json json{{"id", to_index(id)},
            {"rank", to_index(spec.rank)},
            {"kind", to_name(spec.kind)},
            {"role", to_name(spec.role)},
            {"rows", spec.rows}};
  json["heads"] = heads_json(spec.heads);
  return json;
}

Json item_json(const Plan& plan, const ComputeItem& item) {
  Json json{{"step", to_index(item.step)},
            {"rank", to_index(item.rank)},
            {"q", to_index(item.q)},
            {"kv", to_index(item.kv)}};
  json["heads"] = heads_json(item.heads);
  json["visible_pairs"] = item.visible_pairs;
  Json slices = Json::array();
  for (const BandSlice& band : plan.slices_of(item))
    slices.push_back({band.q0, band.q1, band.k0, band.k1, band.lo, band.hi});
  json["slices"] = std::move(slices);
  return json;
}

Json item_json(const Plan& plan, const TransferItem& item) {
  Json json{{"step", to_index(item.step)},
            {"src", to_index(item.src)},
            {"dst", to_index(item.dst)},
            {"payload", to_name(item.payload)},
            {"from", to_index(item.from)},
            {"to", to_index(item.to)},
            {"bytes", item.bytes},
            {"link", to_name(item.link)},
            {"adds", item.landing == Landing::add}};
  json["heads"] = heads_json(item.heads);
  if (item.from_rows != kAllRows) json["from_rows"] = runs_json(plan.list(item.from_rows));
  if (item.to_rows != kAllRows) json["to_rows"] = runs_json(plan.list(item.to_rows));
  return json;
}

Json item_json(const Plan& plan, const ReorderItem& item) {
  Json json{{"step", to_index(item.step)},
            {"rank", to_index(item.rank)},
            {"from", to_index(item.from)},
            {"to", to_index(item.to)}};
  json["order"] = runs_json(plan.list(item.order));
  return json;
}

Json item_json(const Plan&, const MergeItem& item) {
  return {{"step", to_index(item.step)},
          {"rank", to_index(item.rank)},
          {"partial", to_index(item.partial)},
          {"into", to_index(item.into)},
          {"order", item.order}};
}

Json item_json(const Plan&, const FinishItem& item) {
  return {{"step", to_index(item.step)},
          {"rank", to_index(item.rank)},
          {"buffer", to_index(item.buffer)}};
}

Json checks_json(const std::vector<CheckResult>& checks) {
  Json list = Json::array();
  for (const CheckResult& check : checks)
    list.push_back({{"name", check.name}, {"ok", check.ok}, {"detail", check.detail}});
  return list;
}

template <class Items>
void write_items(const Plan& plan, const char* name, const Items& items, std::ostream& out) {
  out << ",\n\"" << name << "\":[";
  bool is_first = true;
  for (const auto& item : items) {
    out << (is_first ? "\n" : ",\n") << item_json(plan, item).dump();
    is_first = false;
  }
  out << "]";
}

void write_pass(const Plan& plan, Direction direction, std::ostream& out) {
  const Pass& pass = plan.pass(direction);
  Json stages = Json::array();
  for (const Stage& stage : pass.stages) {
    stages.push_back({{"step", to_index(stage.step)},
                      {"kind", to_name(stage.kind)},
                      {"begin", stage.begin},
                      {"end", stage.end}});
  }
  out << ",\n\"" << to_name(direction) << "\":{\"steps\":" << pass.num_steps
      << ",\n\"stages\":" << stages.dump();
  write_items(plan, "computes", pass.computes, out);
  write_items(plan, "transfers", pass.transfers, out);
  write_items(plan, "reorders", pass.reorders, out);
  write_items(plan, "merges", pass.merges, out);
  write_items(plan, "finishes", pass.finishes, out);
  out << "}";
}

}  // namespace

std::string print_json(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json finite_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json layout_json(const Plan& plan, bool full) {
  Json json{{"schema", 1},
            {"cp_size", plan.layout.cp_size},
            {"tokens", plan.layout.slots.tokens},
            {"kv_tokens", plan.layout.slots.kv_tokens}};
  json["sequences"] = Json::array();
  for (const SequenceSlot& slot : plan.layout.slots.sequences) {
    json["sequences"].push_back({{"q_begin", slot.q_begin},
                                 {"q_valid", slot.q_valid},
                                 {"q_slot", slot.q_slot},
                                 {"q_valid_begin", slot.q_valid_begin()},
                                 {"kv_begin", slot.kv_begin},
                                 {"kv_valid", slot.kv_valid},
                                 {"kv_slot", slot.kv_slot},
                                 {"kv_valid_begin", slot.kv_valid_begin()}});
  }
  json["ranks"] = Json::array();
  for (const RankId id : plan.layout.q_runs.ids()) {
    Json rank{{"rank", to_index(id)}};
    rank["q_runs"] = runs_json(plan.layout.q_runs[id]);
    rank["kv_runs"] = runs_json(plan.layout.kv_runs[id]);
    if (plan.layout.q_heads.has(id))
      rank["q_heads"] = {plan.layout.q_heads[id].begin, plan.layout.q_heads[id].end};
    if (full) {
      add_tokens(plan, id, Side::q, rank);
      add_tokens(plan, id, Side::kv, rank);
    }
    json["ranks"].push_back(std::move(rank));
  }
  const bool is_in_rounds = has_rounds(plan.scenario.parallel);
  if (is_in_rounds) json["rounds"] = rounds_json(plan, full);
  if (!full) return json;
  if (plan.scenario.parallel.comm_type == CommType::a2a && !is_in_rounds)
    json["a2a"] = reorder_json(plan, 0, plan.layout.cp_size);
  if (has_head_groups(plan.scenario.parallel.comm_type)) {
    Json groups = Json::array();
    const int32_t size = plan.scenario.parallel.a2a_size;
    for (int32_t p = 0; p * size < plan.layout.cp_size; ++p) {
      groups.push_back(reorder_json(plan, p * size, size));
    }
    json["a2a"] = {{"groups", groups}};
    json["groups"] = std::move(groups);
  }
  return json;
}

Json summary_json(const CheckedPlan& checked, const PlanSummary& summary) {
  Json json{{"schema", 1},
            {"plan_hash", to_hex(checked.plan().hash)},
            {"steps", summary.steps},
            {"visible_pairs", summary.visible_pairs}};
  json["pairs_by_rank"] = summary.pairs_by_rank;
  json["pairs_by_step_rank"] = summary.pairs_by_step_rank;
  json["imbalance"] = {{"rank_max_over_mean", summary.rank_max_over_mean},
                       {"critical_path_over_ideal", summary.critical_path_over_ideal}};
  json["bytes_sent_by_rank"] = {{"forward", summary.forward_bytes},
                                {"backward", summary.backward_bytes}};
  json["bytes_small_by_rank"] = {{"forward", summary.forward_small_bytes},
                                 {"backward", summary.backward_small_bytes}};
  Json scales = Json::array();
  for (const ScaleReduction& one : scale_reductions(checked.plan().scenario)) {
    const int32_t last = std::max(0, checked.plan().pass(one.direction).num_steps - 1);
    scales.push_back({{"pass", to_name(one.direction)},
                      {"tensors", one.tensors},
                      {"step", one.is_for_next ? last : 0},
                      {"at", one.is_for_next ? "end" : "begin"},
                      {"bytes_by_rank", one.bytes}});
  }
  if (!scales.empty()) json["scale_reductions"] = std::move(scales);
  json["kv_bytes"] = {{"necessary", summary.kv_bytes_necessary}, {"moved", summary.kv_bytes_moved}};
  json["checks"] = checks_json(checked.checks());
  return json;
}

Json check_json(const Plan& plan, const std::vector<CheckResult>& checks) {
  const auto broken = std::find_if(checks.begin(), checks.end(),
                                   [](const CheckResult& check) { return !check.ok; });
  Json json{{"schema", 1},
            {"passed", broken == checks.end()},
            {"plan_hash", to_hex(plan.hash)},
            {"items", plan.forward.num_items() + plan.backward.num_items()}};
  json["checks"] = checks_json(checks);
  if (broken == checks.end()) return json;
  json["broken"] = {{"check", broken->name}, {"detail", broken->detail}};
  if (broken->item) {
    visit_item(plan, *broken->item, [&](const auto& item) {
      json["broken"]["pass"] = to_name(broken->item->direction);
      json["broken"]["step"] = to_index(item.step);
      json["broken"]["rank"] = to_index(rank_of(item));
      json["broken"]["kind"] = to_name(broken->item->kind);
      json["broken"]["item"] = broken->item->index;
    });
  }
  return json;
}

Json grade_json(const Grade& grade, const std::string& executor, uint64_t plan_hash) {
  Json json{
      {"schema", 1},          {"passed", grade.passed}, {"verdict", to_name(grade.judgement())},
      {"blind", grade.blind}, {"executor", executor},   {"plan_hash", to_hex(plan_hash)}};
  json["tensors"] = Json::array();
  for (const TensorGrade& tensor : grade.tensors) {
    Json entry{{"name", tensor.name},     {"passed", tensor.passed},
               {"judged", tensor.judged}, {"allows_zeros", tensor.allows_zeros},
               {"rows", tensor.rows},     {"judged_rows", tensor.judged_rows}};
    if (!tensor.why_not.empty()) entry["why_not"] = tensor.why_not;
    if (tensor.has_failed()) entry["failure"] = describe_failure(tensor);
    if (tensor.is_widened) entry["widened"] = true;
    entry["max_abs"] = finite_or_null(tensor.max_abs);
    entry["rel_l2"] = finite_or_null(tensor.rel_l2);
    entry["worst_row_rel_l2"] = finite_or_null(tensor.worst_row_rel_l2);
    entry["budget"] = finite_or_null(tensor.budget);
    if (tensor.parted) {
      entry["format_rel_l2"] = finite_or_null(tensor.parted->format);
      if (tensor.parted->knows_scales)
        entry["implementation_rel_l2"] = finite_or_null(tensor.parted->implementation);
    }
    entry["nan"] = tensor.nan;
    entry["infinite"] = tensor.infinite;
    entry["not_empty"] = tensor.not_empty;
    for (int kind = 0; kind < kGroupKinds; ++kind) {
      if (tensor.groups[kind].empty()) continue;
      const std::string name(to_name(static_cast<GroupKind>(kind)));
      Json& groups = entry["by_" + name] = Json::array();
      for (const GroupGrade& group : tensor.groups[kind])
        groups.push_back({{name, group.index},
                          {"rel_l2", finite_or_null(group.rel_l2)},
                          {"budget", finite_or_null(group.budget)},
                          {"excess_of_rows", finite_or_null(group.excess_of_rows)},
                          {"ok", group.passed}});
    }
    if (tensor.share)
      entry["share"] = {{"query_rank", tensor.share->query_rank},
                        {"key_rank", tensor.share->key_rank},
                        {"times", 1 + tensor.share->times}};
    entry["worst"] = {{"rank", tensor.worst.rank},
                      {"token", tensor.worst.token},
                      {"head", tensor.worst.head},
                      {"expected", finite_or_null(tensor.worst.expected)},
                      {"seen", finite_or_null(tensor.worst.seen)}};
    json["tensors"].push_back(std::move(entry));
  }
  json["causes"] = Json::array();
  for (const Cause& cause : grade.causes) {
    Json entry{{"cause", cause.name},
               {"tensors", cause.tensors},
               {"rows", cause.rows},
               {"explained", cause.explained},
               {"text", cause.text}};
    if (!cause.layout.empty()) entry["layout"] = cause.layout;
    json["causes"].push_back(std::move(entry));
  }
  json["common"] = grade.common;
  return json;
}

void write_plan_json(const CheckedPlan& checked, const PlanSummary& summary, std::ostream& out) {
  const Plan& plan = checked.plan();
  std::string head = summary_json(checked, summary).dump();
  head.pop_back();  // the closing brace: more keys follow
  out << head << ",\n\"buffers\":[";
  for (const BufferId id : plan.buffers.ids())
    out << (id == BufferId{0} ? "\n" : ",\n") << buffer_json(plan, id).dump();
  out << "]";
  write_pass(plan, Direction::forward, out);
  if (plan.scenario.numerics.backward) write_pass(plan, Direction::backward, out);
  out << "}\n";
}

}  // namespace cpscope
