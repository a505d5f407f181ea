#include <trireme/base/error.h>

namespace trireme {
namespace {

std::string sentence(std::string_view part, std::string happened, const std::string& next) {
  if (!happened.empty() && std::string_view(".!?:").find(happened.back()) == std::string_view::npos) {
    happened += '.';
  }
  // A quotation at the end may bring its own full stop or ellipsis.
  const size_t last = happened.find_last_not_of('.');
  const size_t dots = happened.size() - (last + 1);
  const bool of_a_path = last == std::string::npos || happened[last] == '/' || happened[last] == ' ';
  if (!of_a_path && (dots == 2 || dots == 4)) {
    happened.pop_back();
  }
  return concat('[', part, "] ", happened, next.empty() ? "" : " ", next);
}

} // namespace

Error::Error(std::string_view part, const std::string& happened, const std::string& next)
    : std::runtime_error(sentence(part, happened, next)) {}

} // namespace trireme
