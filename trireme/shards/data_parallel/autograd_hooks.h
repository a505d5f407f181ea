// The hooks that a Reducer installs in autograd's graph.
#pragma once

#include <trireme/fused/gradient_home.h>

#include <torch/csrc/autograd/function_hook.h>

#include <functional>
#include <utility>

namespace trireme::parallel {

/// Runs when a parameter's gradient of this backward is complete.
class ReadyHook : public torch::autograd::PostAccumulateGradHook {
 public:
  ReadyHook(const void* reducer, std::function<void()> ready) : reducer_(reducer), ready_(std::move(ready)) {}
  void operator()(const torch::autograd::Variable&) override { ready_(); }
  bool is_of(const void* reducer) const { return reducer_ == reducer; }

 private:
  const void* reducer_;
  std::function<void()> ready_;
};

/// A ReadyHook of a parameter whose gradient operators may write themselves.
class HomeHook : public ReadyHook, public fused::GradientHome {
 public:
  HomeHook(const void* reducer, std::function<void()> ready, std::function<fused::GradientMemory()> open)
      : ReadyHook(reducer, std::move(ready)), open_(std::move(open)) {}
  fused::GradientMemory open() override { return open_(); }

 private:
  std::function<fused::GradientMemory()> open_;
};

/// Runs after a parameter's AccumulateGrad, also if that got no gradient: then no ReadyHook ran.
class AfterHook : public torch::autograd::FunctionPostHook {
 public:
  explicit AfterHook(std::function<void(bool has_gradient)> after) : after_(std::move(after)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& gradients) override {
    after_(!gradients.empty() && gradients.front().defined());
    return outputs;
  }

 private:
  std::function<void(bool)> after_;
};

/// Drops a parameter's gradient: precedes its AccumulateGrad, which adds nothing when it gets no gradient.
class DropHook : public torch::autograd::FunctionPreHook {
 public:
  explicit DropHook(std::function<bool()> drops) : drops_(std::move(drops)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    return drops_() ? torch::autograd::variable_list(gradients.size()) : gradients;
  }

 private:
  std::function<bool()> drops_;
};

/// Calls `ended` in run(). Autograd drops the callbacks of a backward that fails; then the destructor calls `failed`.
class AtEnd {
 public:
  AtEnd(std::function<void()> ended, std::function<void()> failed)
      : ended_(std::move(ended)), failed_(std::move(failed)) {}
  ~AtEnd() {
    if (failed_) {
      failed_();
    }
  }
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;
  void run() {
    failed_ = nullptr;
    ended_();
  }

 private:
  std::function<void()> ended_;
  std::function<void()> failed_;
};

} // namespace trireme::parallel
