// CMake takes the headers shared by tests from the target of this file; it has no code of its own.
