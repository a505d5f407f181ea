// A DeepSpeed configuration.
#include "fuzz.h"

#include <trireme/base/json.h>
#include <trireme/config/deepspeed_json.h>

using namespace trireme;
using namespace trireme::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  allow_input_error([&] {
    const config::EngineConfig engine = config::read_deepspeed(JsonNode::parse(text_of(data, size), "ds.json"));
    for (const int replicas : {1, 2, 7}) {
      allow_input_error([&] { static_cast<void>(engine.batch_for(replicas)); });
    }
  });
  return 0;
}
