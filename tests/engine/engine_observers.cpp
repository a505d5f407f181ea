#include "engine_observers.h"

#include <trireme/base/error.h>
#include <trireme/base/hash.h>
#include <trireme/base/log.h>
#include <trireme/comm/recorder.h>
#include <trireme/memory/activations/activations.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/convert_parameters.h>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <chrono>
#include <filesystem>
#include <limits>
#include <memory>
#include <regex>

namespace trireme::engine::observe {
namespace {

namespace fs = std::filesystem;

config::EngineConfig config_of(const json& run) {
  torch::manual_seed(1);
  return config::read_deepspeed(JsonNode::parse(run.at("engine").dump(), "test.json"));
}

SmallRun small(comm::World& world, const json& run) {
  return SmallRun(world, config_of(run));
}

std::string digest(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().contiguous();
  const std::string_view bytes(static_cast<const char*>(values.data_ptr()), values.nbytes());
  return concat(values.scalar_type(), ' ', values.sizes(), ' ', fnv1a(bytes));
}

json number(const std::optional<double>& value) {
  return value ? json(concat(*value)) : json(nullptr); // as text: NaN is a value here
}

} // namespace

json training(comm::World& world, const json& run) {
  SmallRun it = small(world, run);
  json seen;
  for (int step = 0; step < 4; ++step) {
    it.engine().train_batch();
    seen["steps"].push_back({number(it.engine().loss()), number(it.engine().get_lr()),
                             number(it.engine().get_global_grad_norm()), number(it.engine().loss_scale()),
                             it.engine().skipped_steps()});
  }
  for (const auto& item : it.model->named_parameters()) {
    seen["weights"][item.key()] = digest(item.value());
  }
  it.made.optimizer->for_each_state(
      [&](const std::string& state, const bucket::TensorInfo& tensor, int64_t begin, const at::Tensor& values) {
        seen["states"][concat(state, '/', tensor.name, '@', begin)] = digest(values);
      });
  return seen;
}

json batches(comm::World& world, const json& run) {
  models::Gpt model(small_gpt());
  json seen;
  InitializeOptions options;
  options.model = model.ptr();
  options.loss = [&](const data::Batch& batch) {
    seen.push_back({batch.samples, digest(batch.input())});
    return model->loss(batch.input(), batch.target());
  };
  options.config = config_of(run);
  options.training_data = std::make_shared<Counting>();
  const Initialized made = initialize(world, options);
  for (int step = 0; step < 3; ++step) {
    made.engine->train_batch();
  }
  return seen;
}

json state_bytes(comm::World& world, const json& run) {
  SmallRun it = small(world, run);
  it.engine().train_batch();
  return it.made.optimizer->bytes();
}

json operations(comm::World& world, const json& run) {
  SmallRun it = small(world, run);
  it.engine().train_batch();
  it.engine().train_batch();
  const comm::Recorder& recorder = comm::Recorder::process();
  const auto now =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count();
  it.engine().train_batch();
  json seen;
  for (const comm::Record& record : recorder.records()) {
    if (record.queued_us + recorder.begin_us() >= now) {
      seen.push_back(concat(record.op, ' ', record.what, ' ', record.bytes, ' ', record.dtype));
    }
  }
  return seen;
}

json log_lines(comm::World& world, const json& run) {
  json seen;
  const log::Level before = log::level();
  const auto restore = [before](const void*) {
    log::set_sink(nullptr);
    log::set_level(before);
  };
  const std::unique_ptr<const void, decltype(restore)> guard(&seen, restore);
  log::set_level(log::Level::info);
  log::set_sink(
      [&](const std::string& line) { seen["lines"].push_back(std::regex_replace(line, std::regex("[0-9].*"), "")); });
  SmallRun it = small(world, run);
  for (int step = 0; step < 3; ++step) {
    it.engine().train_batch();
  }
  seen["level"] = static_cast<int>(log::level());
  return seen;
}

json schedule(comm::World& world, const json& run) {
  SmallRun it = small(world, run);
  json seen;
  for (int64_t step = 1; step < 10'000; step += step < 60 ? 1 : 61) {
    const auto betas = it.made.lr_scheduler->betas_at(step);
    seen.push_back({it.made.lr_scheduler->lr_at(step), betas ? json(betas->beta1) : json(nullptr)});
  }
  return seen;
}

json loss_scales(comm::World& world, const json& run) {
  SmallRun it = small(world, run);
  json seen;
  try {
    for (int step = 0; step < 10; ++step) {
      const bool overflows = step == 0 || step == 2 || step == 4 || step == 5;
      const at::Tensor loss = it.engine().forward(it.made.loader->next());
      it.engine().backward(overflows ? loss * std::numeric_limits<double>::infinity() : loss);
      it.engine().step();
      seen.push_back(number(it.engine().loss_scale()));
    }
  } catch (const Error&) {
    seen.push_back("an overflow at the smallest scale");
  }
  return seen;
}

json skips_nan_gradients(comm::World& world, const json& run) {
  SmallRun it = small(world, run);
  const at::Tensor loss = it.engine().forward(it.made.loader->next());
  const at::Tensor weight = it.model->parameters().front();
  it.engine().backward(loss + at::sqrt((weight * 0).sum()) * 0); // 0, of which the gradient is 0 * infinity
  it.engine().step();
  return it.engine().skipped_steps();
}

json input_type(comm::World& world, const json& run) {
  torch::nn::Linear model(4, 1);
  json seen;
  InitializeOptions options;
  options.model = model.ptr();
  options.loss = [&](const data::Batch& batch) {
    seen = concat(batch.input().scalar_type());
    return (model->weight * batch.input().to(model->weight.scalar_type())).mean();
  };
  options.config = config_of(run);
  const Initialized made = initialize(world, options);
  made.engine->forward({{torch::ones({2, 4})}, {torch::ones({2, 1})}, 2});
  return seen;
}

json equal_module_buffers(comm::World& world, const json& run) {
  InitializeOptions options;
  options.config = config_of(run);
  torch::nn::BatchNorm1d norm(4);
  options.model = norm.ptr();
  options.loss = [norm](const data::Batch& batch) mutable { return norm->forward(batch.input()).square().mean(); };
  const auto engine = initialize(world, options).engine;
  const int64_t rows = engine->train_micro_batch_size_per_gpu();
  const data::Batch batch{{torch::arange(4 * rows, torch::kFloat32).view({rows, 4}) + world.rank()}, {}, rows};
  engine->train_batch([&] { return batch; });
  engine->eval_batch(batch);
  at::Tensor first = norm->running_mean.detach().clone();
  world.group().broadcast(first, 0).wait();
  at::Tensor differ = torch::tensor({first.equal(norm->running_mean) ? 0 : 1});
  world.group().all_reduce(differ).wait();
  return differ.item<int>() == 0;
}

json loss_with_norm(comm::World& world, const json& run) {
  InitializeOptions options;
  options.config = config_of(run);
  torch::nn::BatchNorm1d norm(4);
  options.model = norm.ptr();
  options.loss = [norm](const data::Batch& batch) mutable { return norm->forward(batch.input()).abs().mean(); };
  const auto engine = initialize(world, options).engine;
  const int64_t rows = engine->train_micro_batch_size_per_gpu();
  const data::Batch batch{
      {torch::arange(4 * rows, torch::kFloat32).view({rows, 4}).square() + 100 * world.rank()}, {}, rows};
  return engine->train_batch([&] { return batch; }).item<double>();
}

json steps_in_backward(comm::World& world, const json& run) {
  SmallRun it = small(world, run);
  const at::Tensor loss = it.engine().forward(it.made.loader->next());
  const at::Tensor before = torch::nn::utils::parameters_to_vector(it.model->parameters()).detach().clone();
  it.engine().backward(loss);
  const bool changed = !before.equal(torch::nn::utils::parameters_to_vector(it.model->parameters()).detach());
  it.engine().step();
  return changed;
}

json differing_tags(comm::World& world, const json& run) {
  SmallRun it = small(world, run);
  const fs::path folder = fs::temp_directory_path() / concat("trireme_tags_", ::getppid()); // the same on all ranks
  json seen;
  try {
    it.engine().save_checkpoint(folder, concat("tag", world.rank()));
    seen = "saved";
  } catch (const InputError&) {
    seen = "refused";
  }
  world.group().barrier("saved").wait();
  if (world.rank() == 0) {
    fs::remove_all(folder);
  }
  return seen;
}

json activations(comm::World& world, const json& run) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_observed_activations_", ::getpid());
  json here = run;
  json& section = here["engine"]["activation_checkpointing"];
  if (section.contains("nvme_path")) {
    section["nvme_path"] = (folder / section["nvme_path"].get<std::string>()).string();
  }
  json seen;
  {
    SmallRun it = small(world, here);
    try {
      for (int step = 0; step < 3; ++step) {
        it.engine().train_batch();
      }
    } catch (const InputError& error) { // "layers" that no class matches
      seen["refused"] = error.what();
    }
    if (const auto* const found = it.engine().activations()) {
      const std::vector<trireme::activations::Way> ways = found->ways();
      seen["all kept"] = ways == std::vector<trireme::activations::Way>(ways.size(), trireme::activations::Way::keep);
      if (!found->options().automatic) {
        seen["ways"] = trireme::activations::to_words(ways);
        seen["parts"] = ways.size();
      }
    }
  }
  for (const char* name : {"one", "other"}) {
    seen[name] = fs::exists(folder / name);
  }
  fs::remove_all(folder);
  return seen;
}

json layers(comm::World& world, const json& run) {
  using namespace pipeline;
  const config::EngineConfig config = config_of(run);
  auto calls = std::make_shared<int>(0);
  const auto counting = [calls](const at::Tensor& x) {
    ++*calls;
    return x * 2;
  };
  InitializeOptions options;
  options.pipeline = std::make_shared<PipelineModule>(
      LayerList{LayerSpec<torch::nn::Linear>(4, 64), counting, LayerSpec<torch::nn::Linear>(64, 4),
                LayerSpec<torch::nn::Linear>(4, 4)},
      [](const Tensors& outputs, const Tensors& targets) { return at::mse_loss(outputs.at(0), targets.at(0)); });
  options.config = config;
  const Initialized made = initialize(world, options);
  json seen = {{"stages", made.engine->pipe_group().size()}, {"bounds", options.pipeline->partition().bounds}};
  for (const auto& item : made.engine->module().named_parameters()) {
    seen["weights"][item.key()] = digest(item.value());
  }
  made.engine->train_batch([] { return data::Batch{{torch::ones({12, 4})}, {torch::ones({12, 4})}, 12}; });
  seen["calls"] = *calls;
  return seen;
}

} // namespace trireme::engine::observe
