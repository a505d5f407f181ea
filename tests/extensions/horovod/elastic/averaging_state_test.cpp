// Replicas that step by themselves: one that is lost or comes changes the average, and nothing else.
#include "elastic_job.h"

#include <trireme/data/sampler.h>
#include <trireme/extensions/horovod/optimizer_bytes.h>
#include <trireme/horovod.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <signal.h>

#include <memory>

namespace trireme::horovod::elastic {
namespace {

namespace nn = torch::nn;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kData = 2000;
constexpr int64_t kOfARank = 4;
constexpr int64_t kEvery = 4; // steps between two meetings

struct Replica {
  nn::Sequential net{nn::BatchNorm1d(3), nn::Linear(3, 5), nn::Tanh(),
                     nn::Linear(5, 1)}; // no bias before a BatchNorm: of its gradient, rounding, Adam makes whole steps
  std::unique_ptr<torch::optim::AdamW> adam;

  Replica() {
    torch::manual_seed(1);
    for (const at::Tensor& parameter : net->parameters()) {
      parameter.detach().normal_();
    }
    net->to(at::kDouble);
    adam = std::make_unique<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(0.01));
  }
  void step(const std::vector<int64_t>& samples) {
    const at::Tensor x =
        torch::sin(torch::tensor(samples, at::kDouble).unsqueeze(1) * torch::tensor({0.3, 0.7, 1.1}, at::kDouble));
    adam->zero_grad();
    (net->forward(x) - x.sum(1, true)).square().mean().backward();
    adam->step();
  }
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> all;
    for (const auto& list : {net->parameters(), net->buffers()}) {
      for (const at::Tensor& one : list) {
        all.push_back(one.detach());
      }
    }
    return all;
  }
};

/// All replicas in one process, with the samples that ranks would have.
struct Reference {
  std::vector<std::unique_ptr<Replica>> replicas;
  std::vector<int64_t> order = data::permutation(kData, 0, 0);
  int64_t done = 0;

  explicit Reference(int count) {
    for (int i = 0; i < count; ++i) {
      replicas.push_back(std::make_unique<Replica>());
    }
  }
  void step() {
    const int64_t count = std::ssize(replicas);
    for (int64_t rank = 0; rank < count; ++rank) {
      std::vector<int64_t> samples;
      for (int64_t i = 0; i < kOfARank; ++i) {
        samples.push_back(order[static_cast<size_t>(done + rank + i * count)]);
      }
      replicas[static_cast<size_t>(rank)]->step(samples);
    }
    done += count * kOfARank;
  }
  void average() {
    const size_t tensors = replicas[0]->values().size();
    for (size_t i = 0; i < tensors; ++i) {
      std::vector<at::Tensor> all;
      for (const auto& replica : replicas) {
        all.push_back(replica->values()[i]);
      }
      if (all[0].is_floating_point()) {
        const at::Tensor mean = torch::stack(all).mean(0);
        for (const at::Tensor& one : all) {
          at::Tensor(one).copy_(mean);
        }
      }
    }
  }
  void add() {
    auto replica = std::make_unique<Replica>();
    for (size_t i = 0; i < replica->values().size(); ++i) {
      replica->values()[i].copy_(replicas[0]->values()[i]);
    }
    load_bytes(*replica->adam, bytes_of(*replicas[0]->adam));
    replicas.push_back(std::move(replica));
  }
};

bool same(const Replica& a, const Replica& b) {
  const auto of_a = a.values(), of_b = b.values();
  return std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return x.allclose(y, 1e-9, 1e-12); });
}

/// One process of the job.
struct Process {
  Replica replica;
  ElasticSampler sampler{kData};
  int64_t step = 0;
  AveragingState state;
  std::vector<std::pair<int64_t, int>> rounds; // the step at which they began, and how many ranks they had

  Process() {
    state.add("net", *replica.net);
    state.add("adam", *replica.adam);
    state.add("step", step);
    state.add("sampler", sampler);
  }
  void run(const std::function<bool()>& end, const std::function<void()>& before_step, const RunOptions& options) {
    elastic::run(
        state,
        [&](comm::World&) {
          rounds.emplace_back(step, size());
          sampler.reset();
          while (!end()) {
            before_step();
            const auto samples = sampler.next(kOfARank);
            replica.step(std::vector<int64_t>(samples->begin(), samples->end()));
            sampler.record_batch(kOfARank);
            if (++step % kEvery == 0) {
              state.average();
            }
          }
        },
        options);
  }
};

class ElasticAveragingTest : public ElasticTest {};

TEST_F(ElasticAveragingTest, AReplicaThatIsLostIsLeftOutOfTheMean) {
  constexpr int64_t kSteps = 5 * kEvery;
  constexpr int64_t kDeath = 2 * kEvery + 1, kMeeting = 3 * kEvery;
  for (const int lost : {0, 2}) { // the rank of the first round
    EXPECT_THAT(run_workers(3, 2,
                            [&](int) {
                              Process process;
                              process.run(
                                  [&] { return process.step == kSteps; },
                                  [&] {
                                    if (process.rounds.size() == 1 && rank() == lost && process.step == kDeath) {
                                      ::raise(SIGKILL);
                                    }
                                  },
                                  {.min_ranks = 2, .max_ranks = 3});
                              EXPECT_THAT(process.rounds, ElementsAre(std::pair{0L, 3}, std::pair{kMeeting, 2}))
                                  << "nobody went back";
                              Reference reference(3);
                              for (int64_t step = 1; step <= kSteps; ++step) {
                                reference.step();
                                if (step == kMeeting) {
                                  reference.replicas.erase(reference.replicas.begin() + lost);
                                }
                                if (step % kEvery == 0) {
                                  reference.average();
                                }
                              }
                              EXPECT_TRUE(same(process.replica, *reference.replicas[0]));
                            }),
                ElementsAre(HasSubstr("ended by signal 9 (Killed)")));
  }
}

TEST_F(ElasticAveragingTest, AReplicaThatComesBeginsWithTheMean) {
  test::Gate come;
  EXPECT_THAT(
      run_workers(3, 3,
                  [&](int worker) {
                    if (worker == 3) {
                      come.wait();
                    }
                    Process process;
                    if (worker == 3) { // what it has counts for nothing
                      process.replica.net->parameters()[0].detach().fill_(std::numeric_limits<double>::quiet_NaN());
                      process.step = 77;
                    }
                    int64_t joined = -1;
                    process.state.add("joined", joined);
                    process.run(
                        [&] {
                          if (size() == 3 && joined < 0) {
                            joined = process.step;
                          }
                          return joined >= 0 && process.step == joined + 2 * kEvery;
                        },
                        [&] {
                          if (rank() == 0 && process.step == kEvery + 1) {
                            come.open();
                          }
                        },
                        {.min_ranks = worker == 3 ? 1 : 2});
                    EXPECT_EQ(joined % kEvery, 0);
                    EXPECT_EQ(process.rounds.back(), (std::pair{joined, 3}));
                    Reference reference(2);
                    for (int64_t step = 1; step <= joined + 2 * kEvery; ++step) {
                      reference.step();
                      if (step % kEvery == 0) {
                        reference.average();
                      }
                      if (step == joined) {
                        reference.add();
                      }
                    }
                    EXPECT_TRUE(same(process.replica, *reference.replicas[0]));
                  }),
      IsEmpty());
}

} // namespace
} // namespace trireme::horovod::elastic
