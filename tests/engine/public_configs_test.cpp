// Trains with configurations as public projects write them, as they are: two steps on one rank and on two.
#include "small_run.h"

#include <tests/config/public_configs.h>
#include <tests/support/folders.h>
#include <tests/support/run_ranks.h>

#include <trireme/base/error.h>
#include <trireme/base/json.h>
#include <trireme/base/log.h>
#include <trireme/checkpoint/checkpoint.h>

#include <gmock/gmock.h>

#include <unistd.h>

#include <cmath>
#include <filesystem>

namespace trireme::engine {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

// The parameters as exact as a checkpoint has them.
at::Tensor weights_of(Engine& engine, comm::World& world) {
  const auto folder = std::filesystem::path(testing::TempDir()) / concat("trireme_public_", ::getppid());
  engine.save_checkpoint(folder, "now");
  const auto saved = checkpoint::Checkpoint::open(folder, "now", world.group());
  std::vector<at::Tensor> all;
  for (const std::string& name : saved.names("parameter")) {
    const std::string master = concat("master/", name);
    all.push_back(saved.read(saved.has(master) ? master : name).to(torch::kFloat32).flatten());
  }
  world.group().barrier("read").wait();
  if (world.rank() == 0) {
    std::filesystem::remove_all(folder);
  }
  return torch::cat(all);
}

class PublicConfigs : public testing::TestWithParam<int> {};

TEST_P(PublicConfigs, Train) {
  test::on_ranks(GetParam(), [](comm::World& world) {
    int trained = 0;
    for (const auto& file : test::public_configs()) {
      if (test::refused_public_configs().count(file.stem()) == 1) {
        continue;
      }
      SCOPED_TRACE(file.stem());
      try {
        SmallRun run(world, read_config(file, {.micro_batch = 4, .steps = 10, .hidden = small_gpt().hidden}));
        Engine& engine = run.engine();
        const at::Tensor before = weights_of(engine, world);
        for (int step = 1; engine.global_steps() - engine.skipped_steps() < 3;
             ++step) { // a warm-up begins with two at 0, fp16 looks for its scale
          EXPECT_TRUE(std::isfinite(engine.train_batch().item<double>()));
          ASSERT_EQ(engine.global_steps(), step);
        }
        EXPECT_FALSE(weights_of(engine, world).equal(before)) << "at learning rate " << engine.get_lr();
        ++trained;
      } catch (const InputError& error) {
        ADD_FAILURE() << error.what();
      }
    }
    EXPECT_GE(trained, 17);
  });
}

INSTANTIATE_TEST_SUITE_P(On, PublicConfigs, testing::Values(1, 2),
                         [](const auto& info) { return concat(info.param, "ranks"); });

// The lines that initialize() logs for a configuration.
std::vector<std::string> lines_for(comm::World& world, const config::EngineConfig& config) {
  std::vector<std::string> lines;
  log::set_level(log::Level::info);
  log::set_sink([&](const std::string& line) { lines.push_back(line); });
  SmallRun run(world, config);
  log::set_sink(nullptr);
  return lines;
}

TEST(WithoutAnOptimizer, OneLineSaysAdamW) {
  test::on_ranks(1, [](comm::World& world) {
    const auto lines = lines_for(
        world, read_config(test::source_dir() + "/tests/config/public_configs/gpt_pretraining_zero1_fp16.json"));
    EXPECT_THAT(lines, Contains(AllOf(HasSubstr("no \"optimizer\": AdamW with lr 0.001, betas 0.9 and 0.999"),
                                      HasSubstr("weight_decay 0")))
                           .Times(1));
  });
}

TEST(WithoutGradientClipping, OneLineSaysTheNorm) {
  test::on_ranks(1, [](comm::World& world) {
    const auto clipped = [&](const std::string& key) {
      const JsonNode json = JsonNode::parse(concat(R"({"train_batch_size": 6)", key, "}"), "test");
      return lines_for(world, config::read_deepspeed(json));
    };
    const std::string line = "no \"gradient_clipping\": gradients are clipped to norm 1; 0 switches that off";
    EXPECT_THAT(clipped(""), Contains(HasSubstr(line)).Times(1));
    EXPECT_THAT(clipped(R"(, "gradient_clipping": 1)"), Not(Contains(HasSubstr("clipped"))));
    EXPECT_THAT(clipped(R"(, "gradient_clipping": 0)"), Not(Contains(HasSubstr("clipped"))));
  });
}

} // namespace
} // namespace trireme::engine
