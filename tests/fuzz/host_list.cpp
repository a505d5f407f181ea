// Slurm's list of hosts.
#include "fuzz.h"

#include <trireme/comm/environment.h>

using namespace trireme;
using namespace trireme::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  allow_input_error([&] {
    const auto hosts = comm::expand_host_list(std::string(text_of(data, size)));
    require(hosts.size() <= 100'000, "there are not more hosts than in a large cluster");
    for (const std::string& host : hosts) {
      require(!host.empty(), "a host has a name");
    }
  });
  return 0;
}
