// Parameters that no rank has whole: what the user sees of them.
#include "small_run.h"

#include <trireme/base/error.h>
#include <trireme/shards/zero/sharded.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

#include <filesystem>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;

/// One for each way to read what is not there: the message names the parameter and says what to do.
TEST(GatheredParametersTest, AParameterThatIsNotGatheredSaysSo) {
  on_ranks(2, [](comm::World& world) {
    SmallRun run(world, zero_config(3));
    const at::Tensor weight = run.model->transformer->embedding->wte->weight;
    EXPECT_EQ(weight.sizes(), (at::IntArrayRef{31, 16}));
    for (const auto& read : std::vector<std::function<void()>>{[&] { weight.sum(); }, [&] { weight.data_ptr<float>(); },
                                                               [&] { weight.t().matmul(torch::ones({31, 2})); }}) {
      try {
        const torch::NoGradGuard no_grad;
        read();
        ADD_FAILURE() << "read";
      } catch (const c10::Error& error) {
        EXPECT_THAT(error.what(), AllOf(HasSubstr("transformer.wte.weight"), HasSubstr("ZeRO stage 3"),
                                        HasSubstr("GatheredParameters")));
      }
    }
    run.engine().train_batch(); // goes on
  });
}

/// Looks at the second layer's weight while the first one runs, and the second one's is on its way.
struct PeekNetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return second->forward(first->use([&] {
      if (peek) {
        peek();
      }
      return torch::tanh(torch::linear(x, first->weight, first->bias));
    }));
  }
  zero::Sharded<torch::nn::Linear> first = register_module("first", zero::Sharded<torch::nn::Linear>(9, 13));
  zero::Sharded<torch::nn::Linear> second = register_module("second", zero::Sharded<torch::nn::Linear>(13, 9));
  std::function<void()> peek;
};
TORCH_MODULE(PeekNet);

TEST(GatheredParametersTest, AParameterThatIsOnItsWaySaysSo) {
  on_ranks(2, [](comm::World& world) {
    torch::manual_seed(3);
    PeekNet net;
    InitializeOptions options;
    options.model = net.ptr();
    options.loss = [net](const data::Batch& batch) mutable { return net->forward(batch.input()).square().mean(); };
    options.config = zero_config(3);
    const auto made = initialize(world, options);
    const auto step = [&] { made.engine->train_batch([] { return data::Batch{{torch::ones({24, 9})}, {}, 24}; }); };
    step(); // from now on it is known what comes next
    int refused = 0;
    net->peek = [&] {
      try {
        const torch::NoGradGuard no_grad;
        net->second->weight.sum();
      } catch (const c10::Error& error) {
        EXPECT_THAT(error.what(), AllOf(HasSubstr("second."), HasSubstr("ZeRO stage 3")));
        ++refused;
      }
    };
    step();
    EXPECT_EQ(refused, 1);
  });
}

// They would stay as they were before it, and be computed with.
TEST(GatheredParametersTest, DoNotOutliveAStep) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_gathered_", ::getpid());
  on_ranks(2, [&](comm::World& world) {
    SmallRun free(world, zero_config(3));
    SmallRun holding(world, zero_config(3));
    for (int step = 0; step < 3; ++step) {
      {
        const auto whole = holding.engine().gather_parameters(holding.model->parameters());
        const auto refused = [](const auto& f) {
          EXPECT_THAT(test::error_of(f), HasSubstr("Destroy what gather_parameters() returned"));
        };
        refused([&] { holding.engine().train_batch([] { return Counting().get(std::vector<int64_t>{0, 1}); }); });
        if (step == 1) {
          holding.engine().save_checkpoint(folder);
          refused([&] { holding.engine().load_checkpoint(folder); });
        }
      }
      EXPECT_EQ(holding.engine().train_batch().item<double>(), free.engine().train_batch().item<double>());
    }
  });
  fs::remove_all(folder);
}

TEST(GatheredParametersTest, DoNotOutliveAStepOfTheExplicitLoop) {
  for (const bool stepped_in_backward : {false, true}) {
    on_ranks(2, [stepped_in_backward](comm::World& world) {
      config::EngineConfig config = zero_config(3, 1, 0);
      config.step_in_backward = stepped_in_backward;
      SmallRun run(world, config);
      Engine& engine = run.engine();
      const at::Tensor loss = engine.forward(run.made.loader->next());
      if (!stepped_in_backward) {
        engine.backward(loss);
      }
      const auto whole = engine.gather_parameters(run.model->parameters());
      EXPECT_THAT(test::error_of([&] { stepped_in_backward ? engine.backward(loss) : engine.step(); }),
                  HasSubstr("Destroy what gather_parameters() returned"));
    });
  }
}

TEST(GatheredParametersTest, MayOutliveTheirEngine) {
  for (const int stage : {0, 3}) {
    on_ranks(2, [stage](comm::World& world) {
      std::unique_ptr<zero::GatheredParameters> whole;
      SmallRun run(world, zero_config(stage));
      whole = run.engine().gather_parameters(run.model->parameters(), /*modifier_rank=*/0);
      const data::Batch batch = run.made.loader->next();
      const torch::NoGradGuard no_grad;
      const double before = run.model->loss(batch.input(), batch.target()).item<double>();
      run.made = {};
      EXPECT_EQ(run.model->loss(batch.input(), batch.target()).item<double>(), before);
      whole.reset();
    });
  }
}

TEST(GatheredParametersTest, CanBeReadAndChanged) {
  for (const int stage : {0, 2, 3}) {
    on_ranks(3, [stage](comm::World& world) {
      SmallRun run(world, zero_config(stage));
      run.engine().train_batch();
      const torch::NoGradGuard no_grad;
      at::Tensor weight = run.model->transformer->embedding->wte->weight;
      {
        const auto whole = run.engine().gather_parameters({weight}, /*modifier_rank=*/1);
        weight.fill_(world.rank());
        run.engine().eval_batch(run.made.loader->next()); // does not take it away
        EXPECT_EQ(weight.sum().item<double>(), 31 * 16 * world.rank());
      }
      const auto whole = run.engine().gather_parameters({weight});
      EXPECT_TRUE(weight.equal(torch::ones_like(weight)));
    });
  }
}

} // namespace
} // namespace trireme::engine
