// A run file and what --set changes in it.
#include "fuzz.h"

#include <trireme/base/json.h>
#include <trireme/config/run_file.h>

#include <nlohmann/json.hpp>

#include <vector>

using namespace trireme;
using namespace trireme::fuzz;

/// The run file, and after bytes 0x01 overrides.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  allow_input_error([&] {
    std::string_view rest = text_of(data, size);
    JsonNode root = JsonNode::parse(take_until(rest, '\x01'), "run.json");
    std::vector<std::string> overrides;
    while (!rest.empty()) {
      overrides.emplace_back(take_until(rest, '\x01'));
    }
    const config::RunConfig run = config::read_run(std::move(root), "/nonexistent", overrides);
    require_no_error("what was resolved can be read again", [&] {
      const auto again = config::read_run(JsonNode::parse(run.resolved.dump(), "resolved"), "/nonexistent");
      require(again.resolved.dump() == run.resolved.dump(), "what was resolved means the same");
    });
  });
  return 0;
}
