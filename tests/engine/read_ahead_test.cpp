// What an engine has in files is read before it is used: parameters during forward, backward and the step, gradients
// during the next micro-batch.
#include "layered_run.h"

#include <trireme/base/file.h>

#include <tests/support/aio_watch.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cstdlib>
#include <map>

namespace trireme::engine {
namespace {

constexpr int kWide = 32;
constexpr int64_t kLayerBytes = kWide * kWide * 4; // a block of a file
constexpr int kDeep = 14;

/// Bytes that were read when a layer had computed, by layer.
struct Reads {
  std::function<int64_t()> now;
  std::map<int, int64_t> forward;
  std::map<int, int64_t> backward;
};

struct WatchedLayerImpl : torch::nn::Module {
  WatchedLayerImpl(int index, std::shared_ptr<Reads> reads)
      : index_(index),
        reads_(std::move(reads)),
        weight_(register_parameter("weight", torch::randn({kWide, kWide}) / kWide)) {}
  at::Tensor forward(const at::Tensor& x) {
    if (x.requires_grad()) {
      x.register_hook([reads = reads_, index = index_](const at::Tensor&) { reads->backward[index] = reads->now(); });
    }
    const at::Tensor y = x + torch::tanh(x.matmul(weight_));
    reads_->forward[index_] = reads_->now();
    return y;
  }

 private:
  const int index_;
  const std::shared_ptr<Reads> reads_;
  at::Tensor weight_;
};
TORCH_MODULE(WatchedLayer);

/// Equal layers, each of them a unit and a bucket of one block.
struct DeepRun {
  std::shared_ptr<Reads> reads = std::make_shared<Reads>();
  LayeredRun run;

  DeepRun(comm::World& world, const config::EngineConfig& config)
      : run(world, config, pipeline::PipelineOptions(), layers(reads), loss) {
    reads->now = [this] { return run.engine().offload_traffic()->read; };
  }
  static pipeline::LayerList layers(const std::shared_ptr<Reads>& reads) {
    reads->now = [] { return 0; };
    pipeline::LayerList all = {
        [](const at::Tensor& tokens) { return tokens.to(at::kFloat).div(31).repeat({1, kWide / 8}); }};
    for (int i = 0; i < kDeep; ++i) {
      all.push_back(pipeline::LayerSpec<WatchedLayer>(i, reads));
    }
    return all;
  }
  static at::Tensor loss(const pipeline::Tensors& outputs, const pipeline::Tensors& targets) {
    return (outputs.front().slice(1, 0, 8) - targets.front().to(at::kFloat).div(31)).square().mean();
  }
};

config::EngineConfig in_files(const std::filesystem::path& folder, offload::Place states, int64_t accumulation) {
  config::EngineConfig config = zero_config(3, accumulation, /*clipping=*/0);
  config.zero.prefetch_elements = 0; // nothing is gathered ahead: that would be read for it
  config.offload.optimizer.place = states;
  config.offload.optimizer.pipeline_read = config.offload.optimizer.pipeline_write =
      config.offload.optimizer.fast_init = true;
  config.offload.parameters.place = offload::Place::nvme;
  config.offload.optimizer.nvme_path = config.offload.parameters.nvme_path = folder;
  config.offload.parameters.max_in_cpu = 0;
  return config;
}

TEST(EngineReadAheadTest, ALayersParametersAreAskedForBeforeTheLayerInFrontOfItHasComputed) {
  const ScratchFolder scratch(make_scratch_folder("trireme_read_ahead"));
  test::on_ranks(1, [&](comm::World& world) {
    DeepRun deep(world, in_files(scratch.path, offload::Place::device, 1));
    for (int step = 0; step < 4; ++step) {
      const int64_t before = deep.reads->now();
      deep.run.step();
      const auto buckets = [](int64_t bytes) { return bytes / kLayerBytes; };
      const int64_t read_in_forward = buckets(deep.reads->forward.at(kDeep - 1) - before);
      const int64_t read_in_backward = buckets(deep.reads->backward.at(1) - deep.reads->forward.at(kDeep - 1));
      ASSERT_LE(read_in_forward, kDeep);
      ASSERT_GT(std::min(read_in_forward, read_in_backward), kDeep / 2) << "else this shows nothing";
      for (int i = 0; i + 1 < kDeep && step > 1; ++i) { // the first passes are not known
        const int64_t there = kDeep - read_in_forward;  // in memory since the step before
        EXPECT_GE(buckets(deep.reads->forward.at(i) - before) + there, i + 2)
            << "forward of layer " << i << " in step " << step;
      }
      for (int i = kDeep - 1; i > 0 && step > 1; --i) {
        const int64_t there = kDeep - read_in_backward;
        EXPECT_GE(buckets(deep.reads->backward.at(i) - deep.reads->forward.at(kDeep - 1)) + there, kDeep - i + 1)
            << "backward of layer " << i << " in step " << step;
      }
    }
  });
}

/// Of buckets that are changed one after the other: how many were read after the one before was written, and how many
/// earlier. Threads of aio call in the order in which they were asked.
std::pair<int, int> late_and_early(const std::vector<test::AioCall>& calls, const std::string& kind) {
  int late = 0;
  int early = 0;
  int64_t last_written = -1;
  for (const test::AioCall& call : calls) {
    if (call.file != kind + ".0") {
      continue;
    }
    if (call.write) {
      last_written = call.offset;
    } else {
      ++(last_written >= 0 && call.offset == last_written + kLayerBytes ? late : early);
    }
  }
  return {late, early};
}

TEST(EngineReadAheadTest, BucketsThatChangeAreReadBeforeTheOneInFrontOfThemIsWritten) {
  const ScratchFolder scratch(make_scratch_folder("trireme_read_ahead"));
  ::setenv("TRIREME_AIO", "threads", 1);
  test::on_ranks(1, [&](comm::World& world) {
    DeepRun deep(world, in_files(scratch.path, offload::Place::nvme, 2));
    deep.run.step();
    deep.run.step();
    test::watch_aio();
    deep.run.step();
    deep.run.step();
    const std::vector<test::AioCall> calls = test::aio_seen().calls;
    for (const char* const kind : {"gradients", "parameters", "optimizer_states"}) {
      const auto [late, early] = late_and_early(calls, kind);
      EXPECT_EQ(late, 0) << kind << ": read when they are used";
      EXPECT_GT(early, kDeep) << kind;
    }
  });
}

} // namespace
} // namespace trireme::engine
