#include <trireme/memory/recompute/recompute.h>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/utils.h>

#include <gmock/gmock.h>

namespace trireme::recompute {
namespace {

class Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit Hook(std::function<void()> f) : f_(std::move(f)) {}
  void operator()(const torch::autograd::Variable&) override { f_(); }

 private:
  std::function<void()> f_;
};

void on_gradient(const at::Tensor& parameter, std::function<void()> f) {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Hook>(std::move(f)));
}

// first, then second with `depth` recomputations around it; second's gradient comes first.
struct Chain {
  at::Tensor first = torch::ones({2}).requires_grad_();
  at::Tensor second = torch::ones({2}).requires_grad_();

  at::Tensor forward(int depth) const {
    std::function<at::Tensor(const at::Tensor&)> f = [this](const at::Tensor& x) { return x * second; };
    for (int i = 0; i < depth; ++i) {
      f = [f](const at::Tensor& x) { return call(f, x); };
    }
    return f(first * 3).sum();
  }
};

TEST(QueueAtEndTest, WaitsForTheOutermostBackward) {
  for (int depth = 0; depth < 4; ++depth) {
    Chain chain;
    int hooks = 0;
    int ends = 0;
    on_gradient(chain.second, [&] {
      EXPECT_FALSE(chain.first.grad().defined());
      ++hooks;
      queue_at_end([&] {
        EXPECT_TRUE(chain.first.grad().defined()) << "ended too early, depth " << depth;
        ++ends;
      });
    });
    chain.forward(depth).backward();
    EXPECT_EQ(hooks, 1);
    EXPECT_EQ(ends, 1);
  }
}

// What it is for: autograd's own callback fires at the end of the inner backward.
TEST(QueueAtEndTest, AutogradsOwnCallbackIsTooEarly) {
  Chain chain;
  bool early = false;
  on_gradient(chain.second, [&] {
    torch::autograd::Engine::get_default_engine().queue_callback([&] { early = !chain.first.grad().defined(); });
  });
  chain.forward(1).backward();
  EXPECT_TRUE(early);
}

TEST(QueueAtEndTest, EveryBackwardHasItsOwnEnd) {
  Chain chain;
  int ends = 0;
  on_gradient(chain.second, [&] { queue_at_end([&] { ++ends; }); });
  for (int i = 1; i <= 3; ++i) {
    chain.forward(1).backward();
    EXPECT_EQ(ends, i);
  }
}

TEST(QueueAtEndTest, OutsideOfABackwardIsAnError) {
  EXPECT_THROW(queue_at_end([] {}), c10::Error);
}

TEST(QueueAtEndTest, AnErrorInsideLeavesNothingBehind) {
  Chain chain;
  on_gradient(chain.second, [] { throw std::runtime_error("boom"); });
  EXPECT_THROW(chain.forward(2).backward(), std::runtime_error);
  Chain next;
  bool ended = false;
  on_gradient(next.second, [&] { queue_at_end([&] { ended = true; }); });
  next.forward(0).backward(); // autograd itself calls it: a frame that was left would keep it
  EXPECT_TRUE(ended);
}

} // namespace
} // namespace trireme::recompute
