// Moves to files and back lie beside the computation: it goes on while they are under way. Files are read and written
// when the test lets them, so that whoever waits too early waits for ever.
#include <trireme/memory/activations/activations.h>

#include <trireme/base/file.h>

#include <tests/support/aio_watch.h>

#include <torch/types.h>
#include <torch/utils.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <vector>

namespace trireme::activations {
namespace {

constexpr int kSines = 5;
constexpr int64_t kSineNumel = 4096;
constexpr int64_t kSineBytes = kSineNumel * 4;

/// A part for each sine, which saves its input. `begins` is called with its number in forward, `is_back` when its
/// backward is over.
at::Tensor sines(at::Tensor x, const std::function<void(int)>& begins = nullptr,
                 const std::function<void(int)>& is_back = nullptr) {
  static const int keys[kSines] = {};
  for (int i = 0; i < kSines; ++i) {
    const auto sine = [&begins, &is_back, i](const at::Tensor& in) {
      if (begins) {
        begins(i);
        in.register_hook([is_back, i](const at::Tensor&) { is_back(i); });
      }
      return in.sin();
    };
    x = call({.key = &keys[i], .type = "Sine"}, sine, x);
  }
  return x.sum();
}

TEST(ActivationMovesTest, ComputationGoesOnWhileFilesAreWrittenAndRead) {
  ::setenv("TRIREME_AIO", "threads", 1);
  const ScratchFolder scratch(make_scratch_folder("trireme_activations"));
  const at::Tensor start = torch::linspace(-1, 1, kSineNumel);
  const at::Tensor plain = start.clone().requires_grad_();
  sines(plain * 2).backward();
  Activations activations(Options{.policy = Way::nvme, .nvme_path = scratch.path.string(), .least_bytes = 0});
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = start.clone().requires_grad_();
    const int64_t before = activations.bytes_in();
    // A part's bytes are written when the next part has begun. Those of the last one are used from memory; backward
    // lets them go before its hooks are called.
    const auto begins = [](int i) { test::let_aio_go(i > 0 ? 1 : 0); };
    const auto is_back = [&](int i) {
      EXPECT_EQ(activations.bytes_in() - before, std::min(kSines - i + 1, kSines) * kSineBytes)
          << "the part before part " << i << " is on its way when that one has been used";
      test::let_aio_go(); // what the part before needs: until now nobody did
    };
    test::hold_aio(true, true);
    at::Tensor loss;
    {
      const auto scope = activations.enter({});
      loss = sines(x * 2, begins, is_back);
    }
    EXPECT_EQ(activations.bytes_out(), (step + 1) * kSines * kSineBytes);
    test::let_aio_go();
    loss.backward();
    test::end_hold_of_aio();
    activations.end_step();
    EXPECT_TRUE(x.grad().equal(plain.grad()));
  }
}

} // namespace
} // namespace trireme::activations
