// Batch normalisation over ranks equals batch normalisation of all their rows in one process.
#include <trireme/base/error.h>
#include <trireme/shards/data_parallel/convert_sync_batch_norm.h>
#include <trireme/shards/data_parallel/data_parallel.h>
#include <trireme/shards/data_parallel/sync_batch_norm.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <functional>
#include <sstream>

namespace trireme::parallel {
namespace {

namespace nn = torch::nn;
using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

/// Rows of all ranks, of which each has some: rank r has r + first.
struct Rows {
  int first;
  std::vector<int64_t> per_row; // [C, ...]
  at::ScalarType type = at::kDouble;

  int64_t of(int rank) const { return rank + first; }
  at::Tensor all(int ranks, int number) const {
    int64_t rows = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      rows += of(rank);
    }
    std::vector<int64_t> sizes = {rows};
    sizes.insert(sizes.end(), per_row.begin(), per_row.end());
    const at::Tensor count = torch::arange(c10::multiply_integers(sizes), torch::kFloat64).view(sizes);
    return (torch::sin(count * 1.7 + number) * 2 + torch::cos(count * 0.013) + 3).to(type);
  }
  at::Tensor part(const at::Tensor& whole, int rank) const {
    int64_t begin = 0;
    for (int before = 0; before < rank; ++before) {
      begin += of(before);
    }
    return whole.slice(0, begin, begin + of(rank));
  }
};

double difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = a.to(at::kDouble);
  return a.numel() == 0
             ? 0
             : ((wide - b.to(at::kDouble)).abs().max() / b.to(at::kDouble).abs().max().clamp_min(1e-3)).item<double>();
}

at::Tensor summed(at::Tensor tensor, const comm::Group& group) {
  group.all_reduce(tensor).wait();
  return tensor;
}

BatchNormTensors layer_of(int64_t channels, at::ScalarType type, bool affine) {
  const at::Tensor count = torch::arange(channels, torch::kFloat64);
  const auto options = torch::TensorOptions(type);
  BatchNormTensors layer{{}, {}, torch::zeros({channels}, options), torch::ones({channels}, options)};
  if (affine) {
    layer.weight = (count * 0.3 + 0.7).to(type).requires_grad_();
    layer.bias = (count * 0.1 - 0.2).to(type).requires_grad_();
  }
  return layer;
}

/// Three forwards and backwards of a layer over the ranks beside torch's on all rows.
void compare(const comm::Group& group, const Rows& rows, bool affine, double tolerance, at::ScalarType layer_type,
             at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  const comm::Group statistics = statistics_group(group);
  const BatchNormTensors mine = layer_of(rows.per_row[0], layer_type, affine);
  const at::ScalarType wide = layer_type == at::kDouble ? at::kDouble : at::kFloat;
  const BatchNormTensors whole = layer_of(rows.per_row[0], wide, affine);
  for (int number = 0; number < 3; ++number) {
    const at::Tensor everything = rows.all(group.size(), number);
    const at::Tensor direction =
        torch::cos(torch::arange(everything.numel(), torch::kFloat64).view(everything.sizes()) * 0.9).to(rows.type);
    const at::Tensor x = rows.part(everything, group.rank()).contiguous(format).requires_grad_();
    const at::Tensor all = everything.to(wide).requires_grad_();
    const at::Tensor y = sync_batch_norm(x, mine, 0.1, 1e-5, statistics);
    const at::Tensor expected =
        at::batch_norm(all, whole.weight, whole.bias, whole.running_mean, whole.running_var, true, 0.1, 1e-5, false);
    EXPECT_EQ(y.scalar_type(), x.scalar_type());
    EXPECT_LT(difference(y, rows.part(expected, group.rank())), tolerance);
    y.backward(rows.part(direction, group.rank()));
    expected.backward(direction.to(wide));
    EXPECT_LT(difference(x.grad(), rows.part(all.grad(), group.rank())), tolerance);
  }
  EXPECT_LT(difference(mine.running_mean, whole.running_mean), tolerance);
  EXPECT_LT(difference(mine.running_var, whole.running_var), tolerance);
  if (affine) {
    EXPECT_LT(difference(summed(mine.weight.grad(), group), whole.weight.grad()), tolerance);
    EXPECT_LT(difference(summed(mine.bias.grad(), group), whole.bias.grad()), tolerance);
  }
}

class SyncBatchNormOnRanksTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SyncBatchNormOnRanksTest, testing::Values(1, 2, 3, 4),
                         testing::PrintToStringParamName());

TEST_P(SyncBatchNormOnRanksTest, EqualsOneProcessWithAllRows) {
  on_ranks(GetParam(), [](comm::World& world) {
    for (const std::vector<int64_t>& per_row :
         std::vector<std::vector<int64_t>>{{5}, {3, 7}, {4, 3, 5}, {2, 3, 2, 4}}) {
      for (const bool affine : {true, false}) {
        SCOPED_TRACE(testing::Message() << c10::IntArrayRef(per_row) << ", affine " << affine);
        compare(world.group(), {2, per_row}, affine, 1e-10, at::kDouble);
      }
    }
  });
}

TEST_P(SyncBatchNormOnRanksTest, ARankMayHaveNoRows) {
  on_ranks(GetParam(), [](comm::World& world) {
    if (world.size() == 1) {
      return;
    }
    compare(world.group(), {0, {4, 3, 5}}, true, 1e-10, at::kDouble); // rank 0
  });
}

TEST_P(SyncBatchNormOnRanksTest, InEveryPrecision) {
  on_ranks(GetParam(), [](comm::World& world) {
    compare(world.group(), {3, {4, 6, 5}, at::kFloat}, true, 2e-5, at::kFloat);
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
      compare(world.group(), {3, {4, 6, 5}, type}, true, 0.02, at::kFloat); // as under autocast
      compare(world.group(), {3, {4, 6, 5}, type}, true, 0.04, type);
    }
  });
}

TEST_P(SyncBatchNormOnRanksTest, WithChannelsLast) {
  on_ranks(GetParam(), [](comm::World& world) {
    compare(world.group(), {2, {4, 3, 5}}, true, 1e-10, at::kDouble, at::MemoryFormat::ChannelsLast);
  });
}

// A mean far from 0 leaves a difference of large numbers.
TEST_P(SyncBatchNormOnRanksTest, KeepsItsDigitsFarFromZero) {
  on_ranks(GetParam(), [](comm::World& world) {
    const comm::Group& group = world.group();
    const Rows rows{16, {3, 8}};
    const at::Tensor all = rows.all(group.size(), 0).to(at::kFloat) + 300;
    const at::Tensor x = rows.part(all, group.rank()).clone().requires_grad_();
    const at::Tensor direction = torch::cos(torch::arange(all.numel(), torch::kFloat32).view(all.sizes()));
    const at::Tensor y = sync_batch_norm(x, layer_of(3, at::kFloat, true), 0.1, 1e-5, statistics_group(group));
    y.backward(rows.part(direction, group.rank()));
    const at::Tensor exact = all.to(at::kDouble).requires_grad_();
    const BatchNormTensors layer = layer_of(3, at::kDouble, true);
    at::batch_norm(exact, layer.weight, layer.bias, {}, {}, true, 0.1, 1e-5, false).backward(direction.to(at::kDouble));
    EXPECT_LT(difference(x.grad(), rows.part(exact.grad(), group.rank())), 2e-4);
  });
}

TEST(SyncBatchNormTest, SendsTwoNumbersAChannelAndTheCount) {
  on_ranks(3, [](comm::World& world) {
    const comm::Group statistics = statistics_group(world.group());
    const at::Tensor x = Rows{2, {5, 4}, at::kFloat}.all(1, world.rank()).requires_grad_();
    const BatchNormTensors layer = layer_of(5, at::kFloat, true);
    const int64_t start = statistics.bytes_sent();
    const at::Tensor y = sync_batch_norm(x, layer, 0.1, 1e-5, statistics);
    const int64_t forward = statistics.bytes_sent();
    EXPECT_EQ(forward - start, 2 * (2 * 5 + 1) * 4);
    y.sum().backward();
    EXPECT_NEAR(static_cast<double>(statistics.bytes_sent() - forward), 2 * (2 * 5 * 4) * 2 / 3.0, 8);
  });
}

TEST(SyncBatchNormTest, RefusesWhatHasNoVarianceAndWrongShapes) {
  on_ranks(2, [](comm::World& world) {
    const comm::Group statistics = statistics_group(world.group());
    const auto message = [&](const at::Tensor& x) {
      try {
        sync_batch_norm(x, layer_of(3, at::kFloat, true), 0.1, 1e-5, statistics);
      } catch (const InputError& error) {
        return std::string(error.what());
      }
      return std::string("accepted");
    };
    EXPECT_THAT(
        message(torch::zeros({world.rank(), 3})),
        AllOf(HasSubstr("all 2 ranks have 1 values per channel in total"), HasSubstr("Give the ranks more samples")));
    EXPECT_EQ(message(torch::zeros({1, 3})), "accepted") << "one here, two together";
    EXPECT_THAT(message(torch::zeros({4})), HasSubstr("[N, C, ...]"));
    EXPECT_THAT(message(torch::zeros({4, 3}, torch::kInt64)), HasSubstr("expected a floating type"));
    EXPECT_THAT(message(torch::zeros({4, 5})), HasSubstr("5 channels (sizes [4, 5]), but the layer has 3"));
    const at::Tensor x = torch::randn({4, 3}).requires_grad_();
    const at::Tensor y = sync_batch_norm(x, layer_of(3, at::kFloat, true), 0.1, 1e-5, statistics);
    EXPECT_THROW(y.sum().backward({}, /*keep_graph=*/true, /*create_graph=*/true), Error);
  });
}

/// What each rank gets where rank 0 alone calls the model in training mode, and the others go on. Meanwhile they wait
/// for it, or have ended.
void call_on_rank_0_alone(const std::string& layer, bool others_end,
                          const std::function<std::function<void(const at::Tensor&)>(comm::World&)>& make_model) {
  EXPECT_THAT(test::run_processes(2,
                                  [&](int) {
                                    comm::WorldOptions options;
                                    options.warn_after = std::chrono::seconds(2);
                                    comm::World world = comm::World::connect(options);
                                    const auto forward = make_model(world);
                                    if (world.rank() != 0 && others_end) {
                                      return;
                                    }
                                    const std::string error = test::peer_error([&] {
                                      if (world.rank() == 0) {
                                        forward(torch::ones({4, 3}));
                                      } else {
                                        world.group().barrier("after the evaluation").wait();
                                      }
                                    });
                                    EXPECT_THAT(error,
                                                AllOf(HasSubstr(concat("(\"batch statistics of ", layer, "\"")),
                                                      HasSubstr("call model->eval() before an evaluation on one rank"),
                                                      testing::Not(HasSubstr("TRIREME_TIMEOUT"))));
                                  }),
              IsEmpty());
}

TEST(SyncBatchNormAloneTest, IsNamedWithWhatToDo) {
  for (const bool others_end : {false, true}) {
    call_on_rank_0_alone("layer 1", others_end, [](comm::World& world) {
      nn::Sequential model(nn::Linear(3, 5), SyncBatchNorm(nn::BatchNormOptions(5), world.group()));
      const auto parallel = std::make_shared<DataParallel>(*model, world.group());
      return [model, parallel](const at::Tensor& x) mutable { model->forward(x); };
    });
    call_on_rank_0_alone("SyncBatchNorm 1 (3 features)", others_end, [](comm::World& world) {
      SyncBatchNorm norm(nn::BatchNormOptions(3), world.group());
      return [norm](const at::Tensor& x) mutable { norm->forward(x); };
    });
    call_on_rank_0_alone("layer 1", others_end, [](comm::World& world) {
      nn::Sequential model(nn::Linear(3, 5), nn::BatchNorm1d(5));
      const auto synced = std::make_shared<SyncedBatchNorms>(*model, world.group());
      return [model, synced](const at::Tensor& x) mutable { model->forward(x); };
    });
  }
}

// The module, in the place of BatchNorm1d: momentum, cumulative momentum, evaluation, no running statistics.
TEST(SyncBatchNormModuleTest, IsABatchNormOfAllRows) {
  on_ranks(3, [](comm::World& world) {
    const comm::Group& group = world.group();
    const Rows rows{2, {4}};
    for (const std::optional<double> momentum : {std::optional(0.3), std::optional<double>()}) {
      for (const bool track : {true, false}) {
        const auto options = nn::BatchNormOptions(4).momentum(momentum).track_running_stats(track);
        SyncBatchNorm mine(options, group);
        nn::BatchNorm1d whole(options);
        mine->to(at::kDouble);
        whole->to(at::kDouble);
        for (int number = 0; number < 4; ++number) {
          const at::Tensor all = rows.all(3, number);
          EXPECT_LT(
              difference(mine->forward(rows.part(all, group.rank())), rows.part(whole->forward(all), group.rank())),
              1e-12);
        }
        mine->eval();
        whole->eval();
        for (int call = 0; call < group.rank(); ++call) { // none on rank 0: nobody waits for the others
          const at::Tensor x = rows.all(2, call);
          EXPECT_LT(difference(mine->forward(x), whole->forward(x)), 1e-12);
        }
        const auto state = mine->named_buffers();
        for (const auto& item : whole->named_buffers()) {
          EXPECT_LT(difference(state[item.key()], item.value()), 1e-12) << item.key();
        }
        EXPECT_EQ(mine->parameters().size(), 2U);
      }
    }
    std::ostringstream text;
    text << *SyncBatchNorm(nn::BatchNormOptions(4), group);
    EXPECT_THAT(text.str(), HasSubstr("SyncBatchNorm(4, ranks=3)"));
  });
}

nn::Sequential make_net() {
  torch::manual_seed(1);
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(2, 4, 3)), nn::BatchNorm2d(4), nn::ReLU(),
                        nn::InstanceNorm2d(nn::InstanceNorm2dOptions(4).affine(true)), nn::Flatten(),
                        nn::Linear(4 * 9, 6), nn::BatchNorm1d(nn::BatchNormOptions(6).affine(false)), nn::Tanh(),
                        nn::Linear(6, 1));
}

TEST(ConvertSyncBatchNormTest, AModelAsItIs) {
  on_ranks(3, [](comm::World& world) {
    const comm::Group& group = world.group();
    const Rows rows{2, {2, 5, 5}};
    nn::Sequential net = make_net();
    nn::Sequential whole = make_net();
    whole->to(at::kDouble);
    const at::Tensor all = rows.all(3, 0);
    const at::Tensor x = rows.part(all, group.rank());
    {
      const SyncedBatchNorms synced(*net, group);
      EXPECT_EQ(synced.size(), 2);
      net->to(at::kDouble); // afterwards
      const at::Tensor y = net->forward(x);
      const at::Tensor expected = whole->forward(all);
      EXPECT_LT(difference(y, rows.part(expected, group.rank())), 1e-10);
      y.square().sum().backward();
      expected.square().sum().backward();
      const auto parameters = whole->named_parameters();
      for (const auto& item : net->named_parameters()) {
        EXPECT_LT(difference(summed(item.value().grad(), group), parameters[item.key()].grad()), 1e-9) << item.key();
      }
      const auto buffers = whole->named_buffers();
      for (const auto& item : net->named_buffers()) {
        EXPECT_LT(difference(item.value(), buffers[item.key()]), 1e-10) << item.key();
      }
      {
        const c10::InferenceMode inference;
        EXPECT_LT(difference(net->forward(x), rows.part(whole->forward(all), group.rank())), 1e-10);
      }
      const torch::NoGradGuard no_grad;
      EXPECT_LT(difference(net->forward(x), rows.part(whole->forward(all), group.rank())), 1e-10);
      EXPECT_LT(difference(make_net()->forward(x.to(at::kFloat)), make_net()->forward(x.to(at::kFloat))), 1e-6)
          << "others are as before";
      net->eval();
      whole->eval();
      for (int call = 0; call < group.rank(); ++call) {
        EXPECT_LT(difference(net->forward(x), whole->forward(x)), 1e-10);
      }
    }
    net->train();
    whole->train();
    const at::Tensor alone = whole->forward(x);
    if (group.rank() == 0) {
      EXPECT_LT(difference(net->forward(x), alone), 1e-10) << "as it was";
    }
  });
}

TEST(ConvertSyncBatchNormTest, WithoutRunningStatisticsEvaluationIsEachRanksOwn) {
  on_ranks(2, [](comm::World& world) {
    nn::BatchNorm1d norm(nn::BatchNormOptions(3).track_running_stats(false));
    const SyncedBatchNorms synced(*norm, world.group());
    const at::Tensor x = Rows{4, {3}, at::kFloat}.all(1, world.rank());
    norm->eval();
    const at::Tensor own = at::layer_norm(x.t().contiguous(), {4});
    EXPECT_LT(difference(norm->forward(x), own.t()), 1e-5);
    norm->train();
    EXPECT_GT(difference(norm->forward(x), own.t()), 1e-3);
  });
}

TEST(ConvertSyncBatchNormTest, RefusesByName) {
  on_ranks(2, [](comm::World& world) {
    const auto message = [&](nn::Module& module) {
      try {
        const SyncedBatchNorms synced(module, world.group());
      } catch (const InputError& error) {
        return std::string(error.what());
      }
      return std::string("accepted");
    };
    nn::Sequential bare(nn::BatchNorm1d(3),
                        nn::BatchNorm1d(nn::BatchNormOptions(3).affine(false).track_running_stats(false)));
    EXPECT_THAT(message(*bare), AllOf(HasSubstr("\"1\""), HasSubstr("neither weights nor running statistics")));
    nn::BatchNorm1d norm(3);
    EXPECT_EQ(message(*norm), "accepted");
    const SyncedBatchNorms synced(*norm, world.group());
    nn::Sequential twice(nn::Linear(3, 3), norm);
    EXPECT_THAT(message(*twice), AllOf(HasSubstr("\"1\""), HasSubstr("already")));
    EXPECT_EQ(message(*bare[0]->as<nn::BatchNorm1d>()), "accepted") << "what was refused is as before";
  });
}

TEST(ConvertSyncBatchNormTest, DataParallelEqualsOneProcess) {
  on_ranks(3, [](comm::World& world) {
    const Rows rows{2, {2, 5, 5}};
    nn::Sequential net = make_net();
    nn::Sequential whole = make_net();
    net->to(at::kDouble);
    whole->to(at::kDouble);
    DataParallelOptions options;
    options.sync_batch_norm = true;
    DataParallel parallel(*net, world.group(), options);
    torch::optim::SGD mine(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    torch::optim::SGD reference(whole->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    for (int step = 0; step < 10; ++step) {
      const at::Tensor all = rows.all(3, step);
      mine.zero_grad();
      reference.zero_grad();
      const auto share = static_cast<double>(world.size()) / static_cast<double>(all.size(0));
      (net->forward(rows.part(all, world.rank())).square().sum() * share).backward();
      whole->forward(all).square().mean().backward();
      mine.step();
      reference.step();
    }
    const auto expected = whole->named_parameters();
    for (const auto& item : net->named_parameters()) {
      EXPECT_LT(difference(item.value(), expected[item.key()]), 1e-8) << item.key();
    }
    EXPECT_THROW(parallel.join(), InputError);
  });
}

} // namespace
} // namespace trireme::parallel
