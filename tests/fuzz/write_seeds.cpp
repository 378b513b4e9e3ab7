// Writes what the fuzzers start from: write_seeds FOLDER SCENARIOS makes FOLDER/<target>/<n>.

#include "tests/fuzz/fuzz_targets.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "write_seeds FOLDER SCENARIOS\n");
    return 2;
  }
  for (const cpscope::fuzzing::Target& target : cpscope::fuzzing::targets()) {
    const std::filesystem::path folder = std::filesystem::path(argv[1]) / target.name;
    std::filesystem::create_directories(folder);
    int count = 0;
    for (const std::string& seed : target.seeds(argv[2])) {
      std::ofstream stream(folder / std::to_string(count++), std::ios::binary);
      if (!stream.write(seed.data(), static_cast<std::streamsize>(seed.size()))) return 1;
    }
  }
}
