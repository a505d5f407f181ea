#include <trireme/engine/optimizer_groups.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/comm/differences.h>

#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>

namespace trireme::engine {
namespace {

void check_group(const Parts& parts, const ParameterGroup& group, size_t index) {
  const auto refuse = [&](const std::string& what, const char* next) {
    throw InputError("engine", concat("parameter group ", index, ' ', what), next);
  };
  if (!group.chooses && group.parameters.empty()) {
    refuse("chooses no parameter", "Give it \"chooses\", a function of name and sizes, or \"parameters\".");
  }
  if (!(group.lr_factor >= 0) || !std::isfinite(group.lr_factor) || !(group.weight_decay.value_or(0) >= 0)) {
    refuse(concat("has lr_factor ", group.lr_factor, " and weight_decay ", group.weight_decay.value_or(0)),
           "Neither can be negative.");
  }
  if (!group.parameters.empty() && parts.model.layers) {
    refuse("names tensors of a list of layers, whose tensors each stage builds itself",
           "Choose them by name and sizes.");
  }
  const std::vector<at::Tensor> known = parts.model.module->parameters();
  for (const at::Tensor& tensor : group.parameters) {
    if (std::none_of(known.begin(), known.end(),
                     [&](const at::Tensor& parameter) { return parameter.is_same(tensor); })) {
      refuse(tensor.defined()
                 ? concat("has a tensor of shape ", tensor.sizes(), " that is not a parameter of the model")
                 : "has an undefined tensor",
             "Take them from the model that initialize() gets: model->parameters().");
    }
  }
}

bool holds(const ParameterGroup& group, const at::Tensor& parameter, const std::string& name,
           const std::vector<int64_t>& sizes) {
  return (group.chooses && group.chooses(name, sizes)) ||
         std::any_of(group.parameters.begin(), group.parameters.end(),
                     [&](const at::Tensor& tensor) { return tensor.is_same(parameter); });
}

// Refuses groups that choose differently on different ranks, whose copies of a parameter would drift apart. `options`
// by name of the whole parameter. Collective over the ranks of a stage.
void check_same_choices(const Parts& parts, const std::map<std::string, optim::ParameterOptions>& options) {
  nlohmann::json mine = nlohmann::json::object();
  for (const auto& [name, of] : options) {
    mine[name] = {{"lr_factor", of.lr_factor}, {"weight_decay", of.weight_decay}};
  }
  const auto is_missing = [](const comm::LeafDifference::Value& value) { return value.text == comm::kNothing; };
  for (comm::LeafDifference& found : comm::differences(parts.ranks.stage, mine, "choices of parameter groups")) {
    std::erase_if(found.values, is_missing); // a parameter of some ranks only
    if (found.values.size() > 1) {
      const nlohmann::json::json_pointer place(found.path);
      throw InputError(
          "engine",
          concat(found.ranks(), " choose other parameter groups for \"", place.parent_pointer().back(),
                 "\": ", place.back(), ' ', found.other(), " and ", found.first()),
          "Return the same answer from ParameterGroup::chooses on every rank for the same name and sizes.");
    }
  }
}

[[noreturn]] void refuse(const std::string& what, const char* next) {
  throw InputError("engine", concat("the torch optimizer ", what), next);
}

template <class Options, class Rule>
TorchOptimizer converted(const torch::optim::Optimizer& optimizer, const Rule& rule_of) {
  const auto& groups = optimizer.param_groups();
  const auto options_of_group = [](const auto& group) { return static_cast<const Options&>(group.options()); };
  if (groups.empty()) {
    refuse("has no parameters", "Make it with model->parameters().");
  }
  const Options first = options_of_group(groups.front());
  double lr = 0;
  for (const auto& group : groups) {
    lr = std::max(lr, options_of_group(group).lr());
  }
  TorchOptimizer made{{.rule = rule_of(first)}, {}};
  std::visit([&](auto& rule) { rule.lr = lr, rule.weight_decay = first.weight_decay(); }, made.options.rule);
  for (const auto& group : groups) {
    Options options = options_of_group(group);
    ParameterGroup& added = made.groups.emplace_back();
    added.parameters = group.params();
    added.lr_factor = lr > 0 ? options.lr() / lr : 1;
    added.weight_decay = options.weight_decay();
    options.lr(first.lr()).weight_decay(first.weight_decay());
    if (!(options == first)) {
      refuse(concat("has groups (0 and ", made.groups.size() - 1, ") that differ in more than lr and weight_decay"),
             "Give all groups the same other options.");
    }
  }
  return made;
}

optim::AdamOptions adam(const auto& o, bool decoupled) {
  if (o.amsgrad()) {
    refuse("has amsgrad, which has no kernel", "Switch amsgrad off.");
  }
  return {.beta1 = std::get<0>(o.betas()),
          .beta2 = std::get<1>(o.betas()),
          .eps = o.eps(),
          .decoupled_weight_decay = decoupled};
}

bool has_stepped(const torch::optim::Optimizer& optimizer) {
  return std::any_of(optimizer.state().begin(), optimizer.state().end(), [](const auto& state) {
    const auto* const adagrad =
        dynamic_cast<const torch::optim::AdagradParamState*>(state.second.get()); // has states from the beginning
    return adagrad == nullptr || adagrad->step() > 0;
  });
}

} // namespace

optim::FlatOptimizer::OptionsOf options_of(const Parts& parts, const std::vector<ParameterGroup>& groups,
                                           const optim::OptimizerOptions& optimizer, bool complete) {
  for (size_t i = 0; i < groups.size(); ++i) {
    check_group(parts, groups[i], i);
  }
  std::map<std::string, optim::ParameterOptions> options;
  std::map<std::string, optim::ParameterOptions> of_whole;
  std::vector<bool> used(groups.size());
  for (const auto& buffer : parts.buffers.trained) {
    for (int64_t i = 0; i < buffer->count(); ++i) {
      const bucket::TensorInfo& tensor = buffer->layout().tensors()[i];
      const std::string name =
          tensor.placement.whole_name(parts.model.layers ? parts.model.layers->saved_name(tensor.name)
                                                         : tensor.name); // copies of a tied one are in one group
      optim::ParameterOptions& found = options[tensor.name];
      found.weight_decay = optimizer.weight_decay_of(tensor.sizes.size());
      const auto group = std::find_if(groups.begin(), groups.end(), [&](const ParameterGroup& g) {
        return holds(g, buffer->parameter(i), name, tensor.global_shape());
      });
      if (group != groups.end()) {
        used[group - groups.begin()] = true;
        found = {group->weight_decay.value_or(found.weight_decay), group->lr_factor,
                 complete ? static_cast<int>(group - groups.begin()) : -1};
      } else if (complete) {
        refuse(concat("has no group with parameter \"", name, '"'),
               "Add it to a group, or freeze it: parameter.set_requires_grad(false).");
      }
      of_whole[name] = found;
    }
  }
  if (!groups.empty()) {
    check_same_choices(parts, of_whole);
  }
  const auto unused = std::find(used.begin(), used.end(), false);
  if (unused != used.end() && parts.ranks.pipe.size() == 1 && parts.ranks.everyone.rank() == 0) {
    log::warning("parameter group ", unused - used.begin(),
                 " has no effect: it chooses no trained parameter that is not in an earlier group");
  }
  return [options = std::move(options)](const bucket::TensorInfo& tensor) { return options.at(tensor.name); };
}

TorchOptimizer read_torch_optimizer(const torch::optim::Optimizer& optimizer) {
  namespace to = torch::optim;
  if (has_stepped(optimizer)) {
    refuse("has stepped already; its states would be lost",
           "Pass a new one, and continue from a checkpoint of the engine.");
  }
  if (dynamic_cast<const to::AdamW*>(&optimizer) != nullptr) {
    return converted<to::AdamWOptions>(optimizer, [](const auto& o) { return adam(o, true); });
  }
  if (dynamic_cast<const to::Adam*>(&optimizer) != nullptr) {
    return converted<to::AdamOptions>(optimizer, [](const auto& o) { return adam(o, false); });
  }
  if (dynamic_cast<const to::SGD*>(&optimizer) != nullptr) {
    return converted<to::SGDOptions>(optimizer, [](const auto& o) {
      return optim::SgdOptions{.momentum = o.momentum(), .dampening = o.dampening(), .nesterov = o.nesterov()};
    });
  }
  if (dynamic_cast<const to::RMSprop*>(&optimizer) != nullptr) {
    return converted<to::RMSpropOptions>(optimizer, [](const auto& o) {
      return optim::RmspropOptions{
          .alpha = o.alpha(), .eps = o.eps(), .momentum = o.momentum(), .centered = o.centered()};
    });
  }
  if (dynamic_cast<const to::Adagrad*>(&optimizer) != nullptr) {
    return converted<to::AdagradOptions>(optimizer, [](const auto& o) {
      return optim::AdagradOptions{
          .lr_decay = o.lr_decay(), .eps = o.eps(), .initial_accumulator_value = o.initial_accumulator_value()};
    });
  }
  refuse("is of a class without a kernel",
         "Accepted are torch::optim::AdamW, Adam, SGD, RMSprop and Adagrad; \"optimizer\" in the configuration also "
         "knows LAMB and Lion.");
}

} // namespace trireme::engine
