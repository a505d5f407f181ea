#pragma once

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/chat/budget.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::chat {

/// What a template names, such as filters: the table is all that is supported.
template <typename T>
using Named = std::map<std::string_view, T>;

template <typename T>
std::vector<std::string> names_of(const Named<T>& all) {
  std::vector<std::string> names;
  for (const auto& [name, value] : all) {
    names.emplace_back(name);
  }
  return names;
}

/// Errors: NotSupported for an unknown name, with those that are supported. `what`: "filter".
template <typename T>
const T& find_named(const Named<T>& all, std::string_view what, std::string_view name) {
  const auto found = all.find(name);
  if (found == all.end()) {
    throw NotSupported(
        concat("no ", what, " is named '", printable(name), "'. Supported: ", join(names_of(all), ", "), '.'));
  }
  return found->second;
}

} // namespace trireme::chat
