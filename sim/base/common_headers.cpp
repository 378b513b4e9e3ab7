// CMake reads the headers that the libraries share with this file; it has nothing of its own.
