#pragma once

#include <trireme/chat/value.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::chat {

/// The arguments of a function in the order of its parameters, however they were given. Errors of all: TemplateError
/// that names function and parameter.
class CallArguments {
 public:
  /// `required`: the first parameters that must be given.
  CallArguments(const Arguments& arguments, std::string_view function, std::initializer_list<const char*> parameters,
                size_t required = 0);

  /// nullptr: not given.
  const Value* find(size_t parameter) const { return values_[parameter]; }
  /// As find(), with None as not given.
  const Value* find_unless_none(size_t parameter) const;
  const Value& get(size_t parameter) const { return *values_[parameter]; }
  bool flag(size_t parameter, bool instead) const;
  int64_t integer(size_t parameter, int64_t instead) const;
  const std::string& text(size_t parameter) const;

 private:
  std::string function_;
  std::vector<const char*> parameters_;
  std::vector<const Value*> values_; // of the given arguments, which outlive it
};

} // namespace trireme::chat
