// "activation_checkpointing": whatever becomes of activations, an engine trains the same bits; ranks choose the same,
// within the budget.
#include "small_run.h"

#include <tests/support/run_ranks.h>

#include <trireme/models/gpt_layers.h>

#include <gmock/gmock.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <filesystem>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using activations::Way;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;
using testing::IsEmpty;

fs::path files_of_activations() {
  return fs::path(testing::TempDir()) / concat("trireme_engine_activations_", ::getppid());
}

struct Trained {
  std::vector<double> numbers;
  std::vector<Way> ways;
  std::vector<int64_t> peaks; // of each step
  int64_t moved = 0;
};

constexpr int kTrainedSteps = 4;

struct Task {
  int stage = 0; // of ZeRO
  int stages = 1;
  int chunks = 1; // of each stage
  int layers = 3;
  double dropout = 0.1;
  int64_t interval = 0;
  int64_t accumulation = 2;
  bool autocast = false;
  pipeline::ScheduleKind schedule = pipeline::ScheduleKind::one_f_one_b;
};

std::shared_ptr<Engine> make(comm::World& world, const Task& task, const activations::Options& wanted,
                             std::shared_ptr<data::Dataset> data = std::make_shared<Counting>()) {
  torch::manual_seed(11 + world.rank());
  models::GptOptions shape = small_gpt(task.dropout);
  shape.layers = task.layers;
  InitializeOptions options;
  options.config = zero_config(task.stage, task.accumulation);
  options.config.activations = wanted;
  options.config.precision.autocast = task.autocast;
  options.training_data = std::move(data);
  if (task.stages > 1 || task.interval > 0) {
    pipeline::PipelineOptions stages;
    stages.stages = task.stages;
    stages.chunks = task.chunks;
    stages.schedule = task.schedule;
    stages.activation_checkpoint_interval = task.interval;
    options.pipeline =
        std::make_shared<pipeline::PipelineModule>(models::gpt_layers(shape), models::token_loss, stages);
  } else {
    models::Gpt model(shape);
    options.model = model.ptr();
    options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
  }
  return initialize(world, options).engine;
}

Trained train(comm::World& world, const Task& task, const activations::Options& wanted, int steps = kTrainedSteps) {
  const auto engine = make(world, task, wanted);
  Trained trained;
  for (int step = 0; step < steps; ++step) {
    engine->train_batch();
    trained.numbers.push_back(engine->loss());
    trained.numbers.push_back(engine->get_global_grad_norm().value_or(0));
    if (engine->activations() != nullptr) {
      trained.peaks.push_back(engine->activations()->peak_bytes());
    }
  }
  if (engine->activations() != nullptr) {
    trained.ways = engine->activations()->ways();
    trained.moved = engine->activations()->bytes_in();
  }
  return trained;
}

activations::Options every_part(Way way) {
  return {.policy = way, .nvme_path = files_of_activations().string(), .least_bytes = 0};
}

class EngineActivationsTest : public testing::TestWithParam<int> {};

TEST_P(EngineActivationsTest, AModelInOnePieceTrainsTheSameBitsAtEveryZeroStage) {
  const Task task{.stage = GetParam()};
  on_ranks(2, [&](comm::World& world) {
    const Trained plain = train(world, task, {});
    for (const Way way : {Way::keep, Way::recompute, Way::nvme, Way::recompute_nvme}) {
      SCOPED_TRACE(activations::name_of(way));
      const Trained other = train(world, task, every_part(way));
      EXPECT_EQ(other.numbers, plain.numbers);
      EXPECT_EQ(other.ways.size(), task.layers); // the blocks; a tied head is not a part
      EXPECT_EQ(other.moved > 0, activations::moves(way));
    }
    activations::Options mixed = every_part(Way::keep);
    mixed.policy.reset();
    mixed.choices = {Way::nvme, Way::recompute, Way::keep};
    EXPECT_EQ(train(world, task, mixed).numbers, plain.numbers);
  });
  fs::remove_all(files_of_activations());
}

INSTANTIATE_TEST_SUITE_P(Zero, EngineActivationsTest, testing::Range(0, 4), testing::PrintToStringParamName());

TEST(EngineActivations, PipelinesAndAutocastTrainTheSameBits) {
  std::vector<Task> tasks = {
      {.stages = 2},
      {.stages = 2, .interval = 2},
      {.stages = 2, .schedule = pipeline::ScheduleKind::zero_bubble},
      {.stage = 1, .stages = 2, .schedule = pipeline::ScheduleKind::gpipe},
      {.autocast = true},
      {.interval = 1,
       .accumulation = 1}}; // the head shares its weight with the embedding: a sum in two pieces, or in one
  on_ranks(2, [&](comm::World& world) {
    for (const Task& task : tasks) {
      const Trained plain = train(world, task, {});
      for (const Way way : {Way::keep, Way::recompute, Way::nvme, Way::recompute_nvme}) {
        SCOPED_TRACE(concat(task.stages, " stages, interval ", task.interval, ", ", activations::name_of(way)));
        EXPECT_EQ(train(world, task, every_part(way)).numbers, plain.numbers);
      }
    }
  });
  fs::remove_all(files_of_activations());
}

// In a pipeline the list has a way for each layer, wherever the stages are cut: embedding, positions, three blocks,
// norm, head.
TEST(EngineActivations, AListOfLayersHasAChoiceForEachLayer) {
  on_ranks(2, [&](comm::World& world) {
    const Task task{.stages = 2};
    activations::Options listed = every_part(Way::keep);
    listed.policy.reset();
    listed.choices = activations::from_words({"keep", "recompute", "nvme", "recompute", "recompute_nvme", "2*keep"});
    const Trained trained = train(world, task, listed);
    EXPECT_EQ(trained.numbers, train(world, task, {}).numbers);
    at::Tensor count = torch::zeros({static_cast<int64_t>(activations::kWays.size())}, torch::kInt64);
    for (const Way way : trained.ways) {
      count[static_cast<int64_t>(way)] += 1;
    }
    world.group().all_reduce(count).wait();
    EXPECT_TRUE(count.equal(torch::tensor({2, 2, 0, 1, 0, 1}, torch::kInt64)))
        << count; // the embedding, whose input needs no gradient, is no part
    listed.choices.pop_back();
    EXPECT_THROW(train(world, task, listed), Error);
  });
  fs::remove_all(files_of_activations());
}

TEST(EngineActivations, RecomputationNeedsLessMemoryThanKeeping) {
  on_ranks(1, [&](comm::World& world) {
    const Task task{.layers = 8};
    const int64_t keep = train(world, task, every_part(Way::keep)).peaks.back();
    const int64_t recompute = train(world, task, every_part(Way::recompute)).peaks.back();
    const int64_t input = kZeroBatch / 2 * 8 * 16 * 4;
    EXPECT_GE(keep, 8 * 14 * input);
    EXPECT_LE(recompute, 8 * input + keep / 8);
  });
  fs::remove_all(files_of_activations());
}

TEST(EngineActivations, RanksChooseTheSameWithinTheBudget) {
  for (const int stages : {1, 2}) {
    on_ranks(2, [&](comm::World& world) {
      const Task task{.stages = stages, .layers = 8};
      const Trained plain = train(world, task, {}, 6);
      const auto largest = [&](int64_t bytes) {
        at::Tensor all = torch::tensor({bytes});
        world.group().all_reduce(all, comm::ReduceOp::max).wait();
        return all.item<int64_t>();
      };
      const int64_t keep = largest(train(world, task, every_part(Way::keep)).peaks.back());
      const int64_t recompute = largest(train(world, task, every_part(Way::recompute)).peaks.back());
      activations::Options wanted{.automatic = true,
                                  .memory_budget = stages > 1 ? keep : (keep + recompute) / 2,
                                  .nvme_path = files_of_activations().string()};
      const Trained chosen = train(world, task, wanted, 6);
      EXPECT_EQ(chosen.numbers, plain.numbers);
      for (size_t step = 2; step < chosen.peaks.size(); ++step) {
        EXPECT_LE(chosen.peaks[step], wanted.memory_budget) << "step " << step;
      }
      std::vector<int64_t> mine;
      for (const Way way : chosen.ways) {
        mine.push_back(static_cast<int64_t>(way));
      }
      at::Tensor own = torch::tensor(mine);
      if (stages == 1) {
        at::Tensor first = own.clone();
        world.group().broadcast(first, 0, "ways").wait();
        EXPECT_TRUE(first.equal(own));
        const Trained again =
            train(world, task, {.choices = chosen.ways, .nvme_path = files_of_activations().string()}, 6);
        EXPECT_EQ(again.numbers, plain.numbers);
        EXPECT_EQ(again.ways, chosen.ways);
      }
    });
  }
  fs::remove_all(files_of_activations());
}

// One micro-batch leaves for files while another comes back: with the least that a refusal names the peaks are within
// it.
TEST(EngineActivations, PipelinesStayWithinTheLeastBudget) {
  using pipeline::ScheduleKind;
  const std::vector<Task> tasks = {
      {.stages = 2, .layers = 6, .accumulation = 4},
      {.stages = 2, .layers = 6, .accumulation = 4, .schedule = ScheduleKind::gpipe},
      {.stages = 2, .layers = 6, .accumulation = 4, .schedule = ScheduleKind::zero_bubble},
      {.stages = 2, .chunks = 2, .layers = 6, .accumulation = 4, .schedule = ScheduleKind::interleaved}};
  on_ranks(2, [&](comm::World& world) {
    for (const Task& task : tasks) {
      SCOPED_TRACE(concat("schedule ", static_cast<int>(task.schedule)));
      activations::Options wanted{
          .automatic = true, .memory_budget = 1, .nvme_path = files_of_activations().string(), .least_bytes = 0};
      try {
        train(world, task, wanted);
        ADD_FAILURE() << "a byte is enough";
      } catch (const InputError& error) { // every rank says what all say
        const std::string words = "Raise memory_budget to ";
        const std::string told = error.what();
        for (size_t at = told.find(words); at != std::string::npos; at = told.find(words, at + 1)) {
          wanted.memory_budget = std::max<int64_t>(wanted.memory_budget, std::stoll(told.substr(at + words.size())));
        }
      }
      const Trained trained = train(world, task, wanted, 6);
      for (size_t step = 2; step < trained.peaks.size(); ++step) { // the first two measure
        EXPECT_LE(trained.peaks[step], wanted.memory_budget) << "step " << step;
      }
      EXPECT_GT(trained.moved, 0);
    }
  });
  fs::remove_all(files_of_activations());
}

class HalfAsLong : public Counting {
 public:
  data::Batch get(std::span<const int64_t> indices) const override {
    const data::Batch batch = Counting::get(indices);
    return {{batch.input().slice(1, 0, 4)}, {batch.target().slice(1, 0, 4)}, batch.samples};
  }
};

std::vector<double> steps_of(Engine& engine, int steps) {
  std::vector<double> numbers;
  for (int step = 0; step < steps; ++step) {
    engine.train_batch();
    numbers.push_back(engine.loss());
    numbers.push_back(engine.get_global_grad_norm().value_or(0));
  }
  return numbers;
}

// The first step of a resumed run is treated as was chosen, where a run that measures recomputes everything in its
// first two.
TEST(EngineActivations, AResumedRunUsesTheChoiceOfItsCheckpoint) {
  const fs::path saved = fs::path(testing::TempDir()) / concat("trireme_chosen_activations_", ::getpid());
  for (const int stages : {1, 2}) {
    on_ranks(2, [&](comm::World& world) {
      const Task task{.stages = stages, .layers = 8};
      const activations::Options wanted{.automatic = true, .memory_budget = 100'000'000};
      const std::string tag = std::to_string(stages);
      const auto before = make(world, task, wanted);
      steps_of(*before, 3);
      const std::vector<Way> chosen = before->activations()->ways();
      EXPECT_THAT(chosen, testing::Each(Way::keep)) << "there is room";
      before->save_checkpoint(saved, tag);
      const std::vector<double> expected = steps_of(*before, 3);

      const auto after = make(world, task, wanted);
      after->load_checkpoint(saved, tag);
      std::vector<double> numbers = steps_of(*after, 1);
      EXPECT_EQ(after->activations()->ways(), chosen);
      const std::vector<double> rest = steps_of(*after, 2);
      numbers.insert(numbers.end(), rest.begin(), rest.end());
      EXPECT_EQ(numbers, expected);
      EXPECT_EQ(after->activations()->ways(), chosen);
      after->save_checkpoint(saved, tag + "-again");

      const auto once_more = make(world, task, wanted); // a choice that was adopted is saved too
      once_more->load_checkpoint(saved, tag + "-again");
      steps_of(*once_more, 1);
      EXPECT_EQ(once_more->activations()->ways(), chosen);

      activations::Options other = wanted;
      other.memory_budget -= 1;
      const auto another = make(world, task, other);
      another->load_checkpoint(saved, tag);
      EXPECT_EQ(steps_of(*another, 1), std::vector<double>(expected.begin(), expected.begin() + 2));
      EXPECT_THAT(another->activations()->ways(), testing::Each(Way::recompute)) << "another budget: measured again";
    });
  }
  fs::remove_all(saved);
}

// What becomes of a part is the same in every step, the first one after a start included.
TEST(EngineActivations, ARecomputedListOfLayersResumesToTheSameBits) {
  const fs::path saved = fs::path(testing::TempDir()) / concat("trireme_recomputed_activations_", ::getpid());
  for (const Way way : {Way::recompute, Way::recompute_nvme}) {
    EXPECT_THAT(run_ranks(1,
                          [&](comm::World& world) {
                            const Task task{.interval = 1, .accumulation = 4}; // with a tied head
                            const auto before = make(world, task, every_part(way));
                            steps_of(*before, 3);
                            before->save_checkpoint(saved, std::string(activations::name_of(way)));
                            const std::vector<double> expected = steps_of(*before, 4);
                            const auto after = make(world, task, every_part(way));
                            after->load_checkpoint(saved, std::string(activations::name_of(way)));
                            EXPECT_EQ(steps_of(*after, 4), expected);
                          }),
                IsEmpty())
        << activations::name_of(way);
  }
  fs::remove_all(saved);
  fs::remove_all(files_of_activations());
}

TEST(EngineActivations, AChoiceForSmallerInputsIsMeasuredAgain) {
  const fs::path saved = fs::path(testing::TempDir()) / concat("trireme_small_activations_", ::getpid());
  on_ranks(2, [&](comm::World& world) {
    const Task task{.layers = 4};
    const activations::Options wanted{.automatic = true, .memory_budget = 100'000'000};
    const auto before = make(world, task, wanted, std::make_shared<HalfAsLong>());
    steps_of(*before, 3);
    before->save_checkpoint(saved, "half");
    const auto plain = make(world, task, {});
    plain->load_checkpoint(saved, "half");
    const std::vector<double> expected = steps_of(*plain, 4);
    const auto after = make(world, task, wanted);
    after->load_checkpoint(saved, "half");
    std::vector<double> numbers = steps_of(*after, 1);
    EXPECT_THAT(after->activations()->ways(), testing::Each(Way::recompute));
    const std::vector<double> rest = steps_of(*after, 3);
    numbers.insert(numbers.end(), rest.begin(), rest.end());
    EXPECT_EQ(numbers, expected);
    EXPECT_THAT(after->activations()->ways(), testing::Each(Way::keep)) << "measured in two steps after it";
  });
  fs::remove_all(saved);
}

TEST(EngineActivations, LayersThatNoClassMatchesAreRefused) {
  for (const int stages : {1, 2}) {
    on_ranks(2, [&](comm::World& world) {
      const Task task{.stages = stages};
      activations::Options wanted = every_part(Way::recompute);
      wanted.layers = "LlamaBlock";
      try {
        train(world, task, wanted, 1);
        ADD_FAILURE() << "it matches";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), AllOf(HasSubstr("\"LlamaBlock\" matches no class"), HasSubstr("GptBlock")));
      }
    });
    on_ranks(2, [&](comm::World& world) {
      const Task task{.stages = stages};
      activations::Options wanted = every_part(Way::recompute);
      wanted.layers = "Positions|GptBlock"; // a pattern of which a stage may have nothing
      EXPECT_NO_THROW(train(world, task, wanted, 1));
    });
  }
}

TEST(EngineActivations, ABudgetThatNothingFitsEndsAllRanksWithTheReason) {
  on_ranks(2, [&](comm::World& world) {
    try {
      train(world, {}, {.automatic = true, .memory_budget = 1000});
      ADD_FAILURE() << "it fits";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("Raise memory_budget to"));
    }
  });
}

TEST(EngineActivations, OptionsMustBeTheSameOnAllRanks) {
  on_ranks(2, [&](comm::World& world) {
    try {
      train(world, {}, {.policy = world.rank() == 0 ? Way::keep : Way::recompute});
      ADD_FAILURE() << "ranks differ";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("activation_checkpointing.policy"));
    }
  });
}

} // namespace
} // namespace trireme::engine
