#include <trireme/engine/training_state.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/checkpoint/exchange.h>
#include <trireme/checkpoint/placed.h>
#include <trireme/engine/make_activations.h>
#include <trireme/engine/random_state.h>
#include <trireme/engine/same_options.h>
#include <trireme/engine/saved_names.h>
#include <trireme/models/options.h>

#include <torch/nn/module.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <set>

namespace trireme::engine {
namespace {

constexpr const char* kOfTheOptimizer =
    "Set engine.optimizer and training.freeze to the checkpoint's, or load only the weights with model.init_from.";
constexpr const char* kOfTheSync =
    "Synchronise gradients as the checkpoint's run did, or load only the weights with model.init_from.";
constexpr const char* kOfTheCheckpoint = "Use the model configuration that the checkpoint was made with.";

nlohmann::json sync_state(const nlohmann::json& positions) {
  return positions.value("gradient_sync", nlohmann::json());
}

// Adapters of the checkpoint alone, or of the model alone.
void check_adapters(const checkpoint::Checkpoint& saved, const std::set<std::string>& known) {
  for (const std::string& name : saved.names("parameter")) {
    if (models::is_adapter(name) && known.count(name) == 0) {
      throw InputError("checkpoint",
                       concat(saved.folder().string(), " has the adapter \"", name, "\", this model does not"),
                       "Set training.lora to the checkpoint's, or start a new run from what trireme export --merge "
                       "writes.");
    }
  }
  for (const std::string& name : known) {
    if (models::is_adapter(name) && !saved.has(name)) {
      throw InputError("checkpoint", concat(saved.folder().string(), " does not have the adapter \"", name, '"'),
                       "Set training.lora to the checkpoint's, or start a new run from its weights with "
                       "model.init_from.");
    }
  }
}

// Checks on rank 0, with the needs of every rank.
void check_needs(const checkpoint::Checkpoint& saved, const std::vector<nlohmann::json>& of_ranks) {
  std::map<std::string, std::vector<int64_t>> needed;
  std::set<std::string> known;
  for (const nlohmann::json& one : of_ranks) {
    needed.merge(one.at("shapes").get<std::map<std::string, std::vector<int64_t>>>());
    known.merge(one.at("parameters").get<std::set<std::string>>());
  }
  check_adapters(saved, known);
  for (const auto& [name, shape] : needed) {
    if (!saved.has(name)) {
      throw InputError("checkpoint", concat(saved.folder().string(), " is of another model: it has no \"", name, '"'),
                       kOfTheCheckpoint);
    }
    if (const auto& there = saved.entry(name).shape; there != shape) {
      throw InputError("checkpoint",
                       concat(saved.folder().string(), ": \"", name, "\" has shape ", at::IntArrayRef(there),
                              ", the model needs ", at::IntArrayRef(shape)),
                       kOfTheCheckpoint);
    }
  }
  for (const nlohmann::json& one : of_ranks) {
    for (const std::string& state : one.at("states").get<std::vector<std::string>>()) {
      if (!saved.has(state) && !saved.has(of_replica(0, state))) {
        throw InputError("checkpoint", concat(saved.folder().string(), " has no optimizer state \"", state, '"'),
                         kOfTheOptimizer);
      }
    }
    for (const std::string& state : one.at("sync_states").get<std::vector<std::string>>()) {
      if (!saved.has(state)) {
        throw InputError(
            "checkpoint",
            concat(saved.folder().string(), " has no \"", state, "\", a state of the gradient synchronisation"),
            kOfTheSync);
      }
    }
  }
  std::vector<std::string> unknown = saved.names("parameter");
  std::erase_if(unknown, [&](const std::string& name) { return known.count(name) != 0; });
  if (!unknown.empty()) {
    throw InputError("checkpoint",
                     concat(saved.folder().string(), " is of another model: this one has no \"", unknown.front(), '"',
                            unknown.size() == 1 ? "" : concat(" nor ", unknown.size() - 1, " other parameters of it")),
                     kOfTheCheckpoint);
  }
}

} // namespace

TrainingState::TrainingState(Engine::Impl& engine) : engine_(engine) {
  for (const auto& buffer : engine_.parts.buffers.trained) {
    for (int64_t i = 0; i < buffer->count(); ++i) {
      infos_[buffer->parameter(i).unsafeGetTensorImpl()] = &buffer->layout().tensors()[i];
    }
  }
}

// Parameters that are not trained are whole, unless tensor ranks split them.
bucket::TensorInfo TrainingState::info_of(const at::Tensor& tensor) const {
  const auto found = infos_.find(tensor.unsafeGetTensorImpl());
  return found != infos_.end()
             ? *found->second
             : bucket::TensorInfo{
                   .name = "", .sizes = tensor.sizes().vec(), .placement = engine_.parts.placement_of(tensor)};
}

// Calls visit(buffer) for the buffers whose parameters may be sharded.
void TrainingState::for_each_buffer(const std::function<void(bucket::FlatParameters&)>& visit) const {
  for (const auto* buffers : {&engine_.parts.buffers.trained, &engine_.parts.buffers.frozen}) {
    for (const auto& buffer : *buffers) {
      visit(*buffer);
    }
  }
}

std::map<const void*, const bucket::TensorInfo*> TrainingState::sharded() const {
  std::map<const void*, const bucket::TensorInfo*> found;
  for_each_buffer([&](bucket::FlatParameters& buffer) {
    for (int64_t i = 0; i < buffer.count(); ++i) {
      if (!buffer.is_replicated(buffer.layout().bucket_of(i))) {
        found[buffer.parameter(i).unsafeGetTensorImpl()] = &buffer.layout().tensors()[i];
      }
    }
  });
  return found;
}

// False if another rank saves its copy of the same elements. (Copies of a tied parameter are recognised by name.)
bool TrainingState::is_saved_here(const bucket::TensorInfo& tensor) const {
  return tensor.placement.counts_in_norm || saved_name(tensor.name) != tensor.name;
}

bool TrainingState::is_of_each_replica(const std::string& state) const {
  using Own = parallel::LocalSteps::Own;
  if (engine_.parts.steps_together()) {
    return false;
  }
  const Own own = engine_.parts.agreement.sync->local_steps()->own_values();
  return own == Own::masters_and_states || (own == Own::states && state != optim::kMasterState);
}

nlohmann::json TrainingState::state(const nlohmann::json& client_state) const {
  nlohmann::json state = {
      {"global_steps", engine_.state.global_steps},
      {"skipped_steps", engine_.state.skipped_steps},
      {"global_samples", engine_.state.global_samples},
      {"optimizer",
       {{"name", engine_.parts.stepper.optimizer->rule().name()}, {"steps", engine_.parts.stepper.optimizer->steps()}}},
      {"schedule", engine_.parts.stepper.schedule->state()},
      {"gradient_sync", engine_.parts.agreement.sync->sync_state().state()},
      {"loss_scaler", engine_.state.scale.scaler().state()},
      {"mesh", engine_.parts.ranks.axes},
      {"client", client_state},
  };
  if (engine_.parts.stepper.loader) {
    state["loader"] = engine_.parts.stepper.loader->state();
  }
  if (!engine_.state.chosen_ways.is_null()) {
    state["activations"] = engine_.state.chosen_ways;
  }
  if (!engine_.parts.steps_together()) {
    state["replicas"] = engine_.parts.ranks.group.size();
  }
  return state;
}

// A replica that skips a step alone has its own schedule, loss scale and counts from then on.
nlohmann::json TrainingState::state_of_replica() const {
  if (engine_.parts.steps_together()) {
    return nlohmann::json::object();
  }
  nlohmann::json own = {{"replica", engine_.parts.ranks.group.rank()}, {"state", nlohmann::json::object()}};
  const nlohmann::json all = state(nullptr);
  for (const char* key : {"skipped_steps", "optimizer", "schedule", "loss_scaler"}) {
    own["state"][key] = all[key];
  }
  return own;
}

nlohmann::json TrainingState::own_state(const checkpoint::Checkpoint& saved) const {
  nlohmann::json own = saved.state();
  for (int rank = 0;
       rank < saved.world_size() && engine_.parts.agreement.sync->steps_locally_after(own.at("global_steps")); ++rank) {
    const nlohmann::json& of_rank = saved.rank_state(rank);
    if (of_rank.value("replica", -1) == engine_.parts.ranks.group.rank()) {
      own.update(of_rank.at("state"));
      break;
    }
  }
  return own;
}

void TrainingState::make_ready(const char* wanted) {
  if (engine_.in_the_middle_of_a_step()) {
    throw InputError("engine",
                     concat(wanted, " in the middle of a step: ",
                            engine_.state.micro_steps % engine_.parts.settings.batch.accumulation, " of ",
                            engine_.parts.settings.batch.accumulation, " micro-batches are done"),
                     "Save after the step at the accumulation boundary.");
  }
  if (!engine_.parts.agreement.sync->replicas_are_equal()) {
    const int64_t next = engine_.state.global_steps + engine_.parts.agreement.sync->local_steps()->steps_until_equal();
    throw InputError("engine",
                     concat(wanted, " after step ", engine_.state.global_steps,
                            ": the ranks are between two averaging steps and have different parameters"),
                     concat("Save after an averaging step; the next is step ", next, '.'));
  }
  engine_.optimizer_step.finish_delayed();
}

void TrainingState::save(const std::filesystem::path& folder, const std::string& tag,
                         const nlohmann::json& client_state, const checkpoint::SaveOptions& options) {
  make_ready("save_checkpoint()");
  if (parallel::RemoteStates* const remote = engine_.parts.agreement.sync->remote_states()) {
    remote->fetch();
  }
  std::vector<checkpoint::TensorShard> mine;
  nlohmann::json positions;
  nlohmann::json own;
  check_together(engine_.parts.ranks.everyone, [&] { // a program's own GradientSync may throw on one rank
    engine_.parts.buffers.unchanged->check();
    mine = shards();
    positions = state(client_state);
    own = state_of_replica();
  });
  checkpoint::save(folder, tag, engine_.parts.ranks.everyone, mine, positions, own, options,
                   engine_.parts.settings.config);
}

void TrainingState::check_model(const checkpoint::Checkpoint& saved) {
  nlohmann::json shapes = nlohmann::json::object();
  nlohmann::json parameters = nlohmann::json::array();
  std::set<const void*> seen;
  for (const auto& [parameter, tensor] : sharded()) {
    seen.insert(parameter);
    shapes[whole_name(*tensor)] = tensor->global_shape();
  }
  const auto need = [&](const std::string& name, const at::Tensor& tensor) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) {
      const bucket::TensorInfo info = info_of(tensor);
      shapes[whole_name(name, info)] = info.global_shape();
    }
  };
  std::set<const void*> named;
  for (const auto& item : engine_.parts.model.module->named_parameters()) {
    if (named.insert(item.value().unsafeGetTensorImpl()).second) {
      parameters.push_back(whole_name(item.key(), info_of(item.value()))); // one of two names is saved, under the first
    }
    need(item.key(), item.value());
  }
  for (const auto& item : engine_.parts.model.module->named_buffers()) {
    need(item.key(), item.value());
  }
  nlohmann::json states = nlohmann::json::array();
  for (const auto& buffer : engine_.parts.buffers.trained) {
    for (int64_t i = 0; i < buffer->count(); ++i) {
      for (const auto& state : engine_.parts.stepper.optimizer->rule().states()) {
        states.push_back(concat(state.name, '/', whole_name(buffer->layout().tensors()[i])));
      }
    }
  }
  nlohmann::json sync_states = nlohmann::json::array();
  engine_.parts.agreement.sync->sync_state().for_each_state(
      sync_state(saved.state()),
      [&](const std::string& state, const bucket::TensorInfo& tensor, int64_t, const at::Tensor&) {
        sync_states.push_back(concat(state, '/', whole_name(tensor)));
      });
  const auto verdict = [&](const std::vector<nlohmann::json>& of_ranks) -> nlohmann::json {
    check_needs(saved, of_ranks);
    return nullptr;
  };
  checkpoint::decide(engine_.parts.ranks.everyone,
                     {{"shapes", shapes}, {"parameters", parameters}, {"states", states}, {"sync_states", sync_states}},
                     verdict);
}

void TrainingState::load_tensors(const checkpoint::Checkpoint& saved) {
  const torch::NoGradGuard no_grad;
  std::set<const void*> seen;
  // A run in fp32 continues from the masters of a run in low precision.
  const auto most_exact = [&](const std::string& whole, const at::Tensor& values) {
    const std::string master = concat(optim::kMasterState, '/', whole);
    return values.scalar_type() == torch::kFloat32 && saved.has(master) ? master : whole;
  };
  const auto read = [&](const std::string& name, const at::Tensor& tensor) {
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) {
      return;
    }
    const at::Tensor values =
        tensor.is_contiguous() ? tensor.detach() : at::empty_like(tensor, at::MemoryFormat::Contiguous);
    const bucket::TensorInfo info = info_of(tensor);
    checkpoint::read_placed(saved, most_exact(whole_name(name, info), tensor), info, 0, values);
    if (!tensor.is_contiguous()) {
      tensor.detach().copy_(values);
    }
  };
  engine_.parts.buffers.coordinator->release_all();
  for_each_buffer([&](bucket::FlatParameters& buffer) {
    buffer.for_each_sharded([&](int64_t i, int64_t begin, const at::Tensor& values) {
      const bucket::TensorInfo& tensor = buffer.layout().tensors()[i];
      checkpoint::read_placed(saved, most_exact(whole_name(tensor), values), tensor, begin, values);
    });
  });
  const auto sharded_ones = sharded();
  for (const auto& item : engine_.parts.model.module->named_parameters()) {
    if (sharded_ones.count(item.value().unsafeGetTensorImpl()) == 0) {
      read(item.key(), item.value());
    }
  }
  for (const auto& item : engine_.parts.model.module->named_buffers()) {
    read(item.key(), item.value());
  }
  engine_.parts.stepper.optimizer->for_each_state(
      [&](const std::string& state, const bucket::TensorInfo& tensor, int64_t begin, const at::Tensor& values) {
        load_optimizer_state(saved, state, tensor, begin, values);
      });
  if (engine_.parts.stepper.optimizer->steps_on_host()) {
    engine_.parts.stepper.optimizer
        ->refresh_masters(); // fp32 parameters have copies on the host, which no checkpoint has
  }
  engine_.parts.agreement.sync->sync_state().for_each_state(
      sync_state(saved.state()),
      [&](const std::string& state, const bucket::TensorInfo& tensor, int64_t begin, const at::Tensor& values) {
        checkpoint::read_placed(saved, concat(state, '/', whole_name(tensor)), tensor, begin, values);
      });
}

// If each replica saved its own state, a new replica, and a run whose ranks step as one, start with the mean.
void TrainingState::load_optimizer_state(const checkpoint::Checkpoint& saved, const std::string& state,
                                         const bucket::TensorInfo& tensor, int64_t begin,
                                         const at::Tensor& values) const {
  const std::string name = whole_name(tensor);
  const std::string whole = concat(state, '/', name);
  if (saved.has(whole) || !saved.has(of_replica(0, whole))) {
    // A run without masters saved the same values as parameters.
    checkpoint::read_placed(saved, state == optim::kMasterState && !saved.has(whole) ? name : whole, tensor, begin,
                            values);
    return;
  }
  const auto replicas = saved.state().at("replicas").get<int64_t>();
  const int64_t own = engine_.parts.ranks.group.rank();
  if (is_of_each_replica(state) && own < replicas) {
    checkpoint::read_placed(saved, of_replica(own, whole), tensor, begin, values);
    return;
  }
  at::Tensor sum = torch::zeros_like(values, torch::kFloat32);
  at::Tensor one = torch::empty_like(sum);
  for (int64_t replica = 0; replica < replicas; ++replica) {
    checkpoint::read_placed(saved, of_replica(replica, whole), tensor, begin, one);
    sum.add_(one);
  }
  at::Tensor(values).copy_(sum.div_(replicas));
}

void TrainingState::load_positions(const nlohmann::json& state) {
  const auto put = [this](const nlohmann::json& positions) {
    engine_.parts.stepper.schedule->load_state(positions.at("schedule"));
    if (positions.contains("loss_scaler")) {
      engine_.state.scale.load_state(positions["loss_scaler"]);
    }
    if (engine_.parts.stepper.loader && positions.contains("loader")) {
      engine_.parts.stepper.loader->load_state(positions["loader"]);
    }
  };
  const nlohmann::json before = this->state(nullptr);
  try {
    put(state);
    engine_.parts.agreement.sync->sync_state().load_state(sync_state(state), state.at("global_steps"));
  } catch (...) {
    put(before); // a scale that only this rank has lowered must still be sent
    throw;
  }
  engine_.state.scale.agree_on_loaded();
}

const std::string& TrainingState::saved_name(const std::string& parameter) const {
  return engine_.parts.model.layers ? engine_.parts.model.layers->saved_name(parameter) : parameter;
}

void TrainingState::load_counts(const nlohmann::json& state) {
  engine_.optimizer_step.start_over();
  engine_.state.global_steps = state.at("global_steps");
  engine_.state.skipped_steps = state.at("skipped_steps");
  engine_.state.global_samples = state.at("global_samples");
  engine_.clear_step();
  engine_.parts.stepper.optimizer->set_steps(state.at("optimizer").at("steps"));
}

void TrainingState::take_positions(const nlohmann::json& state) {
  load_positions(state);
  const int64_t before = engine_.state.global_steps;
  load_counts(state);
  if (engine_.state.global_steps != before) { // otherwise it would draw the numbers of its first steps again
    seed_generators(engine_.parts, engine_.state.global_steps);
  }
}

parallel::Workers::Rest TrainingState::rest_of(Engine::Impl& engine, bool buffers_are_shared) {
  parallel::Workers::Rest rest;
  rest.state = [&engine] { return TrainingState(engine).state(nullptr).dump(); };
  rest.take = [&engine](const std::string& state) {
    TrainingState(engine).take_positions(nlohmann::json::parse(state));
  };
  rest.skip_to = [&engine](int64_t step) { engine.skip_to(step); };
  rest.check = [&engine] {
    engine.check_whole("workers()->join()");
    engine.check_released();
  };
  (buffers_are_shared ? rest.buffers : rest.fixed) = engine.parts.model.module->buffers();
  for (const at::Tensor& parameter : engine.parts.model.module->parameters()) {
    if (!parameter.requires_grad()) {
      rest.fixed.push_back(parameter);
    }
  }
  return rest;
}

nlohmann::json TrainingState::load(const std::filesystem::path& folder, const std::string& tag) {
  const auto saved = checkpoint::Checkpoint::open(folder, tag, engine_.parts.ranks.everyone);
  const nlohmann::json state = own_state(saved);
  if (state.at("optimizer").at("name") != engine_.parts.stepper.optimizer->rule().name()) {
    throw InputError("checkpoint",
                     concat(saved.folder().string(), " was made with optimizer ", state["optimizer"]["name"],
                            ", this run uses \"", engine_.parts.stepper.optimizer->rule().name(), '"'),
                     kOfTheOptimizer);
  }
  check_model(saved);
  engine_.optimizer_step.finish_delayed();
  engine_.parts.buffers.reducer->finish(); // of a step that has begun
  engine_.parts.agreement.sync->step_exchange().finish();
  load_positions(state);
  engine_.torn_by(concat("the load of ", saved.folder().string(), " failed")); // until the load is complete
  engine_.parts.stepper.optimizer->set_steps(
      state["optimizer"].at("steps")); // otherwise masters would first be set from the parameters
  load_tensors(saved);
  load_counts(state);
  if (parallel::RemoteStates* const remote = engine_.parts.agreement.sync->remote_states()) {
    const checkpoint::About& about = saved.manifest().about;
    const std::string id = concat(about.tag, " (save ", about.save_id, ')');
    engine_.skip_to(remote->loaded(id, engine_.state.global_steps)); // to the step of the other processes
  }
  continue_random_states(engine_.parts, saved, engine_.state.global_steps);
  adopt_chosen_ways(engine_.parts, engine_.state, state.value("activations", nlohmann::json()));
  engine_.whole_again();
  log::info("continuing from ", saved.folder().string(), " at step ", engine_.state.global_steps);
  return state.value("client", nlohmann::json::object());
}

} // namespace trireme::engine
