#include <trireme/generate/load.h>

#include <trireme/base/error.h>
#include <trireme/base/json.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/generate/model_files.h>

#include <torch/utils.h>

namespace trireme::generate {

Trained load(const std::filesystem::path& path) {
  const auto saved = checkpoint::Checkpoint::open(path);
  const std::string where = (saved.folder() / "manifest.json").string();
  Trained trained;
  trained.run = config::read_run(JsonNode::parse(saved.config().dump(), where), saved.folder());
  config::ModelConfig& model = trained.run.model;
  if (!model.is_language()) {
    throw InputError("generate", concat(saved.folder().string(), " is a ", model.type, ", which generates no text"),
                     "A \"gpt\" or \"llama\" does.");
  }
  if (!trained.run.data.tokenizer.empty()) {
    trained.tokenizer = data::make_tokenizer(kept_tokenizer(trained.run, saved.folder()).string());
  }
  if (model.shape().vocab_size == 0 && trained.tokenizer) { // the tokenizer's size
    model.set_vocab_size(trained.tokenizer->vocab_size());
  }
  model.init_from().clear(); // the checkpoint has the weights
  trained.model = models::LanguageModel(model.language());
  for (const auto& item : trained.model.module()->named_parameters()) {
    saved.read_into(item.key(), 0, item.value().detach());
  }
  trained.step = saved.step();
  return trained;
}

} // namespace trireme::generate
