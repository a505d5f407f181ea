// Sparse gradients equal dense ones of one process.
#include "job.h"

#include <trireme/base/error.h>
#include <trireme/horovod.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace trireme::horovod {
namespace {

namespace nn = torch::nn;
using test::error_of;
using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kWords = 11;

nn::Embedding embedding_of(bool sparse) {
  torch::manual_seed(1);
  nn::Embedding embedding(nn::EmbeddingOptions(kWords, 3).sparse(sparse));
  embedding->to(at::kDouble);
  return embedding;
}

/// Ranks have different numbers of words, some twice, and some rank none at all in a few steps.
at::Tensor words_of(int rank, int step) {
  std::vector<int64_t> words;
  for (int i = 0; i < (rank + step) % 4 * 2; ++i) {
    words.push_back((3 * i * i + 5 * rank + step) % (kWords - 2)); // two are never used
  }
  return torch::tensor(words, at::kLong);
}

at::Tensor loss_of(nn::Embedding& embedding, const at::Tensor& words) {
  return (embedding->forward(words) + torch::arange(3)).pow(3).sum();
}

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>&)>;

template <typename Optimizer, typename Options>
MakeOptimizer maker(Options options) {
  return
      [options](const std::vector<at::Tensor>& parameters) { return std::make_unique<Optimizer>(parameters, options); };
}

/// Some steps; in one of them the ranks but the last do not use the embedding at all.
void expect_equals_one_process(const std::string& what, const MakeOptimizer& make,
                               const DistributedOptimizerOptions& options) {
  nn::Embedding ours = embedding_of(true), whole = embedding_of(false);
  const auto mine = make(ours->parameters()), reference = make(whole->parameters());
  DistributedOptimizer optimizer(*mine, ours->named_parameters(), options);
  for (int step = 0; step < 8; ++step) {
    optimizer.zero_grad();
    reference->zero_grad();
    for (int64_t pass = 0; pass < options.backward_passes_per_step; ++pass) {
      const auto used = [&](int rank) { return step != 5 || rank == size() - 1; };
      if (used(rank())) {
        loss_of(ours, words_of(rank(), step + static_cast<int>(pass))).backward();
      }
      for (int rank = 0; rank < size(); ++rank) {
        if (used(rank)) {
          (loss_of(whole, words_of(rank, step + static_cast<int>(pass))) / (options.op == Op::average ? size() : 1))
              .backward();
        }
      }
    }
    optimizer.synchronize();
    EXPECT_EQ(ours->weight.grad().is_sparse(), !options.sparse_as_dense) << what;
    optimizer.step();
    reference->step();
  }
  EXPECT_TRUE(ours->weight.allclose(whole->weight, options.compression == Compression::none ? 1e-11 : 1e-2)) << what;
  EXPECT_FALSE(ours->weight.allclose(embedding_of(false)->weight, 1e-2)) << what << " moved it";
}

class SparseTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SparseTest, testing::Values(1, 2, 3, 4), testing::PrintToStringParamName());

TEST_P(SparseTest, GradientsEqualDenseOnesOfOneProcess) {
  on_ranks(GetParam(), [](comm::World& world) {
    const Job job(world);
    const auto sgd = maker<torch::optim::SGD>(torch::optim::SGDOptions(0.01));
    expect_equals_one_process("SGD", sgd, {});
    expect_equals_one_process("SGD of sums", sgd, {.op = Op::sum});
    expect_equals_one_process("predivided", sgd, {.gradient_predivide_factor = 2});
    expect_equals_one_process("two passes", sgd, {.backward_passes_per_step = 2});
    expect_equals_one_process("fp16", sgd, {.compression = Compression::fp16});
    expect_equals_one_process("with momentum", maker<torch::optim::SGD>(torch::optim::SGDOptions(0.01).momentum(0.9)),
                              {});
    expect_equals_one_process("Adagrad", maker<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1)), {});
    expect_equals_one_process("as dense", sgd, {.sparse_as_dense = true});
    expect_equals_one_process("Adam as dense", maker<torch::optim::Adam>(torch::optim::AdamOptions(0.05)),
                              {.sparse_as_dense = true});
  });
}

TEST_P(SparseTest, SumsAndAveragesOfTensors) {
  on_ranks(GetParam(), [](comm::World& world) {
    const Job job(world);
    const auto of = [](int rank) { // of matrices at two indices, one of them twice
      const at::Tensor indices = torch::tensor({0L, 1L, 0L, 2L, static_cast<int64_t>(rank), 2L}).view({2, 3});
      return torch::sparse_coo_tensor(indices, torch::arange(6, torch::kFloat64).view({3, 2}) + rank, {3, 4, 2},
                                      torch::kFloat64);
    };
    at::Tensor sum = torch::zeros({3, 4, 2}, torch::kFloat64);
    for (int rank = 0; rank < size(); ++rank) {
      sum += of(rank).to_dense();
    }
    const at::Tensor result = sparse_allreduce(of(rank()), {.op = Op::sum, .prescale = 3});
    EXPECT_TRUE(result.is_coalesced());
    EXPECT_TRUE(result.to_dense().allclose(3 * sum, 1e-12));
    EXPECT_TRUE(sparse_allreduce(of(rank()), {.name = "named"}).to_dense().allclose(sum / size(), 1e-12));
  });
}

TEST(SparseErrorTest, SaysWhoCannotAndWhatToDo) {
  on_ranks(2, [](comm::World& world) {
    const Job job(world);
    const std::pair<const char*, MakeOptimizer> refused[] = {
        {"torch::optim::Adam cannot", maker<torch::optim::Adam>(torch::optim::AdamOptions(0.1))},
        {"torch::optim::AdamW cannot", maker<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1))},
        {"torch::optim::RMSprop cannot", maker<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.1))},
        {"torch::optim::SGD with weight decay cannot",
         maker<torch::optim::SGD>(torch::optim::SGDOptions(0.1).weight_decay(0.1))},
        {"torch::optim::Adagrad with weight decay cannot",
         maker<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1).weight_decay(0.1))}};
    for (const auto& [said, make] : refused) {
      nn::Embedding embedding = embedding_of(true);
      const auto optimizer = make(embedding->parameters());
      const DistributedOptimizer distributed(*optimizer, embedding->named_parameters());
      EXPECT_THAT(
          error_of([&, &of = embedding] { loss_of(of, words_of(1, 1)).backward(); }),
          AllOf(HasSubstr("\"weight\" has a sparse gradient, which "), HasSubstr(said), HasSubstr("sparse_as_dense")));
    }
    const at::Tensor sparse = torch::eye(3).to_sparse();
    EXPECT_THAT(error_of([&] { allreduce(sparse); }), HasSubstr("Use sparse_allreduce()"));
    EXPECT_THAT(error_of([&] { sparse_allreduce(torch::eye(3)); }), HasSubstr("not a sparse tensor"));
    EXPECT_THAT(error_of([&] { sparse_allreduce(sparse, {.op = Op::max}); }), HasSubstr("Use Op::average or Op::sum"));
    // The first sparse gradient of one rank alone is an error, and no wrong sum or endless wait.
    nn::Embedding embedding = embedding_of(true);
    torch::optim::SGD sgd(embedding->parameters(), torch::optim::SGDOptions(0.1));
    DistributedOptimizer optimizer(sgd, embedding->named_parameters());
    if (rank() == 1) {
      loss_of(embedding, words_of(1, 1)).backward();
    }
    EXPECT_THAT(error_of([&] { optimizer.step(); }),
                HasSubstr("the operation of \"gradient.weight\" is allreduce on rank 0 and allgather on rank 1"));
  });
}

} // namespace
} // namespace trireme::horovod
