#pragma once

#include <trireme/chat/scope.h>
#include <trireme/chat/value.h>

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::chat {

/// The text of a template's raise_exception().
class RaisedByTemplate : public TemplateError {
 public:
  using TemplateError::TemplateError;
};

/// The namespaces of a rendering. One may hold itself, so the interpreter empties them at its end.
using Namespaces = std::vector<std::shared_ptr<Namespace>>;

/// Sets range, namespace, raise_exception and strftime_now in `scope`. `namespaces` and `budget` must outlive
/// the values. `now`: what strftime_now() gives; none: the local time.
void set_functions(Scope& scope, Namespaces& namespaces, const std::optional<std::tm>& now, Budget& budget);

/// Those names.
std::vector<std::string> function_names();

} // namespace trireme::chat
