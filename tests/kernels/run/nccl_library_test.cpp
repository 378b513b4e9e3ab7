#include "kernels/run/nccl_library.h"

#include <cstdlib>
#include <optional>
#include <string>

#include <gtest/gtest.h>

namespace cpscope::kernels {
namespace {

NcclSearch only(const char* file) { return {.only = file, .files = {}, .asks_python = false}; }

std::string loading_error(const NcclSearch& search) {
  const Result<NcclLibrary> library = load_nccl(search);
  if (library) return "it loaded";
  EXPECT_EQ(library.error().kind, ErrorKind::unavailable);
  return to_text(library.error());
}

TEST(NcclLibrary, LoadsFileThatIsNamed) {
  const Result<NcclLibrary> library = load_nccl(only(CPSCOPE_FAKE_NCCL));
  ASSERT_TRUE(library) << to_text(library.error());
  EXPECT_EQ(library.value().version, 22809);
  EXPECT_EQ(library.value().path, CPSCOPE_FAKE_NCCL);
  EXPECT_STREQ(library.value().functions.get_error_string(NcclStatus::remote_error),
               "a fake error");
}

TEST(NcclLibrary, PassesArgumentsAsNcclLaysThemOut) {
  const Result<NcclLibrary> library = load_nccl(only(CPSCOPE_FAKE_NCCL));
  ASSERT_TRUE(library);
  const NcclFunctions& nccl = library.value().functions;
  NcclUniqueId id;
  ASSERT_EQ(nccl.get_unique_id(&id), NcclStatus::success);
  NcclConfig config;
  NcclCommunicator made = nullptr;
  EXPECT_EQ(nccl.init_rank(&made, 3, id, 2, &config), NcclStatus::in_progress);
  EXPECT_NE(made, nullptr);
  NcclStatus status = NcclStatus::success;
  EXPECT_EQ(nccl.get_async_error(made, &status), NcclStatus::success);
  EXPECT_EQ(status, NcclStatus::remote_error);
}

TEST(NcclLibrary, GoesOnToNextPlaceWhenFileIsAbsent) {
  const Result<NcclLibrary> library =
      load_nccl({.only = std::nullopt,
                 .files = {"libnccl-nowhere.so.2", "nowhere/libnccl.so.2", CPSCOPE_FAKE_NCCL},
                 .asks_python = false});
  ASSERT_TRUE(library) << to_text(library.error());
  EXPECT_EQ(library.value().path, CPSCOPE_FAKE_NCCL);
}

TEST(NcclLibrary, NamesEveryPlaceWhenNoneHasIt) {
  const std::string text =
      loading_error({.only = std::nullopt,
                     .files = {"nowhere/libnccl.so.2", "elsewhere/libnccl.so.2"},
                     .asks_python = false});
  EXPECT_EQ(text,
            "no NCCL library was found; looked for nowhere/libnccl.so.2, elsewhere/libnccl.so.2; "
            "install NCCL 2.18.0 or later, or name its file in CPSCOPE_NCCL_LIBRARY");
}

TEST(NcclLibrary, RefusesVersionThatIsTooOld) {
  EXPECT_EQ(loading_error(only(CPSCOPE_OLD_NCCL)),
            "NCCL is too old: version 2.14.3 in " CPSCOPE_OLD_NCCL
            "; install 2.18.0 or later, or name its file in CPSCOPE_NCCL_LIBRARY");
}

TEST(NcclLibrary, NamesFunctionThatIsMissing) {
  EXPECT_EQ(loading_error(only(CPSCOPE_LACKING_NCCL)), CPSCOPE_LACKING_NCCL
            " is no usable NCCL: it has no ncclCommAbort; name another file in "
            "CPSCOPE_NCCL_LIBRARY");
}

TEST(NcclLibrary, SaysWhyNamedFileDoesNotLoad) {
  const std::string text = loading_error(only(__FILE__));
  EXPECT_NE(text.find("the NCCL library that was named does not load: "), std::string::npos)
      << text;
  EXPECT_NE(text.find("nccl_library_test.cpp"), std::string::npos) << text;
  EXPECT_NE(text.find("CPSCOPE_NCCL_LIBRARY"), std::string::npos) << text;
}

TEST(NcclLibrary, SaysWhyFoundFileDoesNotLoad) {
  const std::string text =
      loading_error({.only = std::nullopt, .files = {__FILE__}, .asks_python = false});
  EXPECT_NE(text.find("the NCCL library that was found does not load: "), std::string::npos)
      << text;
}

TEST(NcclLibrary, LooksOnlyWhereVariableSays) {
  ASSERT_EQ(setenv("CPSCOPE_NCCL_LIBRARY", "some/libnccl.so.2", 1), 0);
  const NcclSearch search = nccl_search_of_environment();
  ASSERT_EQ(unsetenv("CPSCOPE_NCCL_LIBRARY"), 0);
  EXPECT_EQ(search.only, "some/libnccl.so.2");
  EXPECT_FALSE(search.asks_python);
}

TEST(NcclLibrary, LooksAtLoaderFirstAndPythonLast) {
  ASSERT_EQ(unsetenv("CPSCOPE_NCCL_LIBRARY"), 0);
  const NcclSearch search = nccl_search_of_environment();
  EXPECT_FALSE(search.only);
  EXPECT_EQ(search.files.front(), "libnccl.so.2");
  EXPECT_TRUE(search.asks_python);
}

TEST(NcclLibrary, LoadsRealLibraryOfThisMachine) {
  const Result<NcclLibrary> library = load_nccl(nccl_search_of_environment());
  if (!library) GTEST_SKIP() << "requires nccl: " << to_text(library.error());
  EXPECT_GE(library.value().version, kOldestNccl);
  EXPECT_STREQ(library.value().functions.get_error_string(NcclStatus::success), "no error");
}

}  // namespace
}  // namespace cpscope::kernels
