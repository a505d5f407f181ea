// The GradientSync seam carries ranks that step by themselves and agree every few steps, with a state of its own in checkpoints.
#include "small_run.h"

#include <trireme/base/error.h>

#include <trireme/models/gpt_layers.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <torch/optim/sgd.h>

#include <unistd.h>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::run_ranks;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kEvery = 3;
constexpr double kMomentum = 0.5;
constexpr double kSgdLr = 0.2;

/// Averages parameters every kEvery steps and takes what they moved by as a gradient with Nesterov's momentum, each rank for its part of a bucket.
class AveragingSync : public parallel::GradientSync {
 public:
  explicit AveragingSync(const comm::Group& group) : GradientSync(group) {}

  const comm::Group& step_group() const override {
    return alone_;
  }
  bool ranks_meet() const override {
    return (steps_ + 1) % kEvery == 0;
  }
  bool replicas_are_equal() const override {
    return steps_ % kEvery == 0;
  }
  void attach(const std::vector<bucket::FlatParameters*>& buffers) override {
    for (bucket::FlatParameters* const buffer : buffers) {
      for (size_t b = 0; b < buffer->layout().buckets().size(); ++b) {
        const at::Tensor part = part_of(*buffer, static_cast<int64_t>(b));
        outer_.push_back({buffer, static_cast<int64_t>(b), torch::zeros_like(part), torch::zeros_like(part)});
      }
    }
  }
  comm::Work gradients_ready(bucket::FlatParameters&, int64_t) override {
    return {};
  }
  void backward_ended() override {
    const torch::NoGradGuard no_grad;
    for (Outer& outer : outer_) {
      if (steps_ == 0) {
        outer.start.copy_(part_of(*outer.buffer, outer.bucket));
      }
    }
  }
  bool end_step(bool) override {
    const torch::NoGradGuard no_grad;
    const bool meet = ranks_meet();
    if (meet) {
      for (Outer& outer : outer_) {
        at::Tensor data = outer.buffer->bucket_data(outer.bucket);
        at::Tensor part = part_of(*outer.buffer, outer.bucket);
        group().reduce_scatter(part, data, comm::ReduceOp::sum, "parameters").wait();
        const at::Tensor moved = outer.start - part / group().size();
        outer.momentum.mul_(kMomentum).add_(moved);
        part.copy_(outer.start - moved - kMomentum * outer.momentum);
        outer.start.copy_(part);
        group().all_gather(data, part, "parameters").wait();
      }
    }
    ++steps_;
    return meet;
  }
  nlohmann::json state() const override {
    return {{"steps", steps_}};
  }
  void load_state(const nlohmann::json& state) override {
    steps_ = state.at("steps");
  }
  void for_each_state(const Visit& visit) override {
    for (Outer& outer : outer_) {
      const bucket::FlatLayout& layout = outer.buffer->layout();
      const bucket::Bucket& bucket = layout.buckets()[outer.bucket];
      const bucket::Range mine = bucket::shard_of(bucket, group().rank(), group().size());
      for (int64_t s = bucket.first_slot; s < bucket.last_slot; ++s) {
        const bucket::Slot& slot = layout.slots()[s];
        const int64_t begin = std::max(slot.begin, mine.begin);
        const int64_t end = std::min(slot.end, mine.end);
        if (begin < end) {
          visit("outer_start", layout.tensors()[slot.tensor], begin - slot.begin, outer.start.slice(0, begin - mine.begin, end - mine.begin));
          visit("outer_momentum", layout.tensors()[slot.tensor], begin - slot.begin, outer.momentum.slice(0, begin - mine.begin, end - mine.begin));
        }
      }
    }
  }

 private:
  struct Outer {
    bucket::FlatParameters* buffer;
    int64_t bucket;
    at::Tensor start;
    at::Tensor momentum;
  };
  at::Tensor part_of(bucket::FlatParameters& buffer, int64_t bucket) const {
    return buffer.bucket_data(bucket).tensor_split(group().size())[group().rank()];
  }

  comm::Group alone_;
  int64_t steps_ = 0;
  std::vector<Outer> outer_;
};

config::EngineConfig sgd_config() {
  config::EngineConfig config = small_config(48, 1, 0.5);
  config.optimizer = config::read_deepspeed(JsonNode::parse(concat(R"({"train_batch_size": 48, "optimizer": {"type": "SGD", "params": {"lr": )", kSgdLr, "}}}"), "test.json")).optimizer;
  return config;
}

struct AveragingRun {
  models::Gpt model{small_gpt()};
  Initialized made;
  int64_t not_finite_in = -1; // this rank's loss in this step
  double weight = 1; // of the loss

  AveragingRun(comm::World& world, const config::EngineConfig& config) {
    InitializeOptions options;
    options.model = model.ptr();
    options.loss = [this](const data::Batch& batch) {
      const at::Tensor loss = model->loss(batch.input(), batch.target());
      return made.engine && made.engine->global_steps() + 1 == not_finite_in ? loss * std::nan("") : loss * weight;
    };
    options.config = config;
    options.training_data = std::make_shared<Counting>();
    options.shuffle = false;
    options.gradient_sync = [](const parallel::ReduceGroups& groups) { return std::make_unique<AveragingSync>(groups.data()); };
    made = initialize(world, options);
  }
  Engine& engine() {
    return *made.engine;
  }
};

/// The same with nothing but libtorch, all ranks' models in one process: their losses in every step.
class Plain {
 public:
  explicit Plain(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      torch::manual_seed(7); // as every rank
      models_.emplace_back(small_gpt());
      optimizers_.emplace_back(models_.back()->parameters(), torch::optim::SGDOptions(kSgdLr));
    }
    for (const at::Tensor& parameter : models_.front()->parameters()) {
      start_.push_back(parameter.detach().clone());
      momentum_.push_back(torch::zeros_like(parameter));
    }
  }
  std::vector<double> step(int64_t number) {
    const int64_t ranks = std::ssize(models_);
    std::vector<double> losses;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::vector<int64_t> indices;
      for (int64_t i = 0; i < 48 / ranks; ++i) {
        indices.push_back(((number - 1) * 48 + i * ranks + rank) % 192);
      }
      const data::Batch batch = Counting().get(indices);
      optimizers_[rank].zero_grad();
      const at::Tensor loss = models_[rank]->loss(batch.input(), batch.target());
      loss.backward();
      torch::nn::utils::clip_grad_norm_(models_[rank]->parameters(), 0.5);
      optimizers_[rank].step();
      losses.push_back(loss.item<double>());
    }
    if (number % kEvery == 0) {
      average();
    }
    return losses;
  }
  std::vector<at::Tensor> parameters(int rank) const {
    return models_[rank]->parameters();
  }

 private:
  void average() {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < start_.size(); ++i) {
      at::Tensor mean = torch::zeros_like(start_[i]);
      for (const models::Gpt& model : models_) {
        mean += model->parameters()[i] / static_cast<double>(models_.size());
      }
      const at::Tensor moved = start_[i] - mean;
      momentum_[i] = kMomentum * momentum_[i] + moved;
      start_[i] = start_[i] - moved - kMomentum * momentum_[i];
      for (const models::Gpt& model : models_) {
        model->parameters()[i].copy_(start_[i]);
      }
    }
  }

  std::vector<models::Gpt> models_;
  std::vector<torch::optim::SGD> optimizers_;
  std::vector<at::Tensor> start_;
  std::vector<at::Tensor> momentum_;
};

class GradientSyncTest : public testing::TestWithParam<int> {};

TEST_P(GradientSyncTest, RanksThatStepAloneAndAverageEqualTheFormula) {
  EXPECT_THAT(run_ranks(GetParam(),
                        [](comm::World& world) {
                          torch::manual_seed(7);
                          AveragingRun run(world, sgd_config());
                          Plain plain(world.size());
                          for (int step = 1; step <= 7; ++step) {
                            const double loss = run.engine().train_batch().item<double>();
                            const std::vector<double> losses = plain.step(step);
                            double mean = 0;
                            for (const double one : losses) {
                              mean += one / static_cast<double>(losses.size());
                            }
                            EXPECT_NEAR(loss, step % kEvery == 0 ? mean : losses[world.rank()], 1e-5) << "step " << step;
                            const auto mine = run.model->parameters();
                            const auto theirs = plain.parameters(world.rank());
                            for (size_t i = 0; i < mine.size(); ++i) {
                              EXPECT_TRUE(torch::allclose(mine[i], theirs[i], 1e-4, 1e-5)) << "step " << step << ", parameter " << i;
                            }
                          }
                        }),
              IsEmpty());
}

TEST_P(GradientSyncTest, ItsStateIsSavedAndResumedBitForBit) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_gradient_sync_", ::getpid());
  EXPECT_THAT(run_ranks(GetParam(),
                        [folder](comm::World& world) {
                          torch::manual_seed(7);
                          AveragingRun whole(world, sgd_config());
                          const auto train = [](AveragingRun& run, int steps) {
                            double loss = 0;
                            for (int i = 0; i < steps; ++i) {
                              loss = run.engine().train_batch().item<double>();
                            }
                            return loss;
                          };
                          train(whole, 4);
                          if (world.size() > 1) {
                            EXPECT_THAT(test::error_of([&] { whole.engine().save_checkpoint(folder); }), HasSubstr("after step 4: the ranks have different parameters"));
                          }
                          train(whole, 2);
                          whole.engine().save_checkpoint(folder);
                          const double loss = train(whole, 5);
                          torch::manual_seed(8);
                          AveragingRun second(world, sgd_config());
                          second.engine().load_checkpoint(folder);
                          EXPECT_EQ(train(second, 5), loss);
                          for (size_t i = 0; i < whole.model->parameters().size(); ++i) {
                            EXPECT_TRUE(whole.model->parameters()[i].equal(second.model->parameters()[i])) << "parameter " << i;
                          }
                        }),
              IsEmpty());
  fs::remove_all(folder);
}

TEST_P(GradientSyncTest, ARankSkipsByItself) {
  EXPECT_THAT(run_ranks(GetParam(),
                        [](comm::World& world) {
                          AveragingRun run(world, sgd_config());
                          run.not_finite_in = world.rank() == 0 ? 2 : -1;
                          for (int step = 1; step <= kEvery; ++step) {
                            run.engine().train_batch();
                          }
                          EXPECT_EQ(run.engine().skipped_steps(), world.rank() == 0 ? 1 : 0);
                          EXPECT_EQ(run.engine().global_steps(), kEvery);
                        }),
              IsEmpty());
}

// A step with gradients of zero leaves what the ranks have agreed on.
TEST_P(GradientSyncTest, MastersFollowWhatTheRanksAgreeOn) {
  EXPECT_THAT(run_ranks(GetParam(),
                        [](comm::World& world) {
                          config::EngineConfig config = sgd_config();
                          config.precision.compute = precision::Type::bf16;
                          AveragingRun run(world, config);
                          for (int step = 1; step <= kEvery; ++step) {
                            run.engine().train_batch();
                          }
                          std::vector<at::Tensor> agreed;
                          for (const at::Tensor& parameter : run.model->parameters()) {
                            agreed.push_back(parameter.detach().clone());
                          }
                          run.weight = 0;
                          run.engine().train_batch();
                          for (size_t i = 0; i < agreed.size(); ++i) {
                            EXPECT_TRUE(run.model->parameters()[i].equal(agreed[i])) << "parameter " << i;
                          }
                        }),
              IsEmpty());
}

TEST_P(GradientSyncTest, StatesThatDifferBetweenRanksAreNotSaved) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_gradient_sync_states_", ::getpid());
  EXPECT_THAT(run_ranks(GetParam(),
                        [folder](comm::World& world) {
                          AveragingRun run(world, small_config(48, 1));
                          for (int step = 1; step <= kEvery; ++step) {
                            run.engine().train_batch();
                          }
                          const auto save = [&] { run.engine().save_checkpoint(folder); };
                          if (world.size() > 1) {
                            EXPECT_THAT(test::error_of(save), HasSubstr("the states of adamw (or masters of low precision) differ from rank to rank"));
                          } else {
                            save();
                          }
                        }),
              IsEmpty());
  fs::remove_all(folder);
}

/// Has a tensor for each parameter.
class CountingSync : public parallel::AllReduceSync {
 public:
  explicit CountingSync(const parallel::ReduceGroups& groups) : AllReduceSync(groups, {}) {}
  void attach(const std::vector<bucket::FlatParameters*>& buffers) override {
    for (bucket::FlatParameters* const buffer : buffers) {
      steps_.emplace_back(buffer, torch::zeros({buffer->layout().numel()}));
    }
  }
  bool end_step(bool) override {
    for (auto& [buffer, steps] : steps_) {
      steps.add_(1);
    }
    return false;
  }
  void for_each_state(const Visit& visit) override {
    for (auto& [buffer, steps] : steps_) {
      for (const bucket::Slot& slot : buffer->layout().slots()) {
        visit("counted", buffer->layout().tensors()[slot.tensor], 0, steps.slice(0, slot.begin, slot.end));
      }
    }
  }

 private:
  std::vector<std::pair<bucket::FlatParameters*, at::Tensor>> steps_;
};

TEST(GradientSyncStateTest, ATiedParametersIsSavedOnceAndLoadedIntoEachCopy) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_tied_sync_", ::getpid());
  EXPECT_THAT(run_ranks(2,
                        [folder](comm::World& world) {
                          const auto make = [&](std::shared_ptr<CountingSync*> sync) {
                            InitializeOptions options;
                            pipeline::PipelineOptions pipeline;
                            pipeline.stages = 2;
                            options.pipeline = std::make_shared<pipeline::PipelineModule>(models::gpt_layers(small_gpt()), models::token_loss, pipeline);
                            options.config = small_config(4, 2);
                            options.gradient_sync = [sync](const parallel::ReduceGroups& groups) {
                              auto made = std::make_unique<CountingSync>(groups);
                              *sync = made.get();
                              return made;
                            };
                            return initialize(world, options);
                          };
                          const auto first = std::make_shared<CountingSync*>();
                          const Initialized run = make(first);
                          for (int step = 0; step < 3; ++step) {
                            run.engine->train_batch([] { return Counting().get(std::vector<int64_t>{1, 2}); });
                          }
                          run.engine->save_checkpoint(folder);
                          const auto second = std::make_shared<CountingSync*>();
                          const Initialized resumed = make(second);
                          resumed.engine->load_checkpoint(folder);
                          (*second)->for_each_state([](const std::string&, const bucket::TensorInfo& tensor, int64_t, const at::Tensor& values) {
                            EXPECT_TRUE(values.eq(3).all().item<bool>()) << tensor.name;
                          });
                        }),
              IsEmpty());
  fs::remove_all(folder);
}

TEST(GradientSyncErrorTest, ZeroHasItsOwn) {
  comm::World world = comm::World::connect();
  config::EngineConfig config = sgd_config();
  config.zero.stage = 1;
  EXPECT_THAT(test::error_of([&] { AveragingRun(world, config); }), HasSubstr("ZeRO stage 1 with a gradient_sync of its own"));
  config.zero.stage = 0;
  config.step_in_backward = true;
  config.gradient_clipping = 0;
  EXPECT_THAT(test::error_of([&] { AveragingRun(world, config); }), HasSubstr("step_in_backward with a gradient_sync of its own"));
}

INSTANTIATE_TEST_SUITE_P(Ranks, GradientSyncTest, testing::Values(1, 2, 3));

} // namespace
} // namespace trireme::engine
