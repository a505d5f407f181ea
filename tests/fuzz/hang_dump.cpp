// The dump of a rank of a job that hung, as trireme inspect reads it.
#include "fuzz.h"

#include <trireme/comm/hang_report.h>

#include <fstream>

using namespace trireme;
using namespace trireme::fuzz;

/// One dump, and after a byte 0x01 that of the next rank. Dumps are known by their names, so that needs a folder.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ScratchFolder folder;
  std::string_view rest = text_of(data, size);
  for (int rank = 0; rank < 2; ++rank) {
    std::ofstream(folder.path() / concat("hang-rank", rank, ".json"), std::ios::binary) << take_until(rest, '\x01');
  }
  allow_input_error([&] { require(!comm::describe_hang(folder.path()).empty(), "there is something to say"); });
  return 0;
}
