#pragma once

#include "sim/base/check.h"

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace cpscope {

/// Kind of an error: says who has to act, and sets the exit code of the program.
enum class ErrorKind {
  bad_input,    // the file or the command line is wrong: exit 2
  refused,      // a well-formed scenario that mathematics or a rule forbids: exit 2
  unavailable,  // this machine or this executor cannot do it: exit 3
  failed        // a verification failed: exit 1
};

/// One thing that is wrong.
struct Complaint {
  std::string what;   // static part first, values last
  std::string where;  // "file:line:column" or empty
  std::string hint;   // what would be right
  // Scenario keys at fault, likeliest first ("attention.heads", "batch.lengths[1]"). A caller that
  // has the file can find their lines (sim/scenario/key_place.h).
  std::vector<std::string> keys = {};
};

/// One or more complaints of one kind. Never empty.
struct Error {
  ErrorKind kind = ErrorKind::bad_input;
  std::vector<Complaint> complaints;
};

Error make_error(ErrorKind kind, std::string what, std::string hint = "", std::string where = "");
/// An error of the kind bad_input: the file or the command line is wrong.
Error make_bad_input(std::string what, std::string hint = "", std::string where = "");
/// A scenario that a rule forbids, and the keys at fault.
Error make_refusal(std::string what, std::string hint, std::vector<std::string> keys);

/// One line per complaint: "where: what; hint".
std::string to_text(const Error& error);

/// Process exit code of the contract, section 3.
int exit_code(ErrorKind kind);

/// A value or an Error. Reading the wrong one is our bug and aborts.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::move(value)) {}
  Result(Error error) : content_(std::move(error)) {}

  bool ok() const { return std::holds_alternative<T>(content_); }
  explicit operator bool() const { return ok(); }

  T& value() & {
    CPSCOPE_CHECK(ok(), "a Result was read although it holds an error", to_text(error()), "");
    return std::get<T>(content_);
  }
  const T& value() const& {
    CPSCOPE_CHECK(ok(), "a Result was read although it holds an error", to_text(error()), "");
    return std::get<T>(content_);
  }
  T&& value() && {
    CPSCOPE_CHECK(ok(), "a Result was read although it holds an error", to_text(error()), "");
    return std::get<T>(std::move(content_));
  }
  const Error& error() const { return std::get<Error>(content_); }

 private:
  std::variant<T, Error> content_;
};

}  // namespace cpscope
