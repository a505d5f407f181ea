// Gradients of a device in files: where masters and parameters both are. placements_test.cpp shows that the model is
// the same.
#include "offload_case.h"

#include <tests/support/aio_watch.h>

#include <gmock/gmock.h>

#include <cstdlib>
#include <set>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using offload::Place;
using precision::Type;
using testing::IsEmpty;

constexpr int kAccumulation = 3;

/// Calls for this rank's file of gradients, of one step; small buckets, so that each is one call.
struct GradientCalls {
  std::set<int64_t> places;
  int64_t reads = 0;
  int64_t writes = 0;
};

GradientCalls calls_of_a_step(Engine& engine) {
  test::watch_aio();
  engine.train_batch();
  GradientCalls calls;
  for (const test::AioCall& call : test::aio_seen().calls) {
    if (call.file == "gradients.0") {
      calls.places.insert(call.offset);
      ++(call.write ? calls.writes : calls.reads);
    }
  }
  return calls;
}

Offloaded in_files(const fs::path& files) {
  Offloaded one{
      .run = {.name = "gradients in files", .zero_stage = 3, .type = Type::bf16, .accumulation = kAccumulation},
      .parameters = Place::nvme};
  one.states = Place::nvme;
  one.files = files;
  return one;
}

class SimDeviceGradientsInFiles : public testing::Test {
 protected:
  void on_ranks(int ranks, const std::function<void(comm::World&)>& body) {
    test::on_ranks(ranks, [&](comm::World& world) {
      start_single_threaded();
      ::setenv("TRIREME_AIO", "threads", 1);
      body(world);
      EXPECT_THAT(sim::problems(), IsEmpty());
    });
  }
  void TearDown() override { fs::remove_all(files_); }
  const fs::path files_ = scratch("gradients");
};

// Each micro-batch but the first reads what is there, unless it has its memory still, and all write; the step reads
// once.
TEST_F(SimDeviceGradientsInFiles, AreWrittenByEachMicroBatchAndReadToBeAddedTo) {
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&](comm::World& world) {
      const auto engine = engine_of(world, in_files(files_), sim::device());
      engine->train_batch();
      const GradientCalls calls = calls_of_a_step(*engine);
      const auto buckets = std::ssize(calls.places);
      constexpr int64_t kBuffers = 3; // of Offloaded
      ASSERT_GT(buckets, kBuffers) << "else they never leave memory";
      EXPECT_EQ(calls.writes, kAccumulation * buckets);
      EXPECT_LE(calls.reads, kAccumulation * buckets);
      EXPECT_GE(calls.reads, kAccumulation * (buckets - kBuffers));
    });
  }
}

// Half of the buckets are stepped on the device and never leave it.
TEST_F(SimDeviceGradientsInFiles, AreThoseThatTheHostSteps) {
  on_ranks(1, [&](comm::World& world) {
    Offloaded one = in_files(files_);
    const int64_t all = std::ssize(calls_of_a_step(*engine_of(world, one, sim::device())).places);
    one.ratio = 0.5;
    const int64_t half = std::ssize(calls_of_a_step(*engine_of(world, one, sim::device())).places);
    EXPECT_GT(half, 0);
    EXPECT_LT(half, all);
  });
}

// With masters in files and parameters elsewhere they are in memory, as they are where several copies add theirs up.
TEST_F(SimDeviceGradientsInFiles, NeedMastersAndParametersThere) {
  on_ranks(2, [&](comm::World& world) {
    Offloaded one = in_files(files_);
    one.parameters = Place::host;
    EXPECT_THAT(calls_of_a_step(*engine_of(world, one, sim::device())).places, IsEmpty());
    one.parameters = Place::nvme;
    one.shard_size = 1;
    EXPECT_THAT(calls_of_a_step(*engine_of(world, one, sim::device())).places, IsEmpty());
    one.shard_size = 2; // a single copy
    EXPECT_GT(calls_of_a_step(*engine_of(world, one, sim::device())).writes, 0);
  });
}

} // namespace
} // namespace trireme::engine
