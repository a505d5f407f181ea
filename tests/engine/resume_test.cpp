#include "small_run.h"

#include <trireme/base/error.h>
#include <trireme/checkpoint/checkpoint.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

#include <sys/stat.h>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

class ResumeTest : public testing::TestWithParam<int> {
 protected:
  ResumeTest() : folder_(fs::path(testing::TempDir()) / concat("trireme_resume_", ::getpid())) {}
  ~ResumeTest() override { fs::remove_all(folder_); }
  fs::path folder_;
};

// Shuffled data and dropout: position and random state must come back too.
TEST_P(ResumeTest, ContinuesBitForBit) {
  const fs::path folder = folder_;
  on_ranks(GetParam(), [folder](comm::World& world) {
    torch::manual_seed(77 + world.rank());
    SmallRun whole(world, small_config(48, 2), true, 0.2);
    std::vector<double> losses;
    for (int step = 0; step < 9; ++step) {
      losses.push_back(whole.engine().train_batch().item<double>());
    }
    torch::manual_seed(77 + world.rank());
    {
      SmallRun first(world, small_config(48, 2), true, 0.2);
      for (int step = 0; step < 5; ++step) {
        first.engine().train_batch();
      }
      first.engine().save_checkpoint(folder, "", {{"note", "hello"}});
      first.engine().train_batch(); // what happens after the save must not matter
    }
    torch::manual_seed(5);
    SmallRun second(world, small_config(48, 2), true, 0.2);
    const auto client = second.engine().load_checkpoint(folder);
    ASSERT_TRUE(client.has_value());
    EXPECT_EQ((*client)["note"], "hello");
    EXPECT_EQ(second.engine().global_steps(), 5);
    for (int step = 5; step < 9; ++step) {
      EXPECT_EQ(second.engine().train_batch().item<double>(), losses[step]) << "step " << step;
    }
    const auto a = whole.model->parameters();
    const auto b = second.model->parameters();
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(a[i].equal(b[i])) << "parameter " << i;
    }
  });
}

// What another model has no place for would be lost with the next save.
TEST_P(ResumeTest, AnotherModelIsRefusedByName) {
  const fs::path folder = folder_;
  on_ranks(GetParam(), [folder](comm::World& world) {
    const config::EngineConfig config = small_config(48, 1);
    SmallRun run(world, config);
    run.engine().train_batch();
    run.engine().save_checkpoint(folder);
    for (const int64_t layers : {1, 3}) {
      models::GptOptions other = small_gpt();
      other.layers = layers;
      models::Gpt model(other);
      InitializeOptions options;
      options.config = config;
      options.model = model.ptr();
      options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
      const auto engine = initialize(world, options).engine;
      const at::Tensor before = model->parameters()[0].clone();
      const std::string refused = test::error_of([&] { engine->load_checkpoint(folder); });
      EXPECT_TRUE(model->parameters()[0].equal(before)) << "nothing is loaded";
      EXPECT_THAT(refused, testing::AllOf(HasSubstr("is of another model"),
                                          HasSubstr(layers == 1 ? "this one has no \"transformer.h.1."
                                                                : "it has no \"transformer.h.2."),
                                          HasSubstr("Use the model configuration")));
    }
  });
}

// A folder of checkpoints is not looked for one level deeper, as a run folder is.
TEST_P(ResumeTest, AFolderNamedCheckpointsBesideThemHidesNothing) {
  const fs::path folder = folder_;
  on_ranks(GetParam(), [folder](comm::World& world) {
    SmallRun run(world, small_config(48, 1));
    run.engine().train_batch();
    run.engine().save_checkpoint(folder);
    if (world.rank() == 0) {
      fs::create_directories(folder / "checkpoints");
    }
    world.group().barrier("made").wait();
    run.engine().train_batch();
    EXPECT_TRUE(run.engine().load_checkpoint(folder));
    EXPECT_EQ(run.engine().global_steps(), 1);
  });
}

// As under the launcher, whose run folder is private: started by hand or by mpirun the folders are made by the ranks.
TEST_P(ResumeTest, WhatIsWrittenIsForThisUserOnly) {
  const fs::path folder = folder_ / "deep" / "run";
  const mode_t before = ::umask(0);
  on_ranks(GetParam(), [folder](comm::World& world) {
    config::EngineConfig config = small_config(48, 2);
    for (config::MonitorSection* section : {&config.csv_monitor, &config.tensorboard}) {
      section->enabled = true;
      section->output_path = folder / "monitors";
      section->job_name = section == &config.csv_monitor ? "csv" : "events";
    }
    SmallRun run(world, config);
    run.engine().train_batch();
    run.engine().save_checkpoint(folder / "checkpoints");
  });
  ::umask(before);
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
    const auto mode = entry.status().permissions();
    EXPECT_EQ(mode, entry.is_directory() ? fs::perms::owner_all : fs::perms::owner_read | fs::perms::owner_write)
        << entry.path();
    files += entry.is_directory() ? 0 : 1;
  }
  EXPECT_GE(files, 8) << "shards, manifest, latest, events, a CSV file for each figure";
}

INSTANTIATE_TEST_SUITE_P(Ranks, ResumeTest, testing::Values(1, 2, 3));

// Another number of ranks continues with the same weights, states and data position.
TEST_F(ResumeTest, AnotherNumberOfRanksGoesOn) {
  const fs::path folder = folder_;
  on_ranks(3, [folder](comm::World& world) {
    SmallRun run(world, small_config(48, 1));
    for (int step = 0; step < 4; ++step) {
      run.engine().train_batch();
    }
    run.engine().save_checkpoint(folder);
  });
  on_ranks(2, [folder](comm::World& world) {
    SmallRun whole(world, small_config(48, 1));
    for (int step = 0; step < 4; ++step) {
      whole.engine().train_batch();
    }
    SmallRun resumed(world, small_config(48, 1));
    ASSERT_TRUE(resumed.engine().load_checkpoint(folder));
    for (int step = 4; step < 8; ++step) {
      const double expected = whole.engine().train_batch().item<double>();
      EXPECT_NEAR(resumed.engine().train_batch().item<double>(), expected, 2e-5 * expected) << "step " << step;
    }
  });
}

TEST_F(ResumeTest, NothingSavedYetIsNotAnError) {
  const fs::path folder = folder_;
  on_ranks(1, [folder](comm::World& world) {
    SmallRun run(world, small_config(48, 1));
    EXPECT_FALSE(run.engine().load_checkpoint(folder));
  });
}

TEST_F(ResumeTest, AnotherModelOrOptimizerIsRefusedByName) {
  const fs::path folder = folder_;
  on_ranks(1, [folder](comm::World& world) {
    SmallRun run(world, small_config(48, 1));
    run.engine().train_batch();
    run.engine().save_checkpoint(folder);
    config::EngineConfig sgd = small_config(48, 1);
    sgd.optimizer->rule = optim::SgdOptions{};
    SmallRun other(world, sgd);
    try {
      other.engine().load_checkpoint(folder);
      ADD_FAILURE() << "accepted";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("optimizer"));
    }
  });
}

TEST_F(ResumeTest, SavingInTheMiddleOfAStepIsRefused) {
  const fs::path folder = folder_;
  on_ranks(1, [folder](comm::World& world) {
    SmallRun run(world, small_config(48, 2));
    run.engine().backward(run.engine().forward(run.made.loader->next()));
    run.engine().step();
    EXPECT_THROW(run.engine().save_checkpoint(folder), InputError);
  });
}

} // namespace
} // namespace trireme::engine
