// A step whose numbers are rows in device memory.
#include "child.h"

#include <trireme/optim/flat_optimizer.h>

#include <torch/utils.h>

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

} // namespace
} // namespace trireme::sim
