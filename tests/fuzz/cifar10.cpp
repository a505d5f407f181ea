// CIFAR-10's records.
#include "fuzz.h"

#include <trireme/data/cifar10.h>

#include <ATen/core/Tensor.h>

using namespace trireme;
using namespace trireme::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const MemoryFile file(text_of(data, size));
  allow_input_error([&] {
    const data::Cifar10 set({.files = {file.path()}});
    require(static_cast<size_t>(set.size()) * 3073 == size, "every byte is of an image");
    require_no_error("what was opened can be read", [&] {
      require(set.get(std::vector<int64_t>{0, set.size() - 1}).samples == 2, "both images come");
    });
  });
  return 0;
}
