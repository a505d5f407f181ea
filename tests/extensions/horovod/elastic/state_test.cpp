// What is kept comes back, and all ranks get what rank 0 has.
#include <trireme/base/error.h>
#include <trireme/horovod.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

namespace trireme::horovod::elastic {
namespace {

namespace nn = torch::nn;
using test::error_of;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

struct Parts {
  nn::Sequential net{nn::Linear(3, 4), nn::BatchNorm1d(4)};
  torch::optim::AdamW adam{net->parameters(), torch::optim::AdamWOptions(0.1)};
  int64_t step = 0;
  double best = 1;
  std::string note = "new";
  ElasticSampler sampler{20};
  TorchState state;

  explicit Parts(int seed) {
    torch::manual_seed(seed);
    for (const at::Tensor& parameter : net->parameters()) {
      parameter.detach().normal_();
    }
    state.add("net", *net);
    state.add("adam", adam);
    state.add("step", step);
    state.add("best", best);
    state.add("note", note);
    state.add("sampler", sampler);
  }
  void train(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i, ++step) {
      adam.zero_grad();
      net->forward(torch::sin(torch::arange(15.0).view({5, 3}) + step)).square().sum().backward();
      adam.step();
      best /= 2;
      note += "\xff!"; // no UTF-8
    }
    sampler.set_epoch(step);
  }
  /// All of it, to compare.
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& one : net->parameters()) {
      all.push_back(one.detach().clone());
    }
    for (const at::Tensor& one : net->buffers()) {
      all.push_back(one.clone());
    }
    all.push_back(torch::tensor(
        {static_cast<double>(step), best, static_cast<double>(note.size()), static_cast<double>(sampler.epoch())}));
    return all;
  }
};

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return x.equal(y); });
}

TEST(ElasticStateTest, RestoreReturnsToWhatWasSaved) {
  Parts parts(1);
  parts.train(3);
  parts.state.save();
  const auto saved = parts.values();
  parts.train(2);
  const auto later = parts.values();
  EXPECT_FALSE(equal(saved, later));
  parts.state.restore();
  EXPECT_TRUE(equal(saved, parts.values()));
  parts.train(2); // with the optimizer's states of then
  EXPECT_TRUE(equal(later, parts.values()));
  parts.state.restore(); // a second time
  EXPECT_TRUE(equal(saved, parts.values()));
}

TEST(ElasticStateTest, SyncGivesAllRanksWhatRankZeroHasAndKeepsIt) {
  on_ranks(3, [](comm::World& world) {
    init(world);
    Parts parts(world.rank()), root(0);
    parts.train(2 + world.rank());
    root.train(2);
    parts.state.sync();
    EXPECT_TRUE(equal(parts.values(), root.values()));
    parts.train(2);
    root.train(2);
    EXPECT_TRUE(equal(parts.values(), root.values()));
    parts.state.restore();
    Parts again(0);
    again.train(2);
    EXPECT_TRUE(equal(parts.values(), again.values()));
    parts.state.commit(); // outside of run(): only save()
    shutdown();
  });
}

TEST(ElasticStateTest, ADifferentStateOnAnotherRankIsNamed) {
  on_ranks(2, [](comm::World& world) {
    init(world);
    int64_t a = 1, b = 2;
    ObjectState state;
    state.add(world.rank() == 0 ? "a" : "b", a);
    EXPECT_THAT(error_of([&] { state.add(world.rank() == 0 ? "a" : "b", b); }),
                HasSubstr("two parts of the state are called"));
    EXPECT_THAT(error_of([&] { state.sync(); }),
                world.rank() == 0 ? HasSubstr("no Error") : HasSubstr("rank 0 has no \"b\" in its state"));
    barrier();
    shutdown();
  });
}

} // namespace
} // namespace trireme::horovod::elastic
