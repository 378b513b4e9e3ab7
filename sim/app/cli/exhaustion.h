#pragma once

namespace cpscope {

/// Runs the program, and ends the process with exit code 3 and words where memory has run out and
/// nothing else could say so: while the command line was set up, while words for an error were
/// sought, in a destructor, and in libraries that crash when they do not get memory.
int survive_exhaustion(int (*program)(int, char**), int argc, char** argv);

}  // namespace cpscope
