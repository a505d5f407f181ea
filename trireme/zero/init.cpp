#include <trireme/zero/init.h>

#include <trireme/base/error.h>

#include <utility>

namespace trireme::zero {
namespace {

thread_local const Init* the_active = nullptr;

} // namespace

Init::Init(comm::Group group, precision::Type type, c10::Device device) : group_(std::move(group)), type_(type), device_(device) {
  if (the_active != nullptr) {
    throw Error("zero", "a zero::Init was made while another one lives", "One around the whole construction of the model is enough.");
  }
  the_active = this;
}

Init::~Init() {
  the_active = nullptr;
}

const Init* Init::active() {
  return the_active;
}

} // namespace trireme::zero
