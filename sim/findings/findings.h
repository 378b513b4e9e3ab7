#pragma once

#include "sim/faults/gallery.h"
#include "sim/plan/token_run.h"
#include "sim/run/grade/case.h"
#include "sim/run/probe/probe.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// A rectangle of pairs that one compute item works on, in packed padded ids.
struct WrongTile {
  TokenRun q, k;
};
/// "queries [96, 128) x keys [0, 32)".
std::string describe(const WrongTile& tile);
/// The first three, and how many more.
std::string describe_tiles(const std::vector<WrongTile>& tiles);

/// The first place at which a run holds something wrong.
struct WrongPlace {
  FaultSite site;
  std::string array;    // out | lse | dq | dk | dv; empty where only rows are known
  bool is_key = false;  // `token` is a key's
  int64_t token = -1;   // packed padded id of the worst row; -1 where rows name no tokens
  int32_t head = -1;    // -1: not known
  std::optional<double> expected, seen;
  // Of a compute item: its tiles that write the token's row; the whole item as one where none
  // should, or where they are too many.
  std::vector<WrongTile> tiles;
  std::string found_by;  // "compared with a clean run of the same plan"
};
/// One sentence without a full stop: step, rank, item, tile, row and both values.
std::string describe(const WrongPlace& place);

/// Tiles of a compute item in which a token is a row (or, `is_key`, a column), all of them for a
/// token of -1; the whole item as one where there is none, or where they are too many. Nothing for
/// other items.
std::vector<WrongTile> tiles_of(const Plan& plan, const FaultSite& site, int64_t token,
                                bool is_key);

/// One row of an answer that is far off.
struct WrongRow {
  std::string tensor;
  int32_t rank = -1;  // owner of the row
  int64_t token = 0;
  int32_t head = 0;
  double expected = 0.0, seen = 0.0;  // at the lane that is furthest off
  double share = 0.0;                 // |seen - exact|2 of the row over what it may err
};

/// One thing that was judged, as every table shows it. Words are empty where there is nothing to
/// say.
struct JudgedQuantity {
  std::string name;
  Judgement judgement = Judgement::pass;
  std::string error = {}, budget = {};  // figures
  std::string place = {};               // rank, step, token, head
  std::string expected = {}, seen = {};
  std::string note = {};
};

/// What is known of one scenario on one executor: what text, JSON, JUnit and reports tell.
struct CaseFindings {
  std::string name;  // unique among the cases of a verification
  std::string path;  // of the scenario; empty when no file holds it
  std::string text;  // the scenario, whole
  std::string replay;
  CaseStatus status = CaseStatus::error;
  std::string reason;  // why it is no pass
  std::string executor, machine, version;
  double seconds = 0.0;
  std::optional<CheckedPlan> plan;
  Grade grade;
  JudgedRows judged;  // empty lists when the whole batch was judged
  std::optional<ProbeReport> probe;
  const FaultOutcome* fault = nullptr;  // of the gallery
  std::vector<std::string> notes;       // one sentence each
  std::vector<std::string> blind;       // what could not be seen, one sentence each
  std::optional<WrongPlace> first;
  std::string not_located;  // why `first` is not known of a failure
  std::vector<WrongRow> worst_rows;
  Answer seen, exact;  // of a failure that was looked into; else empty
};

/// Everything that one command has found.
struct Findings {
  std::string command;       // "verify"
  std::string date = {};     // "2026-11-21"
  std::string summary = {};  // one sentence of the whole; empty: made from the cases
  std::vector<CaseFindings> cases = {};
};

/// Findings of a case that was run; takes what it may out of the outcome.
CaseFindings make_findings(const std::string& path, const std::string& text, CaseOutcome outcome);
/// What was judged, in the order of the table.
std::vector<JudgedQuantity> list_quantities(const CaseFindings& findings);

/// The verdict of one case and of all in one sentence.
std::string describe_verdict(const CaseFindings& findings);
std::string describe_verdict(const Findings& findings);

int64_t count_cases(const Findings& findings, CaseStatus status);

/// A word of a shell line.
std::string quote_word(const std::string& text);

/// The day in UTC, or that of SOURCE_DATE_EPOCH, as reproducible builds set it.
std::string today();

}  // namespace cpscope
