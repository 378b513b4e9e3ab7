#pragma once

#include "gui/app/background.h"
#include "gui/app/plan_size.h"
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

/// What is open: the scenario as the user wants it, and the last plan that could be made. Every
/// edit is validated as a file would be, planned and proved; large plans in the background, while
/// the old one stays. Call poll() once a frame.
class Document {
 public:
  /// Opens a file. On an error (no such file, not a scenario) the document stays as it was.
  std::optional<Error> load(const std::string& path);
  /// The same from a text, e.g. one embedded in the program or kept in a record. `path` is where
  /// save() would write it, and may be empty. Relative names inside start from `folder`, or where
  /// `path` is when that is empty.
  std::optional<Error> load_text(const std::string& text, const std::string& path,
                                 const std::string& folder = "");
  /// Writes the text of the wanted scenario, whole or not at all. Refuses one that does not parse.
  std::optional<Error> save(const std::string& path);

  /// Wants another scenario. `key` names what was changed ("parallel.cp_size"): edits of one key in
  /// a row, until end_edit(), are one step of undo. What follows from others is derived again:
  /// kv_lengths and slots where they followed lengths before, lengths from a changed generator.
  void edit(Scenario scenario, std::string_view key);
  /// The drag or the typing is over.
  void end_edit() { open_key_.clear(); }
  bool can_undo() const { return at_ > 0; }
  bool can_redo() const { return at_ + 1 < states_.size(); }
  void undo();
  void redo();
  /// What undo would take back ("parallel.cp_size"); empty when there is nothing.
  std::string_view undo_key() const { return can_undo() ? state().key : std::string_view(); }

  bool is_open() const { return !states_.empty(); }
  /// Does what is wanted keep the rules of scenario files? It may still have no plan.
  bool is_valid() const { return is_open() && !state().error; }
  /// Wanted, edits included; may be one that is refused. Needs is_open().
  const Scenario& scenario() const { return state().scenario; }
  /// What save() would write: the file byte for byte while nothing is edited.
  const std::string& text() const { return state().text; }
  const std::string& path() const { return path_; }
  const std::vector<std::string>& warnings() const { return state().warnings; }
  bool is_modified() const { return is_open() && state().text != saved_text_; }

  /// The last plan of this scenario or an edit of it that could be made; null before there was one.
  const SharedPlan& plan() const { return plan_; }
  /// Is plan() the plan of scenario()?
  bool is_current() const { return plan_ && !is_planning() && !refusal_; }
  /// Who will own which token, as soon as it is known, while the first plan is being made; else
  /// null.
  const std::shared_ptr<const Layout>& first_layout() const { return first_layout_; }
  /// Why the wanted scenario has no plan, with keys at fault and places in text(); nothing while
  /// it has one or is being planned.
  const std::optional<Error>& refusal() const { return refusal_; }
  bool is_planning() const { return planning_.is_running(); }
  double progress() const { return planning_.progress(); }  // of planning, [0, 1]

  /// Scenarios whose plans would take more memory are refused (gui/app/plan_size.h).
  void limit_memory(int64_t bytes) { most_bytes_ = bytes; }

  /// Takes over finished work. True when plan() or refusal() changed.
  bool poll();
  /// Waits until nothing is being planned: pictures and tests.
  void wait();

 private:
  struct State {
    Scenario scenario;
    std::string text;
    std::vector<std::string> warnings;
    std::optional<Error> error;  // the text does not parse
    std::string key;             // the edit that led here
  };
  const State& state() const { return states_[at_]; }
  void replan();
  void take(Result<SharedPlan> result);

  std::vector<State> states_;
  size_t at_ = 0;
  std::string open_key_;
  std::string path_, saved_text_;
  std::string anchor_;  // the path that relative names start from
  SharedPlan plan_;
  int64_t most_bytes_ = plan_bytes_limit();
  std::optional<Error> refusal_;
  Task<Result<SharedPlan>> planning_;
  std::shared_ptr<const Layout> first_layout_;
  Task<Result<Layout>> dealing_;
};

/// The first scenario key that is named as wrong, over all complaints, or that begins with it
/// ("batch.lengths" finds "batch.lengths[1]"); null when the error is not about this key.
const Complaint* find_complaint(const std::optional<Error>& error, std::string_view key);

/// Plans, proves and indexes. Errors come back with places in `text`.
Result<SharedPlan> plan_and_prove(const Scenario& scenario, const std::string& text,
                                  const std::string& path, TaskControl& control);

/// Will the plan be ready within a frame, so that it need not go to the background?
bool is_planned_at_once(const Scenario& scenario);

}  // namespace cpscope::gui
