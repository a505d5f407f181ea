// The numbers of a step as rows that kernels read from memory: what a captured launch needs.
#include "flat_rank.h"

#include <trireme/optim/adam.h>
#include <trireme/optim/aten_kernels.h>

#include <gmock/gmock.h>

namespace trireme::optim {
namespace {

/// Parameters of three groups: two weight decays and a factor of lr.
struct Grouped {
  explicit Grouped(const OptimizerOptions& options) {
    torch::manual_seed(3);
    bucket::NamedTensors parameters;
    for (const int64_t n : {300, 7, 260, 513}) {
      parameters.emplace_back(concat("p", n), torch::randn({n}).set_requires_grad(true));
    }
    flat = std::make_unique<bucket::FlatParameters>(parameters, bucket::LayoutOptions(), allocate);
    optimizer = std::make_unique<FlatOptimizer>(
        std::vector{flat.get()},
        [](const bucket::TensorInfo& tensor) {
          return tensor.name == "p7"     ? ParameterOptions{0, 1}
                 : tensor.name == "p260" ? ParameterOptions{0.1, 0.3, 0}
                                         : ParameterOptions{0.1};
        },
        options);
  }
  void set_gradients(int64_t step) {
    for (int64_t i = 0; i < flat->count(); ++i) {
      torch::manual_seed(static_cast<uint64_t>(100 * step + i));
      flat->attach_zero_grad(i);
      flat->parameter(i).mutable_grad().copy_(torch::randn(flat->parameter(i).sizes()));
    }
  }
  void finish() {
    optimizer->prepare();
    for (int64_t b = 0; b < std::ssize(flat->layout().buckets()); ++b) {
      optimizer->step_bucket(0, b);
    }
  }

  std::unique_ptr<bucket::FlatParameters> flat;
  std::unique_ptr<FlatOptimizer> optimizer;
};

void expect_rows_equal_values(const OptimizerOptions& options) {
  Grouped by_value(options), by_row(options);
  for (int64_t step = 1; step <= 4; ++step) {
    const double lr = 0.01 * static_cast<double>(step);
    const std::optional<Betas> betas = step == 3 ? std::optional(Betas{0.8, 0.9}) : std::nullopt;
    const std::vector<double> factors = {step < 3 ? 0.3 : 0.7};
    for (Grouped* one : {&by_value, &by_row}) {
      one->set_gradients(step);
      one->optimizer->set_lr_factors(factors);
    }
    by_value.optimizer->begin_step(lr, betas, 0.5);
    const at::Tensor rows = by_row.optimizer->step_scalars(lr, betas, by_row.optimizer->steps() + 1);
    ASSERT_EQ(rows.size(0), 3);
    by_row.optimizer->begin_step(/*lr=*/1e9, Betas{0.1, 0.2}, 0.5, {}, rows);
    by_row.optimizer->set_steps(77); // what a captured launch would have kept
    by_value.finish();
    by_row.finish();
    by_row.optimizer->set_steps(step);
    ASSERT_TRUE(torch::equal(by_value.flat->flat_data(), by_row.flat->flat_data()))
        << by_value.optimizer->rule().name() << ", step " << step;
  }
}

TEST(StepScalarsTest, RowsInMemoryHaveTheBitsOfNumbersByValue) {
  for (const StateType type : {StateType::fp32, StateType::bf16, StateType::int8}) {
    for (const Rule& rule : kRules) {
      if (type != StateType::int8 || !is_lamb(rule)) {
        expect_rows_equal_values(options_of(rule, type));
      }
    }
  }
  expect_rows_equal_values(options_of(AdamOptions{.decoupled_weight_decay = false}));
}

TEST(StepScalarsTest, ATensorOfTheWrongTypeIsNamed) {
  Grouped one(options_of(AdamOptions{}));
  one.set_gradients(1);
  one.optimizer->begin_step(0.1, std::nullopt, 1, {}, torch::zeros({3, kernels::kStepScalars}));
  try {
    one.finish();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("adamw: step_scalars must be a contiguous int32 array"));
  }
  EXPECT_THROW(one.optimizer->step_scalars(0.1, std::nullopt, 0), Error);
}

/// ATen's operators need numbers on the host.
TEST(StepScalarsTest, AtenKernelsReadRows) {
  const Adam adam_row(AdamOptions{});
  const kernels::StepScalars row = adam_row.scalars({0.1, 0.2, 3, std::nullopt, {}});
  const auto stepped = [&](const kernels::StepScalars* in_memory) {
    torch::manual_seed(1);
    const at::Tensor param = torch::randn({50}), grad = torch::randn({50}), m = torch::rand({50}),
                     v = torch::rand({50});
    kernels::AdamArgs args;
    args.param = param.mutable_data_ptr<float>();
    args.grad = grad.const_data_ptr();
    args.exp_avg.values = m.mutable_data_ptr();
    args.exp_avg_sq.values = v.mutable_data_ptr();
    args.eps = 1e-8F;
    args.step_scalars = in_memory;
    if (in_memory == nullptr) {
      kernels::set_scalars(args, row);
    }
    kAtenKernels.adam(args, std::vector<Segment>{{0, 50}}, at::kCPU);
    return param;
  };
  EXPECT_TRUE(torch::equal(stepped(&row), stepped(nullptr)));
}

} // namespace
} // namespace trireme::optim
