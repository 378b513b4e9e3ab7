// The fmt library for this compiler: Debian's is compiled for this machine, and the header-only
// mode doubles the compile time of every file that formats.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template FMT_API auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;
template FMT_API dragonbox::decimal_fp<float> dragonbox::to_decimal(float) noexcept;
template FMT_API dragonbox::decimal_fp<double> dragonbox::to_decimal(double) noexcept;
template FMT_API void vformat_to(buffer<char>&, string_view,
                                 basic_format_args<buffer_context<char>>, locale_ref);
template FMT_API void buffer<char>::append(const char*, const char*);
}  // namespace detail
template FMT_API detail::locale_ref::locale_ref(const std::locale&);
template FMT_API auto detail::locale_ref::get<std::locale>() const -> std::locale;
FMT_END_NAMESPACE
