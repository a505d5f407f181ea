// Masters, optimizer states and sharded parameters that are in files between steps: the same bits as in memory.
#include "small_run.h"

#include <tests/support/file_store.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <unistd.h>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::run_ranks;
using testing::IsEmpty;

struct StoredRun {
  models::Gpt model{small_gpt()};
  Initialized made;

  StoredRun(comm::World& world, int stage, const char* precision, const fs::path& files) {
    InitializeOptions options;
    options.model = model.ptr();
    options.loss = [gpt = model](const data::Batch& batch) mutable { return gpt->loss(batch.input(), batch.target()); };
    options.config = zero_config(stage, 2);
    if (std::string(precision) == "bf16") {
      options.config.precision.compute = precision::Type::bf16;
    }
    options.training_data = std::make_shared<Counting>();
    if (!files.empty()) {
      options.state_store = [files, rank = world.rank(), stores = 0]() mutable {
        return std::make_unique<test::FileStore>(files / concat("rank", rank, ".", stores++));
      };
    }
    made = initialize(world, options);
  }
  std::vector<double> train(int steps) {
    std::vector<double> found;
    for (int step = 0; step < steps; ++step) {
      found.push_back(made.engine->train_batch().item<double>());
    }
    return found;
  }
};

TEST(EngineStateStoreTest, AnEngineWithFilesTrainsAndResumesAsInMemory) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_stored_", ::getpid());
  for (const int stage : {0, 1, 2, 3}) {
    for (const char* precision : {"fp32", "bf16"}) {
      EXPECT_THAT(run_ranks(2,
                            [&](comm::World& world) {
                              StoredRun memory(world, stage, precision, {});
                              {
                                StoredRun files(world, stage, precision, folder / "states");
                                EXPECT_EQ(files.train(3), memory.train(3));
                                files.made.engine->save_checkpoint(folder / "saved");
                              }
                              StoredRun resumed(world, stage, precision, folder / "states");
                              ASSERT_TRUE(resumed.made.engine->load_checkpoint(folder / "saved"));
                              EXPECT_EQ(resumed.train(3), memory.train(3));
                            }),
                  IsEmpty())
          << "ZeRO stage " << stage << ", " << precision;
      fs::remove_all(folder);
    }
  }
}

} // namespace
} // namespace trireme::engine
