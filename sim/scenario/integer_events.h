#pragma once

// Private to the readers of JSON files that hold lists of integers.

#include "sim/scenario/complaints.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

namespace cpscope {

/// Takes JSON as parser events, so that an untrusted file causes no tree of values and no
/// recursion, and rejects every value that is no integer.
class IntegerEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::string problem;           // what is wrong with the content, empty if nothing is
  std::optional<size_t> offset;  // byte at which the JSON syntax is broken

  bool null() override { return take_other("null"); }
  bool boolean(bool) override { return take_other("a boolean"); }
  bool number_float(double, const std::string& text) override {
    return take_other(text.substr(0, 40));
  }
  bool string(std::string& text) override { return take_other(show_text(text)); }
  bool binary(nlohmann::json::binary_t&) override { return take_other("binary data"); }
  bool end_object() override { return true; }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::json::exception& exception) override {
    offset = position;
    // The text of "[json.exception.parse_error.101] parse error at line 1, column 2: ..." after the
    // code.
    const std::string text = exception.what();
    const size_t code_end = text.find("] ");
    return stop("not JSON: " + (code_end == std::string::npos ? text : text.substr(code_end + 2)));
  }

 protected:
  /// `file`: with its article, "an order file".
  explicit IntegerEvents(std::string file) : file_(std::move(file)) {}

  bool stop(std::string what) {
    problem = std::move(what);
    return false;
  }
  bool take_other(const std::string& shown) {
    return stop(file_ + " may contain only integers: " + shown);
  }

 private:
  const std::string file_;
};

}  // namespace cpscope
