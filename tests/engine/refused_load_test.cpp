// A load that is refused leaves the engine as it was.
#include "small_run.h"

#include <trireme/base/error.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <torch/nn/modules/linear.h>

#include <gmock/gmock.h>

#include <unistd.h>
#include <filesystem>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

config::EngineConfig sgd_with_warmup() {
  return config::read_deepspeed(
      JsonNode::parse(R"({"train_micro_batch_size_per_gpu": 3, "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
                                                    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 9}}})",
                      "test.json"));
}

struct Rows : data::Dataset {
  explicit Rows(int64_t count) : values(torch::linspace(0, 1, count * 4).view({count, 4})) {}
  int64_t size() const override { return values.size(0); }
  data::Batch get(std::span<const int64_t> indices) const override {
    const at::Tensor chosen =
        values.index_select(0, torch::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size())));
    return {{chosen}, {chosen.sum(1, true)}, chosen.size(0)};
  }
  std::string describe() const override { return "rows"; }
  at::Tensor values;
};

struct LoadedRun {
  nn::Linear net{4, 1};
  Initialized made;

  LoadedRun(comm::World& world, int64_t rows) {
    InitializeOptions options;
    options.model = net.ptr();
    options.loss = [this](const data::Batch& batch) {
      return at::mse_loss(net->forward(batch.input()), batch.target());
    };
    options.config = sgd_with_warmup();
    options.training_data = std::make_shared<Rows>(rows);
    made = initialize(world, options);
  }
  double step() const { return made.engine->train_batch().item<double>(); }
};

// The schedule has been looked at, and fits, before the loader refuses.
TEST(RefusedLoadTest, ACheckpointOfAnotherDataSetChangesNothing) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_other_data_", ::getpid());
  on_ranks(2, [&](comm::World& world) {
    torch::manual_seed(1);
    LoadedRun saved(world, 30);
    for (int step = 0; step < 3; ++step) {
      saved.step();
    }
    saved.made.engine->save_checkpoint(folder);
    torch::manual_seed(2);
    LoadedRun whole(world, 24);
    torch::manual_seed(2);
    LoadedRun run(world, 24);
    EXPECT_EQ(run.step(), whole.step());
    EXPECT_THAT(test::error_of([&] { run.made.engine->load_checkpoint(folder); }), HasSubstr("30"));
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(run.step(), whole.step());
      EXPECT_EQ(run.made.engine->get_lr(), whole.made.engine->get_lr());
    }
  });
  fs::remove_all(folder);
}

struct TiedByHandImpl : nn::Module {
  explicit TiedByHandImpl(bool tied) {
    emb = register_parameter("emb", torch::ones({3, 4}));
    head = register_parameter("head", tied ? emb : torch::full({3, 4}, 2.0));
  }
  at::Tensor emb, head;
};

TEST(RefusedLoadTest, WeightsThatOneTensorOfTwoNamesCannotHoldAreNotDropped) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_tied_by_hand_", ::getpid());
  on_ranks(2, [&](comm::World& world) {
    for (const bool tied : {false, true}) {
      const auto model = std::make_shared<TiedByHandImpl>(tied);
      InitializeOptions options;
      options.model = model;
      options.loss = [model](const data::Batch&) { return (model->emb * model->head).sum(); };
      options.config = sgd_with_warmup();
      const auto made = initialize(world, options);
      if (!tied) {
        made.engine->save_checkpoint(folder);
      } else {
        EXPECT_THAT(test::error_of([&] { made.engine->load_checkpoint(folder); }),
                    HasSubstr("this one has no \"head\""));
      }
    }
  });
  fs::remove_all(folder);
}

} // namespace
} // namespace trireme::engine
