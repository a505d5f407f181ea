#include <trireme/parallel/pipeline/frozen.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

namespace trireme::pipeline {
namespace {

// Names as PipelineModule gives them.
class SavedNames {
 public:
  explicit SavedNames(const LayerList& layers) : layers_(layers) {
    for (int64_t i = 0; i < layers.size(); ++i) {
      if (layers[i].tie()) {
        first_of_.try_emplace(layers[i].tie()->key, i);
      }
      const auto module = layers[i].given_module();
      for (const auto& item : module ? module->named_parameters() : torch::OrderedDict<std::string, at::Tensor>()) {
        given_.try_emplace(item.value().unsafeGetTensorImpl(), own_name(i, item.key()));
      }
    }
  }

  // Of a parameter of layer `i`, by its name in the module.
  std::string of(int64_t i, const std::string& parameter) const {
    const auto module = layers_[i].given_module();
    return module ? given_.at(module->named_parameters()[parameter].unsafeGetTensorImpl()) : own_name(i, parameter);
  }

 private:
  std::string own_name(int64_t i, const std::string& parameter) const {
    const auto& tie = layers_[i].tie();
    const int64_t first = tie ? first_of_.at(tie->key) : i;
    const bool shared = tie && (tie->attributes.empty() || std::find(tie->attributes.begin(), tie->attributes.end(),
                                                                     parameter) != tie->attributes.end());
    const std::string prefix = i == first || shared ? layers_[first].name().value_or(std::to_string(first))
                                                    : std::to_string(i); // a further copy, of which a part is shared
    return prefix + '.' + parameter;
  }

  const LayerList& layers_;
  std::map<std::string, int64_t> first_of_;  // layers, by key of the tie
  std::map<const void*, std::string> given_; // by parameters of modules that the program gave
};

} // namespace

std::vector<std::string> parameter_names(const LayerList& layers) {
  const SavedNames saved(layers);
  std::set<std::string> seen;
  std::vector<std::string> names;
  for (int64_t i = 0; i < layers.size(); ++i) {
    for (const std::string& parameter : layers[i].parameter_names()) {
      if (std::string name = saved.of(i, parameter); seen.insert(name).second) {
        names.push_back(std::move(name));
      }
    }
  }
  return names;
}

LayerList frozen(const LayerList& layers, const std::function<bool(const std::string& name)>& is_frozen) {
  const auto list = std::make_shared<const LayerList>(layers); // names refer to it
  const auto saved = std::make_shared<const SavedNames>(*list);
  std::vector<Layer> out(layers.begin(), layers.end());
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].freeze([list, saved, is_frozen, i](const std::string& parameter) {
      return is_frozen(saved->of(static_cast<int64_t>(i), parameter));
    });
  }
  return LayerList(std::move(out));
}

} // namespace trireme::pipeline
