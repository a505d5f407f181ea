#include <trireme/chat/filters.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <map>

namespace trireme::chat {
namespace {

const std::map<std::string_view, Filter>& filters() {
  static const std::map<std::string_view, Filter> all = [] {
    std::map<std::string_view, Filter> found;
    for (const auto& named : value_filters()) {
      found.emplace(named.name, named.filter);
    }
    for (const auto& named : sequence_filters()) {
      found.emplace(named.name, named.filter);
    }
    return found;
  }();
  return all;
}

} // namespace

bool is_filter(std::string_view name) {
  return filters().contains(name);
}

std::vector<std::string> filter_names() {
  std::vector<std::string> names;
  for (const auto& [name, filter] : filters()) {
    names.emplace_back(name);
  }
  return names;
}

Value apply_filter(std::string_view name, const Value& input, const Arguments& arguments, Budget& budget) {
  const auto found = filters().find(name);
  if (found == filters().end()) {
    throw TemplateError(
        concat("no filter is named '", printable(name), "'. Supported: ", join(filter_names(), ", "), '.'));
  }
  return found->second(input, arguments, budget);
}

} // namespace trireme::chat
