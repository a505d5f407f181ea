// adapter_config.json of a PEFT folder.
#include "fuzz.h"

#include <trireme/config/adapter_config.h>
#include <trireme/config/run_file.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>

using namespace trireme;
using namespace trireme::fuzz;

/// What is written of an adapter is read as the same adapter.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ScratchFolder folder;
  config::ModelConfig model;
  model.bert.head = models::BertOptions::Head::classes;
  const bool classifies = text_of(data, size).find("classifier") != std::string_view::npos;
  model.kind = classifies ? config::ModelConfig::Kind::bert : config::ModelConfig::Kind::llama;
  const std::vector<models::LayerShape> shapes = model.layer_shapes();
  const std::vector<std::string> names = models::linear_names(shapes);
  const auto read = [&](std::string_view text) {
    std::ofstream(folder.path() / config::kAdapterConfig, std::ios::binary) << text;
    return config::read_adapter_config(folder.path(), shapes);
  };
  allow_input_error([&] {
    const models::LoraOptions lora = read(text_of(data, size));
    require(lora.on() && lora.rank > 0 && lora.alpha > 0, "it adapts something");
    require(std::all_of(lora.layers.begin(), lora.layers.end(),
                        [&](const auto& layer) { return std::ranges::find(names, layer) != names.end(); }),
            "it adapts layers that there are");
    require_no_error("what is written can be read", [&] {
      model.lora() = lora;
      const models::LoraOptions again = read(config::write_adapter_config(model, "base").dump());
      require(again.layers == lora.layers && again.whole_layers == lora.whole_layers && again.rank == lora.rank &&
                  again.alpha == lora.alpha && again.dropout == lora.dropout,
              "and is the same adapter");
    });
  });
  return 0;
}
