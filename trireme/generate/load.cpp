#include <trireme/generate/load.h>

#include <trireme/base/error.h>
#include <trireme/base/json.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/config/huggingface_folder.h>
#include <trireme/config/huggingface_model.h>
#include <trireme/config/run_file.h>
#include <trireme/generate/model_files.h>
#include <trireme/tokenizer/tokenizer_files.h>

#include <torch/utils.h>

#include <string>

namespace trireme::generate {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& folder, const std::string& type) {
  throw InputError("generate", concat(folder.string(), " is a ", type, ", which generates no text"),
                   "A \"gpt\" or \"llama\" does.");
}

Trained load_huggingface(const fs::path& folder) {
  const config::HuggingFaceModel read = config::read_huggingface_model(folder);
  Trained trained;
  switch (read.family) {
    case models::TransformerShape::Family::gpt:
      trained.model = models::LanguageModel(read.gpt);
      break;
    case models::TransformerShape::Family::llama:
      trained.model = models::LanguageModel(read.llama);
      break;
    case models::TransformerShape::Family::bert:
      refuse(folder, "bert");
  }
  if (const fs::path tokenizer = config::tokenizer_in(folder); !tokenizer.empty()) {
    trained.tokenizer = data::make_tokenizer(tokenizer.string());
  }
  trained.end_tokens = tokenizer::end_token_ids_in(folder);
  trained.files = folder;
  return trained;
}

Trained load_checkpoint(const fs::path& path) {
  const auto saved = checkpoint::Checkpoint::open(path);
  const std::string where = (saved.folder() / "manifest.json").string();
  config::RunConfig run = config::read_run(JsonNode::parse(saved.config().dump(), where), saved.folder());
  config::ModelConfig& model = run.model;
  if (!model.is_language()) {
    refuse(saved.folder(), model.type);
  }
  Trained trained;
  if (!run.data.tokenizer.empty()) {
    trained.tokenizer = data::make_tokenizer(kept_tokenizer(run, saved.folder()).string());
  }
  if (model.shape().vocab_size == 0 && trained.tokenizer) { // the tokenizer's size
    model.set_vocab_size(trained.tokenizer->vocab_size());
  }
  model.init_from().clear(); // the checkpoint has the weights
  trained.model = models::LanguageModel(model.language());
  for (const auto& item : trained.model.module()->named_parameters()) {
    saved.read_into(item.key(), 0, item.value().detach());
  }
  trained.end_tokens = tokenizer::end_token_ids_in(kept_folder(saved.folder()));
  trained.step = saved.step();
  trained.files = kept_folder(saved.folder());
  const fs::path tokenizer = run.data.tokenizer;
  std::error_code ignored;
  if (tokenizer.has_parent_path() && !fs::is_directory(trained.files, ignored)) { // a copy of the checkpoint alone
    trained.files = fs::is_directory(tokenizer, ignored) ? tokenizer : tokenizer.parent_path();
  }
  return trained;
}

} // namespace

Trained load(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path / "config.json", ignored) ? load_huggingface(path) : load_checkpoint(path);
}

} // namespace trireme::generate
