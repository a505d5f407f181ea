// A Chrome trace: the timeline of a pipeline that is read from it.
#include "fuzz.h"

#include <trireme/parallel/pipeline/timeline.h>

#include <cmath>

using namespace trireme;
using namespace trireme::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const MemoryFile file(text_of(data, size));
  allow_input_error([&] {
    const pipeline::Timeline timeline = pipeline::from_trace(file.path());
    require(!timeline.spans.empty(), "a timeline has spans");
    require(std::isfinite(timeline.total) && timeline.total >= 0, "its length is a number");
    require(timeline.bubble >= -1e-9 && timeline.bubble <= 1 + 1e-9, "the bubble is a share");
  });
  return 0;
}
