#include "gui/app/find/find.h"

#include "gui/app/app_state.h"
#include "gui/app/find/find_query.h"
#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "gui/model/error_field.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr const char* kExamples =
    "try token 123, q 100-200, q 0-64 k 0-64, rank 3, link 1 2, step 4, sequence 2, "
    "forward.compute.12 or out 17 2";

Found make_found(const PlanIndex& plan, const Target& target) {
  return {capitalise(name_target(target, &plan)), describe_target(target, plan), target};
}

std::string explain_no_item(const PlanIndex& plan, const ItemId& item, std::string_view name) {
  return fmt::format(
      "There is no {}: the pass has {}", name,
      count_text(count_items(plan.pass(item.direction), item.kind), to_name(item.kind)));
}

/// Half-open ids.
struct Ids {
  int64_t begin = 0, end = 0;
};

/// Interprets one query and collects its results.
class Finder {
 public:
  Finder(const PlanIndex& plan, const FindQuery& query) : plan_(plan), query_(query) {}

  FindAnswer find() {
    if (query_.has(Noun::tensor))
      find_row();
    else if (query_.has(Noun::item_kind))
      find_items();
    else if (has_numbers(Noun::query) && has_numbers(Noun::key))
      find_pairs();
    else if (query_.has(Noun::link) || query_.has_arrow)
      find_link();
    else if (query_.has(Noun::sequence))
      find_sequence();
    else if (query_.has(Noun::step))
      find_steps();
    else if (query_.has(Noun::rank))
      find_rank();
    else if (query_.has(Noun::token) || query_.has(Noun::query) || query_.has(Noun::key))
      find_tokens();
    else
      find_plain();
    if (!answer_.found.empty())
      answer_.explanation.clear();
    else if (answer_.explanation.empty())
      explain(fmt::format("Nothing is meant by this: {}", kExamples));
    return std::move(answer_);
  }

 private:
  bool has_numbers(Noun noun) const {
    const Clause* clause = query_.find(noun);
    return clause != nullptr && !clause->groups.empty();
  }
  void explain(std::string words) {
    if (answer_.explanation.empty()) answer_.explanation = std::move(words);
  }
  void explain_no(std::string_view what, int64_t number, int64_t count) {
    explain(fmt::format("There is no {} {}: {}s are 0 to {}", what, print_count(number), what,
                        print_count(count - 1)));
  }
  bool add(const Target& target) {
    if (!is_present(plan_, target)) return false;
    const auto same = [&](const Found& f) { return f.target == target; };
    if (std::any_of(answer_.found.begin(), answer_.found.end(), same)) return true;
    if (answer_.found.size() < FindAnswer::kMostFound)
      answer_.found.push_back(make_found(plan_, target));
    return true;
  }
  /// The number after a noun, or the first bare number; explains what to type when there is none or
  /// more than one.
  std::optional<int64_t> number_of(Noun noun, std::string_view what, int64_t end,
                                   int64_t first = 0) {
    const Clause* clause = query_.find(noun);
    const Clause* bare = query_.find(Noun::none);
    if ((clause == nullptr || clause->groups.empty()) && bare != nullptr) clause = bare;
    if (clause == nullptr || clause->groups.empty()) {
      explain(fmt::format("Which {}? There are {} to {}", what, first, print_count(end - 1)));
      return std::nullopt;
    }
    const std::optional<int64_t> number = join_numbers(clause->groups.front());
    if (!number || clause->groups.size() > 1)
      explain(fmt::format("One {} has one number, such as \"{} 3\"", what, what));
    return clause->groups.size() > 1 ? std::nullopt : number;
  }
  /// One id, or a range of ids.
  std::optional<Ids> ids_of(const Clause& clause, std::string_view what) {
    if (clause.groups.size() > 2) {
      explain("A range has two ends, such as \"q 100-200\"");
      return std::nullopt;
    }
    std::vector<int64_t> ends;
    for (const auto& group : clause.groups) {
      const std::optional<int64_t> number = join_numbers(group);
      if (!number) {
        explain(fmt::format("Which {}? Write a range as \"q 100-200\"", what));
        return std::nullopt;
      }
      ends.push_back(*number);
    }
    const Ids ids{ends.front(), ends.size() == 2 ? ends[1] : ends.front() + 1};
    if (ids.begin >= ids.end)
      explain(fmt::format("The range {} is empty: its end is not part of it",
                          print_range(ids.begin, ids.end)));
    return ids.begin < ids.end ? std::optional(ids) : std::nullopt;
  }
  void say_tokens(Side side, const Ids& ids) {
    explain(fmt::format("{} are {}: {} does not lie in them", side == Side::q ? "Queries" : "Keys",
                        print_range(0, plan_.tokens(side)), print_range(ids.begin, ids.end)));
  }

  void find_tokens() {
    const bool only_q = query_.has(Noun::query), only_k = query_.has(Noun::key);
    const Clause* clause = nullptr;
    for (const Noun noun : {Noun::token, Noun::query, Noun::key, Noun::none}) {
      if (clause == nullptr && has_numbers(noun)) clause = query_.find(noun);
    }
    if (clause == nullptr) {
      explain(fmt::format("Which token? There are 0 to {}",
                          print_count(plan_.tokens(only_k ? Side::kv : Side::q) - 1)));
      return;
    }
    const std::optional<Ids> ids = ids_of(*clause, "token");
    if (!ids) return;
    for (const Side side : {Side::q, Side::kv}) {
      if (side == Side::q ? only_k && !only_q : only_q && !only_k) continue;
      if (!add(TokenRange{side, ids->begin, ids->end})) say_tokens(side, *ids);
    }
  }

  void find_pairs() {
    const std::optional<Ids> q = ids_of(*query_.find(Noun::query), "query");
    const std::optional<Ids> k = ids_of(*query_.find(Noun::key), "key");
    if (!q || !k || add(PairRange{q->begin, q->end, k->begin, k->end})) return;
    const bool has_q = q->end <= plan_.tokens(Side::q);
    say_tokens(has_q ? Side::kv : Side::q, has_q ? *k : *q);
  }

  void find_rank() {
    const std::optional<int64_t> rank = number_of(Noun::rank, "rank", plan_.num_ranks());
    if (rank && !add_rank(*rank)) explain_no("rank", *rank, plan_.num_ranks());
  }
  bool add_rank(int64_t rank) {
    return rank < plan_.num_ranks() && add(RankTarget{static_cast<int32_t>(rank)});
  }

  void find_link() {
    std::vector<int64_t> ends;
    for (const Clause& clause : query_.clauses) {
      for (const auto& group : clause.groups) {
        for (const QueryNumber& number : group) ends.push_back(number.value);
      }
    }
    if (ends.size() != 2) {
      explain("A link has two ranks, such as \"link 1 2\"");
      return;
    }
    if (ends[0] >= plan_.num_ranks() || ends[1] >= plan_.num_ranks()) {
      explain(fmt::format("There is no link {} -> {}: ranks are 0 to {}", print_count(ends[0]),
                          print_count(ends[1]), plan_.num_ranks() - 1));
      return;
    }
    add_link(ends[0], ends[1]);
  }
  void add_link(int64_t src, int64_t dst) {
    if (src < plan_.num_ranks() && dst < plan_.num_ranks())
      add(LinkTarget{static_cast<int32_t>(src), static_cast<int32_t>(dst)});
  }

  /// True if the query names this pass, or names none or both.
  bool wants(Direction direction) const {
    return query_.has_forward == query_.has_backward ||
           query_.has_backward == (direction == Direction::backward);
  }

  /// Adds the steps with this number in their pass, counted from 1.
  void add_steps(int64_t number) {
    for (size_t s = 0; s < plan_.steps().size(); ++s) {
      const StepRef& step = plan_.steps()[s];
      if (step.step + int64_t{1} != number) continue;
      if (wants(step.direction)) add(StepTarget{static_cast<int32_t>(s)});
    }
  }
  void find_steps() {
    const int32_t forward = plan_.pass(Direction::forward).num_steps;
    const int32_t backward = plan_.pass(Direction::backward).num_steps;
    const std::optional<int64_t> number =
        number_of(Noun::step, "step", (query_.has_backward ? backward : forward) + int64_t{1}, 1);
    if (!number) return;
    add_steps(*number);
    if (answer_.found.empty())
      explain(
          fmt::format("There is no step {}: the forward pass has steps 1 to {}, the backward "
                      "pass {}",
                      print_count(*number), forward,
                      backward == 0 ? std::string("none") : fmt::format("1 to {}", backward)));
  }

  /// Adds the ids of a sequence's slot, or of one position of it, on one side.
  void add_sequence(int64_t sequence, std::optional<int64_t> position) {
    const auto& sequences = plan_.plan().layout.slots.sequences;
    if (sequence >= static_cast<int64_t>(sequences.size())) return;
    const SequenceSlot& slot = sequences[static_cast<size_t>(sequence)];
    for (const Side side : {Side::q, Side::kv}) {
      const SlotSide ids = slot.side(side);
      if (!position)
        add(TokenRange{side, ids.begin, ids.end()});
      else if (ids.valid_begin() + *position < ids.end())
        add(TokenRange{side, ids.valid_begin() + *position, ids.valid_begin() + *position + 1});
    }
  }
  void find_sequence() {
    const auto count = static_cast<int64_t>(plan_.plan().layout.slots.sequences.size());
    std::optional<int64_t> position;
    if (has_numbers(Noun::position) || has_numbers(Noun::token)) {
      const Noun noun = has_numbers(Noun::position) ? Noun::position : Noun::token;
      position = number_of(noun, "position", 1);
      if (!position) return;
    }
    const std::optional<int64_t> sequence = number_of(Noun::sequence, "sequence", count);
    if (!sequence) return;
    add_sequence(*sequence, position);
    if (*sequence >= count)
      explain_no("sequence", *sequence, count);
    else
      explain(position ? "The sequence is not as long as that" : "This sequence has no tokens");
  }

  void find_items() {
    const StageKind kind = query_.item_kind;
    const Direction first = wants(Direction::forward) ? Direction::forward : Direction::backward;
    const std::optional<int64_t> index =
        number_of(Noun::item_kind, to_name(kind), count_items(plan_.pass(first), kind));
    if (!index) return;
    for (const Direction direction : kDirections) {
      if (!wants(direction)) continue;
      const ItemId item{direction, kind, *index};
      if (!add(item)) explain(explain_no_item(plan_, item, name_target(item, &plan_)));
    }
  }

  void find_row() {
    std::vector<int64_t> numbers;
    for (const Noun noun : {Noun::tensor, Noun::token, Noun::query, Noun::key, Noun::head}) {
      const Clause* clause = query_.find(noun);
      if (clause == nullptr) continue;
      for (const auto& group : clause->groups) {
        const std::optional<int64_t> joined =
            noun == Noun::tensor ? std::nullopt : join_numbers(group);
        if (joined)
          numbers.push_back(*joined);
        else
          for (const QueryNumber& number : group) numbers.push_back(number.value);
      }
    }
    const std::string_view name = kErrorTensors[static_cast<size_t>(query_.tensor)];
    if (numbers.empty() || numbers.size() > 2) {
      explain(fmt::format("A row has a token and a head, such as \"{} 17 2\"", name));
      return;
    }
    const Attention& attention = plan_.plan().scenario.attention;
    const Side side = side_of_tensor(query_.tensor);
    const int64_t heads = side == Side::kv ? attention.kv_heads : attention.heads;
    const int64_t tokens = plan_.tokens(side);
    const int64_t last = numbers.size() == 2 ? numbers[1] : heads - 1;
    for (int64_t head = numbers.size() == 2 ? last : 0;
         head <= last && head < heads && answer_.found.size() < FindAnswer::kMostFound; ++head)
      add(RowTarget{query_.tensor, numbers[0], static_cast<int32_t>(head)});
    explain(fmt::format("{} has tokens 0 to {} and heads 0 to {}", name, print_count(tokens - 1),
                        heads - 1));
  }

  void find_plain() {
    const Clause* clause = query_.find(Noun::none);
    if (clause == nullptr || clause->groups.empty()) {
      explain(query_.has_forward || query_.has_backward
                  ? std::string("Which step or item of the pass? Such as \"backward step 2\"")
                  : fmt::format("Type what you look for: {}", kExamples));
      return;
    }
    if (clause->groups.size() > 2) {
      explain(fmt::format("There are more than two numbers: {}", kExamples));
      return;
    }
    const bool is_range = clause->groups.size() == 2;
    const auto& group = clause->groups.front();
    if (!is_range && group.size() == 2) add_link(group[0].value, group[1].value);
    const std::optional<int64_t> number = join_numbers(group);
    if (!number && answer_.found.empty()) {
      explain(fmt::format("These numbers may mean many things: {}", kExamples));
      return;
    }
    if (!number) return;
    const std::optional<Ids> ids = ids_of(*clause, "token");
    if (!ids) return;
    if (query_.has_forward == query_.has_backward) add(TokenRange{Side::q, ids->begin, ids->end});
    if (!is_range && query_.has_forward == query_.has_backward) add_rank(*number);
    if (!is_range) add_steps(*number);
    if (query_.has_forward == query_.has_backward) {
      add(TokenRange{Side::kv, ids->begin, ids->end});
      if (!is_range) add_sequence(*number, std::nullopt);
    }
    explain(fmt::format("The plan has no token, rank, step or sequence {}", print_count(*number)));
  }

  const PlanIndex& plan_;
  const FindQuery& query_;
  FindAnswer answer_;
};

}  // namespace

FindAnswer find_targets(const PlanIndex& plan, std::string_view query) {
  if (const std::optional<ItemId> item = parse_item(trim(to_lower(query)))) {
    if (is_present(plan, *item)) return {{make_found(plan, *item)}, ""};
    return {{}, explain_no_item(plan, *item, print_item(*item))};
  }
  const QueryResult parsed = parse_query(query);
  if (!parsed.error.empty()) return {{}, fmt::format("{}: {}", parsed.error, kExamples)};
  return Finder(plan, parsed.query).find();
}

}  // namespace cpscope::gui
