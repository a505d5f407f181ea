// Linked without trireme/extensions, as in a build with -DTRIREME_EXTENSIONS=OFF.
#include "small_run.h"

#include <trireme/base/error.h>
#include <trireme/engine/sync_kinds.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

namespace trireme::engine {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

TEST(CoreAloneTest, TrainsAsOneProcess) {
  EXPECT_FALSE(has_extensions());
  for (const int stage : {0, 1, 2, 3}) {
    on_ranks(2, [stage](comm::World& world) {
      SmallRun run(world, zero_config(stage, 1, 0));
      const std::vector<double> expected = plain_losses(kZeroBatch, 5, 0);
      for (int step = 0; step < 5; ++step) {
        EXPECT_NEAR(run.engine().train_batch().item<double>(), expected[step], 1e-6 * expected[step])
            << "stage " << stage << ", step " << step;
      }
    });
  }
}

TEST(CoreAloneTest, RefusesAnExtensionByName) {
  on_ranks(1, [](comm::World& world) {
    config::EngineConfig config = zero_config(0, 1, 0);
    config.compression.kind = compress::GradientCompressionOptions::Kind::sign;
    try {
      const SmallRun run(world, config);
      ADD_FAILURE() << "was accepted";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("asks for gradient_compression, an extension"));
      EXPECT_THAT(error.what(), HasSubstr("-DTRIREME_EXTENSIONS=ON"));
    }
  });
}

} // namespace
} // namespace trireme::engine
