#include "sim/base/result.h"

#include <cstdio>
#include <cstdlib>

namespace cpscope {

Error make_error(ErrorKind kind, std::string what, std::string hint, std::string where) {
  return Error{kind, {Complaint{std::move(what), std::move(where), std::move(hint)}}};
}

Error make_bad_input(std::string what, std::string hint, std::string where) {
  return make_error(ErrorKind::bad_input, std::move(what), std::move(hint), std::move(where));
}

Error make_refusal(std::string what, std::string hint, std::vector<std::string> keys) {
  return Error{ErrorKind::refused,
               {Complaint{std::move(what), "", std::move(hint), std::move(keys)}}};
}

std::string to_text(const Error& error) {
  std::string text;
  for (const Complaint& complaint : error.complaints) {
    if (!text.empty()) text += '\n';
    if (!complaint.where.empty()) text += complaint.where + ": ";
    text += complaint.what;
    if (!complaint.hint.empty()) text += "; " + complaint.hint;
  }
  return text;
}

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::bad_input:
    case ErrorKind::refused:
      return 2;
    case ErrorKind::unavailable:
      return 3;
    case ErrorKind::failed:
      return 1;
  }
  return 2;
}

void report_broken_check(const char* file, int line, const char* condition,
                         const std::string& message, const std::string& left,
                         const std::string& right) {
  std::fprintf(stderr, "%s:%d: cpscope is wrong here: %s [%s]: %s vs %s\n", file, line,
               message.c_str(), condition, left.c_str(), right.c_str());
  std::abort();
}

}  // namespace cpscope
