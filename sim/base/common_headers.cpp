// CMake precompiles the headers that the libraries share with this file, which is otherwise empty.
