#pragma once

#include <trireme/chat/value.h>

#include <functional>
#include <string>
#include <string_view>

// Python's two ways to put values into a text. Errors: TemplateError for a format that Python refuses, and for what is
// not supported, by name.
namespace trireme::chat {

/// `format % values`: %s %r %d %i %u %x %X %o %e %E %f %F %g %G %c %%, with flags, width and precision.
/// `values`: a tuple, a dict for %(name)s, or the only value.
std::string printf_format(std::string_view format, const Value& values, Budget& budget);

/// Jinja's value.name and value[key] in a field such as "{0.name[key]}".
using LookUp = std::function<Value(const Value& value, const std::string& name, bool is_attribute)>;

/// str.format(): {} {0} {name} {a.b} {a[b]} {!r} {!s} {{ }}, with
/// [[fill]align][sign][#][0][width][,][.precision][type].
std::string brace_format(std::string_view format, const Arguments& arguments, const LookUp& look_up, Budget& budget);

} // namespace trireme::chat
