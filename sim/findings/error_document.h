#pragma once

#include "sim/base/result.h"
#include "sim/scenario/scenario_file.h"

#include <streambuf>
#include <string>

namespace cpscope {

/// Whether --json is one of the words of a command line.
bool asks_for_json(int argc, char** argv);

/// What went wrong, for the document that a command with --json prints when it has no result.
void note_error(const Error& error);

/// Prints the error to stderr and returns its exit code.
int report(const Error& error);

/// The same for what is wrong with a loaded scenario: with the place of the key at fault.
int report(const Error& error, const LoadedScenario& loaded);

/// While it lives, stdout and stderr pass through it: with --json a command that ends without a
/// result, and has printed nothing, still prints one document:
/// {"schema":1,"error":{"message":...,"at":"file:line:column","hint":...}}.
class ErrorDocument {
 public:
  ErrorDocument();
  ~ErrorDocument();
  ErrorDocument(const ErrorDocument&) = delete;
  ErrorDocument& operator=(const ErrorDocument&) = delete;

  /// Prints the document where `code` is a failure and stdout is still empty.
  void finish(int code);

  /// Whether anything was printed on stdout since the last one was made.
  static bool has_printed();

 private:
  /// Hands on what it is given, and remembers whether there was any and, of stderr, the last line.
  class Watch : public std::streambuf {
   public:
    /// Sets `has_written` with the first byte; without one it keeps the last line.
    explicit Watch(std::streambuf* target, bool* has_written = nullptr)
        : target_(target), has_written_(has_written) {}
    const std::string& last_line() const { return last_line_; }
    std::streambuf* target() const { return target_; }

   protected:
    int overflow(int character) override;
    std::streamsize xsputn(const char* text, std::streamsize size) override;
    int sync() override { return target_->pubsync(); }

   private:
    void look_at(const char* text, std::streamsize size);
    std::streambuf* target_;
    bool* has_written_;
    std::string line_, last_line_;
  };
  Watch out_, err_;
};

}  // namespace cpscope
