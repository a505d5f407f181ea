#include <trireme/base/error.h>
#include <trireme/engine/sync_kinds.h>

namespace trireme::engine {

std::unique_ptr<parallel::GradientSync> make_sync(const SyncKind& kind, SyncInputs) {
  refuse_extension("engine", concat("the configuration asks for ", kind.name, ", an extension"));
}

bool has_extensions() {
  return false;
}

} // namespace trireme::engine
