#include "gui/app/lesson_figures.h"
#include "gui/app/lesson_words.h"
#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "sim/plan/planner/planner.h"
#include "sim/run/fp8.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

// Lessons of schedules in which queries or partial results travel, of the backward, and of what
// changes the bytes.

namespace cpscope::gui::words {
namespace {

/// Bytes of one payload that a rank sends in a pass.
int64_t sent_by(const Plan& plan, Direction direction, int32_t rank, Payload payload) {
  int64_t bytes = 0;
  for (const TransferItem& item : plan.pass(direction).transfers)
    if (to_index(item.src) == rank && item.payload == payload) bytes += item.bytes;
  return bytes;
}

int64_t most_sent(const std::vector<int64_t>& by_rank) {
  return by_rank.empty() ? 0 : *std::max_element(by_rank.begin(), by_rank.end());
}

/// Bytes of one key with its value, and of one query with its result, on the wire.
int64_t bytes_of_key(const Plan& plan) {
  const Attention& a = plan.scenario.attention;
  return a.kv_heads * lanes_of(BufferKind::kv, a) * element_bytes(plan.scenario.numerics.dtype);
}
int64_t bytes_of_query(const Plan& plan) {
  const Attention& a = plan.scenario.attention;
  const int64_t element = element_bytes(plan.scenario.numerics.dtype);
  const int64_t result = plan.scenario.parallel.partial_wire == WireFormat::fp32
                             ? element_bytes(Dtype::fp32)
                             : element;
  return a.heads * (a.head_dim_qk * element + a.head_dim_v * result + element_bytes(Dtype::fp32));
}

/// What a rank would send forward in a ring of keys: every row but those that the next rank owns.
int64_t ring_bytes(const Plan& plan, int32_t rank) {
  const int32_t ranks = plan.layout.cp_size;
  int64_t rows = 0;
  for (const RunListId list : plan.kv_lists) rows += plan.rows(list);
  rows -= plan.rows(plan.kv_lists[RankId{(rank + 1) % ranks}]);
  return rows * bytes_of_key(plan);
}

std::pair<int64_t, int64_t> count_queries_and_keys(const Plan& plan) {
  int64_t queries = 0, keys = 0;
  for (const SequenceSlot& slot : plan.layout.slots.sequences) {
    queries += slot.q_valid;
    keys += slot.kv_valid;
  }
  return {queries, keys};
}

/// The bytes of the busiest rank, forward, for each mesh that the ranks can form.
struct MeshBytes {
  int32_t mesh_q = 1;
  int64_t bytes = 0;
};
std::vector<MeshBytes> plan_every_mesh(const Scenario& scenario) {
  std::vector<MeshBytes> all;
  for (int32_t mesh_q = 1; mesh_q <= scenario.parallel.cp_size; ++mesh_q) {
    if (scenario.parallel.cp_size % mesh_q != 0) continue;
    Scenario other = scenario;
    other.parallel.mesh_q = mesh_q;
    other.numerics.backward = false;
    const Result<Plan> plan = make_plan(other);
    if (plan) all.push_back({mesh_q, most_sent(summarise(plan.value()).forward_bytes)});
  }
  return all;
}

/// Words are written in every frame, and planning takes longer than one.
const std::vector<MeshBytes>& every_mesh_of(const Plan& plan) {
  static thread_local uint64_t hash = 0;
  static thread_local std::vector<MeshBytes> known;
  if (known.empty() || hash != plan.hash) {
    known = plan_every_mesh(plan.scenario);
    hash = plan.hash;
  }
  return known;
}

}  // namespace

void queries_travel(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  const auto [queries, keys] = count_queries_and_keys(plan);
  writer.say(fmt::format(
      "{} meet {}, as when a prompt goes on after a cached part. Keys stay where they are: queries "
      "go round the ring, every rank computes with its own keys, and after the last step partial "
      "results return to the owners, who merge them by their lse. ",
      count_text(queries, "query"), count_text(keys, "key")));
  writer.rank(0, true).say(
      fmt::format(" sends {} of queries and {} of results. In a ring of keys it would send {}.",
                  print_bytes(sent_by(plan, Direction::forward, 0, Payload::q)),
                  print_bytes(sent_by(plan, Direction::forward, 0, Payload::partial)),
                  print_bytes(ring_bytes(plan, 0))));
}

void queries_or_keys(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  const auto [queries, keys] = count_queries_and_keys(plan);
  const double crossover =
      static_cast<double>(bytes_of_key(plan)) / static_cast<double>(bytes_of_query(plan));
  const double here = keys > 0 ? static_cast<double>(queries) / static_cast<double>(keys) : 0.0;
  writer.say(fmt::format(
      "A key and its value are {}: {} of {} lanes. A query and its result are {}: {}, q, out and "
      "lse. Both cross the same number of links, so sending queries is cheaper while there are "
      "fewer than {:.3f} queries for each key. Here there are {:.3f}: {} win. The more query heads "
      "share a KV head, the earlier keys win.",
      print_bytes(bytes_of_key(plan)), count_text(plan.scenario.attention.kv_heads, "KV head"),
      lanes_of(BufferKind::kv, plan.scenario.attention), print_bytes(bytes_of_query(plan)),
      count_text(plan.scenario.attention.heads, "head"), crossover, here,
      here < crossover ? "queries" : "keys"));
}

void queries_go_down(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  writer.say(
      "Queries go round the ring towards lower ranks, whose keys they see. The result of a step "
      "goes straight back to its owner while the next step computes: a link has two directions, "
      "and a ring of keys uses one. ");
  writer.rank(0, true).say(
      fmt::format(" sends {} of queries and {} of results.",
                  print_bytes(sent_by(plan, Direction::forward, 0, Payload::q)),
                  print_bytes(sent_by(plan, Direction::forward, 0, Payload::partial))));
}

void one_chunk_goes_on(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  std::vector<int64_t> rows;
  for (const TransferItem& item : plan.forward.transfers)
    if (item.payload == Payload::q) rows.push_back(plan.rows_of(item));
  if (rows.empty()) {
    writer.say("No query travels in this plan.");
    return;
  }
  const auto [least, most] = std::minmax_element(rows.begin(), rows.end());
  const int64_t all = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  writer.say(fmt::format(
      "Every rank owns an early and a late chunk. Beyond rank {} the early one sees no key, so "
      "only the late one goes on: a transfer carries {} or {} rows. Together {} rows travel, {} of "
      "what whole blocks would be. ",
      0, print_count(*most), print_count(*least), print_count(all),
      print_share(all, *most * static_cast<int64_t>(rows.size()))));
  tell_balance(writer);
}

void helpers_take_queries(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  const int32_t ranks = plan.layout.cp_size;
  writer.say(fmt::format(
      "Contiguous causal chunks: a ring of keys takes {} steps, and low ranks run out of keys that "
      "they see. Here a rank that has none computes for the queries of another rank, and returns "
      "the result: {}. ",
      ranks, count_text(plan.forward.num_steps, "step")));
  tell_balance(writer);
}

void helpers_return(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  int64_t helped = 0, all = 0;
  for (const ComputeItem& item : plan.forward.computes) {
    if (item.num_slices == 0) continue;
    ++all;
    helped += item.q_tokens != plan.q_lists[item.rank] ? 1 : 0;
  }
  writer.say(fmt::format(
      "{} of {} work on queries of another rank. Help costs bytes: those queries go out, and o and "
      "lse come back. ",
      print_count(helped), count_text(all, "compute")));
  tell_sent(writer, 0);
  writer.say(
      fmt::format("In a ring of keys it would send {} forward.", print_bytes(ring_bytes(plan, 0))));
}

void tiles_of_ranks(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  const int32_t a = plan.scenario.parallel.mesh_q, ranks = plan.layout.cp_size;
  const int32_t b = a > 0 ? ranks / a : ranks;
  writer.say(fmt::format(
      "{} form a mesh. A rank computes for the queries of {} with the keys of {}, so it fetches "
      "{} and {}, and returns {} of results. One block arrives in each of {}. ",
      count_text(ranks, "rank"), count_text(a, "rank"), count_text(b, "rank"),
      count_text(a - 1, "query block"), count_text(b - 1, "key block"), count_text(a - 1, "block"),
      count_text(plan.forward.num_steps, "step")));
  writer.rank(0, true).say(fmt::format(" sends {} forward; in a ring of keys {}.",
                                       print_bytes(writer.index().summary().forward_bytes[0]),
                                       print_bytes(ring_bytes(plan, 0))));
}

void every_mesh(CaptionWriter& writer, const AppState&) {
  const std::vector<MeshBytes>& all = every_mesh_of(writer.plan());
  if (all.empty()) {
    writer.say("No other mesh can be planned.");
    return;
  }
  const auto best =
      std::min_element(all.begin(), all.end(),
                       [](const MeshBytes& x, const MeshBytes& y) { return x.bytes < y.bytes; });
  writer.say("The busiest rank sends forward, for each number of query blocks of a rank: ");
  writer.list(all, [](CaptionWriter& to, const MeshBytes& one) {
    to.say(fmt::format("mesh_q {}: {}", one.mesh_q, print_bytes(one.bytes)));
  });
  writer.say(fmt::format(
      ". Least is mesh_q {}. Bytes grow with the two sides of a tile, work with its area: a square "
      "tile needs least, and results that return weigh on the query side.",
      best->mesh_q));
}

void rings_of_rings(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  const int32_t window = std::max(1, plan.scenario.parallel.ring_window),
                ranks = plan.layout.cp_size;
  int64_t across = 0, all = 0;
  for (const TransferItem& item : plan.forward.transfers) {
    if (to_index(item.src) != 0 || item.link == LinkClass::self) continue;
    all += item.bytes;
    if (to_index(item.src) / window != to_index(item.dst) / window) across += item.bytes;
  }
  writer.say(fmt::format(
      "{} in {}: keys and values go round a ring inside a host, and once from host to host. ",
      count_text(ranks, "rank"), count_text(ranks / window, "host")));
  writer.rank(0, true).say(fmt::format(
      " sends {} forward, as in one ring of all ranks, and {} of it leaves the host; in one ring "
      "the rank at the border sends all of it through the slow link.",
      print_bytes(all), print_bytes(across)));
}

void hop_of_hosts(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  const int32_t window = std::max(1, plan.scenario.parallel.ring_window);
  writer.say(fmt::format(
      "The hop between hosts begins with the first of {} and is needed after the last of them, so "
      "the slow link has as long as {} take. A plain ring needs its slow hop after one.",
      count_text(window, "compute"), count_text(window, "compute")));
}

void forward_sends_keys(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  writer.say(fmt::format("Forward, {} pass keys and values on, {} an element. ",
                         count_text(plan.layout.cp_size, "rank"),
                         print_bytes(element_bytes(plan.scenario.numerics.dtype))));
  tell_sent(writer, 0);
  writer.say("Why is the way back more?");
}

void gradients_travel(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  const int64_t keys = sent_by(plan, Direction::backward, 0, Payload::kv),
                gradients = sent_by(plan, Direction::backward, 0, Payload::dkv);
  writer.say(fmt::format(
      "Backward, keys and values go round once more, because no rank has kept them ({} from rank "
      "{}). Every rank adds its share of dK and dV to a sum that travels with the keys, and the "
      "sum "
      "ends at the owner of the keys: {}, in {}. dQ stays at home. ",
      print_bytes(keys), 0, print_bytes(gradients),
      to_name(dkv_wire_dtype(plan.scenario.numerics))));
  const int64_t forward = most_sent(writer.index().summary().forward_bytes),
                backward = most_sent(writer.index().summary().backward_bytes);
  if (forward > 0)
    writer.say(
        fmt::format("Together {} times the bytes of the forward.",
                    print_ratio(static_cast<double>(backward) / static_cast<double>(forward))));
}

void kv_heads_travel(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  const Attention& a = plan.scenario.attention;
  tell_sent(writer, 0);
  writer.say(fmt::format(
      "{} read {}. Only KV heads travel in a ring: a token costs {} x {} lanes x {} an element, "
      "{}. "
      "If every query head had its own, it would cost {}.",
      count_text(a.heads, "query head"), count_text(a.kv_heads, "KV head"), a.kv_heads,
      lanes_of(BufferKind::kv, a), print_bytes(element_bytes(plan.scenario.numerics.dtype)),
      print_bytes(bytes_of_key(plan)),
      print_bytes(bytes_of_key(plan) / std::max(1, a.kv_heads) * a.heads)));
}

void latent_travels(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  const Attention& a = plan.scenario.attention;
  if (a.latent_dim == 0) {
    writer.say(fmt::format("Keys and values of this plan are two tensors, {} a token.",
                           print_bytes(bytes_of_key(plan))));
    return;
  }
  tell_sent(writer, 0);
  writer.say(fmt::format(
      "Latent attention: all heads read one row of {} lanes, and V is its first {}. One tensor "
      "travels, {} a token whatever the number of heads, and one gradient comes home.",
      a.head_dim_qk, a.latent_dim, print_bytes(bytes_of_key(plan))));
}

void documents_are_apart(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  const auto [idle, all] = count_idle(plan.forward);
  writer.say(fmt::format(
      "{} in one batch see nothing of each other, so most of the square is empty. The batch is cut "
      "as if it were one sequence: {} of {} of the forward have no work, and keys of short "
      "documents still travel round the whole ring. ",
      count_text(std::ssize(plan.layout.slots.sequences), "document"), print_count(idle),
      count_text(all, "compute")));
  tell_kv_share(writer);
}

void steps_wait(CaptionWriter& writer, const AppState&) {
  tell_balance(writer);
  writer.say(
      " Equal work in all is not enough: in a ring each step waits for its slowest rank. Look for "
      "a "
      "way that exchanges once (all_gather, group_cast), or a layout that cuts each document by "
      "itself.");
}

void one_scale(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  writer.say(
      "q, k and v are cast to one byte before they travel, each value times a scale that brings "
      "the "
      "largest to the end of the format. The receiver divides by its own scale, so all ranks must "
      "have the same one: they agree on the largest value before the first step. ");
  writer.rank(0, true).say(fmt::format(
      " sends {} of keys and values forward, {} an element, and {} of largest values.",
      print_bytes(sent_by(plan, Direction::forward, 0, Payload::kv)),
      print_bytes(wire_element_bytes(
          plan.forward.transfers.empty() ? TransferItem{} : plan.forward.transfers.front(),
          plan.scenario)),
      print_bytes(scale_bytes(plan.scenario, Direction::forward))));
}

void even_row(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  const auto [queries, keys] = count_queries_and_keys(plan);
  if (keys == 0) {
    writer.say("This plan has no keys.");
    return;
  }
  // The backward casts P * 448; E4M3 has values down to 2^-9 in steps of that size.
  const double largest = largest_of(Fp8Type::e4m3), least = std::ldexp(1.0, -9);
  const double weight = largest / static_cast<double>(keys) / least;
  writer.say(fmt::format(
      "Every query sees {} with nearly the same weight. The backward multiplies weights by {:.0f} "
      "before it casts them; the smallest number of the format above zero is {:.5f}, so a weight "
      "is {:.2f} of these and becomes {:.0f}. ",
      count_text(keys, "key"), largest, least, weight, std::nearbyint(weight)));
  writer.say(fmt::format(
      "From {} on it becomes zero and dV is lost. The forward does not suffer: there the largest "
      "weight of a row is one. No kernel with this format does better, so the verdict allows it.",
      count_text(static_cast<int64_t>(2 * largest / least), "key")));
}

}  // namespace cpscope::gui::words
