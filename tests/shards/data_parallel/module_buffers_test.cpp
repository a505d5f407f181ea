#include <trireme/base/error.h>
#include <trireme/shards/data_parallel/data_parallel.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

namespace trireme::parallel {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;

struct NormNetImpl : torch::nn::Module {
  explicit NormNetImpl(int64_t seed) {
    torch::manual_seed(seed);
    first = register_module("first", torch::nn::Linear(4, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    last = register_module("last", torch::nn::Linear(6, 1));
  }
  at::Tensor loss(const at::Tensor& x) { return last->forward(norm->forward(first->forward(x))).square().mean(); }
  at::Tensor buffers_flat() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& buffer : buffers()) {
      all.push_back(buffer.to(torch::kFloat64).flatten());
    }
    return torch::cat(all);
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(NormNet);

at::Tensor batch_of(int step, int rank) {
  return torch::sin(torch::arange(32, torch::kFloat32).view({8, 4}) * (1.1 + rank) + step) + rank;
}

at::Tensor of_rank(const comm::Group& group, at::Tensor values, int root) {
  group.broadcast(values, root).wait();
  return values;
}

TEST(DataParallelBuffersTest, AreRankZerosAfterEveryReduction) {
  on_ranks(3, [](comm::World& world) {
    const comm::Group& group = world.group();
    NormNet net(1);
    DataParallel parallel(*net, group);
    for (int step = 0; step < 3; ++step) {
      parallel.zero_grad();
      {
        const auto guard = parallel.no_sync();
        net->loss(batch_of(step, world.rank())).backward();
        if (world.rank() > 0) { // as DistributedDataParallel: not within no_sync
          EXPECT_FALSE(net->buffers_flat().equal(of_rank(group, net->buffers_flat(), 0)));
        } else {
          of_rank(group, net->buffers_flat(), 0);
        }
      }
      const at::Tensor loss = net->loss(batch_of(step + 50, world.rank()));
      const at::Tensor first = of_rank(group, net->buffers_flat(), 0);
      loss.backward();
      EXPECT_TRUE(net->buffers_flat().equal(first)) << "step " << step;
    }
    EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), 6);
  });
}

TEST(DataParallelBuffersTest, OneBroadcastATypeAndNothingWithoutBuffers) {
  on_ranks(2, [](comm::World& world) {
    const comm::Group& group = world.group();
    const auto bytes_of_a_step = [&](torch::nn::Module& model, const auto& loss, bool broadcast) {
      DataParallelOptions options;
      options.broadcast_buffers = broadcast;
      DataParallel parallel(model, group, options);
      const int64_t before = group.bytes_sent();
      loss().backward();
      return group.bytes_sent() - before;
    };
    NormNet net(1);
    const auto loss = [&] { return net->loss(batch_of(0, world.rank())); };
    const int64_t without = bytes_of_a_step(*net, loss, false);
    const int64_t more = bytes_of_a_step(*net, loss, true) - without;
    EXPECT_EQ(more, world.rank() == 0 ? 2 * 6 * 4 + 8 : 0) << "running_mean, running_var, num_batches_tracked";
    torch::nn::Linear plain(4, 1);
    const auto plain_loss = [&] { return plain->forward(batch_of(0, 0)).mean(); };
    EXPECT_EQ(bytes_of_a_step(*plain, plain_loss, true), bytes_of_a_step(*plain, plain_loss, false));
  });
}

TEST(DataParallelBuffersTest, MayBeLeftToEveryRank) {
  on_ranks(2, [](comm::World& world) {
    NormNet net(1);
    DataParallelOptions options;
    options.broadcast_buffers = false;
    DataParallel parallel(*net, world.group(), options);
    net->loss(batch_of(0, world.rank())).backward();
    const at::Tensor first = of_rank(world.group(), net->buffers_flat(), 0);
    EXPECT_EQ(net->buffers_flat().equal(first), world.rank() == 0);
  });
}

// Rank 0 is the first to have no data left: from then on the lowest rank that still trains hands out its buffers.
TEST(DataParallelBuffersTest, ComeFromARankThatStillHasData) {
  on_ranks(3, [](comm::World& world) {
    const comm::Group& group = world.group();
    NormNet net(1);
    DataParallel parallel(*net, group);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));
    const int batches = 2 + world.rank();
    at::Tensor last_forward;
    for (int step = 0; step < batches; ++step) {
      parallel.zero_grad();
      const at::Tensor loss = net->loss(batch_of(step, world.rank()));
      last_forward = net->buffers_flat();
      loss.backward();
      optimizer.step();
    }
    parallel.join();
    EXPECT_TRUE(net->buffers_flat().equal(of_rank(group, last_forward, 2))) << "rank 2 trained longest";
  });
}

TEST(DataParallelStartTest, BroadcastsOnlyWhereAsked) {
  on_ranks(2, [](comm::World& world) {
    for (const bool broadcast : {true, false}) {
      NormNet net(1 + world.rank());
      NormNet rank_zeros(1);
      {
        const torch::NoGradGuard no_grad;
        net->norm->running_mean.fill_(world.rank());
      }
      DataParallelOptions options;
      options.broadcast_at_start = broadcast;
      DataParallel parallel(*net, world.group(), options);
      const bool is_rank_zeros = broadcast || world.rank() == 0;
      EXPECT_EQ(net->first->weight.equal(rank_zeros->first->weight), is_rank_zeros);
      EXPECT_EQ(net->norm->running_mean.eq(0).all().item<bool>(), is_rank_zeros);
    }
  });
}

TEST(DataParallelStartTest, ATieThatItWouldUndoIsRefusedByName) {
  NormNet net(1);
  net->norm->weight.set_data(net->first->bias.detach());
  try {
    DataParallel(*net, comm::Group());
    ADD_FAILURE() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("\"first.bias\""), HasSubstr("\"norm.weight\""), HasSubstr("share memory")));
  }
}

} // namespace
} // namespace trireme::parallel
