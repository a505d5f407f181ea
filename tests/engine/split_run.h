#pragma once

#include "small_run.h"

#include <trireme/models/gpt_layers.h>
#include <trireme/models/gpt_values.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

#include <functional>

namespace trireme::engine {

inline constexpr int64_t kSplitBatch = 8;
inline constexpr int kSplitSteps = 20;
inline constexpr context::Kind kUlysses = context::Kind::ulysses;

/// How many ranks a test has along each axis, and what they do.
struct SplitLayout {
  int pipe = 1;
  int data = 1;
  int context = 1;
  int tensor = 1;
  bool sequence_parallel = false;
  int zero_stage = 0;
  int64_t accumulation = 1;
  pipeline::ScheduleKind schedule = pipeline::ScheduleKind::one_f_one_b;
  int chunks = 1;
  context::Kind context_kind = context::Kind::ring;

  mesh::Mesh make_mesh(comm::World& world) const {
    return mesh::training_mesh(world.group(), {.pipe = pipe, .data = data, .context = context, .tensor = tensor});
  }
  /// What models take.
  models::ModelRanks model_ranks(const mesh::Mesh& mesh) const {
    models::ModelRanks ranks;
    ranks.tensor = {mesh.group(mesh::Axis::tensor), sequence_parallel};
    ranks.context = mesh.group(mesh::Axis::context);
    ranks.context_kind = context_kind;
    return ranks;
  }
  pipeline::PipelineOptions pipeline_options() const {
    pipeline::PipelineOptions options;
    options.stages = pipe;
    options.schedule = schedule;
    options.chunks = chunks;
    return options;
  }
  int ranks() const { return pipe * data * context * tensor; }
  std::string describe() const {
    return concat("pipe ", pipe, ", data ", data, ", context ", context,
                  context_kind == context::Kind::ring ? " (ring)" : " (Ulysses)", ", tensor ", tensor,
                  sequence_parallel ? " with sequence parallelism" : "", ", ZeRO ", zero_stage, ", ", accumulation,
                  " micro-batches, schedule ", static_cast<int>(schedule), ", ", chunks, " chunks");
  }
};

/// A vocabulary that no number of ranks divides.
inline models::GptOptions split_gpt() {
  models::GptOptions options = small_gpt();
  options.layers = 4;
  options.heads = 4;
  return options;
}

/// What a test changes of a run before it is initialized.
struct SplitChanges {
  models::GptOptions shape = split_gpt();
  std::function<void(InitializeOptions&)> options = nullptr;
  /// Called with the Gpt, or with each layer as it is built, and what its parameters' names begin with; on the only
  /// rank of the run that it is compared with, too.
  std::function<void(torch::nn::Module&, const std::string& prefix)> model = nullptr;
  /// The same for the split run alone.
  std::function<void(torch::nn::Module&, const std::string& prefix)> split = nullptr;
};

/// Gives `options` a model and its loss, or a pipeline, the same on each rank, and may change the rest, of which the
/// mesh is there.
using SplitBuild = std::function<void(const SplitLayout&, InitializeOptions& options)>;

inline SplitBuild split_gpt_build(const SplitChanges& changes) {
  return [=](const SplitLayout& layout, InitializeOptions& options) {
    const models::GptOptions& shape = changes.shape;
    const models::ModelRanks ranks = layout.model_ranks(*options.mesh);
    const auto change = [changes](torch::nn::Module& module, const std::string& prefix) {
      for (const auto& f : {changes.model, changes.split}) {
        if (f) {
          f(module, prefix);
        }
      }
    };
    if (layout.pipe > 1) {
      std::vector<pipeline::Layer> layers;
      const auto values = std::make_shared<const models::ModelValues>(models::gpt_values(shape));
      for (pipeline::Layer layer : models::gpt_layers(shape, ranks)) {
        const std::string prefix = layer.name().value();
        layers.push_back(layer.initialise([=](torch::nn::Module& module) {
          values->fill(prefix, module);
          change(module, prefix + '.');
        }));
      }
      options.pipeline = std::make_shared<pipeline::PipelineModule>(
          pipeline::LayerList(std::move(layers)), models::gpt_loss(shape, ranks), layout.pipeline_options());
    } else {
      models::Gpt gpt(shape, ranks);
      change(*gpt, "");
      options.model = gpt.ptr();
      options.loss = [gpt](const data::Batch& batch) mutable { return gpt->loss(batch.input(), batch.target()); };
    }
    if (changes.options) {
      changes.options(options);
    }
  };
}

/// A model split so, initialized, on Counting unless its build has other data.
class SplitRun {
 public:
  SplitRun(comm::World& world, const SplitLayout& layout, const SplitBuild& build) {
    InitializeOptions options;
    options.mesh = layout.make_mesh(world);
    options.sequence_parallel = layout.sequence_parallel;
    options.config = small_config(kSplitBatch, layout.accumulation);
    options.config.zero.stage = layout.zero_stage;
    options.config.zero.param_persistence_threshold = 0;
    options.training_data = std::make_shared<Counting>();
    options.shuffle = false;
    build(layout, options);
    made_ = initialize(world, options);
  }
  /// A GPT.
  SplitRun(comm::World& world, const SplitLayout& layout, const SplitChanges& changes = {})
      : SplitRun(world, layout, split_gpt_build(changes)) {}
  Engine& engine() { return *made_.engine; }
  /// What initialize() got: the model, or the list of its layers.
  torch::nn::Module& module() { return made_.engine->module(); }
  /// The model, if it is a Gpt in one piece.
  models::GptImpl* gpt() { return dynamic_cast<models::GptImpl*>(&module()); }
  double step() { return made_.engine->train_batch().item<double>(); }

 private:
  Initialized made_;
};

/// The run's losses and gradient norms, relative to `expected`.
inline void expect_curve(SplitRun& run, const Curve& expected, double norm_tolerance = 1e-5) {
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    ASSERT_NEAR(run.step(), expected.losses[step], 1e-5 * expected.losses[step]) << "step " << step;
    ASSERT_NEAR(run.engine().get_global_grad_norm().value(), expected.norms[step],
                norm_tolerance * expected.norms[step])
        << "step " << step;
  }
}

/// The same of a GPT for 20 steps, compared with one process and plain libtorch. `then` is called after them.
inline void expect_losses_of_one_process(const SplitLayout& layout, const SplitChanges& changes = {},
                                         const std::function<void(SplitRun&)>& then = nullptr) {
  EXPECT_THAT(test::run_ranks(layout.ranks(),
                              [&](comm::World& world) {
                                const auto change = [&](torch::nn::Module& module) {
                                  if (changes.model) {
                                    changes.model(module, "");
                                  }
                                };
                                const Curve expected = plain_gpt_curve(kSplitBatch, 20, 1.0, changes.shape, change);
                                SplitRun run(world, layout, changes);
                                expect_curve(run, expected);
                                const double loss = run.step();
                                for (const comm::ReduceOp op : {comm::ReduceOp::min, comm::ReduceOp::max}) {
                                  const at::Tensor all = torch::full({1}, loss, torch::kDouble);
                                  world.group().all_reduce(all, op).wait();
                                  EXPECT_EQ(all.item<double>(), loss) << "one loss on all ranks, bit for bit";
                                }
                                if (then) {
                                  then(run);
                                }
                              }),
              testing::IsEmpty())
      << layout.describe();
}

} // namespace trireme::engine
