#include "gui/app/caption/caption_writer.h"
#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "gui/model/item_words.h"
#include "gui/model/token_parts.h"
#include "sim/base/check.h"
#include "sim/plan/round_steps.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

/// Why this payload travels over this kind of link in this pass.
std::string explain_transfer(const Plan& plan, const TransferItem& item, Direction direction) {
  const bool is_gather = plan.scenario.parallel.comm_type == CommType::all_gather;
  switch (item.payload) {
    case Payload::q:
      if (item.link == LinkClass::ring)
        return "Queries go round the ring in place of keys and values, which stay.";
      if (item.link == LinkClass::outer_ring)
        return "Queries also go to the next window, which needs them after this window's last "
               "step.";
      if (sends_partials(plan.scenario.parallel.comm_type))
        return "Queries are sent to the ranks whose keys they have to meet.";
      return item.link == LinkClass::direct
                 ? "Queries that see a key are sent to the ranks that the dispatch assigns their "
                   "work to."
                 : "All-to-all splits the heads over the ranks: each rank gets all tokens of its "
                   "heads.";
    case Payload::kv:
      if (item.link == LinkClass::ring)
        return direction == Direction::backward
                   ? "The backward needs K and V again, so they are sent again."
                   : "Keys and values go round the ring while the ranks compute.";
      if (item.link == LinkClass::outer_ring)
        return "Keys and values of this place also go to the next window, where they are needed "
               "after "
               "this window's last step: a whole window of computes hides the slower wire.";
      if (item.link == LinkClass::group) return "";
      if (sends_partials(plan.scenario.parallel.comm_type))
        return "Keys and values are sent to the ranks whose queries they have to meet.";
      return is_gather ? "All keys and values go to all ranks."
                       : "Only K and V rows that a query of the receiving rank sees are sent.";
    case Payload::partial:
      return "Partial results go to the owners of their queries, who merge them.";
    case Payload::stats:
      return "With them go lse and delta of every row: all that the backward needs of the output.";
    case Payload::lse:
      return "The lse of every rank's results go to all ranks, so that each can scale its own.";
    case Payload::out:
      if (item.landing == Landing::add)
        return "Scaled results go to the owners of their queries, who add them.";
      return "Outputs go back to the owners of their tokens.";
    case Payload::d_out:
      return "The gradient of the output goes the way that the queries went.";
    case Payload::dq:
      if (item.link == LinkClass::ring)
        return "The partial sum of dQ is passed round the ring with its queries; every rank adds "
               "its "
               "share.";
      if (item.link == LinkClass::outer_ring)
        return "The sum of dQ is back at its place and goes to the next window, or home.";
      if (item.landing == Landing::add)
        return "Partial gradients go to the owners of their queries, who add them.";
      return "Gradients go back to the owners of their tokens.";
    case Payload::dkv:
      if (item.link == LinkClass::ring)
        return "The partial sum of dK and dV is passed round the ring with its keys; every rank "
               "adds its share.";
      if (item.link == LinkClass::outer_ring)
        return "The sum of dK and dV is back at its place and goes to the next window, or home.";
      return "Shares of dK and dV go to the owners of the keys, who add them.";
  }
  return "";
}

/// Transfers with equal heads and equal bytes per element, so that one formula describes them.
struct Bundle {
  std::vector<int64_t> rows;
  int64_t bytes = 0;
};

/// What one rank sends, or receives, of one payload in one stage.
struct Flow {
  std::vector<const TransferItem*> items;
  std::vector<int32_t> peers;   // ascending
  HeadRange heads;              // from the first to the last head of all items
  std::set<int32_t> each_head;  // stages send some of these
};

std::string write_formulas(const Plan& plan, const Flow& flow) {
  std::map<std::pair<int32_t, int64_t>, Bundle> bundles;
  for (const TransferItem* item : flow.items) {
    const int64_t element = wire_element_bytes(*item, plan.scenario);
    Bundle& bundle = bundles[{item->heads.size(), element}];
    bundle.rows.push_back(plan.rows_of(*item));
    bundle.bytes += item->bytes;
  }
  std::string formulas;
  for (const auto& [key, bundle] : bundles) {
    if (!formulas.empty()) formulas += ", and ";
    const int64_t first = bundle.rows.front();
    const bool are_equal = std::all_of(bundle.rows.begin(), bundle.rows.end(),
                                       [first](int64_t rows) { return rows == first; });
    const auto copies = static_cast<int64_t>(bundle.rows.size());
    formulas += bytes_formula(
        plan,
        {.payload = flow.items.front()->payload,
         .copies = are_equal ? copies : 1,
         .rows = are_equal ? first
                           : std::accumulate(bundle.rows.begin(), bundle.rows.end(), int64_t{0}),
         .heads = key.first,
         .element = key.second,
         .bytes = bundle.bytes});
  }
  return formulas;
}

Flow gather(const PlanIndex& index, const StageRef& stage, Payload payload, int32_t rank,
            bool is_sent) {
  Flow flow;
  const Pass& pass = index.pass(stage.direction);
  const ItemColumns& c = index.columns(stage.direction, StageKind::transfer);
  for (const int64_t i : is_sent ? c.items_of(stage.begin, stage.end, rank)
                                 : c.items_to(stage.begin, stage.end, rank)) {
    const auto at = static_cast<size_t>(i);
    const int32_t peer = is_sent ? c.other_rank[at] : c.rank[at];
    const TransferItem& item = pass.transfers[at];
    if (peer == rank || item.payload != payload) continue;
    flow.heads = flow.items.empty() ? item.heads
                                    : HeadRange{std::min(flow.heads.begin, item.heads.begin),
                                                std::max(flow.heads.end, item.heads.end)};
    for (int32_t head = item.heads.begin; head < item.heads.end; ++head)
      flow.each_head.insert(head);
    flow.items.push_back(&item);
    flow.peers.push_back(peer);
  }
  std::sort(flow.peers.begin(), flow.peers.end());
  flow.peers.erase(std::unique(flow.peers.begin(), flow.peers.end()), flow.peers.end());
  return flow;
}

/// What a ring transfer carries of its queries or keys.
std::string_view name_part(Payload payload) {
  switch (payload) {
    case Payload::dkv:
      return "the sum of dK and dV for ";
    case Payload::dq:
      return "the sum of dQ for ";
    case Payload::d_out:
      return "d_out of ";
    case Payload::stats:
      return "lse and delta of ";
    default:
      return "";
  }
}

/// "the keys and values of rank 7": the content of a ring transfer.
void name_cargo(CaptionWriter& writer, const TransferItem& item, int32_t self) {
  const Plan& plan = writer.plan();
  const Side side = side_of(item.payload);
  const std::vector<int32_t> owners = owners_of(writer.index(), plan.list(item.tokens), side);
  const bool is_own = owners == std::vector<int32_t>{self};
  writer.say(name_part(item.payload)).say(is_own ? "its own " : "the ");
  writer.say(side == Side::q ? "queries" : "keys");
  if (item.payload == Payload::kv) writer.say(" and values");
  if (!is_own) writer.say(" of ").ranks(owners);
}

void tell_ring(CaptionWriter& writer, int32_t rank, const Flow& sent, const Flow& received) {
  const TransferItem& out = *sent.items.front();
  writer.rank(rank, true).say(" passes ");
  name_cargo(writer, out, rank);
  writer.say(" on to ").rank(to_index(out.dst));
  if (!received.items.empty()) {
    const TransferItem& in = *received.items.front();
    writer.say(" and receives ");
    name_cargo(writer, in, rank);
    writer.say(" from ").rank(to_index(in.src));
  }
  writer.say(": ").say(write_formulas(writer.plan(), sent)).say(".");
}

void tell_flow(CaptionWriter& writer, int32_t rank, Payload payload, const Flow& flow,
               bool is_sent) {
  const Attention& attention = writer.plan().scenario.attention;
  writer.rank(rank, true).say(is_sent ? " sends " : " receives ").say(name_rows(payload));
  const Side side = side_of(payload);
  const int32_t all = side == Side::kv ? attention.kv_heads : attention.heads;
  const auto count = static_cast<int32_t>(flow.each_head.size());
  if (count < flow.heads.size()) {
    writer.say(fmt::format(" of {} of the {}", count, name_heads(flow.heads, side)));
  } else if (count < all) {
    writer.say(" of " + name_heads(flow.heads, side));
  }
  writer.say(is_sent ? " to " : " from ").ranks(flow.peers);
  // With heads split over the ranks, every peer gets different heads.
  const HeadRange first = flow.items.front()->heads;
  if (is_sent && std::any_of(flow.items.begin(), flow.items.end(),
                             [&](const TransferItem* item) { return item->heads != first; }))
    writer.say(", to each its heads");
  writer.say(": ").say(write_formulas(writer.plan(), flow)).say(".");
}

/// Who works with the focus rank in the round that begins with these copies, or that these end.
void tell_round(CaptionWriter& writer, const StageRef& stage, int32_t focus_rank) {
  const Plan& plan = writer.plan();
  const TransferItem& copy =
      writer.index().pass(stage.direction).transfers[static_cast<size_t>(stage.begin)];
  const bool begins = plan.buffer(copy.to).role == BufferRole::round;
  if (!begins) {
    writer.say("What the round has computed is on the ranks that own its rows.");
    return;
  }
  const int32_t round = round_of_queries(plan, plan.buffer(copy.to).tokens);
  if (round < 0) return;
  writer.say(fmt::format("Round {} of {} begins: groups of ranks compute, each its own sequences. ",
                         round + 1, plan.layout.rounds.size()));
  for (const CpGroup& group : plan.layout.rounds[static_cast<size_t>(round)].groups) {
    if (!group.has(focus_rank)) continue;
    writer.rank(focus_rank, true).say(group.size == 1 ? " has " : " shares ");
    writer.say(group.sequences.size() == 1 ? "sequence " : "sequences ");
    writer.list(group.sequences,
                [](CaptionWriter& to, int64_t sequence) { to.say(fmt::format("{}", sequence)); });
    if (group.size == 1) {
      writer.say(" alone, so it sends nothing.");
      return;
    }
    std::vector<int32_t> others;
    for (int32_t rank = group.first_rank; rank < group.first_rank + group.size; ++rank)
      if (rank != focus_rank) others.push_back(rank);
    writer.say(" with ").ranks(others).say(".");
    return;
  }
  writer.rank(focus_rank, true).say(" has no sequence in it and waits.");
}

}  // namespace

void tell_transfers(CaptionWriter& writer, const StageRef& stage, int32_t focus_rank) {
  const PlanIndex& index = writer.index();
  const Pass& pass = index.pass(stage.direction);
  if (is_of_round(writer.plan(), pass.transfers[static_cast<size_t>(stage.begin)]))
    return tell_round(writer, stage, focus_rank);
  bool begins = true;
  const auto next_sentence = [&] {
    if (!begins) writer.say(" ");
    begins = false;
  };
  const StageTraffic* traffic =
      index.columns(stage.direction, StageKind::transfer).traffic_of(stage.begin);
  CPSCOPE_CHECK(traffic != nullptr, "a transfer stage has no traffic", stage.begin, stage.end);
  for (const auto& [payload, example] : traffic->payloads) {
    const TransferItem* first = &pass.transfers[static_cast<size_t>(example)];
    const std::string why = explain_transfer(writer.plan(), *first, stage.direction);
    if (!why.empty()) {
      next_sentence();
      writer.say(why);
    }
    const Flow sent = gather(index, stage, payload, focus_rank, true);
    const Flow received = gather(index, stage, payload, focus_rank, false);
    const bool is_of_ring = first->link == LinkClass::ring || first->link == LinkClass::outer_ring;
    if (is_of_ring && !sent.items.empty()) {
      next_sentence();
      tell_ring(writer, focus_rank, sent, received);
      continue;
    }
    if (!received.items.empty()) {
      next_sentence();
      tell_flow(writer, focus_rank, payload, received, false);
    }
    if (!sent.items.empty()) {
      next_sentence();
      tell_flow(writer, focus_rank, payload, sent, true);
    }
  }
  // The total of all ranks, for comparison with the focus rank's part.
  next_sentence();
  if (traffic->wires == 0) {
    writer.say("Nothing crosses a wire.");
    return;
  }
  writer.say(fmt::format("All ranks together: {}, {}.", count_text(traffic->wires, "transfer"),
                         print_bytes(traffic->bytes)));
}

}  // namespace cpscope::gui
