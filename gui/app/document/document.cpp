#include "gui/app/document/document.h"

#include "gui/app/document/scenario_rewrite.h"
#include "sim/base/check.h"
#include "sim/base/whole_file.h"
#include "sim/plan/document/load_plan.h"
#include "sim/plan/order/order_import.h"
#include "sim/plan/planner/planner.h"
#include "sim/scenario/key_place.h"
#include "sim/scenario/scenario_parts.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <new>
#include <numeric>
#include <thread>
#include <utility>

namespace cpscope::gui {
namespace {

/// The line number in "path:line:column"; 0 if there is none.
int64_t line_of(std::string_view where) {
  const size_t column = where.rfind(':');
  if (column == std::string_view::npos || column == 0) return 0;
  const size_t line = where.rfind(':', column - 1);
  if (line == std::string_view::npos) return 0;
  int64_t number = 0;
  std::from_chars(where.data() + line + 1, where.data() + column, number);
  return number;
}

std::string_view trim_blanks(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

/// Full name of the key that a line of TOML text belongs to: the last "key =" at or before the
/// line, inside its table.
std::string key_of_line(std::string_view text, int64_t line) {
  std::string table, key;
  int64_t number = 0;
  while (!text.empty() && number < line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view now = trim_blanks(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (now.starts_with('[') && now.ends_with(']') && now.find(',') == std::string_view::npos) {
      table = std::string(trim_blanks(now.substr(1, now.size() - 2)));
      key.clear();
    } else if (const size_t sign = now.find('='); sign != std::string_view::npos) {
      key = std::string(trim_blanks(now.substr(0, sign)));
    }
  }
  if (table.empty() || key.empty()) return table + key;
  return table + "." + key;
}

/// Adds the key to each complaint of the parser, which only says the place: widgets look up keys.
Error name_faulty_keys(Error error, std::string_view text) {
  for (Complaint& complaint : error.complaints) {
    if (!complaint.keys.empty()) continue;
    // A message that begins with a full key name is about that key, which may have no line of its
    // own.
    const std::string_view first =
        std::string_view(complaint.what).substr(0, complaint.what.find_first_of(" :["));
    if (first.find('.') != std::string_view::npos) {
      complaint.keys.emplace_back(first);
      continue;
    }
    const int64_t line = line_of(complaint.where);
    std::string key = line > 0 ? key_of_line(text, line) : "";
    if (!key.empty()) complaint.keys.push_back(std::move(key));
  }
  return error;
}

/// Fields that were equal to other fields before the edit follow them after it, unless the edit set
/// them.
void derive(Scenario& scenario, const Scenario& before) {
  Batch& batch = scenario.batch;
  const Batch& old = before.batch;
  const bool lengths_changed = batch.lengths != old.lengths;
  // Lengths that the user typed are no longer those of the generator.
  if (lengths_changed && batch.generator && batch.generator == old.generator)
    batch.generator.reset();
  const bool format_changed = batch.qkv_format != old.qkv_format;
  if (!lengths_changed && !format_changed && batch.kv_lengths == old.kv_lengths) return;
  if (batch.kv_lengths == old.kv_lengths && old.kv_lengths == old.lengths)
    batch.kv_lengths = batch.lengths;
  const auto follow = [&](std::vector<int64_t>& slots, const std::vector<int64_t>& old_slots,
                          const std::vector<int64_t>& lengths,
                          const std::vector<int64_t>& old_lengths) {
    if (slots == old_slots && old_slots == find_default_slots(old, old_lengths))
      slots = find_default_slots(batch, lengths);
  };
  follow(batch.slots, old.slots, batch.lengths, old.lengths);
  follow(batch.kv_slots, old.kv_slots, batch.kv_lengths, old.kv_lengths);
}

/// True if the order of tokens is in memory, whatever its file holds.
bool holds_order(const Scenario& scenario) {
  return scenario.parallel.layout == LayoutKind::indices &&
         !scenario.parallel.imported.ranks.empty();
}

/// Validates an edited scenario like a file with this text. An order in memory is not read again.
Result<LoadedScenario> check_edited(const Scenario& scenario, const std::string& text,
                                    const std::string& anchor) {
  if (!holds_order(scenario)) return parse_scenario(text, anchor);
  Scenario without = scenario;
  without.parallel.layout = LayoutKind::contiguous;
  without.parallel.indices_file.clear();
  without.parallel.imported = {};
  Result<LoadedScenario> parsed = parse_scenario(print_scenario(without), anchor);
  if (!parsed) return parsed;
  if (std::ssize(scenario.parallel.imported.ranks) != scenario.parallel.cp_size)
    return make_refusal("The order of tokens is of another number of ranks", "choose a layout",
                        {"parallel.layout"});
  Parallel& parallel = parsed.value().scenario.parallel;
  parallel.layout = LayoutKind::indices;
  parallel.indices_file = scenario.parallel.indices_file;
  parallel.imported = scenario.parallel.imported;
  return parsed;
}

}  // namespace

std::optional<Error> Document::load(const std::string& path) {
  Result<LoadedScenario> loaded = load_scenario_or_plan(path);
  if (!loaded) return loaded.error();
  if (loaded.value().plan) {
    open_plan(std::make_shared<const PlanIndex>(*loaded.value().plan));
    return std::nullopt;
  }
  auto error = load_text(loaded.value().text, path);
  has_file_ = !error;
  return error;
}

std::optional<Error> Document::load_text(const std::string& text, const std::string& path,
                                         const std::string& folder) {
  const std::string anchor = folder.empty() ? path : folder + "/" + path;
  Result<LoadedScenario> loaded = parse_scenario(text, anchor);
  if (!loaded) return name_faulty_keys(loaded.error(), text);
  begin(std::move(loaded).value(), path, anchor);
  return std::nullopt;
}

std::optional<Error> Document::load_with_order(const std::string& text, const std::string& path,
                                               const std::string& order) {
  Result<LoadedScenario> loaded = parse_scenario(text, path, ScenarioOrigin::plan_document);
  if (!loaded) return name_faulty_keys(loaded.error(), text);
  Scenario& scenario = loaded.value().scenario;
  const Batch& batch = scenario.batch;
  const OrderDemand demand{
      scenario.parallel.cp_size,
      std::accumulate(batch.slots.begin(), batch.slots.end(), int64_t{0}),
      std::accumulate(batch.kv_slots.begin(), batch.kv_slots.end(), int64_t{0}),
      batch.self_attention};
  Result<ImportedOrder> taken = parse_order(order, path, demand);
  if (!taken) return taken.error();
  scenario.parallel.imported = std::move(taken).value();
  begin(std::move(loaded).value(), path, path);
  return std::nullopt;
}

void Document::begin(LoadedScenario loaded, const std::string& path, const std::string& anchor) {
  states_.assign(
      1,
      State{
          std::move(loaded.scenario), std::move(loaded.text), std::move(loaded.warnings), {}, ""});
  at_ = 0;
  open_key_.clear();
  path_ = path;
  anchor_ = anchor;
  has_file_ = false;
  saved_text_ = state().text;
  saved_order_ = state().scenario.parallel.imported;
  // Planning takes seconds, and meanwhile the picture of another scenario would be misleading.
  if (!is_planned_at_once(state().scenario)) plan_.reset();
  replan();
}

void Document::open_plan(SharedPlan plan) {
  const Scenario& scenario = plan->plan().scenario;
  states_.assign(1, State{scenario, print_scenario(scenario), {}, {}, ""});
  at_ = 0;
  open_key_.clear();
  path_.clear();
  anchor_.clear();
  saved_text_ = state().text;
  saved_order_ = scenario.parallel.imported;
  has_file_ = false;
  planning_ = {};
  laying_out_ = {};
  first_layout_.reset();
  refusal_.reset();
  plan_ = std::move(plan);
}

std::optional<Error> Document::save(const std::string& path) {
  CPSCOPE_CHECK(is_open(), "only an open document can be saved", path, states_.size());
  if (state().error) return state().error;
  if (const std::string order = moved_order(); !order.empty()) {
    const auto place =
        std::filesystem::path(path).parent_path() / state().scenario.parallel.indices_file;
    const Result<size_t> written = write_whole_file(place.string(), order, "the order of tokens");
    if (!written) return written.error();
  }
  const Result<size_t> written = write_whole_file(path, state().text, "the scenario");
  if (!written) return written.error();
  path_ = path;
  has_file_ = true;
  saved_text_ = state().text;
  saved_order_ = state().scenario.parallel.imported;
  return std::nullopt;
}

std::string Document::moved_order() const {
  if (!is_open() || !holds_order(scenario())) return "";
  const Parallel& parallel = scenario().parallel;
  if (!parallel.indices_file.ends_with(kMovedOrder)) return "";
  OrderImport order;
  order.cp_size = static_cast<int32_t>(parallel.imported.ranks.size());
  order.ranks = parallel.imported.ranks;
  if (parallel.imported.kv_ranks != order.ranks) order.kv_ranks = parallel.imported.kv_ranks;
  return print_order_file(order);
}

void Document::edit(Scenario scenario, std::string_view key) {
  CPSCOPE_CHECK(is_open(), "only an open document can be edited", key, states_.size());
  derive(scenario, state().scenario);
  if (scenario == state().scenario) return;
  State next;
  next.key = std::string(key);
  next.text = rewrite_scenario(states_.front().text, states_.front().scenario, scenario, anchor_);
  Result<LoadedScenario> parsed = check_edited(scenario, next.text, anchor_);
  if (parsed) {
    next.scenario = std::move(parsed.value().scenario);
    next.warnings = std::move(parsed.value().warnings);
  } else {
    next.scenario = std::move(scenario);
    next.error = name_faulty_keys(parsed.error(), next.text);
  }
  states_.resize(at_ + 1);
  // Intermediate values of a drag are not separate undo steps.
  const bool continues = at_ > 0 && !open_key_.empty() && open_key_ == key;
  if (continues) {
    states_.back() = std::move(next);
  } else {
    states_.push_back(std::move(next));
    ++at_;
  }
  open_key_ = std::string(key);
  replan();
}

void Document::undo() {
  if (!can_undo()) return;
  --at_;
  end_edit();
  replan();
}

void Document::redo() {
  if (!can_redo()) return;
  ++at_;
  end_edit();
  replan();
}

void Document::replan() {
  planning_.cancel();
  laying_out_.cancel();
  first_layout_.reset();
  refusal_ = state().error;
  if (!refusal_) refusal_ = refuse_large_plan(state().scenario, most_bytes_);
  if (refusal_) return;
  if (is_planned_at_once(state().scenario)) {
    TaskControl control;
    take(plan_and_prove(state().scenario, state().text, path_, control));
    return;
  }
  planning_.start(
      [scenario = state().scenario, text = state().text, path = path_](TaskControl& control) {
        return plan_and_prove(scenario, text, path, control);
      });
  // A plan that is shown stays. Before the first plan, only its layout is shown: it is ready much
  // earlier.
  if (plan_ == nullptr) {
    laying_out_.start(
        [scenario = state().scenario](TaskControl&) { return make_layout(scenario); });
  }
}

void Document::take(Result<SharedPlan> result) {
  laying_out_.cancel();
  first_layout_.reset();
  if (result) {
    plan_ = std::move(result).value();
    refusal_.reset();
  } else {
    refusal_ = result.error();
  }
}

bool Document::poll() {
  if (auto layout = laying_out_.take(); layout && layout->ok())
    first_layout_ = std::make_shared<const Layout>(std::move(*layout).value());
  std::unique_ptr<Result<SharedPlan>> result = planning_.take();
  if (!result) return false;
  take(std::move(*result));
  return true;
}

void Document::wait() {
  while (is_planning()) {
    carry_out_posted();
    if (!poll()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

const Complaint* find_complaint(const std::optional<Error>& error, std::string_view key) {
  if (!error) return nullptr;
  for (const Complaint& complaint : error->complaints) {
    for (const std::string& named : complaint.keys) {
      if (!named.starts_with(key)) continue;
      if (named.size() == key.size() || named[key.size()] == '[') return &complaint;
    }
  }
  return nullptr;
}

Result<SharedPlan> plan_and_prove(const Scenario& scenario, const std::string& text,
                                  const std::string& path, TaskControl& control) {
  // Approximate time shares of the parts, so that the progress bar moves evenly.
  constexpr double kPlanned = 0.35, kProved = 0.75;
  try {
    Result<Plan> plan = make_plan(scenario);
    if (!plan) return locate_keys(plan.error(), text, path);
    control.progress = kPlanned;
    if (control.is_stopped) return make_error(ErrorKind::unavailable, "Planning was stopped");
    Result<CheckedPlan> checked = check_plan(std::move(plan).value());
    if (!checked) return checked.error();
    control.progress = kProved;
    if (control.is_stopped) return make_error(ErrorKind::unavailable, "Planning was stopped");
    return std::make_shared<const PlanIndex>(std::move(checked).value());
  } catch (const std::bad_alloc&) {
    return make_error(ErrorKind::unavailable, "The plan does not fit in this machine's memory",
                      "use fewer ranks, shorter sequences or fewer documents");
  }
}

bool is_planned_at_once(const Scenario& scenario) {
  const Batch& batch = scenario.batch;
  const auto ranks = static_cast<int64_t>(scenario.parallel.cp_size);
  int64_t tokens = 0;
  for (const int64_t slot : batch.slots) tokens += slot;
  for (const int64_t slot : batch.kv_slots) tokens += slot;
  // Each pair of ranks meets in each sequence; the work depends on tokens only for strided layouts.
  const auto sequences = static_cast<int64_t>(batch.lengths.size());
  constexpr int64_t kMostMeetings = 2048, kMostTokens = 1 << 14;
  return ranks <= kMostMeetings && ranks * ranks * sequences <= kMostMeetings &&
         tokens <= kMostTokens;
}

}  // namespace cpscope::gui
