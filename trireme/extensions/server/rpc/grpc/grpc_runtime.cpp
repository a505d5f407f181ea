#include <trireme/extensions/server/rpc/grpc/grpc_runtime.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <dlfcn.h>

#include <filesystem>
#include <string>

namespace trireme::rpc::grpc {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNext =
    "Install gRPC (on Debian or Ubuntu: apt-get install libgrpc++-dev) and build Trireme again, or use tcp://. "
    "If the module is in another place, set TRIREME_GRPC_MODULE to its path.";

std::string module_path() {
  if (const auto given = env::text("TRIREME_GRPC_MODULE")) {
    return *given;
  }
  std::error_code error;
  const fs::path program_folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const auto& folder : split(TRIREME_GRPC_FOLDERS, ':')) {
    const fs::path path = program_folder / folder / "libtrireme_grpc.so";
    if (path.is_absolute() && fs::exists(path, error)) {
      return path.string();
    }
  }
  throw InputError("rpc", "the transport grpc:// is not built or not installed.", kNext);
}

const Functions& load() {
  const std::string path = module_path();
  // RTLD_LOCAL hides gRPC's symbols from libraries that are loaded later. In the other direction nothing can clash:
  // libtorch exports names of protobuf, but neither the module nor its libraries use any
  // (tests/extensions/server/rpc/grpc_symbols_test.cpp).
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw InputError("rpc", concat("the transport grpc:// cannot be loaded: ", ::dlerror(), "."), kNext);
  }
  const auto entry = reinterpret_cast<EntryPoint>(::dlsym(handle, kEntryPoint));
  if (entry == nullptr || entry()->version != kInterfaceVersion) {
    throw InputError("rpc", concat(path, " belongs to another version of Trireme."), "Build it again.");
  }
  return *entry();
}

} // namespace

const Functions& functions() {
  static const Functions& loaded = load();
  return loaded;
}

} // namespace trireme::rpc::grpc
