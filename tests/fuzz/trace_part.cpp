// A rank's part of a Chrome trace, to be merged.
#include "fuzz.h"

#include <trireme/monitor/chrome_trace.h>

using namespace trireme;
using namespace trireme::fuzz;

/// Merging writes beside its result and renames, so that needs a folder.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ScratchFolder folder;
  const MemoryFile file(text_of(data, size));
  allow_input_error([&] { monitor::merge_traces({file.path()}, folder.path() / "trace.json"); });
  return 0;
}
