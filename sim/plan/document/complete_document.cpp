#include "sim/base/check.h"
#include "sim/plan/document/document_parts.h"
#include "sim/plan/planner/plan_builder.h"
#include "sim/plan/planner/planner.h"
#include "sim/plan/visit_items.h"

#include <map>
#include <utility>

namespace cpscope {
namespace {

/// More pairs of pieces than this are not intersected, which would take minutes: the author must
/// list the slices.
constexpr int64_t kMaxMeetings = int64_t{1} << 33;
/// More ids than this are not written out as an imported order.
constexpr int64_t kMaxOrderIds = int64_t{1} << 28;

/// Fills in what a document leaves out. Every step uses ids that an earlier one has looked at.
class Completer {
 public:
  Completer(RawDocument& raw, const std::string& path) : raw_(raw), plan_(raw.plan), path_(path) {}

  std::optional<Error> run() {
    for (const auto step :
         {&Completer::look_at_rules, &Completer::complete_layout, &Completer::complete_positions,
          &Completer::complete_lists, &Completer::complete_buffers, &Completer::complete_homes,
          &Completer::complete_order, &Completer::complete_passes, &Completer::complete_slices}) {
      if (auto error = (this->*step)()) return error;
    }
    plan_.hash = hash_plan(plan_);
    return refuse_large_proof(plan_);
  }

 private:
  Error complain(const std::string& place, const std::string& what, std::string hint = "") const {
    return make_bad_input(place + ": " + what, std::move(hint), path_);
  }

  std::optional<Error> look_at_rules() {
    if (auto error = refuse_by_rule(plan_.scenario)) return *error;
    return std::nullopt;
  }

  /// Only the layout of layout indices is the author's; any other follows from the scenario.
  std::optional<Error> complete_layout() {
    const int32_t ranks = plan_.scenario.parallel.cp_size;
    if (plan_.scenario.parallel.layout != LayoutKind::indices) {
      Result<Layout> made = make_layout(plan_.scenario);
      if (!made) return made.error();
      Layout& own = made.value();
      const Layout& given = plan_.layout;
      const bool is_own =
          !raw_.has_layout ||
          (given.cp_size == own.cp_size && given.q_runs == own.q_runs &&
           given.kv_runs == own.kv_runs && given.slots.sequences == own.slots.sequences &&
           given.slots.tokens == own.slots.tokens && given.slots.kv_tokens == own.slots.kv_tokens);
      if (!is_own)
        return complain("/layout",
                        fmt::format("it is not the layout {} of the scenario", to_name(own.kind)),
                        "leave it out, or call it indices in the scenario");
      plan_.layout = std::move(own);
      return std::nullopt;
    }
    if (!raw_.has_layout)
      return complain("/layout", "a document with layout indices must hold the layout");
    Layout& layout = plan_.layout;
    layout.kind = plan_.scenario.parallel.layout;
    if (layout.cp_size != ranks || std::ssize(layout.q_runs.values()) != ranks)
      return complain("/layout", fmt::format("it is of {} ranks and lists {}, cp_size is {}",
                                             layout.cp_size, layout.q_runs.size(), ranks));
    if (owns_heads(plan_.scenario.parallel)) {
      const auto given = layout.q_runs;
      assign_heads(plan_.scenario, layout);
      for (const RankId rank : given.ids()) {
        if (!same_ids(given[rank], layout.q_runs[rank]))
          return complain("/layout",
                          fmt::format("rank {} lacks queries: with q_owner = \"{}\" "
                                      "every rank lists all, in packed order",
                                      to_index(rank), to_name(plan_.scenario.parallel.q_owner)));
      }
      return std::nullopt;
    }
    layout.same_kv = true;
    for (const RankId rank : layout.q_runs.ids())
      layout.same_kv = layout.same_kv && same_ids(layout.q_runs[rank], layout.kv_runs[rank]);
    return std::nullopt;
  }

  std::optional<Error> complete_positions() {
    Batch& batch = plan_.scenario.batch;
    const auto count = [](const std::vector<int64_t>& lengths) {
      int64_t sum = 0;
      for (const int64_t length : lengths) sum += length;
      return sum;
    };
    if (batch.positions_file.empty()) {
      if (raw_.q_positions.empty() && raw_.kv_positions.empty()) return std::nullopt;
      return complain("/positions", "the scenario names no positions_file");
    }
    for (const auto& [list, lengths] : {std::pair{&raw_.q_positions, &batch.lengths},
                                        std::pair{&raw_.kv_positions, &batch.kv_lengths}}) {
      if (std::ssize(*list) != count(*lengths))
        return complain("/positions", fmt::format("there are {} positions for {} tokens",
                                                  list->size(), count(*lengths)));
    }
    batch.q_positions = std::move(raw_.q_positions);
    batch.kv_positions = std::move(raw_.kv_positions);
    return std::nullopt;
  }

  std::optional<Error> complete_lists() {
    for (const RunListId id : plan_.run_lists.ids()) {
      RunList& list = plan_.run_lists[id];
      for (const TokenRun& run : plan_.list(id)) list.rows += run.count();
      if (list.rows > kMaxTokens)
        return complain(fmt::format("/lists/{}", to_index(id)),
                        fmt::format("it has more than {} ids: {}", kMaxTokens, list.rows));
    }
    return std::nullopt;
  }

  std::optional<Error> complete_buffers() {
    for (const BufferId id : plan_.buffers.ids()) {
      BufferSpec& buffer = plan_.buffers[id];
      const std::string place = fmt::format("/buffers/{}", to_index(id));
      if (buffer.tokens != kNoTokens && !plan_.run_lists.has(buffer.tokens))
        return complain(place + "/tokens", missing("list", to_index(buffer.tokens), lists()));
      if (to_index(buffer.rank) >= plan_.layout.cp_size)
        return complain(place + "/rank",
                        missing("rank", to_index(buffer.rank), plan_.layout.cp_size));
      if (buffer.rows == kLeftOut && buffer.tokens == kNoTokens)
        return complain(place, "a buffer without tokens must name its rows");
      if (buffer.rows == kLeftOut) buffer.rows = plan_.rows(buffer.tokens);
      if (buffer.heads == kNoHeads)
        buffer.heads = usual_heads(plan_.scenario.attention, buffer.kind);
    }
    return std::nullopt;
  }

  /// The buffers of role home are the ranks' own: one of each kind, and a second one of K and V
  /// that every rank holds.
  std::optional<Error> complete_homes() {
    plan_.home.resize(static_cast<size_t>(plan_.layout.cp_size), {kNoBuffer, kNoBuffer, kNoBuffer});
    for (const BufferId id : plan_.buffers.ids()) {
      const BufferSpec& buffer = plan_.buffer(id);
      if (buffer.role != BufferRole::home) continue;
      HomeBuffers& home = plan_.home[buffer.rank];
      BufferId* const named[] = {&home.q,  &home.kv,  &home.out,  &home.d_out,
                                 &home.dq, &home.dkv, &home.stats};
      BufferId& own = *named[static_cast<size_t>(buffer.kind)];
      const bool is_replica = own != kNoBuffer && buffer.kind == BufferKind::kv &&
                              plan_.scenario.parallel.kv_replicated > 0 &&
                              home.replica == kNoBuffer;
      if (is_replica) {
        home.replica = id;
        continue;
      }
      if (own != kNoBuffer)
        return complain(fmt::format("/buffers/{}", to_index(id)),
                        fmt::format("rank {} has two home buffers of kind {}",
                                    to_index(buffer.rank), to_name(buffer.kind)));
      own = id;
    }
    const bool has_backward = plan_.scenario.numerics.backward;
    for (const RankId rank : plan_.home.ids()) {
      const HomeBuffers& home = plan_.home[rank];
      const std::pair<BufferId, BufferKind> needed[] = {
          {home.q, BufferKind::q},         {home.kv, BufferKind::kv}, {home.out, BufferKind::out},
          {home.d_out, BufferKind::d_out}, {home.dq, BufferKind::dq}, {home.dkv, BufferKind::dkv}};
      for (const auto& [id, kind] : std::span(needed).first(has_backward ? 6 : 3)) {
        if (id == kNoBuffer || plan_.buffer(id).tokens == kNoTokens)
          return complain("/buffers", fmt::format("rank {} has no home buffer of kind {} with its "
                                                  "tokens",
                                                  to_index(rank), to_name(kind)));
      }
      plan_.q_lists.push_back(plan_.buffer(home.q).tokens);
      plan_.kv_lists.push_back(plan_.buffer(home.kv).tokens);
    }
    return std::nullopt;
  }

  /// A scenario with an imported order holds it too.
  std::optional<Error> complete_order() {
    if (plan_.scenario.parallel.layout != LayoutKind::indices) return std::nullopt;
    int64_t ids = 0;
    for (const Side side : {Side::q, Side::kv})
      for (const auto& runs : plan_.layout.runs(side)) ids += count_ids(runs);
    if (ids > kMaxOrderIds)
      return complain("/layout", fmt::format("an order of {} ids is too long", ids));
    ImportedOrder& order = plan_.scenario.parallel.imported;
    for (const auto& runs : partition_of(plan_.layout, Side::q))
      order.ranks.push_back(expand(runs));
    for (const auto& runs : plan_.layout.kv_runs) order.kv_ranks.push_back(expand(runs));
    return std::nullopt;
  }

  std::optional<Error> complete_passes() {
    for (const Direction direction : kDirections) {
      if (auto error = complete_pass(direction)) return error;
    }
    return std::nullopt;
  }

  std::optional<Error> complete_pass(Direction direction) {
    Pass& pass = plan_.pass(direction);
    for (const Stage& stage : pass.stages) {
      const int64_t end = std::min(stage.end, count_items(pass, stage.kind));
      for (int64_t i = stage.begin; i < end; ++i) {
        visit_item(pass, stage.kind, i, [&](auto& item) {
          if (item.step == kNoStep) item.step = stage.step;
        });
      }
    }
    const auto complete_all = [&](auto& items, const char* name) -> std::optional<Error> {
      for (size_t i = 0; i < items.size(); ++i) {
        if (auto fault = complete(items[i], direction))
          return complain(fmt::format("/{}/{}/{}{}", to_name(direction), name, i, fault->first),
                          fault->second);
      }
      return std::nullopt;
    };
    if (auto error = complete_all(pass.transfers, "transfers")) return error;
    if (auto error = complete_all(pass.computes, "computes")) return error;
    if (auto error = complete_all(pass.merges, "merges")) return error;
    if (auto error = complete_all(pass.reorders, "reorders")) return error;
    return complete_all(pass.finishes, "finishes");
  }

  /// Place inside an item, and what is wrong there.
  using Fault = std::optional<std::pair<std::string, std::string>>;

  static std::string missing(std::string_view what, int64_t id, int64_t count) {
    return fmt::format("there is no {} {}: {} are there, from 0 on", what, id, count);
  }
  int64_t lists() const { return static_cast<int64_t>(plan_.run_lists.size()); }

  Fault look_for(std::string_view key, BufferId id) const {
    if (plan_.buffers.has(id)) return std::nullopt;
    return std::pair{"/" + std::string(key),
                     missing("buffer", to_index(id), static_cast<int64_t>(plan_.buffers.size()))};
  }
  Fault look_for(std::string_view key, RunListId id) const {
    if (plan_.run_lists.has(id)) return std::nullopt;
    return std::pair{"/" + std::string(key), missing("list", to_index(id), lists())};
  }
  Fault look_for(std::string_view key, RankId id) const {
    if (to_index(id) < plan_.layout.cp_size) return std::nullopt;
    return std::pair{"/" + std::string(key), missing("rank", to_index(id), plan_.layout.cp_size)};
  }
  template <class Id>
  Fault look_for(std::string_view key, Id id, Id none) const {
    return id == none ? std::nullopt : look_for(key, id);
  }

  Fault complete(TransferItem& item, Direction) const {
    if (auto fault = look_for("src", item.src)) return fault;
    if (auto fault = look_for("dst", item.dst)) return fault;
    if (auto fault = look_for("from", item.from)) return fault;
    if (auto fault = look_for("to", item.to)) return fault;
    if (auto fault = look_for("from_rows", item.from_rows, kAllRows)) return fault;
    if (auto fault = look_for("to_rows", item.to_rows, kAllRows)) return fault;
    if (auto fault = look_for("tokens", item.tokens, kNoTokens)) return fault;
    if (item.heads == kNoHeads) item.heads = usual_heads(plan_, item);
    if (item.heads.size() <= 0)
      return std::pair{std::string(), std::string("its two buffers have no head in common")};
    if (item.bytes == kLeftOut) item.bytes = wire_bytes(plan_, item);
    return std::nullopt;
  }

  Fault complete(ComputeItem& item, Direction direction) const {
    if (auto fault = look_for("rank", item.rank)) return fault;
    if (auto fault = look_for("q", item.q)) return fault;
    if (auto fault = look_for("kv", item.kv)) return fault;
    if (auto fault = look_for("out", item.out)) return fault;
    if (direction == Direction::backward) {
      if (auto fault = look_for("d_out", item.d_out)) return fault;
      if (auto fault = look_for("dq", item.dq)) return fault;
      if (auto fault = look_for("dkv", item.dkv)) return fault;
    } else if (item.d_out != kNoBuffer || item.dq != kNoBuffer || item.dkv != kNoBuffer) {
      return std::pair{std::string(), std::string("d_out, dq and dkv belong to the backward")};
    }
    if (item.q_tokens == kNoTokens) item.q_tokens = plan_.buffer(item.q).tokens;
    if (item.kv_tokens == kNoTokens) item.kv_tokens = plan_.buffer(item.kv).tokens;
    for (const auto& [key, list] :
         {std::pair{"q_tokens", item.q_tokens}, std::pair{"kv_tokens", item.kv_tokens}}) {
      if (list == kNoTokens)
        return std::pair{std::string(), fmt::format("its buffer names no tokens, so {} must", key)};
      if (auto fault = look_for(key, list)) return fault;
    }
    if (item.heads == kNoHeads) item.heads = plan_.buffer(item.q).heads;
    return std::nullopt;
  }

  Fault complete(MergeItem& item, Direction) const {
    if (auto fault = look_for("rank", item.rank)) return fault;
    if (auto fault = look_for("into", item.into)) return fault;
    if (auto fault = look_for("partial", item.partial, kNoBuffer)) return fault;
    return look_for("into_rows", item.into_rows, kAllRows);
  }

  Fault complete(ReorderItem& item, Direction) const {
    if (auto fault = look_for("rank", item.rank)) return fault;
    if (auto fault = look_for("from", item.from)) return fault;
    if (auto fault = look_for("to", item.to)) return fault;
    return look_for("order", item.order);
  }

  Fault complete(FinishItem& item, Direction) const {
    if (auto fault = look_for("rank", item.rank)) return fault;
    return look_for("buffer", item.buffer);
  }

  std::optional<Error> complete_slices() {
    const auto pool = static_cast<int64_t>(plan_.slices.size());
    plan_.slices.insert(plan_.slices.end(), raw_.own_slices.begin(), raw_.own_slices.end());
    const auto all = static_cast<int64_t>(plan_.slices.size());
    std::vector<ComputeItem*> without;
    for (const Direction direction : kDirections) {
      std::vector<ComputeItem>& items = plan_.pass(direction).computes;
      for (size_t i = 0; i < items.size(); ++i) {
        ComputeItem& item = items[i];
        if (item.num_slices == kLeftOut) {
          without.push_back(&item);
          continue;
        }
        if (item.first_slice < 0) item.first_slice = pool - 2 - item.first_slice;
        if (item.first_slice + item.num_slices > all)
          return complain(fmt::format("/{}/computes/{}/slice_range", to_name(direction), i),
                          fmt::format("it ends at slice {}, there are {}",
                                      item.first_slice + item.num_slices, pool));
        if (item.visible_pairs != kLeftOut) continue;
        // What bands that share cells hold may be too much for a number; the check says so.
        uint64_t pairs = 0;
        for (const BandSlice& band : plan_.slices_of(item))
          pairs += static_cast<uint64_t>(count_pairs(band));
        item.visible_pairs = static_cast<int64_t>(pairs * static_cast<uint64_t>(item.heads.size()));
      }
    }
    return without.empty() ? std::nullopt : intersect_lists(without);
  }

  /// All visible pairs of the queries and the keys of these items, each pair of lists once.
  std::optional<Error> intersect_lists(const std::vector<ComputeItem*>& items) {
    const Attention& attention = plan_.scenario.attention;
    const auto& sequences = plan_.layout.slots.sequences;
    if (const int64_t bands = count_mask_bands(attention, sequences); bands > kMaxPlanSlices)
      return too_many_mask_bands(attention, bands);
    PlanBuilder builder(plan_.scenario, plan_.layout);
    std::vector<PieceTable> tables[2];
    std::map<RunListId, int32_t> table_of[2];
    std::vector<SliceJob> jobs;
    std::map<std::pair<int32_t, int32_t>, size_t> job_of;
    std::vector<size_t> jobs_of_items;
    int64_t meetings = 0;
    for (const ComputeItem* item : items) {
      SliceJob job;
      for (const Side side : {Side::q, Side::kv}) {
        const auto s = static_cast<size_t>(side);
        const RunListId list = side == Side::q ? item->q_tokens : item->kv_tokens;
        const auto [known, is_new] =
            table_of[s].try_emplace(list, static_cast<int32_t>(tables[s].size()));
        if (is_new) {
          for (const TokenRun& run : plan_.list(list)) {
            if (run.last() >= plan_.layout.slots.tokens_of(side))
              return complain(fmt::format("/lists/{}", to_index(list)),
                              fmt::format("there is no token {}", run.last()));
          }
          tables[s].push_back(make_pieces(plan_.list(list), plan_.layout.slots, side));
        }
        (side == Side::q ? job.q_table : job.kv_table) = known->second;
      }
      const auto [known, is_new] = job_of.try_emplace({job.q_table, job.kv_table}, jobs.size());
      if (is_new) {
        jobs.push_back(job);
        meetings += count_meetings(tables[0][static_cast<size_t>(job.q_table)],
                                   tables[1][static_cast<size_t>(job.kv_table)]);
        if (meetings > kMaxMeetings)
          return complain("/forward/computes",
                          "the slices that are left out are too many to be worked out",
                          "list the slices");
      }
      jobs_of_items.push_back(known->second);
    }
    builder.plan().slices = std::move(plan_.slices);
    const auto ranges = intersect_all(builder, tables[0], tables[1], jobs);
    if (!ranges) return too_many_slices();
    plan_.slices = std::move(builder.plan().slices);
    for (size_t i = 0; i < items.size(); ++i) {
      const int64_t pairs = items[i]->visible_pairs;
      set_slices(*items[i], (*ranges)[jobs_of_items[i]]);
      if (pairs != kLeftOut) items[i]->visible_pairs = pairs;
    }
    return std::nullopt;
  }

  /// Pairs of pieces of one sequence.
  static int64_t count_meetings(const PieceTable& q, const PieceTable& kv) {
    int64_t meetings = 0;
    size_t k = 0;
    for (size_t i = 0; i < q.sequences.size(); ++i) {
      while (k < kv.sequences.size() && kv.sequences[k] < q.sequences[i]) ++k;
      if (k < kv.sequences.size() && kv.sequences[k] == q.sequences[i])
        meetings += std::ssize(q.group(i)) * std::ssize(kv.group(k));
    }
    return meetings;
  }

  RawDocument& raw_;
  Plan& plan_;
  const std::string& path_;
};

}  // namespace

std::optional<Error> complete_document(RawDocument& raw, const std::string& path) {
  return Completer(raw, path).run();
}

}  // namespace cpscope
