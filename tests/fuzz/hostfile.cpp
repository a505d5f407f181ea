// A hostfile.
#include "fuzz.h"

#include <trireme/launch/hostfile.h>

using namespace trireme;
using namespace trireme::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  allow_input_error([&] {
    for (const launch::Host& host : launch::parse_hostfile(text_of(data, size), "hosts")) {
      require(!host.name.empty() && host.name.front() != '-', "a name is no option of ssh");
      require(host.slots >= 1, "a host has room for a rank");
    }
  });
  return 0;
}
