// A sequence that the memory of one rank refuses trains among ranks that share its tokens.
#include "small_run.h"

#include <tests/support/run_ranks.h>

#include <trireme/comm/host_memory.h>
#include <trireme/models/gpt.h>

#include <gmock/gmock.h>

#include <sys/mman.h>
#include <sys/resource.h>

#include <fstream>

namespace trireme::engine {
namespace {

using mesh::Axis;
using test::on_ranks;
using test::run_ranks;

constexpr int64_t kLongLength = 4096;
constexpr int64_t kWarmUp = 64;
constexpr int64_t kRoom = 36'000'000; // bytes; a rank alone needs 52 million: activations of 2 layers

/// One short sample, with which threads and buffers come to be, then long ones.
class Growing : public data::Dataset {
 public:
  int64_t size() const override { return 4; }
  data::Batch get(std::span<const int64_t> indices) const override {
    const int64_t length = indices[0] == 0 ? kWarmUp : kLongLength;
    const at::Tensor tokens = torch::arange(length + 1).mul(indices[0] + 3).remainder(70).unsqueeze(0);
    return {{tokens.slice(1, 0, length)}, {tokens.slice(1, 1)}, 1};
  }
  std::string describe() const override { return "growing"; }
};

/// Private memory of this process that may be written to, which RLIMIT_DATA limits.
int64_t data_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmData:")) {
      return 1024 * std::stoll(line.substr(7));
    }
  }
  throw Error("test", "no VmData in /proc/self/status");
}

/// Losses of two steps with long samples. `room`: bytes that the process may take after the first, short one; 0: any.
std::vector<double> train(comm::World& world, context::Kind kind, int64_t room) {
  torch::set_num_threads(1);
  models::GptOptions shape;
  shape.layers = 2;
  shape.hidden = 64;
  shape.heads = 4;
  shape.sequence_length = kLongLength;
  shape.vocab_size = 77;
  InitializeOptions options;
  options.mesh = mesh::training_mesh(world.group(), {.context = world.size()});
  models::ModelRanks ranks;
  ranks.context = options.mesh->group(Axis::context);
  ranks.context_kind = kind;
  models::Gpt gpt(shape, ranks);
  options.model = gpt.ptr();
  options.loss = [gpt](const data::Batch& batch) mutable { return gpt->loss(batch.input(), batch.target()); };
  options.config = small_config(1, 1);
  options.training_data = std::make_shared<Growing>();
  options.shuffle = false;
  const Initialized made = initialize(world, options);
  made.engine->train_batch();
  const int64_t before = data_bytes();
  const int64_t shared_before = comm::own_shared_bytes();
  if (room > 0) {
    const rlimit limit{static_cast<rlim_t>(before + room), RLIM_INFINITY};
    EXPECT_EQ(::setrlimit(RLIMIT_DATA, &limit), 0);
  }
  std::vector<double> losses;
  for (int step = 0; step < 2; ++step) {
    losses.push_back(made.engine->train_batch().item<double>());
  }
  if (room > 0) {
    EXPECT_LT(std::max<int64_t>(0, data_bytes() - before) + comm::own_shared_bytes() - shared_before, room)
        << "shared memory has no limit: it counts too";
  }
  return losses;
}

TEST(LongSequenceTest, RanksThatShareTokensTrainWhatOneRankCannotHold) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory counts";
#endif
  auto* const losses =
      static_cast<double*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(losses, MAP_FAILED);
  on_ranks(1, [&](comm::World& world) { std::ranges::copy(train(world, context::Kind::ring, 0), losses); });
  on_ranks(1, [&](comm::World& world) {
    try {
      train(world, context::Kind::ring, kRoom);
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), testing::AnyOf(testing::HasSubstr("memory"), testing::HasSubstr("bad_alloc")));
      return;
    }
    ADD_FAILURE() << "one rank had room enough";
  });
  for (const context::Kind kind : {context::Kind::ring, context::Kind::ulysses}) {
    on_ranks(4, [&](comm::World& world) {
      const std::vector<double> ours = train(world, kind, kRoom);
      for (size_t step = 0; step < ours.size(); ++step) {
        EXPECT_NEAR(ours[step], losses[step], 1e-5 * losses[step]);
      }
    });
  }
  ::munmap(losses, 4096);
}

} // namespace
} // namespace trireme::engine
