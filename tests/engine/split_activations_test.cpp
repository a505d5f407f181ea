// partition_activations: of the inputs of recomputed parts each tensor rank keeps a share. The same bits, and bytes as
// the closed form says.
#include "split_run.h"

#include <trireme/base/log.h>

#include <unistd.h>
#include <algorithm>
#include <filesystem>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using activations::Way;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kSharedSteps = 4;

fs::path files_of_shares() {
  return fs::path(testing::TempDir()) / concat("trireme_split_activations_", ::getppid());
}

activations::Options recomputed(Way way, bool shares) {
  return {.policy = way, .nvme_path = files_of_shares().string(), .shares_inputs = shares, .least_bytes = 0};
}

struct Shared {
  std::vector<double> numbers;
  int64_t peak = 0;
  int64_t moved = 0;
  int64_t sent = 0; // along the tensor axis in the last step
  std::vector<Way> ways;
  bool shares = false;
};

Shared train_shared(comm::World& world, const SplitLayout& layout, const activations::Options& wanted,
                    int64_t interval = 0) {
  torch::manual_seed(5 + world.rank() / layout.tensor); // tensor ranks draw the same masks
  SplitChanges changes;
  changes.shape.dropout = 0.1;
  changes.options = [&](InitializeOptions& options) {
    options.config.activations = wanted;
    options.config.pipeline.activation_checkpoint_interval = options.pipeline ? std::optional(interval) : std::nullopt;
  };
  SplitRun run(world, layout, changes);
  Shared trained;
  for (int step = 0; step < kSharedSteps; ++step) {
    const int64_t before = run.engine().bytes_sent_by_axes().at("tensor");
    trained.numbers.push_back(run.step());
    trained.numbers.push_back(run.engine().get_global_grad_norm().value());
    trained.sent = run.engine().bytes_sent_by_axes().at("tensor") - before;
  }
  if (const auto* const found = run.engine().activations()) {
    trained.peak = found->peak_bytes();
    trained.moved = found->bytes_in();
    trained.ways = found->ways();
    trained.shares = found->options().shares_inputs;
  }
  return trained;
}

TEST(SplitActivationsTest, SharesOfInputsTrainTheSameBits) {
  using Kind = pipeline::ScheduleKind;
  const std::vector<std::pair<SplitLayout, int64_t>> cases = {
      {{.tensor = 2, .accumulation = 2}, 0},
      {{.data = 2, .tensor = 2, .zero_stage = 3}, 0},
      {{.pipe = 2, .tensor = 2, .accumulation = 4}, 2},
      {{.pipe = 2, .tensor = 2, .zero_stage = 1, .accumulation = 2, .schedule = Kind::zero_bubble}, 1},
      {{.context = 2, .tensor = 2}, 0}};
  for (const auto& [layout, interval] : cases) {
    EXPECT_THAT(run_ranks(layout.ranks(),
                          [&, &layout = layout, &interval = interval](comm::World& world) {
                            const Shared plain = train_shared(world, layout, {}, interval);
                            for (const Way way : {Way::recompute, Way::recompute_nvme}) {
                              SCOPED_TRACE(activations::name_of(way));
                              const Shared whole = train_shared(world, layout, recomputed(way, false), interval);
                              const Shared shared = train_shared(world, layout, recomputed(way, true), interval);
                              EXPECT_TRUE(shared.shares);
                              EXPECT_EQ(shared.numbers, whole.numbers);
                              EXPECT_EQ(shared.numbers, plain.numbers);
                              EXPECT_LT(shared.moved, whole.moved + (activations::moves(way) ? 0 : 1));
                            }
                          }),
                IsEmpty())
        << layout.describe();
  }
  fs::remove_all(files_of_shares());
}

// The peak is in the backward of the last of L blocks: L inputs I and one block's activations. With shares it is L I /
// T, and that block's input gathered. Each gathering sends T - 1 shares.
TEST(SplitActivationsTest, BytesOfShares) {
  for (const int tensor : {2, 4}) {
    const SplitLayout layout{.tensor = tensor, .accumulation = 2};
    on_ranks(tensor, [&](comm::World& world) {
      const models::GptOptions shape = split_gpt();
      const int64_t input = kSplitBatch / layout.accumulation * shape.sequence_length * shape.hidden * 4;
      const int64_t share = input / tensor;
      const Shared whole = train_shared(world, layout, recomputed(Way::recompute, false));
      const Shared shared = train_shared(world, layout, recomputed(Way::recompute, true));
      EXPECT_EQ(whole.peak - shared.peak, (shape.layers - 1) * input - shape.layers * share);
      EXPECT_EQ(shared.sent - whole.sent, layout.accumulation * shape.layers * (tensor - 1) * share);
      const Shared moved = train_shared(world, layout, recomputed(Way::recompute_nvme, true));
      EXPECT_EQ(moved.moved, kSharedSteps * layout.accumulation * shape.layers * share) << "shares go to files";
      EXPECT_EQ(train_shared(world, layout, recomputed(Way::keep, true)).sent,
                train_shared(world, layout, recomputed(Way::keep, false)).sent)
          << "nothing is recomputed";
    });
  }
  fs::remove_all(files_of_shares());
}

TEST(SplitActivationsTest, InputsThatAreSharesAlreadyStayAsTheyAre) {
  const SplitLayout layout{.tensor = 2, .sequence_parallel = true};
  on_ranks(2, [&](comm::World& world) {
    const Shared whole = train_shared(world, layout, recomputed(Way::recompute, false));
    const Shared shared = train_shared(world, layout, recomputed(Way::recompute, true));
    EXPECT_FALSE(shared.shares);
    EXPECT_EQ(shared.numbers, whole.numbers);
    EXPECT_EQ(shared.peak, whole.peak);
    EXPECT_EQ(shared.sent, whole.sent);
  });
}

// What recomputation of all needs without shares leaves room for parts that are kept with them.
TEST(SplitActivationsTest, TheChoiceKnowsShares) {
  const SplitLayout layout{.tensor = 4};
  on_ranks(4, [&](comm::World& world) {
    const Shared whole = train_shared(world, layout, recomputed(Way::recompute, false));
    const Shared least = train_shared(world, layout, recomputed(Way::recompute, true));
    activations::Options wanted = recomputed(Way::recompute, true);
    wanted.policy.reset();
    wanted.automatic = true;
    wanted.nvme_path.clear();
    wanted.memory_budget = least.peak;
    const Shared chosen = train_shared(world, layout, wanted);
    EXPECT_EQ(chosen.numbers, whole.numbers);
    EXPECT_LE(chosen.peak, wanted.memory_budget);
    EXPECT_LT(chosen.peak, whole.peak);
    wanted.shares_inputs = false;
    EXPECT_THROW(train_shared(world, layout, wanted), Error) << "without shares nothing fits";
  });
}

TEST(SplitActivationsTest, SaysThatNothingIsRecomputed) {
  on_ranks(2, [&](comm::World& world) {
    std::vector<std::string> lines;
    trireme::log::set_level(trireme::log::Level::info);
    trireme::log::set_sink([&](const std::string& line) { lines.push_back(line); });
    const auto said = [&](std::optional<Way> policy) {
      lines.clear();
      activations::Options wanted;
      wanted.policy = policy;
      wanted.shares_inputs = true;
      train_shared(world, {.tensor = 2}, wanted);
      return std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
        return line.find("partition_activations has no effect: it shares inputs") != std::string::npos;
      });
    };
    EXPECT_EQ(said(std::nullopt), world.rank() == 0);
    EXPECT_FALSE(said(Way::recompute));
    trireme::log::set_sink(nullptr);
  });
}

// Two ranks, and a part "Mixer" that is recomputed with shares of its inputs.
struct Mixer {
  explicit Mixer(const comm::Group& group)
      : activations(recomputed(Way::recompute, true), at::kCPU, {}, 1,
                    {group.rank(), group.size(), [group, this](const at::Tensor& all, const at::Tensor& share) {
                       group.all_gather(all, share, "shares").wait();
                       ++gathered;
                     }}) {}

  at::Tensor loss(const at::Tensor& input) {
    const auto scope = activations.enter({weight});
    return activations::call({.key = &weight, .type = "Mixer"}, [](at::Tensor x) { return x.sin(); }, input).sum();
  }

  int gathered = 0;
  at::Tensor weight = torch::full({8, 8}, 0.5).requires_grad_();
  activations::Activations activations;
};

// A part that begins where each rank has something of its own: shares would not fit together.
TEST(SplitActivationsTest, InputsThatDifferAreRefused) {
  on_ranks(2, [&](comm::World& world) {
    Mixer mixer(world.group());
    mixer.loss(torch::full({16, 8}, 1.0).matmul(mixer.weight)).backward();
    const at::Tensor expected = torch::full({16, 8}, 4.0F).cos().sum(0);
    EXPECT_TRUE(torch::allclose(mixer.weight.grad()[0], expected));
    EXPECT_EQ(mixer.gathered, 1);
    try {
      mixer.loss(torch::full({16, 8}, 1.0 + world.rank()).matmul(mixer.weight)).backward();
      ADD_FAILURE() << "ranks differ";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("different inputs of Mixer"), HasSubstr("remove \"partition_activations\"")));
    }
  });
}

// The rest of the memory that an input lies in may differ between ranks: the header of a message from another stage,
// say. And who wants the gradient of a leaf holds it anyway.
TEST(SplitActivationsTest, OnlyInputsThatAreAllOfTheirMemoryAreShared) {
  on_ranks(2, [&](comm::World& world) {
    Mixer mixer(world.group());
    const at::Tensor rows = torch::cat({torch::full({1, 8}, 7.0 + world.rank()), torch::full({16, 8}, 1.0)});
    mixer.loss(rows.matmul(mixer.weight).narrow(0, 1, 16)).backward();
    EXPECT_EQ(mixer.gathered, 0);
    EXPECT_TRUE(torch::allclose(mixer.weight.grad()[0], torch::full({16, 8}, 4.0F).cos().sum(0)));
    const at::Tensor leaf = torch::full({16, 8}, 2.0).requires_grad_();
    mixer.loss(leaf).backward();
    EXPECT_EQ(mixer.gathered, 0);
    EXPECT_TRUE(torch::allclose(leaf.grad(), leaf.detach().cos()));
  });
}

} // namespace
} // namespace trireme::engine
