#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cpscope::testing_support {

// Files of numpy and torch, byte by byte.

/// The bytes of numbers, little-endian.
template <class Number>
std::string bytes_of(const std::vector<Number>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Number)};
}

inline std::string little_endian(uint64_t number, int width) {
  return std::string(reinterpret_cast<const char*>(&number), static_cast<size_t>(width));
}

/// An .npy file of version 1.0, as numpy writes it. `type`: with its quotes, "'<f4'".
inline std::string npy_of(const std::string& type, const std::string& shape,
                          const std::string& data, const std::string& is_fortran = "False") {
  std::string header =
      "{'descr': " + type + ", 'fortran_order': " + is_fortran + ", 'shape': " + shape + ", }";
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  header += '\n';
  return std::string("\x93NUMPY\x01\x00", 8) + little_endian(header.size(), 2) + header + data;
}

/// A zip archive of uncompressed files. `method`: what it says of their compression.
inline std::string zip_of(const std::vector<std::pair<std::string, std::string>>& files,
                          uint64_t method = 0) {
  std::string bytes, directory;
  for (const auto& [name, content] : files) {
    const std::string common = little_endian(20, 2) + little_endian(0, 2) +
                               little_endian(method, 2) + std::string(8, '\0') +
                               little_endian(content.size(), 4) + little_endian(content.size(), 4) +
                               little_endian(name.size(), 2) + little_endian(0, 2);
    directory += "PK\x01\x02" + little_endian(20, 2) + common + std::string(10, '\0') +
                 little_endian(bytes.size(), 4) + name;
    bytes += "PK\x03\x04" + common + name + content;
  }
  const std::string count = little_endian(files.size(), 2);
  return bytes + directory + "PK\x05\x06" + std::string(4, '\0') + count + count +
         little_endian(directory.size(), 4) + little_endian(bytes.size(), 4) + std::string(2, '\0');
}

/// What torch.save writes around a pickle and the bytes of its storages "0", "1", ...
inline std::string torch_archive_of(const std::string& pickle,
                                    const std::vector<std::string>& storages,
                                    const std::string& byte_order = "little") {
  std::vector<std::pair<std::string, std::string>> files{
      {"a/data.pkl", pickle}, {"a/.format_version", "1"}, {"a/byteorder", byte_order}};
  for (size_t s = 0; s < storages.size(); ++s)
    files.emplace_back("a/data/" + std::to_string(s), storages[s]);
  files.emplace_back("a/version", "3\n");
  return zip_of(files);
}

// Opcodes of protocol 2, as torch.save writes them.

inline std::string pickle_of(const std::string& value) {
  return std::string("\x80\x02", 2) + value + '.';
}
inline std::string pickled_text(const std::string& text) {
  return 'X' + little_endian(text.size(), 4) + text;
}
inline std::string pickled_number(int64_t number) {
  return 'J' + little_endian(static_cast<uint64_t>(number), 4);
}
inline std::string pickled_tuple(const std::vector<std::string>& items) {
  std::string bytes = "(";
  for (const std::string& item : items) bytes += item;
  return bytes + 't';
}
inline std::string pickled_list(const std::vector<std::string>& items) {
  std::string bytes = "](";
  for (const std::string& item : items) bytes += item;
  return bytes + 'e';
}
inline std::string pickled_numbers(const std::vector<int64_t>& numbers) {
  std::vector<std::string> items;
  for (const int64_t number : numbers) items.push_back(pickled_number(number));
  return pickled_tuple(items);
}
inline std::string pickled_dict(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string bytes = "}(";
  for (const auto& [key, value] : entries) bytes += pickled_text(key) + value;
  return bytes + 'u';
}
/// "torch FloatStorage" as a name.
inline std::string pickled_name(const std::string& module, const std::string& name) {
  return 'c' + module + '\n' + name + '\n';
}

/// A view of a storage.
struct PickledView {
  std::string storage_class = "FloatStorage";
  std::string key = "0";
  int64_t offset = 0;
  std::vector<int64_t> shape, strides;
};

inline std::string pickled_tensor(const PickledView& view) {
  const std::string storage =
      pickled_tuple({pickled_text("storage"), pickled_name("torch", view.storage_class),
                     pickled_text(view.key), pickled_text("cpu"), pickled_number(0)}) +
      'Q';
  return pickled_name("torch._utils", "_rebuild_tensor_v2") +
         pickled_tuple({storage, pickled_number(view.offset), pickled_numbers(view.shape),
                        pickled_numbers(view.strides), "\x89",
                        pickled_name("collections", "OrderedDict") + ")R"}) +
         'R';
}

}  // namespace cpscope::testing_support
