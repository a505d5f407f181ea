// Exceptions that the ranks catch: what goes on, and what says that it cannot.
#include "small_run.h"

#include <trireme/base/error.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <filesystem>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using pipeline::LayerList;
using pipeline::LayerSpec;
using pipeline::PipelineModule;
using pipeline::PipelineOptions;
using pipeline::Tensors;
using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;

/// Makes backward throw where it is passed through: behind some gradients and before others.
class Trap {
 public:
  at::Tensor operator()(const at::Tensor& x) const {
    if (*armed_ && x.requires_grad()) {
      x.register_hook([](const at::Tensor&) { throw Error("trap", "backward went through it"); });
    }
    return x;
  }
  void arm(bool on) const { *armed_ = on; }

 private:
  std::shared_ptr<bool> armed_ = std::make_shared<bool>(false);
};

struct NetImpl : nn::Module {
  NetImpl() {
    torch::manual_seed(1);
    first = register_module("first", nn::Linear(4, 8));
    second = register_module("second", nn::Linear(8, 8));
    last = register_module("last", nn::Linear(8, 1));
  }
  at::Tensor forward(const at::Tensor& x) {
    return late(last->forward(early(second->forward(torch::tanh(first->forward(x))))));
  }
  nn::Linear first{nullptr}, second{nullptr}, last{nullptr};
  Trap early; // the last layer's gradients are there when it is reached
  Trap late;  // none is
};
TORCH_MODULE(Net);

config::EngineConfig config_of(int64_t accumulation, int64_t replicas) {
  const std::string text =
      concat(R"({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": )", accumulation,
             R"(, "train_batch_size": )", 3 * accumulation * replicas,
             R"(, "gradient_clipping": 0, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})");
  config::EngineConfig config = config::read_deepspeed(JsonNode::parse(text, "test.json"));
  config.data_parallel.bucket_bytes = 100; // a bucket a tensor
  config.data_parallel.first_bucket_bytes = 100;
  return config;
}

data::Batch batch_of(int number, int rank = 0) {
  const at::Tensor x = torch::sin(torch::arange(12, torch::kFloat32).view({3, 4}) + number + 100 * rank);
  return {{x}, {x.sum(1, true)}, 3};
}

struct NetRun {
  Net net;
  Initialized made;
  int rank;

  NetRun(comm::World& world, const config::EngineConfig& config) : rank(world.rank()) {
    InitializeOptions options;
    options.model = net.ptr();
    options.loss = [net = net](const data::Batch& batch) mutable {
      return (net->forward(batch.input()) - batch.target()).square().mean();
    };
    options.config = config;
    made = initialize(world, options);
  }
  /// Step `number`; backward throws in micro-batch `trapped` of it.
  double step(int number, int trapped = -1, const Trap* trap = nullptr) {
    int micro = 0;
    const auto next = [&] {
      if (trap != nullptr) {
        trap->arm(micro == trapped);
      }
      return batch_of(10 * number + micro++, rank);
    };
    return made.engine->train_batch(next).item<double>();
  }
};

TEST(EngineFailureTest, OneRankThatCatchesAFailedBackwardGoesOn) {
  on_ranks(1, [](comm::World& world) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const int accumulation : {1, 2}) {
        config::EngineConfig config = config_of(accumulation, world.size());
        config.zero.stage = stage;
        NetRun whole(world, config);
        NetRun failing(world, config);
        for (int step = 0; step < 5; ++step) {
          SCOPED_TRACE(concat("stage ", stage, ", ", accumulation, " accumulated, step ", step));
          if (step == 2 || step == 3) {
            const Trap& trap = step == 2 ? failing.net->early : failing.net->late;
            const int micro = step == 2 ? accumulation - 1 : 0;
            EXPECT_THROW(failing.step(step, micro, &trap), Error);
            trap.arm(false);
          }
          EXPECT_EQ(failing.step(step), whole.step(step));
        }
        EXPECT_EQ(failing.made.engine->global_steps(), 5);
        EXPECT_EQ(failing.made.engine->skipped_steps(), 0);
        const auto a = whole.net->parameters();
        const auto b = failing.net->parameters();
        for (size_t i = 0; i < a.size(); ++i) {
          EXPECT_TRUE(a[i].equal(b[i])) << "parameter " << i;
        }
      }
    }
  });
}

// Rank 0 fails: when the last layer's bucket has been sent, or before any.
TEST(EngineFailureTest, NobodyGoesOnAfterAStepThatFailedOnOne) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool late : {false, true}) {
      SCOPED_TRACE(concat("stage ", stage, late ? ", late" : ", early"));
      on_ranks(2, [&](comm::World& world) {
        config::EngineConfig config = config_of(1, world.size());
        config.zero.stage = stage;
        NetRun run(world, config);
        run.step(0);
        const auto before =
            run.net->first->weight.numel() > 0 && stage < 3 ? run.net->first->weight.clone() : at::Tensor();
        const Trap& trap = late ? run.net->late : run.net->early;
        const std::string error = test::error_of([&] { run.step(1, world.rank() == 0 ? 0 : -1, &trap); });
        EXPECT_THAT(error,
                    AllOf(HasSubstr("backward went through it"), HasSubstr(world.rank() == 0 ? "trap" : "rank 0")));
        trap.arm(false);
        if (before.defined()) {
          EXPECT_TRUE(run.net->first->weight.equal(before));
        }
        if (world.rank() == 0) {
          Engine& engine = *run.made.engine;
          EXPECT_THAT(test::error_of([&] { run.step(1); }),
                      AllOf(HasSubstr("cannot continue: step 2 failed"), HasSubstr("backward went through it")));
          EXPECT_THAT(test::error_of([&] { engine.eval_batch(batch_of(0)); }),
                      HasSubstr("cannot continue: step 2 failed"));
          EXPECT_THAT(test::error_of([&] { engine.save_checkpoint(testing::TempDir()); }),
                      HasSubstr("cannot continue: step 2 failed"));
        }
      });
    }
  }
}

// Nothing has begun when the first micro-batch cannot be read.
TEST(EngineFailureTest, DataThatIsNotThereEndsNoStep) {
  on_ranks(2, [](comm::World& world) {
    NetRun run(world, config_of(1, world.size()));
    run.step(0);
    EXPECT_THROW(run.made.engine->train_batch([]() -> data::Batch { throw InputError("data", "the file ends"); }),
                 InputError);
    EXPECT_TRUE(std::isfinite(run.step(1)));
  });
}

TEST(EngineFailureTest, ACheckpointThatIsLoadedInTheMiddleOfAStepForgetsIt) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_middle_", ::getpid());
  on_ranks(2, [&](comm::World& world) {
    NetRun whole(world, config_of(2, 2));
    NetRun run(world, config_of(2, 2));
    whole.step(0);
    run.step(0);
    Engine& engine = *run.made.engine;
    engine.save_checkpoint(folder);
    for (const int micro_batches : {1, 2}) { // the second one's gradients are sent
      for (int done = 0; done < micro_batches; ++done) {
        engine.backward(engine.forward(batch_of(77, world.rank())));
        if (done + 1 < micro_batches) {
          engine.step();
        }
      }
      ASSERT_TRUE(engine.load_checkpoint(folder));
    }
    EXPECT_EQ(run.step(1), whole.step(1));
    EXPECT_EQ(run.step(2), whole.step(2));
  });
  fs::remove_all(folder);
}

TEST(EngineFailureTest, TheExplicitLoopBeginsTheStepAgain) {
  on_ranks(1, [](comm::World& world) {
    NetRun whole(world, config_of(2, world.size()));
    NetRun failing(world, config_of(2, world.size()));
    Engine& engine = *failing.made.engine;
    const auto micro_batch = [&](int number) {
      engine.backward(engine.forward(batch_of(number, world.rank())));
      engine.step();
    };
    micro_batch(0);
    failing.net->early.arm(true);
    EXPECT_THROW(micro_batch(1), Error);
    failing.net->early.arm(false);
    EXPECT_FALSE(engine.is_gradient_accumulation_boundary());
    for (int step = 0; step < 3; ++step) {
      micro_batch(10 * step);
      micro_batch(10 * step + 1);
      EXPECT_EQ(engine.loss(), whole.step(step));
    }
  });
}

TEST(EngineFailureTest, ALoopThatMisusesTheEngineLosesNothing) {
  on_ranks(1, [](comm::World& world) {
    NetRun whole(world, config_of(2, 1));
    NetRun run(world, config_of(2, 1));
    Engine& engine = *run.made.engine;
    engine.backward(engine.forward(batch_of(0)));
    engine.step();
    EXPECT_THROW(engine.backward(torch::ones({2})), InputError);
    engine.backward(engine.forward(batch_of(1)));
    engine.step();
    EXPECT_EQ(engine.loss(), whole.step(0));
  });
}

// What is stepped cannot be taken back.
TEST(EngineFailureTest, AStepThatFailsHalfDoneNeedsACheckpoint) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_half_", ::getpid());
  on_ranks(1, [&](comm::World& world) {
    config::EngineConfig config = config_of(1, 1);
    config.step_in_backward = true;
    NetRun whole(world, config);
    NetRun failing(world, config);
    whole.step(0);
    failing.step(0);
    failing.made.engine->save_checkpoint(folder);
    EXPECT_THROW(failing.step(1, 0, &failing.net->early), Error);
    failing.net->early.arm(false);
    for (int twice = 0; twice < 2; ++twice) {
      try {
        failing.step(1);
        ADD_FAILURE() << "went on";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), AllOf(HasSubstr("step 2"), HasSubstr("had been stepped"), HasSubstr("checkpoint")));
      }
    }
    EXPECT_THAT(test::error_of([&] { failing.made.engine->save_checkpoint(folder); }), HasSubstr("had been stepped"));
    EXPECT_THAT(test::error_of([&] { failing.made.engine->eval_batch(batch_of(0)); }), HasSubstr("had been stepped"));
    ASSERT_TRUE(failing.made.engine->load_checkpoint(folder));
    EXPECT_EQ(failing.step(1), whole.step(1));
    EXPECT_EQ(failing.step(2), whole.step(2));
  });
  fs::remove_all(folder);
}

TEST(EngineFailureTest, NothingIsSavedBetweenBackwardThatStepsAndStep) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_between_", ::getpid());
  on_ranks(1, [&](comm::World& world) {
    config::EngineConfig config = config_of(1, 1);
    config.step_in_backward = true;
    NetRun whole(world, config);
    NetRun run(world, config);
    Engine& engine = *run.made.engine;
    engine.backward(engine.forward(batch_of(0)));
    const auto refused = [](const auto& f) {
      EXPECT_THAT(test::error_of(f), AllOf(HasSubstr("between backward() and step()"), HasSubstr("Call step() first")));
    };
    refused([&] { engine.save_checkpoint(folder); });
    refused([&] { engine.eval_batch(batch_of(1)); });
    refused([&] { engine.forward(batch_of(1)); });
    engine.step();
    EXPECT_EQ(engine.loss(), whole.step(0));
    EXPECT_EQ(run.step(1), whole.step(1));
  });
  fs::remove_all(folder);
}

// A load that is refused leaves the engine as it was.
TEST(EngineFailureTest, ACheckpointOfAnotherRunIsRefusedBeforeAnythingIsLoaded) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_refused_", ::getpid());
  const auto with = [](const char* optimizer, const char* scheduler) {
    return config::read_deepspeed(JsonNode::parse(concat(R"({"train_micro_batch_size_per_gpu": 3, "optimizer": )",
                                                         optimizer, R"(, "scheduler": )", scheduler, "}"),
                                                  "test.json"));
  };
  const char* const sgd = R"({"type": "SGD", "params": {"lr": 0.01}})";
  const char* const momentum = R"({"type": "SGD", "params": {"lr": 0.01, "momentum": 0.9}})";
  const char* const warmup = R"({"type": "WarmupLR", "params": {"warmup_num_steps": 3}})";
  const char* const decay = R"({"type": "WarmupDecayLR", "params": {"warmup_num_steps": 3, "total_num_steps": 9}})";
  for (const auto& [config, reason] :
       {std::pair(with(sgd, decay), "schedule is WarmupLR"),
        std::pair(with(momentum, warmup), "has no optimizer state \"momentum_buffer/")}) {
    on_ranks(2, [&, config = config, reason = reason](comm::World& world) {
      NetRun saved(world, with(sgd, warmup));
      saved.step(0);
      saved.step(1);
      saved.made.engine->save_checkpoint(folder);
      NetRun whole(world, config);
      NetRun run(world, config);
      run.step(5);
      whole.step(5);
      EXPECT_THAT(test::error_of([&] { run.made.engine->load_checkpoint(folder); }), HasSubstr(reason));
      EXPECT_EQ(run.made.engine->global_steps(), 1);
      EXPECT_EQ(run.step(6), whole.step(6));
      EXPECT_EQ(run.made.engine->get_lr(), whole.made.engine->get_lr());
      EXPECT_EQ(run.step(7), whole.step(7));
    });
    fs::remove_all(folder);
  }
}

struct ListRun {
  Trap trap;
  std::shared_ptr<PipelineModule> model;
  std::shared_ptr<Engine> engine;

  ListRun(comm::World& world, int stages) {
    PipelineOptions options;
    options.stages = stages;
    options.seed_layers = true;
    if (stages == 2) {
      options.bounds = {0, 1, 3};
    }
    const LayerList layers{LayerSpec<nn::Linear>(4, 8), trap, LayerSpec<nn::Linear>(8, 1)};
    model = std::make_shared<PipelineModule>(
        layers,
        [](const Tensors& outputs, const Tensors& targets) { return at::mse_loss(outputs.at(0), targets.at(0)); },
        options);
    InitializeOptions initialize_options;
    initialize_options.pipeline = model;
    initialize_options.config = config_of(2, world.size() / stages);
    engine = initialize(world, initialize_options).engine;
  }
  double step(int number) {
    int micro = 0;
    return engine->train_batch([&] { return batch_of(10 * number + micro++); }).item<double>();
  }
};

TEST(EngineFailureTest, AListOfLayersInOneStageGoesOn) {
  on_ranks(1, [](comm::World& world) {
    ListRun whole(world, 1);
    ListRun failing(world, 1);
    for (int step = 0; step < 4; ++step) {
      if (step == 1) {
        failing.trap.arm(true);
        EXPECT_THROW(failing.step(step), Error);
        failing.trap.arm(false);
      }
      EXPECT_EQ(failing.step(step), whole.step(step)) << "step " << step;
    }
  });
}

TEST(EngineFailureTest, APipelineThatFailedSaysSoInTheNextBatch) {
  on_ranks(2, [](comm::World& world) {
    ListRun run(world, 2);
    run.step(0);
    run.trap.arm(true);
    EXPECT_THROW(run.step(1), Error);
    run.trap.arm(false);
    for (int twice = 0; twice < 2; ++twice) {
      try {
        run.step(1);
        ADD_FAILURE() << "went on";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(),
                    AllOf(testing::AnyOf(HasSubstr("after a failure"), HasSubstr("the engine cannot continue")),
                          HasSubstr("backward went through it"), HasSubstr("checkpoint")));
      }
    }
  });
}

// The engine lends the list its autocast; the list may live on.
TEST(EngineFailureTest, AModuleOutlivesItsEngine) {
  on_ranks(1, [](comm::World& world) {
    const auto model = std::make_shared<PipelineModule>(
        LayerList{LayerSpec<nn::Linear>(4, 1)}, [](const Tensors& outputs, const Tensors& targets) {
          return at::mse_loss(outputs.at(0).to(torch::kFloat32), targets.at(0));
        });
    {
      InitializeOptions options;
      options.pipeline = model;
      options.config = config_of(1, 1);
      options.config.precision.autocast = true;
      const Initialized made = initialize(world, options);
      made.engine->train_batch([] { return batch_of(0); });
      EXPECT_EQ(model->forward(batch_of(0).input()).scalar_type(), torch::kBFloat16);
    }
    EXPECT_EQ(model->forward(batch_of(0).input()).scalar_type(), torch::kFloat32);
  });
}

// A gradient may be infinite where the loss is not. Without a norm nobody sees it before parameters are stepped.
TEST(EngineFailureTest, ANormThatIsWantedInTheMiddleOfAStepDoesNotTakeItBack) {
  on_ranks(1, [](comm::World& world) {
    config::EngineConfig config = config_of(1, 1);
    config.step_in_backward = true;
    NetRun run(world, config);
    Engine& engine = *run.made.engine;
    run.step(0);
    run.net->last->bias.register_hook([](const at::Tensor& grad) { return torch::full_like(grad, INFINITY); });
    engine.backward(engine.forward(batch_of(1)));
    engine.want_grad_norm(true);
    engine.step();
    EXPECT_EQ(engine.skipped_steps(), 0) << "its parameters have been stepped";
    EXPECT_EQ(engine.global_steps(), 2);
    ASSERT_TRUE(engine.get_global_grad_norm());
    EXPECT_FALSE(std::isfinite(*engine.get_global_grad_norm()));
    // From the next step on the norm counts, and every bucket is stepped once.
    engine.backward(engine.forward(batch_of(2)));
    engine.step();
    EXPECT_EQ(engine.skipped_steps(), 1);
  });
}

TEST(EngineFailureTest, AStepNeedsTheEnginesBackward) {
  comm::World world = comm::World::connect();
  const auto words = [&](const std::function<void(Engine&)>& f) -> std::string {
    SmallRun run(world, small_config(4, 1));
    try {
      f(run.engine());
    } catch (const InputError& error) {
      return error.what();
    }
    return "stepped";
  };
  EXPECT_THAT(words([](Engine& engine) { engine.step(); }), testing::HasSubstr("step() of step 1 without backward()"));
  EXPECT_THAT(words([](Engine& engine) {
                engine.forward(Counting().get(std::vector<int64_t>{1, 2, 3, 4})).backward();
                engine.step();
              }),
              testing::HasSubstr("Call the engine's backward(loss)"));
}

} // namespace
} // namespace trireme::engine
