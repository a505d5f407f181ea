// Parameters of which each rank holds a box: what a rank trains is that box of the whole, and checkpoints fit either
// way.
#include <trireme/checkpoint/placed.h>
#include <trireme/optim/flat_optimizer.h>
#include <trireme/shards/bucket/flat_parameters.h>

#include <tests/support/run_ranks.h>

#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <gmock/gmock.h>

#include <unistd.h>
#include <filesystem>
#include <map>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;

const std::vector<int64_t> kShape = {6, 8};

/// A matrix with AdamW, of which this rank has columns [begin, end), in bf16 with an fp32 master.
class Columns {
 public:
  Columns(int64_t begin, int64_t end) : begin_(begin), end_(end) {
    at::Tensor values = columns(torch::linspace(-1, 1, 48)).to(torch::kBFloat16).set_requires_grad(true);
    bucket::FlatOptions options;
    options.placement_of = [&](const std::string&, const at::Tensor&) {
      return bucket::Placement{.global_shape = kShape, .box_offset = {0, begin}};
    };
    flat_ = std::make_unique<bucket::FlatParameters>(
        bucket::NamedTensors{{"weight", values}}, bucket::LayoutOptions{},
        [](int64_t numel, at::ScalarType type) { return torch::empty({numel}, type); }, options);
    optimizer_ = std::make_unique<optim::FlatOptimizer>(
        std::vector{flat_.get()}, [](const bucket::TensorInfo&) { return optim::ParameterOptions{0.1}; },
        optim::OptimizerOptions{});
  }

  void step(int64_t number) {
    flat_->attach_zero_grad(0);
    flat_->parameter(0).mutable_grad().copy_(columns(torch::sin(torch::arange(48) * number)));
    optimizer_->begin_step(0.01, std::nullopt, 1);
    optimizer_->step_bucket(0, 0);
  }
  std::vector<checkpoint::TensorShard> shards() {
    const bucket::TensorInfo& info = flat_->layout().tensors().front();
    std::vector<checkpoint::TensorShard> all =
        checkpoint::shards_of(info, "weight", "parameter", 0, flat_->parameter(0).detach());
    optimizer_->for_each_state(
        [&](const std::string& state, const bucket::TensorInfo& tensor, int64_t begin, const at::Tensor& values) {
          for (const checkpoint::TensorShard& shard :
               checkpoint::shards_of(tensor, state + "/weight", "optimizer", begin, values)) {
            all.push_back(shard);
          }
        });
    return all;
  }
  void load(const checkpoint::Checkpoint& saved) {
    const bucket::TensorInfo& info = flat_->layout().tensors().front();
    checkpoint::read_placed(saved, "weight", info, 0, flat_->parameter(0).detach());
    optimizer_->for_each_state(
        [&](const std::string& state, const bucket::TensorInfo& tensor, int64_t begin, const at::Tensor& values) {
          checkpoint::read_placed(saved, state + "/weight", tensor, begin, values);
        });
    optimizer_->set_steps(2);
  }
  at::Tensor weight() { return flat_->parameter(0).detach(); }
  double squared_norm() const { return optimizer_->squared_grad_norm().item<double>(); }
  at::Tensor columns(const at::Tensor& whole) const { return whole.view(kShape).slice(1, begin_, end_).contiguous(); }

 private:
  int64_t begin_;
  int64_t end_;
  std::unique_ptr<bucket::FlatParameters> flat_;
  std::unique_ptr<optim::FlatOptimizer> optimizer_;
};

TEST(PlacementTest, BoxesOfTwoRanksAreTheWholeOfOne) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_placement_", ::getpid());
  test::on_ranks(2, [&](comm::World& world) {
    const int64_t begin = world.rank() == 0 ? 0 : 3; // of different widths
    const int64_t end = world.rank() == 0 ? 3 : 8;
    Columns whole(0, 8);
    Columns mine(begin, end);
    for (const int64_t number : {1, 2}) {
      whole.step(number);
      mine.step(number);
    }
    at::Tensor sum = torch::tensor({mine.squared_norm()}, torch::kFloat64);
    world.group().all_reduce(sum).wait();
    EXPECT_NEAR(sum.item<double>(), whole.squared_norm(), 1e-12);
    EXPECT_TRUE(mine.weight().equal(mine.columns(whole.weight())));
    checkpoint::save(folder / "boxes", "two", world.group(), mine.shards(), {});
    checkpoint::save(folder / "whole", "one", world.group(),
                     world.rank() == 0 ? whole.shards() : std::vector<checkpoint::TensorShard>{}, {});
    const auto boxes = checkpoint::Checkpoint::open(folder / "boxes");
    EXPECT_EQ(boxes.entry("exp_avg/weight").shape, kShape);
    EXPECT_EQ(boxes.entry("exp_avg/weight").shards.size(), 2u);
    Columns resumed(0, 8);
    resumed.load(boxes);
    Columns part(2, 5); // another cut
    part.load(checkpoint::Checkpoint::open(folder / "whole"));
    whole.step(3);
    resumed.step(3);
    part.step(3);
    EXPECT_TRUE(resumed.weight().equal(whole.weight()));
    EXPECT_TRUE(part.weight().equal(part.columns(whole.weight())));
    EXPECT_THROW(boxes.read_into("weight", checkpoint::Region{{0, 6}, {6, 3}, 0, 18}, torch::zeros({18})), InputError);
    EXPECT_THROW(boxes.read_into("weight", checkpoint::Region{{0, 6}, {6, 2}, 0, 12}, torch::zeros({13})), InputError);
  });
  fs::remove_all(folder);
}

} // namespace
} // namespace trireme::engine
