#include "sim/findings/error_document.h"

#include "sim/documents/json_text.h"
#include "sim/scenario/key_place.h"

#include <algorithm>
#include <iostream>
#include <new>
#include <optional>
#include <string_view>

namespace cpscope {
namespace {

/// One process, one command, one document.
std::optional<Error> noted;
bool has_printed_out = false;

Json complaint_json(const Complaint& complaint) {
  return {{"message", complaint.what}, {"at", complaint.where}, {"hint", complaint.hint}};
}

}  // namespace

bool asks_for_json(int argc, char** argv) {
  return std::any_of(argv + std::min(1, argc), argv + argc,
                     [](const char* word) { return std::string_view(word) == "--json"; });
}

void note_error(const Error& error) { noted = error; }

int report(const Error& error) {
  std::cerr << to_text(error) << '\n';
  note_error(error);
  return exit_code(error.kind);
}

int report(const Error& error, const LoadedScenario& loaded) {
  // A plan document has no lines of keys.
  return report(loaded.plan ? error : locate_keys(error, loaded.text, loaded.path));
}

ErrorDocument::ErrorDocument()
    : out_(std::cout.rdbuf(), &has_printed_out), err_(std::cerr.rdbuf()) {
  noted.reset();
  has_printed_out = false;
  std::cout.rdbuf(&out_);
  std::cerr.rdbuf(&err_);
}

ErrorDocument::~ErrorDocument() {
  std::cout.rdbuf(out_.target());
  std::cerr.rdbuf(err_.target());
}

bool ErrorDocument::has_printed() { return has_printed_out; }

void ErrorDocument::finish(int code) {
  if (code == 0 || has_printed_out) return;
  Json error =
      complaint_json(noted ? noted->complaints.front() : Complaint{err_.last_line(), "", ""});
  if (noted && noted->complaints.size() > 1) {
    error["all"] = Json::array();
    for (const Complaint& complaint : noted->complaints)
      error["all"].push_back(complaint_json(complaint));
  }
  std::cout << print_json({{"schema", 1}, {"exit_code", code}, {"error", error}}) << '\n';
  std::cout.flush();
}

void ErrorDocument::Watch::look_at(const char* text, std::streamsize size) {
  if (has_written_ != nullptr) {
    *has_written_ = *has_written_ || size > 0;
    return;
  }
  try {
    for (std::streamsize i = 0; i < size; ++i) {
      if (text[i] != '\n') {
        line_ += text[i];
      } else if (!line_.empty()) {
        last_line_ = std::exchange(line_, {});
      }
    }
  } catch (const std::bad_alloc&) {  // the line itself must still be printed
    line_.clear();
  }
}

int ErrorDocument::Watch::overflow(int character) {
  if (character == traits_type::eof()) return traits_type::not_eof(character);
  const char letter = traits_type::to_char_type(character);
  look_at(&letter, 1);
  return target_->sputc(letter);
}

std::streamsize ErrorDocument::Watch::xsputn(const char* text, std::streamsize size) {
  look_at(text, size);
  return target_->sputn(text, size);
}

}  // namespace cpscope
