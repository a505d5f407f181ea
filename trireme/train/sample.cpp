#include <trireme/train/sample.h>

#include <trireme/train/run_writer.h>

#include <trireme/base/log.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/engine/same_options.h>
#include <trireme/generate/export_adapter.h>
#include <trireme/generate/export_model.h>
#include <trireme/generate/model_files.h>
#include <trireme/generate/sample.h>

#include <algorithm>
#include <array>

namespace trireme::train {

std::string sample_of(const config::RunConfig& run, Task& task, const data::Tokenizer& tokenizer,
                      const std::optional<std::filesystem::path>& checkpoints) {
  if (checkpoints) {
    models::LanguageOptions options = *task.language_options;
    std::visit(
        [](auto& family) {
          family.init_from.clear();
          family.lora.init_from.clear();
        },
        options);
    task.language = models::LanguageModel(options);
    const auto saved = checkpoint::Checkpoint::open(*checkpoints);
    for (const auto& item : task.language.module()->named_parameters()) {
      saved.read_into(item.key(), 0, item.value().detach());
    }
  }
  const config::SampleConfig& wanted = *run.training.sample;
  generate::SampleOptions options;
  options.tokens = wanted.tokens;
  options.choice.temperature = wanted.temperature;
  options.choice.top_k = wanted.top_k;
  options.seed = run.training.seed;
  options.vocab_size = tokenizer.vocab_size();
  return tokenizer.decode(generate::sample(task.language, tokenizer.encode(wanted.prompt), options));
}

void check_export(const config::RunConfig& run, const std::filesystem::path& run_folder) {
  namespace fs = std::filesystem;
  const fs::path& folder = run.training.export_to;
  const fs::path below = fs::weakly_canonical(folder).lexically_relative(fs::weakly_canonical(run_folder));
  const std::array own = {".", generate::kKept, "checkpoints", "tensorboard", "logs"};
  if (!below.empty() && std::ranges::find(own, *below.begin()) != own.end()) {
    throw InputError("train", concat("training.export is ", folder.string(), ", a folder of the run itself"),
                     "Name another folder.");
  }
  generate::check_export_folder(folder, run.model.init_from());
  if (run.training.lora) {
    generate::base_folder_of(run);
  }
}

void export_run(const config::RunConfig& run, const std::filesystem::path& run_folder, comm::World& world,
                bool is_worker) {
  const std::filesystem::path& folder = run.training.export_to;
  if (folder.empty()) {
    return;
  }
  try {
    engine::call_on_first(world.group(), [&] {
      const generate::Exported exported = generate::export_model(run_folder / "checkpoints", folder);
      log::info(exported.is_adapter ? "PEFT folder: " : "Hugging Face folder: ", folder.string(),
                exported.replaced ? concat(", in place of the export of step ", *exported.replaced) : "");
    });
  } catch (const PeerError&) {
    throw;
  } catch (const Error& error) {
    throw NotSavedError("training.export could not be written", error.what(),
                        concat("All steps are saved. Once that is fixed, write it with: trireme export ",
                               run_folder.string(), ' ', folder.string()),
                        is_worker);
  }
}

} // namespace trireme::train
