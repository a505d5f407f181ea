// save_gpt2() where a rank has a part of the parameters: it writes all of them, or says that it cannot.
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/engine/initialize.h>
#include <trireme/models/gpt.h>
#include <trireme/models/gpt2_weights.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

#include <filesystem>

namespace trireme::models {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

GptOptions two_layers() {
  GptOptions options;
  options.layers = 2;
  options.hidden = 16;
  options.heads = 2;
  options.sequence_length = 8;
  options.vocab_size = 31;
  return options;
}

class SaveGpt2Test : public testing::Test {
 protected:
  ~SaveGpt2Test() override { fs::remove_all(folder_); }
  const fs::path folder_ = fs::path(testing::TempDir()) / concat("trireme_save_gpt2_", ::getpid());
};

TEST_F(SaveGpt2Test, APartOfATensorRankIsRefusedByName) {
  test::on_ranks(2, [&](comm::World& world) {
    ModelRanks ranks;
    ranks.tensor.group = world.group();
    const Gpt part(two_layers(), ranks);
    EXPECT_THAT(test::error_of([&] { save_gpt2(part, folder_); }),
                AllOf(HasSubstr("this rank has only a part of parameter \"transformer.wte.weight\""),
                      HasSubstr("of [31, 16]"), HasSubstr("init_from")));
  });
  EXPECT_FALSE(fs::exists(folder_)) << "nothing is written";
}

TEST_F(SaveGpt2Test, AtZeroStage3GatheredParametersAreSaved) {
  test::on_ranks(2, [&](comm::World& world) {
    const Gpt before(two_layers());
    Gpt model(two_layers());
    engine::InitializeOptions options;
    options.model = model.ptr();
    options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
    options.config.batch.train = 2;
    options.config.zero.stage = 3;
    options.config.zero.param_persistence_threshold = 0;
    options.config.optimizer.emplace();
    const engine::Initialized made = engine::initialize(world, options);
    EXPECT_ANY_THROW(save_gpt2(model, folder_ / "not_gathered"));
    {
      const auto whole = made.engine->gather_parameters(model->parameters());
      if (world.rank() == 1) {
        save_gpt2(model, folder_ / "gathered");
        save_gpt2(before, folder_ / "before");
      }
    }
    world.group().barrier("saved").wait();
  });
  EXPECT_EQ(read_file(folder_ / "gathered/model.safetensors"), read_file(folder_ / "before/model.safetensors"));
}

} // namespace
} // namespace trireme::models
