#pragma once

#include "gui/app/document/background.h"
#include "gui/app/document/plan_size.h"
#include "gui/model/plan_index.h"
#include "sim/base/result.h"
#include "sim/plan/layout.h"
#include "sim/scenario/scenario_file.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope::gui {

/// The end of the names of order files that hold tokens moved by hand: saving writes them.
inline constexpr std::string_view kMovedOrder = "_moved.json";

/// The open document: the scenario as the user edited it, and the last plan that could be made.
/// Every edit is validated like a file, then planned and proved. A large plan is made in the
/// background while the old one is shown. Call poll() once a frame.
class Document {
 public:
  /// Opens a scenario file, or a plan document, which is proved and shown as it is until an edit.
  /// On an error the document does not change.
  std::optional<Error> load(const std::string& path);
  /// Like load(), but from a text, e.g. one embedded in the program or stored in a record. save()
  /// would write to `path`, which may be empty. Relative names inside are resolved against
  /// `folder`, or against the folder of `path` when `folder` is empty.
  std::optional<Error> load_text(const std::string& text, const std::string& path,
                                 const std::string& folder = "");
  /// Like load_text(), with the content of the order file that the text names.
  std::optional<Error> load_with_order(const std::string& text, const std::string& path,
                                       const std::string& order);
  /// Opens a plan that is made and proved, with the scenario in it.
  void open_plan(SharedPlan plan);
  /// Writes the text of the edited scenario, completely or not at all, and beside it the order of
  /// tokens that were moved by hand. Fails if the text does not parse.
  std::optional<Error> save(const std::string& path);

  /// Replaces the scenario. `key` names what was changed ("parallel.cp_size"): consecutive edits of
  /// one key, until end_edit(), are one undo step. Dependent fields are derived again: kv_lengths
  /// and slots where they were equal to lengths, and lengths from a changed generator.
  void edit(Scenario scenario, std::string_view key);
  /// Ends the current drag or typing.
  void end_edit() { open_key_.clear(); }
  bool can_undo() const { return at_ > 0; }
  bool can_redo() const { return at_ + 1 < states_.size(); }
  void undo();
  void redo();
  /// The key that undo would change back ("parallel.cp_size"); empty when there is nothing to undo.
  std::string_view undo_key() const { return can_undo() ? state().key : std::string_view(); }

  bool is_open() const { return !states_.empty(); }
  /// True if the edited scenario satisfies the rules of scenario files. It may still have no plan.
  bool is_valid() const { return is_open() && !state().error; }
  /// The scenario with all edits; it may be one that is rejected. Requires is_open().
  const Scenario& scenario() const { return state().scenario; }
  /// The text that save() would write: identical to the file, byte for byte, while nothing is
  /// edited.
  const std::string& text() const { return state().text; }
  const std::string& path() const { return path_; }
  const std::vector<std::string>& warnings() const { return state().warnings; }
  bool is_modified() const {
    return is_open() &&
           (state().text != saved_text_ || state().scenario.parallel.imported != saved_order_);
  }
  /// True if the file that save() writes by itself is the one that was opened or saved; a shipped
  /// scenario has only a name.
  bool has_file() const { return has_file_; }
  /// The order file's content of tokens that were moved by hand; empty when none were.
  std::string moved_order() const;

  /// The last plan that could be made of this scenario or an edit of it; null before the first one.
  const SharedPlan& plan() const { return plan_; }
  /// True if plan() is the plan of scenario().
  bool is_current() const { return plan_ && !is_planning() && !refusal_; }
  /// The layout (which rank owns which token) as soon as it is known, while the first plan is being
  /// made; otherwise null.
  const std::shared_ptr<const Layout>& first_layout() const { return first_layout_; }
  /// Why the scenario has no plan, with the keys at fault and places in text(); nothing while it
  /// has a plan or is being planned.
  const std::optional<Error>& refusal() const { return refusal_; }
  bool is_planning() const { return planning_.is_running(); }
  double progress() const { return planning_.progress(); }  // progress of planning, [0, 1]

  /// Rejects scenarios whose plans would take more memory (gui/app/document/plan_size.h).
  void limit_memory(int64_t bytes) { most_bytes_ = bytes; }

  /// Takes over finished work. Returns true when plan() or refusal() changed.
  bool poll();
  /// Waits until planning is finished, for pictures and tests.
  void wait();

 private:
  struct State {
    Scenario scenario;
    std::string text;
    std::vector<std::string> warnings;
    std::optional<Error> error;  // set when the text does not parse
    std::string key;             // the edited key that led to this state
  };
  const State& state() const { return states_[at_]; }
  void begin(LoadedScenario loaded, const std::string& path, const std::string& anchor);
  void replan();
  void take(Result<SharedPlan> result);

  std::vector<State> states_;
  size_t at_ = 0;
  std::string open_key_;
  std::string path_, saved_text_;
  ImportedOrder saved_order_;
  bool has_file_ = false;
  std::string anchor_;  // the path against which relative names are resolved
  SharedPlan plan_;
  int64_t most_bytes_ = plan_bytes_limit();
  std::optional<Error> refusal_;
  Task<Result<SharedPlan>> planning_;
  std::shared_ptr<const Layout> first_layout_;
  Task<Result<Layout>> laying_out_;
};

/// The first complaint about this scenario key, or about a key that begins with it ("batch.lengths"
/// finds "batch.lengths[1]"); null when the error is not about this key.
const Complaint* find_complaint(const std::optional<Error>& error, std::string_view key);

/// Plans, proves and indexes a scenario. Errors contain places in `text`.
Result<SharedPlan> plan_and_prove(const Scenario& scenario, const std::string& text,
                                  const std::string& path, TaskControl& control);

/// True if the plan will be ready within a frame, so that it is made without a background task.
bool is_planned_at_once(const Scenario& scenario);

}  // namespace cpscope::gui
