#include "sim/app/cli/commands.h"
#include "sim/documents/key_text.h"

#include <iostream>
#include <memory>

namespace cpscope {
namespace {

struct KeysArguments {
  bool json = false, markdown = false;
};

int command_keys(const KeysArguments& options, const Tools&) {
  if (options.json) {
    std::cout << print_json(keys_json()) << '\n';
  } else if (options.markdown) {
    write_keys_page(std::cout);
  } else {
    write_keys_text(std::cout);
  }
  return 0;
}

}  // namespace

Command add_keys(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<KeysArguments>();
  CLI::App* keys = app.add_subcommand(
      "keys",
      "every key of a scenario file with its type, its choices, its default and its meaning");
  add_json(keys, options->json);
  keys->add_flag("--markdown", options->markdown, "print the page scenarios/keys.md")
      ->excludes("--json");
  keys->footer("Example: cpscope keys");
  return {keys, [options, tools] { return command_keys(*options, tools); }};
}

}  // namespace cpscope
