// A libtorch loop with Horovod's DistributedOptimizer equals one process, DataParallel and the engine.
#include "job.h"

#include <trireme/extensions/horovod/adasum.h>
#include <trireme/horovod.h>
#include <trireme/shards/data_parallel/data_parallel.h>

#include <tests/engine/small_run.h>
#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

namespace trireme::horovod {
namespace {

namespace nn = torch::nn;
using test::error_of;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

nn::Sequential make_net(int seed = 1) {
  torch::manual_seed(seed);
  nn::Sequential net(nn::Linear(4, 7), nn::Tanh(), nn::Linear(7, 7), nn::Tanh(), nn::Linear(7, 1));
  net->to(at::kDouble);
  return net;
}

constexpr int64_t kRows = 3; // of a rank and pass

at::Tensor rows_of(int rank, int number) {
  return torch::sin(torch::arange(4 * kRows, torch::kFloat64).view({kRows, 4}) * (1.1 + rank) + number);
}

at::Tensor rows_of_all(int ranks, int number) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back(rows_of(rank, number));
  }
  return torch::cat(all);
}

at::Tensor loss_of(nn::Sequential& net, const at::Tensor& x) {
  return (net->forward(x) - x.sum(1, true)).square().mean();
}

/// One step of a rank's net with its rows, and of another one with all rows.
void step_both(nn::Sequential& net, DistributedOptimizer& optimizer, nn::Sequential& whole,
               torch::optim::Optimizer& reference, int number) {
  optimizer.zero_grad();
  reference.zero_grad();
  loss_of(net, rows_of(rank(), number)).backward();
  loss_of(whole, rows_of_all(size(), number)).backward();
  optimizer.step();
  reference.step();
}

double difference(nn::Module& a, nn::Module& b) {
  double worst = 0;
  const auto others = b.named_parameters();
  for (const auto& item : a.named_parameters()) {
    worst = std::max(worst, (item.value() - others[item.key()]).abs().max().item<double>());
  }
  return worst;
}

class DistributedOptimizerTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, DistributedOptimizerTest, testing::Values(1, 2, 3, 4),
                         testing::PrintToStringParamName());

TEST_P(DistributedOptimizerTest, EqualsOneProcess) {
  on_ranks(GetParam(), [](comm::World& world) {
    const Job job(world);
    for (const double predivide : {1.0, 2.0}) {
      nn::Sequential net = make_net(1 + rank()), whole = make_net();
      torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(0.01)),
          reference(whole->parameters(), torch::optim::AdamWOptions(0.01));
      broadcast_parameters(net->named_parameters(), 0);
      EXPECT_EQ(difference(*net, *whole), 0);
      DistributedOptimizer optimizer(adam, net->named_parameters(), {.gradient_predivide_factor = predivide});
      for (int step = 0; step < 20; ++step) {
        step_both(net, optimizer, whole, reference, step);
      }
      EXPECT_LT(difference(*net, *whole), 1e-10);
    }
  });
}

// Gradients of several passes add up, and can be clipped between synchronize() and step().
TEST_P(DistributedOptimizerTest, SeveralPassesAndClipping) {
  on_ranks(GetParam(), [](comm::World& world) {
    const Job job(world);
    nn::Sequential net = make_net(), whole = make_net();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1)),
        reference(whole->parameters(), torch::optim::SGDOptions(0.1));
    DistributedOptimizer optimizer(sgd, net->named_parameters(), {.backward_passes_per_step = 3});
    for (int step = 0; step < 10; ++step) {
      optimizer.zero_grad();
      reference.zero_grad();
      for (int pass = 0; pass < 3; ++pass) {
        loss_of(net, rows_of(rank(), 3 * step + pass)).backward();
        loss_of(whole, rows_of_all(size(), 3 * step + pass)).backward();
      }
      optimizer.synchronize();
      torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
      torch::nn::utils::clip_grad_norm_(whole->parameters(), 0.5);
      optimizer.step();
      reference.step();
    }
    EXPECT_LT(difference(*net, *whole), 1e-10);
  });
}

// The last layer is used by rank 0 alone; the others give zeros.
TEST_P(DistributedOptimizerTest, ParametersThatARankDoesNotUse) {
  on_ranks(GetParam(), [](comm::World& world) {
    const Job job(world);
    nn::Linear shared(4, 2), rare(2, 2);
    {
      const torch::NoGradGuard no_grad;
      for (const auto& module : {shared, rare}) {
        module->weight.fill_(0.3);
        module->bias.fill_(0.1);
      }
    }
    std::vector<std::pair<std::string, at::Tensor>> named = {{"shared.weight", shared->weight},
                                                             {"shared.bias", shared->bias},
                                                             {"rare.weight", rare->weight},
                                                             {"rare.bias", rare->bias}};
    std::vector<at::Tensor> parameters;
    for (const auto& [name, tensor] : named) {
      parameters.push_back(tensor);
    }
    torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(1));
    DistributedOptimizer optimizer(sgd, named);
    const at::Tensor x = shared->forward(rows_of(rank(), 0).to(at::kFloat));
    (rank() == 0 ? rare->forward(x) : x).sum().backward();
    optimizer.step();
    EXPECT_TRUE(rare->bias.allclose(torch::full({2}, 0.1 - static_cast<double>(kRows) / size())));
    EXPECT_TRUE(
        allreduce(shared->weight.detach(), {.op = Op::min}).equal(allreduce(shared->weight.detach(), {.op = Op::max})));
  });
}

// A step is left out where the gradients of all ranks are no good.
TEST(DistributedOptimizerWaysTest, AStepMayBeLeftOutAfterSynchronize) {
  on_ranks(2, [](comm::World& world) {
    const Job job(world);
    nn::Sequential net = make_net(), whole = make_net();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1)),
        reference(whole->parameters(), torch::optim::SGDOptions(0.1));
    DistributedOptimizer optimizer(sgd, net->named_parameters());
    for (int step = 0; step < 6; ++step) {
      optimizer.zero_grad();
      loss_of(net, rows_of(rank(), step)).backward();
      optimizer.synchronize();
      if (step % 2 == 0) {
        continue;
      }
      optimizer.step();
      reference.zero_grad();
      loss_of(whole, rows_of_all(size(), step)).backward();
      reference.step();
    }
    optimizer.zero_grad();
    loss_of(net, rows_of(rank(), 9)).backward();
    optimizer.synchronize();
    step_both(net, optimizer, whole, reference, 10); // with all ranks' gradients
    EXPECT_LT(difference(*net, *whole), 1e-10);
  });
}

// As for a generator and what judges it: each optimizer has its own parameters of one model.
TEST(DistributedOptimizerWaysTest, TwoOptimizersOfOneModel) {
  on_ranks(2, [](comm::World& world) {
    const Job job(world);
    nn::Sequential net = make_net(), whole = make_net();
    const auto some = [](nn::Sequential& of, bool first) {
      const std::vector<at::Tensor> all = of->parameters();
      return first ? std::vector(all.begin(), all.begin() + 2) : std::vector(all.begin() + 2, all.end());
    };
    torch::optim::SGD a(some(net, true), torch::optim::SGDOptions(0.1)),
        b(some(net, false), torch::optim::SGDOptions(0.02));
    torch::optim::SGD of_a(some(whole, true), torch::optim::SGDOptions(0.1)),
        of_b(some(whole, false), torch::optim::SGDOptions(0.02));
    auto first =
        std::make_unique<DistributedOptimizer>(a, net->named_parameters(), DistributedOptimizerOptions{.op = Op::sum});
    auto second =
        std::make_unique<DistributedOptimizer>(b, net->named_parameters(), DistributedOptimizerOptions{.op = Op::sum});
    EXPECT_THAT(error_of([&] { DistributedOptimizer(a, net->named_parameters()); }),
                HasSubstr("has a hook after accumulation already"));
    for (int step = 0; step < 5; ++step) {
      first->zero_grad();
      second->zero_grad();
      of_a.zero_grad();
      of_b.zero_grad();
      loss_of(net, rows_of(rank(), step)).backward();
      (loss_of(whole, rows_of_all(size(), step)) * size()).backward();
      first->step();
      second->step();
      of_a.step();
      of_b.step();
    }
    EXPECT_LT(difference(*net, *whole), 1e-9);
    first.reset();
    DistributedOptimizer again(a, net->named_parameters()); // the hooks of the second one are still there
    EXPECT_THAT(error_of([&] { DistributedOptimizer(b, net->named_parameters()); }), HasSubstr("has a hook"));
  });
}

TEST(DistributedOptimizerWaysTest, Fp16GradientsComeClose) {
  on_ranks(2, [](comm::World& world) {
    const Job job(world);
    nn::Sequential net = make_net(), whole = make_net();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1)),
        reference(whole->parameters(), torch::optim::SGDOptions(0.1));
    DistributedOptimizer optimizer(sgd, net->named_parameters(), {.compression = Compression::fp16});
    for (int step = 0; step < 10; ++step) {
      step_both(net, optimizer, whole, reference, step);
    }
    EXPECT_LT(difference(*net, *whole), 2e-3);
    EXPECT_GT(difference(*net, *whole), 1e-9);
  });
}

TEST(DistributedOptimizerWaysTest, AdasumAddsUpSteps) {
  on_ranks(2, [](comm::World& world) {
    const Job job(world);
    nn::Sequential net = make_net();
    std::vector<nn::Sequential> of_rank = {make_net(), make_net()};
    torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(0.01));
    std::vector<std::unique_ptr<torch::optim::AdamW>> optimizers;
    for (nn::Sequential& one : of_rank) {
      optimizers.push_back(std::make_unique<torch::optim::AdamW>(one->parameters(), torch::optim::AdamWOptions(0.01)));
    }
    DistributedOptimizer optimizer(adam, net->named_parameters(), {.op = Op::adasum});
    EXPECT_THAT(error_of([&] { optimizer.synchronize(); }), HasSubstr("which combines steps, not gradients"));
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      loss_of(net, rows_of(rank(), step)).backward();
      optimizer.step();
      std::vector<std::vector<at::Tensor>> changes(2);
      for (int r = 0; r < 2; ++r) {
        optimizers[r]->zero_grad();
        loss_of(of_rank[r], rows_of(r, step)).backward();
        std::vector<at::Tensor> before;
        for (const at::Tensor& parameter : of_rank[r]->parameters()) {
          before.push_back(parameter.detach().clone());
        }
        optimizers[r]->step();
        for (size_t i = 0; i < before.size(); ++i) {
          changes[r].push_back(of_rank[r]->parameters()[i].detach() - before[i]);
          of_rank[r]->parameters()[i].detach().copy_(before[i]);
        }
      }
      for (size_t i = 0; i < changes[0].size(); ++i) {
        const at::Tensor change = adasum_of(changes[0][i], changes[1][i]);
        for (nn::Sequential& one : of_rank) {
          one->parameters()[i].detach().add_(change);
        }
      }
    }
    EXPECT_LT(difference(*net, *of_rank[0]), 1e-12);
  });
}

TEST(DistributedOptimizerWaysTest, StatesOfTheRootReplaceTheOthers) {
  on_ranks(3, [](comm::World& world) {
    const Job job(world);
    nn::Sequential net = make_net();
    torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(0.01 * (1 + rank())));
    for (int step = 0; step < 2 + rank(); ++step) {
      adam.zero_grad();
      loss_of(net, rows_of(rank(), step)).backward();
      adam.step();
    }
    broadcast_parameters(net->named_parameters(), 1);
    broadcast_optimizer_state(adam, 1);
    EXPECT_EQ(static_cast<torch::optim::AdamWOptions&>(adam.param_groups()[0].options()).lr(), 0.02);
    torch::optim::AdamW other(net->parameters(), torch::optim::AdamWOptions(0.01));
    if (rank() != 2) {
      other.zero_grad();
      loss_of(net, rows_of(rank(), 5)).backward();
      other.step();
      broadcast_parameters(net->named_parameters(), 1);
    } else {
      broadcast_parameters(net->named_parameters(), 1);
    }
    broadcast_optimizer_state(other, 2);
    EXPECT_TRUE(other.state().empty()) << "as on rank 2";
    // One more step with the same gradient gives the same weights on all ranks.
    adam.zero_grad();
    loss_of(net, rows_of(0, 9)).backward();
    adam.step();
    for (const at::Tensor& parameter : net->parameters()) {
      EXPECT_TRUE(parameter.equal(broadcast(parameter, 0)));
    }
  });
}

// With momentum a gradient of zero is not the same as none.
TEST(DistributedOptimizerWaysTest, ParametersMayBeFrozenAndUnfrozenOnTheWay) {
  on_ranks(2, [](comm::World& world) {
    const Job job(world);
    nn::Sequential net = make_net(), whole = make_net();
    const auto freeze = [&](int layer, bool frozen) {
      for (nn::Sequential* of : {&net, &whole}) {
        for (at::Tensor& parameter : (*of)[static_cast<size_t>(layer)]->parameters()) {
          parameter.set_requires_grad(!frozen);
        }
      }
    };
    freeze(0, true);
    const auto options = torch::optim::SGDOptions(0.05).momentum(0.9);
    torch::optim::SGD sgd(net->parameters(), options), reference(whole->parameters(), options);
    DistributedOptimizer optimizer(sgd, net->named_parameters());
    for (int step = 0; step < 9; ++step) {
      if (step == 3) {
        freeze(0, false);
      }
      if (step == 6) {
        freeze(2, true);
      }
      step_both(net, optimizer, whole, reference, step);
    }
    EXPECT_LT(difference(*net, *whole), 1e-12);
  });
}

// A GPT on the same samples: the engine, DataParallel and Horovod.
TEST(DistributedOptimizerWaysTest, EqualsTheEngineAndDataParallel) {
  on_ranks(2, [](comm::World& world) {
    engine::SmallRun run(world, engine::small_config(8, 1, 0));
    const Job job(world);
    models::Gpt net(engine::small_gpt()), other(engine::small_gpt());
    const auto options = torch::optim::AdamWOptions(0.01).betas({0.9, 0.95}).weight_decay(0.1);
    torch::optim::AdamW adam(net->parameters(), options), adam_of_other(other->parameters(), options);
    broadcast_parameters(net->named_parameters(), 0);
    DistributedOptimizer optimizer(adam, net->named_parameters());
    parallel::DataParallel parallel(*other, world.group());
    const engine::Counting data;
    for (int step = 0; step < 20; ++step) {
      std::vector<int64_t> mine;
      for (int64_t i = 0; i < 4; ++i) {
        mine.push_back((8 * step + 2 * i + rank()) % data.size());
      }
      const data::Batch batch = data.get(mine);
      optimizer.zero_grad();
      net->loss(batch.input(), batch.target()).backward();
      optimizer.step();
      parallel.zero_grad();
      other->loss(batch.input(), batch.target()).backward();
      adam_of_other.step();
      run.engine().train_batch([&] { return batch; });
    }
    const auto of_engine = run.model->named_parameters(), of_other = other->named_parameters();
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(item.value().equal(of_other[item.key()])) << item.key() << ": sums of two are the same in any order";
      if (!item.key().ends_with("c_attn.bias")) { // keys' biases have a gradient of 0 but for
                                                  // rounding, of which Adam makes whole steps
        EXPECT_TRUE(item.value().allclose(of_engine[item.key()], 1e-4, 2e-5)) << item.key();
      }
    }
  });
}

TEST(DistributedOptimizerErrorTest, SaysWhatIsWrong) {
  on_ranks(2, [](comm::World& world) {
    const Job job(world);
    nn::Sequential net = make_net();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    const std::vector<std::pair<std::string, at::Tensor>> few = {{"0.weight", net->parameters()[0]}};
    EXPECT_THAT(error_of([&] { DistributedOptimizer(sgd, few); }), HasSubstr("that is not in named_parameters"));
    const std::vector<std::pair<std::string, at::Tensor>> twice = {{"w", net->parameters()[0]},
                                                                   {"w", net->parameters()[1]}};
    EXPECT_THAT(error_of([&] { DistributedOptimizer(sgd, twice); }), HasSubstr("two parameters are called \"w\""));
    EXPECT_THAT(error_of([&] {
                  DistributedOptimizer(sgd, net->named_parameters(), {.op = Op::sum, .gradient_predivide_factor = 2});
                }),
                HasSubstr("Use Op::average, or leave the factor at 1"));
    EXPECT_THAT(error_of([&] { DistributedOptimizer(sgd, net->named_parameters(), {.op = Op::max}); }),
                HasSubstr("Use Op::average"));
    {
      DistributedOptimizer optimizer(sgd, net->named_parameters());
      loss_of(net, rows_of(rank(), 0)).backward();
      EXPECT_THAT(error_of([&] { optimizer.zero_grad(); }), HasSubstr("is being sent"));
      EXPECT_THAT(error_of([&] { loss_of(net, rows_of(rank(), 0)).backward(); }),
                  HasSubstr("Call step() after that many backward passes"));
      optimizer.step();
    }
    loss_of(net, rows_of(rank(), 0)).backward();
    loss_of(net, rows_of(rank(), 0)).backward(); // nobody counts any more
  });
}

} // namespace
} // namespace trireme::horovod
