// A model may start from the weights of a run.
#include "small_training.h"

#include <tests/support/run_ranks.h>

#include <trireme/checkpoint/checkpoint.h>

#include <gmock/gmock.h>

namespace trireme::tools {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

class InitFromTest : public SmallTrainingTest {};

fs::path kept_run(const comm::World& world) {
  if (world.rank() == 0) {
    fs::remove_all(folder() / "before");
    fs::rename(out(), folder() / "before");
  }
  world.group().barrier("kept").wait();
  return folder() / "before";
}

json images() {
  json run = common();
  run["model"] = {{"type", "cnn"}, {"side", 8}, {"width", 4}};
  run["data"] = {{"type", "images"}, {"train", images_file("images", 7)}, {"train_labels", labels_file("labels", 3)}};
  return run;
}

TEST_F(InitFromTest, ImagesOfAnotherSizeAreRefusedBeforeTheFirstStep) {
  json run = images();
  run["model"]["side"] = 12;
  EXPECT_THAT(run_ranks(1, [&](comm::World& world) { run_training(world, run); }),
              testing::ElementsAre(HasSubstr("the images are [1, 8, 8]")));
  run = images();
  run["data"]["validation"] = images_file("wide", 7, 16);
  run["data"]["validation_labels"] = labels_file("labels", 3);
  EXPECT_THAT(run_ranks(1, [&](comm::World& world) { run_training(world, run); }),
              testing::ElementsAre(HasSubstr("the validation images are [1, 8, 16]")));
}

// From the newest checkpoint's fp32 masters, whatever layout saved them.
TEST_F(InitFromTest, WeightsOfACheckpointAreTheStart) {
  for (json run : {common(), images()}) {
    on_ranks(2, [&](comm::World& world) {
      run["engine"].update({{"bf16", {{"enabled", true}}}, {"zero_optimization", {{"stage", 1}}}});
      run_training(world, run);
      const fs::path before = kept_run(world);
      const auto saved = checkpoint::Checkpoint::open(before);
      json weights;
      for (const std::string& name : saved.names("parameter")) {
        weights[name] = digest(saved.read(concat("master/", name)));
      }
      ASSERT_NE(model(world, run), weights);
      for (const fs::path& path : {before, before / "checkpoints", before / "checkpoints/global_step2"}) {
        run["model"]["init_from"] = path.string();
        EXPECT_EQ(model(world, run), weights) << path;
      }
    });
  }
}

TEST_F(InitFromTest, StagesStartFromACheckpointToo) {
  json run = common();
  run["model"]["layers"] = 2;
  on_ranks(2, [&](comm::World& world) {
    run_training(world, run);
    run["model"]["init_from"] = kept_run(world).string();
    run["parallel"] = {{"pipe", 2}};
    run["engine"]["optimizer"]["params"]["lr"] = 0;
    run_training(world, run);
    const auto start = checkpoint::Checkpoint::open(folder() / "before");
    const auto end = checkpoint::Checkpoint::open(out());
    ASSERT_EQ(end.names("parameter"), start.names("parameter"));
    for (const std::string& name : end.names("parameter")) {
      EXPECT_TRUE(end.read(name).equal(start.read(name))) << name;
    }
    world.group().barrier("compared").wait();
  });
}

/// As docs/checkpoints.md says of a folder of checkpoints: the newest whole one.
TEST_F(InitFromTest, ADamagedNewestCheckpointIsPassedOver) {
  json run = common();
  run["training"]["checkpoint_every"] = 1;
  run["training"]["keep_checkpoints"] = 2;
  on_ranks(2, [&](comm::World& world) {
    run_training(world, run);
    const fs::path before = kept_run(world);
    const auto older = checkpoint::Checkpoint::open(before / "checkpoints/global_step1");
    if (world.rank() == 0) {
      fs::resize_file(before / "checkpoints/global_step2/rank00000.safetensors", 100);
    }
    world.group().barrier("damaged").wait();
    json next = run;
    next["model"]["init_from"] = before.string();
    next["engine"]["optimizer"]["params"]["lr"] = 0;
    run_training(world, next);
    const auto end = checkpoint::Checkpoint::open(out());
    for (const std::string& name : end.names("parameter")) {
      EXPECT_TRUE(end.read(name).equal(older.read(name))) << name;
    }
    world.group().barrier("compared").wait();
  });
}

TEST_F(InitFromTest, WeightsOfACheckpointOfAnotherModel) {
  on_ranks(1, [&](comm::World& world) {
    json run = common();
    run["model"]["layers"] = 2;
    run_training(world, run);
    const fs::path before = kept_run(world);
    const auto refused = [&](const json& model_values, const fs::path& from, const std::string& words, int stages = 1) {
      json other = run;
      other["parallel"] = {{"pipe", stages}};
      other["model"].update(model_values);
      other["model"]["init_from"] = from.string();
      try {
        model(world, other);
        ADD_FAILURE() << words;
      } catch (const InputError& error) {
        EXPECT_THAT(error.what(), HasSubstr(words));
      }
    };
    refused({{"layers", 1}}, before, "the model has no parameter \"transformer.h.1.");
    refused({{"layers", 1}}, before, "the model has no parameter \"transformer.h.1.", 2);
    refused({{"layers", 3}}, before, "has no parameter \"transformer.h.2.");
    refused({{"hidden", 32}}, before, "the model needs [");
    refused(json::object(), before / "checkpoints/global_step2/rank00000.safetensors",
            "is one rank's part of a checkpoint");
    run = images();
    refused(json::object(), before / "checkpoints/global_step2/rank00000.safetensors",
            "is one rank's part of a checkpoint");
  });
}

} // namespace
} // namespace trireme::tools
