#include <trireme/generate/load.h>

#include <trireme/base/error.h>
#include <trireme/base/json.h>
#include <trireme/checkpoint/checkpoint.h>

#include <torch/utils.h>

namespace trireme::generate {

TrainedGpt load(const std::filesystem::path& path) {
  const auto saved = checkpoint::Checkpoint::open(path);
  const std::string where = (saved.folder() / "manifest.json").string();
  TrainedGpt trained;
  trained.run = config::read_run(JsonNode::parse(saved.config().dump(), where), saved.folder());
  if (trained.run.model.kind != config::ModelConfig::Kind::gpt) {
    throw InputError("generate", concat(saved.folder().string(), " is not a GPT, so it cannot generate text"),
                     "Only \"gpt\" does.");
  }
  if (!trained.run.data.tokenizer.empty()) {
    trained.tokenizer = data::make_tokenizer(trained.run.data.tokenizer);
  }
  models::GptOptions options = trained.run.model.gpt;
  if (options.vocab_size == 0 && trained.tokenizer) { // the tokenizer's size
    options.vocab_size = trained.tokenizer->vocab_size();
  }
  options.init_from.clear(); // the checkpoint has the weights
  trained.model = models::Gpt(options);
  for (const auto& item : trained.model->named_parameters()) {
    saved.read_into(item.key(), 0, item.value().detach());
  }
  trained.step = saved.step();
  return trained;
}

} // namespace trireme::generate
