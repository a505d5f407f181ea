// Gathers the whole model as a libtorch module, for torch::save().
#include <trireme/checkpoint/exchange.h>
#include <trireme/checkpoint/gather.h>
#include <trireme/engine/same_options.h>
#include <trireme/engine/training_state.h>
#include <trireme/parallel/pipeline/module_tree.h>

#include <torch/nn/module.h>
#include <nlohmann/json.hpp>

#include <set>

namespace trireme::engine {
namespace {

// The module that has a tensor or module of this name, and its name there.
std::pair<torch::nn::Module*, std::string> place_of(torch::nn::Module& root, const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? std::pair(&root, name)
                                  : std::pair(&pipeline::module_at(root, name.substr(0, dot)), name.substr(dot + 1));
}

void add_tensor(torch::nn::Module& root, const std::string& name, const at::Tensor& tensor, bool is_buffer) {
  const auto [module, key] = place_of(root, name);
  if (is_buffer) {
    module->register_buffer(key, tensor);
  } else {
    module->register_parameter(key, tensor, /*requires_grad=*/false);
  }
}

} // namespace

// torch::load() asks for every module of a model, even those without tensors, and for a tied tensor under each of its
// names.
nlohmann::json TrainingState::names_here() const {
  nlohmann::json modules = nlohmann::json::array(), buffers = nlohmann::json::array(), more = nlohmann::json::object();
  if (const auto& layers = engine_.parts.model.layers) {
    modules = layers->module_names();
    more = layers->saved_names();
  } else {
    for (const auto& item : engine_.parts.model.module->named_modules("", /*include_self=*/false)) {
      modules.push_back(item.key());
    }
  }
  std::map<const void*, std::string> first;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    const auto [at, is_new] = first.try_emplace(tensor.unsafeGetTensorImpl(), name);
    if (!is_new) {
      more[name] = saved_name(at->second);
    }
  };
  for (const auto& item : engine_.parts.model.module->named_parameters()) {
    add(item.key(), item.value());
  }
  for (const auto& item : engine_.parts.model.module->named_buffers()) {
    add(item.key(), item.value());
    buffers.push_back(item.key());
  }
  return {{"modules", modules}, {"buffers", buffers}, {"more", more}};
}

std::shared_ptr<torch::nn::Module> TrainingState::gather_model() {
  make_ready("gather_model()");
  std::vector<checkpoint::TensorShard> mine;
  check_together(engine_.parts.ranks.everyone, [&] {
    engine_.parts.buffers.unchanged->check();
    std::vector<Balance> of_groups = balances();
    mine = model_shards(of_groups);
  });
  std::vector<nlohmann::json> names;
  checkpoint::decide(engine_.parts.ranks.everyone, names_here(), [&](const std::vector<nlohmann::json>& of_ranks) {
    names = of_ranks;
    return nlohmann::json();
  });
  const checkpoint::WholeTensors tensors = checkpoint::gather(engine_.parts.ranks.everyone, mine);
  if (engine_.parts.ranks.everyone.rank() != 0) {
    return nullptr;
  }
  auto root = std::make_shared<torch::nn::Module>("GatheredModel");
  std::set<std::string> buffers;
  for (const nlohmann::json& of_rank : names) {
    for (const std::string name : of_rank.at("modules")) {
      pipeline::module_at(*root, name);
    }
    buffers.merge(of_rank.at("buffers").get<std::set<std::string>>());
  }
  for (const auto& [name, tensor] : tensors) {
    add_tensor(*root, name, tensor, buffers.contains(name));
  }
  std::set<std::string> known;
  for (const nlohmann::json& of_rank : names) {
    for (const auto& [name, saved] : of_rank.at("more").items()) {
      const auto found = tensors.find(saved.get<std::string>());
      if (found != tensors.end() && !tensors.contains(name) && known.insert(name).second) {
        add_tensor(*root, name, found->second, buffers.contains(name));
      }
    }
  }
  return root;
}

} // namespace trireme::engine
