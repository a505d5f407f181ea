// Large results are computed and sent in pieces: the same numbers, and a piece is on its way before the one before it
// is waited for. A gradient of an input travels while that of the weights is computed.
#include <trireme/comm/recorder.h>
#include <trireme/parallel/tensor/layers.h>

#include <tests/support/run_ranks.h>

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <memory>
#include <string>
#include <string_view>

namespace trireme::tensor {
namespace {

constexpr int64_t kMiddle = 64;

struct Shape {
  int64_t samples, tokens, features;
  size_t pieces; ///< of 1 MiB a sample, of 8 MiB at most
};

/// The operations of this process with that name, in their order.
std::vector<comm::Record> named(const char* what) {
  std::vector<comm::Record> found = comm::Recorder::process().records();
  std::erase_if(found, [&](const comm::Record& record) { return record.what != what; });
  return found;
}

/// Over shared memory the rank that comes last may end an operation as it begins it: when it was waited for says
/// nothing there.
bool ends_when_waited_for(const std::string& backend) {
  return backend != "shm";
}

/// There are so many pieces behind the first `before` operations, and each was on its way before the one before it was
/// waited for.
void expect_overlap(const std::string& backend, const char* what, size_t pieces, size_t before = 0) {
  const std::vector<comm::Record> records = named(what);
  ASSERT_EQ(records.size(), before + pieces) << what;
  for (size_t i = before + 1; i < records.size() && ends_when_waited_for(backend); ++i) {
    EXPECT_LE(records[i].queued_us, records[i - 1].finished_us) << what << ", piece " << i - before;
  }
}

void check(comm::World& world, const std::string& backend, const Shape& shape) {
  const Ranks ranks{world.group(), /*sequence_parallel=*/true};
  torch::manual_seed(11);
  ColumnParallelLinear column(shape.features, kMiddle, ranks);
  RowParallelLinear row(kMiddle, shape.features, ranks);
  torch::manual_seed(11);
  torch::nn::Linear first(shape.features, kMiddle);
  torch::nn::Linear second(kMiddle, shape.features);
  const at::Tensor whole = torch::cos(torch::arange(shape.samples * shape.tokens * shape.features).to(torch::kFloat32))
                               .view({shape.samples, shape.tokens, shape.features})
                               .requires_grad_();
  const at::Tensor dy = torch::sin(torch::arange(whole.numel()).to(torch::kFloat32)).view(whole.sizes());
  const auto part = [&](const at::Tensor& x) {
    return x.detach().chunk(world.size(), 1)[static_cast<size_t>(world.rank())].contiguous();
  };
  const at::Tensor x = part(whole).requires_grad_();

  const at::Tensor y = row->forward(column->forward(x));
  expect_overlap(backend, "parts of a layer", shape.pieces); // before the column's product
  if (const std::vector<comm::Record> gathers = named("parts of a layer");
      gathers.size() > 3 && ends_when_waited_for(backend)) {
    EXPECT_GE(gathers[3].queued_us, gathers[0].finished_us) << "not all at once: two ahead";
  }
  expect_overlap(backend, "sum of a layer, in parts", shape.pieces); // behind the row's
  y.backward(part(dy));
  expect_overlap(backend, "sum of a layer, in parts", shape.pieces, /*before=*/shape.pieces); // behind the column's
  const at::Tensor expected = second->forward(first->forward(whole));
  expected.backward(dy);

  const auto near = [](const at::Tensor& found, const at::Tensor& wanted, const char* what) {
    EXPECT_LT((found - wanted).abs().max().item<double>(), 1e-5 * std::max(1.0, wanted.abs().max().item<double>()))
        << what;
  };
  near(y.detach(), part(expected), "result");
  near(x.grad(), part(whole.grad()), "gradient of the input");
  near(column->weight.grad(), first->weight.grad().chunk(world.size(), 0)[static_cast<size_t>(world.rank())],
       "gradient of the matrix split by columns");
  near(row->weight.grad(), second->weight.grad().chunk(world.size(), 1)[static_cast<size_t>(world.rank())],
       "gradient of the matrix split by rows");
}

/// How far the last of those operations is as each matrix product begins; -1: there is none.
class AtProducts {
 public:
  explicit AtProducts(const char* what) : what_(what) {
    the_ = this;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
          if (std::string_view(function.name()) == "aten::mm") {
            const std::vector<comm::Record> records = named(the_->what_);
            the_->states.push_back(records.empty() ? -1 : static_cast<int>(records.back().state));
          }
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~AtProducts() { at::removeCallback(handle_); }

  std::vector<int> states;

 private:
  static inline thread_local AtProducts* the_ = nullptr;
  const char* what_;
  at::CallbackHandle handle_ = 0;
};

TEST(PiecesTest, TheGradientOfAColumnLayersInputTravelsBesideThatOfItsWeights) {
  for (const bool sequence_parallel : {false, true}) {
    const auto check_column = [&](comm::World& world, const std::string& backend) {
      torch::manual_seed(13);
      ColumnParallelLinear column(128, kMiddle, Ranks{world.group(), sequence_parallel});
      const at::Tensor y = column->forward(torch::ones({2, 64, 128}).requires_grad_());
      const AtProducts seen(sequence_parallel ? "sum of a layer, in parts" : "sum of a layer");
      y.backward(torch::ones_like(y));
      ASSERT_EQ(seen.states.size(), 2u) << "of the input, and of the weights";
      EXPECT_EQ(seen.states[0], -1);
      EXPECT_NE(seen.states[1], -1) << "it is on its way";
      if (ends_when_waited_for(backend)) {
        EXPECT_EQ(seen.states[1], static_cast<int>(comm::OpState::started)) << "nobody has waited for it yet";
      }
    };
    for (const char* backend : {"shm", "gloo"}) {
      EXPECT_THAT(test::run_ranks(2, [&](comm::World& world) { check_column(world, backend); }, {.backend = backend}),
                  testing::IsEmpty())
          << backend << (sequence_parallel ? ", sequence parallel" : "");
    }
  }
}

TEST(PiecesTest, SumsOfALayerSplitByRowsWithoutSequenceParallelism) {
  const auto check_row = [](comm::World& world, const std::string& backend) {
    const Ranks ranks{world.group(), /*sequence_parallel=*/false};
    torch::manual_seed(12);
    RowParallelLinear row(kMiddle, 1024, ranks);
    torch::manual_seed(12);
    torch::nn::Linear whole(kMiddle, 1024);
    const at::Tensor x = torch::cos(torch::arange(2 * 3000 * kMiddle).to(torch::kFloat32))
                             .view({2, 3000, kMiddle}); // results of 24.6 MB: two whole pieces and a rest
    const at::NoGradGuard no_gradients;
    const at::Tensor y = row->forward(x.chunk(world.size(), -1)[static_cast<size_t>(world.rank())]);
    expect_overlap(backend, "sum of a layer", 3);
    EXPECT_LT((y - whole->forward(x)).abs().max().item<double>(), 1e-5);
  };
  for (const char* backend : {"shm", "gloo"}) {
    EXPECT_THAT(test::run_ranks(2, [&](comm::World& world) { check_row(world, backend); }, {.backend = backend}),
                testing::IsEmpty())
        << backend;
  }
}

TEST(PiecesTest, PiecesAreOnTheirWayBeforeTheyAreWaitedFor) {
  for (const Shape& shape : {Shape{4, 512, 512, 4}, Shape{1, 4096, 1024, 2}, Shape{2, 4096, 1024, 4}}) {
    for (const char* backend : {"shm", "gloo"}) {
      EXPECT_THAT(test::run_ranks(2, [&](comm::World& world) { check(world, backend, shape); }, {.backend = backend}),
                  testing::IsEmpty())
          << shape.samples << " samples of " << shape.tokens << " tokens, " << backend;
    }
  }
}

} // namespace
} // namespace trireme::tensor
