#include <trireme/base/error.h>
#include <trireme/engine/sync_kinds.h>

namespace trireme::engine {

std::unique_ptr<parallel::GradientSync> make_sync(const SyncKind& kind, SyncInputs) {
  throw InputError(
      "engine", concat("the configuration asks for ", kind.name, ", an extension"),
      "This Trireme was built without extensions. Build it with -DTRIREME_EXTENSIONS=ON, or leave it out.");
}

bool has_extensions() {
  return false;
}

} // namespace trireme::engine
