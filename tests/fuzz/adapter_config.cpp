// adapter_config.json of a PEFT folder.
#include "fuzz.h"

#include <trireme/config/adapter_config.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>

using namespace trireme;
using namespace trireme::fuzz;

/// What is written of an adapter is read as the same adapter.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ScratchFolder folder;
  static const std::vector<std::string> names = models::linear_names(models::shape_of(models::LlamaOptions()));
  const auto read = [&](std::string_view text) {
    std::ofstream(folder.path() / config::kAdapterConfig, std::ios::binary) << text;
    return config::read_adapter_config(folder.path(), names);
  };
  allow_input_error([&] {
    const models::LoraOptions lora = read(text_of(data, size));
    require(lora.on() && lora.rank > 0 && lora.alpha > 0, "it adapts something");
    require(std::all_of(lora.layers.begin(), lora.layers.end(),
                        [&](const auto& layer) { return std::ranges::find(names, layer) != names.end(); }),
            "it adapts layers that there are");
    require_no_error("what is written can be read", [&] {
      const models::LoraOptions again = read(config::write_adapter_config(lora, names, "base", false).dump());
      require(again.layers == lora.layers && again.rank == lora.rank && again.alpha == lora.alpha &&
                  again.dropout == lora.dropout,
              "and is the same adapter");
    });
  });
  return 0;
}
