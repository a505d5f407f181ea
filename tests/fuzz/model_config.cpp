// config.json of a Hugging Face folder.
#include "fuzz.h"

#include <trireme/config/huggingface_model.h>

#include <nlohmann/json.hpp>

#include <fstream>

using namespace trireme;
using namespace trireme::fuzz;

namespace {

using Family = models::TransformerShape::Family;

nlohmann::ordered_json written(const config::HuggingFaceModel& model) {
  const nlohmann::ordered_json empty = nlohmann::ordered_json::object();
  switch (model.family) {
    case Family::gpt:
      return config::write_huggingface_model(models::LanguageOptions(model.gpt), empty);
    case Family::llama:
      return config::write_huggingface_model(models::LanguageOptions(model.llama), empty);
    case Family::bert:
      break;
  }
  return config::write_huggingface_model(model.bert, empty);
}

} // namespace

/// A model that is written, read and written again is the same.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ScratchFolder folder;
  const auto read = [&](std::string_view text) {
    std::ofstream(folder.path() / "config.json", std::ios::binary) << text;
    return config::read_huggingface_model(folder.path());
  };
  allow_input_error([&] {
    const config::HuggingFaceModel model = read(text_of(data, size));
    if (model.llama.layers > 1000) {
      return; // each layer is written
    }
    const nlohmann::ordered_json once = written(model);
    require_no_error("what is written can be read",
                     [&] { require(written(read(once.dump())) == once, "and is the same model"); });
  });
  return 0;
}
