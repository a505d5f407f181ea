#include <trireme/generate/export_adapter.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/config/adapter_config.h>
#include <trireme/models/adapter_files.h>
#include <trireme/models/checkpoint_weights.h>

#include <ATen/ops/empty.h>

#include <string>
#include <vector>

namespace trireme::generate {

namespace fs = std::filesystem;

fs::path base_folder_of(const config::RunConfig& run) {
  const fs::path& from = run.model.init_from();
  std::error_code ignored;
  const fs::path folder = fs::is_regular_file(from, ignored) ? from.parent_path() : from;
  if (folder.empty() || checkpoint::find_newest(folder)) {
    throw InputError(
        "export",
        "the run names no Hugging Face folder that it began with (model.init_from), to which its adapters belong",
        "Write the model with its adapters merged into the weights: trireme export --merge.");
  }
  return folder;
}

int64_t export_adapter(const checkpoint::Checkpoint& saved, const config::RunConfig& run,
                       const config::ModelConfig& model, at::ScalarType dtype, const fs::path& folder) {
  const fs::path base = base_folder_of(run);
  std::vector<models::AdapterTensor> tensors;
  int64_t elements = 0;
  for (const models::LayerShape& layer : model.layer_shapes()) {
    for (const auto& parameter : layer.parameters) {
      const std::string name = concat(layer.name, '.', parameter.name);
      if (!model.lora().trains(name)) {
        continue;
      }
      const at::Tensor value = at::empty(parameter.sizes, at::kFloat);
      models::load_parameter(saved, name, value);
      elements += value.numel();
      tensors.push_back({name, value.to(dtype)});
    }
  }
  const models::FillParameter weights = [&saved](const std::string& name, const at::Tensor& value) {
    models::load_parameter(saved, name, value);
  };
  models::save_adapter(tensors, folder, models::sample_base(model.layer_shapes(), weights));
  write_file_atomically(folder / config::kAdapterConfig,
                        config::write_adapter_config(model, base.string()).dump(2) + "\n");
  return elements;
}

} // namespace trireme::generate
