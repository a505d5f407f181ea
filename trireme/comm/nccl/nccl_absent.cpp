#include <trireme/comm/nccl/nccl_backend.h>

namespace trireme::comm {

std::string nccl_card(at::Device) {
  return "";
}

std::string nccl_version() {
  return "";
}

bool nccl_available() {
  return false;
}

std::shared_ptr<Backend> connect_nccl(const GroupSetup&) {
  throw InputError("comm", "this build has no backend \"nccl\": its libtorch is without CUDA, or nccl.h was not found.",
                   "Use \"auto\".");
}

} // namespace trireme::comm
