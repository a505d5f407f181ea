#include <trireme/extensions/horovod/elastic/state.h>

#include <trireme/base/error.h>
#include <trireme/base/stateful.h>
#include <trireme/extensions/horovod/elastic/module_tensors.h>
#include <trireme/extensions/horovod/elastic/round.h>
#include <trireme/extensions/horovod/horovod.h>
#include <trireme/extensions/horovod/optimizer_bytes.h>

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <nlohmann/json.hpp>

namespace trireme::horovod::elastic {

void State::commit() {
  save();
  end_round_if_changed();
}

void State::check_host_updates() {
  end_round_if_changed();
}

void State::register_reset_callbacks(std::vector<std::function<void()>> callbacks) {
  callbacks_.insert(callbacks_.end(), callbacks.begin(), callbacks.end());
}

void State::on_reset() {
  for (const auto& callback : callbacks_) {
    callback();
  }
}

void ObjectState::add_object(const std::string& name, Object object) {
  if (!objects_.try_emplace(name, std::move(object)).second) {
    throw InputError("elastic", concat("two parts of the state are called \"", name, '"'), "Name each once.");
  }
}
void ObjectState::add(const std::string& name, int64_t& value) {
  add_object(name, Object{[&value] { return nlohmann::json(value).dump(); },
                          [&value](const std::string& text) { value = nlohmann::json::parse(text); }});
}
void ObjectState::add(const std::string& name, double& value) {
  add_object(name, Object{[&value] { return nlohmann::json(value).dump(); },
                          [&value](const std::string& text) { value = nlohmann::json::parse(text); }});
}
void ObjectState::add(const std::string& name, std::string& value) {
  add_object(name, Object{[&value] { return value; }, [&value](const std::string& text) { value = text; }});
}
void ObjectState::add(const std::string& name, Stateful& value) {
  add_object(name, Object{[&value] { return value.state().dump(); },
                          [&value](const std::string& text) { value.load_state(nlohmann::json::parse(text)); }});
}

std::string ObjectState::text() const {
  nlohmann::json all = nlohmann::json::object();
  for (const auto& [name, object] : objects_) {
    all[name] = object.get();
  }
  std::string bytes;
  nlohmann::json::to_cbor(all, bytes); // texts need not be UTF-8
  return bytes;
}

void ObjectState::set_text(const std::string& text) {
  const nlohmann::json all = nlohmann::json::from_cbor(text);
  if (all.size() != objects_.size()) {
    throw InputError("elastic",
                     concat("rank 0 has ", all.size(), " objects in its state, this rank has ", objects_.size()),
                     "Add the same to the state of all ranks.");
  }
  for (const auto& [name, object] : objects_) {
    if (!all.contains(name)) {
      throw InputError("elastic", concat("rank 0 has no \"", name, "\" in its state"),
                       "Add the same to the state of all ranks.");
    }
    object.set(all.at(name));
  }
}

void ObjectState::save() {
  saved_ = text();
}
void ObjectState::restore() {
  if (!saved_.empty()) {
    set_text(saved_);
  }
}
void ObjectState::sync() {
  const std::string root = broadcast_bytes(rank() == 0 ? text() : "", 0, "elastic state");
  if (rank() != 0) {
    set_text(root);
  }
  ObjectState::save();
}

void TorchState::add(const std::string& name, torch::nn::Module& module) {
  modules_.emplace_back(name, &module);
}
void TorchState::add(const std::string&, torch::optim::Optimizer& optimizer) {
  optimizers_.push_back(&optimizer);
}

void TorchState::save() {
  ObjectState::save();
  saved_tensors_.clear();
  for (const auto& [name, tensor] : tensors_of(modules_)) {
    saved_tensors_.push_back(tensor.clone());
  }
  saved_optimizers_.clear();
  for (torch::optim::Optimizer* const optimizer : optimizers_) {
    saved_optimizers_.push_back(bytes_of(*optimizer));
  }
}

void TorchState::restore() {
  ObjectState::restore();
  const auto now = tensors_of(modules_);
  for (size_t i = 0; i < saved_tensors_.size(); ++i) {
    now.at(i).second.copy_(saved_tensors_[i]);
  }
  for (size_t i = 0; i < saved_optimizers_.size(); ++i) {
    load_bytes(*optimizers_.at(i), saved_optimizers_[i]);
  }
}

void TorchState::sync() {
  ObjectState::sync();
  broadcast_parameters(tensors_of(modules_), 0);
  for (torch::optim::Optimizer* const optimizer : optimizers_) {
    broadcast_optimizer_state(*optimizer, 0);
  }
  TorchState::save();
}

} // namespace trireme::horovod::elastic
