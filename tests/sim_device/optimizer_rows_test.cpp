// A step whose numbers are rows in device memory.
#include "child.h"

#include <trireme/optim/flat_optimizer.h>

#include <torch/utils.h>

#include <cstdio>

namespace trireme::sim {
namespace {

at::Tensor allocate_there(int64_t numel, at::ScalarType type) {
  return torch::zeros({numel}, there().dtype(type));
}

/// The parameters after three steps, by value or by rows that were copied to the device before.
at::Tensor stepped(const optim::OptimizerOptions& options, bool by_rows) {
  torch::manual_seed(3);
  bucket::NamedTensors parameters;
  for (const int64_t n : {300, 7, 260}) {
    parameters.emplace_back(concat("p", n), torch::randn({n}).to(device()).set_requires_grad(true));
  }
  bucket::FlatParameters flat(parameters, bucket::LayoutOptions(), allocate_there);
  optim::FlatOptimizer optimizer(
      {&flat}, [](const bucket::TensorInfo& tensor) { return optim::ParameterOptions{tensor.name == "p7" ? 0.1 : 0}; },
      options);
  const at::Tensor rows = torch::zeros({2, kernels::kStepScalars}, there().dtype(torch::kInt));
  for (int64_t step = 1; step <= 3; ++step) {
    for (int64_t i = 0; i < flat.count(); ++i) {
      flat.attach_zero_grad(i);
      flat.parameter(i).mutable_grad().fill_(0.01 * static_cast<double>(step + i));
    }
    const double lr = 0.1 / static_cast<double>(step);
    if (by_rows) {
      rows.copy_(optimizer.step_scalars(lr, std::nullopt, step));
    }
    optimizer.begin_step(by_rows ? 1e9 : lr, std::nullopt, 1, {}, by_rows ? rows : at::Tensor());
    optimizer.prepare();
    for (int64_t b = 0; b < std::ssize(flat.layout().buckets()); ++b) {
      optimizer.step_bucket(0, b);
    }
  }
  return flat.flat_data().cpu();
}

TEST(SimDeviceOptimizer, RowsInDeviceMemoryHaveTheBitsOfNumbersByValue) {
  in_a_child([] {
    use_cpu_optimizer_kernels();
    for (const optim::Rule& rule :
         std::vector<optim::Rule>{optim::AdamOptions{}, optim::SgdOptions{.momentum = 0.9}, optim::LambOptions{},
                                  optim::LionOptions{}, optim::AdagradOptions{}, optim::RmspropOptions{}}) {
      for (const optim::StateType type : {optim::StateType::fp32, optim::StateType::bf16}) {
        const optim::OptimizerOptions options{.rule = rule, .state_type = type};
        EXPECT_TRUE(torch::equal(stepped(options, true), stepped(options, false))) << optim::family_of(rule);
      }
    }
    EXPECT_THAT(problems(), testing::IsEmpty());
  });
}

/// The parameters of GPT-2 with 124M, as many in as many buckets, each 1024 times smaller.
bucket::NamedTensors gpt_parameters() {
  bucket::NamedTensors parameters;
  const auto add = [&](const std::string& name, int64_t numel) {
    parameters.emplace_back(name, torch::zeros({numel}, there()).set_requires_grad(true));
  };
  add("tokens.weight", 50304 * 768 / 1024);
  add("positions.weight", 768);
  for (int64_t layer = 0; layer < 12; ++layer) {
    for (const int64_t width : {0, 3, 1, 0, 4, 4}) { // norms, and linear layers by their size
      const std::string name = concat("h", layer, '.', parameters.size());
      add(name + (width == 0 ? ".norm" : ".weight"), width == 0 ? 24 : 24 * 24 * width);
      add(name + ".bias", 24 * std::max<int64_t>(width, 1));
    }
  }
  add("last.norm", 24);
  add("last.bias", 24);
  return parameters;
}

int64_t launches_of_a_step(const optim::OptimizerOptions& options, int64_t& buckets, int64_t& runs) {
  const bucket::NamedTensors parameters = gpt_parameters();
  EXPECT_EQ(parameters.size(), 148);
  bucket::LayoutOptions layout;
  layout.bucket_bytes = 25 * 1024;
  layout.first_bucket_bytes = 1024;
  bucket::FlatParameters flat(parameters, layout, allocate_there);
  const auto decays = [](const std::string& name) { return name.ends_with(".weight"); };
  optim::FlatOptimizer optimizer(
      {&flat}, [&](const bucket::TensorInfo& tensor) { return optim::ParameterOptions{decays(tensor.name) ? 0.1 : 0}; },
      options);
  buckets = std::ssize(flat.layout().buckets());
  runs = 0;
  for (int64_t b = 0; b < buckets; ++b) {
    const bucket::Bucket& whole = flat.layout().buckets()[b];
    std::optional<bool> before;
    for (const bucket::TensorRange& piece : flat.layout().pieces_in(b, {whole.begin, whole.end})) {
      const bool now = decays(flat.layout().tensors()[piece.i].name);
      runs += before != now ? 1 : 0;
      before = now;
    }
  }
  for (int64_t i = 0; i < flat.count(); ++i) {
    flat.attach_zero_grad(i);
  }
  optimizer.begin_step(0.1, std::nullopt, 1);
  const int64_t first = launches(0);
  optimizer.prepare();
  for (int64_t b = 0; b < buckets; ++b) {
    optimizer.step_bucket(0, b);
  }
  return launches(0) - first;
}

/// A launch a bucket, however its parameters' options alternate; it was one for each run of equal options.
TEST(SimDeviceOptimizer, ABucketIsSteppedInOneLaunch) {
  in_a_child([] {
    use_cpu_optimizer_kernels();
    int64_t buckets = 0, runs = 0;
    for (const optim::StateType type : {optim::StateType::fp32, optim::StateType::bf16, optim::StateType::int8}) {
      EXPECT_EQ(launches_of_a_step({.rule = optim::AdamOptions{}, .state_type = type}, buckets, runs), buckets);
    }
    EXPECT_LE(launches_of_a_step({.rule = optim::LambOptions{}}, buckets, runs), 2 * buckets + 1) << "norms are zeroed";
    std::printf("124M: %ld buckets, %ld runs of equal options, 148 parameters\n", buckets, runs);
    EXPECT_GT(runs, 4 * buckets);
    EXPECT_THAT(problems(), testing::IsEmpty());
  });
}

} // namespace
} // namespace trireme::sim
