#include "child.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>

namespace trireme::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(SimDeviceTest, IsAnAcceleratorOnceItIsStarted) {
  EXPECT_EQ(guard().deviceCount(), 0);
  in_a_child([] {
    EXPECT_EQ(at::accelerator::getAccelerator(), c10::kPrivateUse1);
    EXPECT_EQ(at::accelerator::deviceCount(), 2);
    EXPECT_EQ(torch::ones({3}, there()).device(), device());
    EXPECT_EQ(torch::ones({3}, at::TensorOptions().device(device(1))).add(1).device(), device(1));
  });
}

TEST(SimDeviceTest, TheHostCrashesWhereItTouchesItsMemory) {
  const auto lines = test::run_processes(1, [](int) {
    start();
    const at::Tensor tensor = torch::ones({4}, there());
    volatile float read = *tensor.const_data_ptr<float>();
    static_cast<void>(read);
  });
  EXPECT_THAT(lines, ElementsAre(HasSubstr("signal 11")));
}

struct Net : torch::nn::Module {
  torch::nn::Embedding tokens{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, head{nullptr};
  Net() {
    tokens = register_module("tokens", torch::nn::Embedding(11, 8));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    qkv = register_module("qkv", torch::nn::Linear(8, 24));
    out = register_module("out", torch::nn::Linear(8, 8));
    head = register_module("head", torch::nn::Linear(8, 11));
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y, double dropout) {
    at::Tensor h = tokens->forward(x);
    const auto parts = qkv->forward(norm->forward(h)).chunk(3, -1);
    const at::Tensor weights = at::softmax(parts[0].matmul(parts[1].transpose(1, 2)) / std::sqrt(8.0), -1);
    h = h + at::dropout(out->forward(weights.matmul(parts[2])), dropout, true);
    return at::cross_entropy_loss(head->forward(h).reshape({-1, 11}), y.reshape({-1}));
  }
};

std::vector<at::Tensor> trained(at::Device on, double dropout) {
  torch::manual_seed(5);
  Net net;
  torch::manual_seed(7);
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : net.parameters()) {
    parameter.unsafeGetTensorImpl()->shallow_copy_from(parameter.detach().to(on).getIntrusivePtr());
    weights.push_back(parameter);
  }
  const at::Tensor x = (torch::arange(20) % 11).view({4, 5}).to(on);
  const at::Tensor y = ((torch::arange(20) * 3) % 11).view({4, 5}).to(on);
  for (int step = 0; step < 3; ++step) {
    net.loss(x, y, dropout).backward();
    const torch::NoGradGuard no_grad;
    for (at::Tensor& weight : weights) {
      weight.sub_(weight.grad(), 0.1);
      weight.mutable_grad().reset();
    }
  }
  for (at::Tensor& weight : weights) {
    weight = weight.detach().cpu();
  }
  return weights;
}

TEST(SimDeviceTest, TrainsToTheBitsOfTheCpu) {
  in_a_child([] {
    for (const double dropout : {0.0, 0.5}) {
      const auto expected = trained(at::kCPU, dropout);
      const auto got = trained(device(), dropout);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(got[i].equal(expected[i])) << i << " with dropout " << dropout;
      }
    }
    EXPECT_THAT(problems(), IsEmpty());
  });
}

// stream A writes, stream B reads.
void read_on_another_stream(bool waits) {
  const c10::Stream other = another_stream();
  const at::Tensor tensor = torch::zeros({8}, there());
  tensor.record_stream(other);
  tensor.add_(1);
  c10::Event written(c10::kPrivateUse1);
  written.record(guard().getStream(device()));
  if (waits) {
    written.block(other);
  }
  const c10::StreamGuard on(other);
  tensor.sum();
}

TEST(SimDeviceTest, AMissingEventIsARace) {
  in_a_child([] {
    read_on_another_stream(true);
    EXPECT_THAT(problems(), IsEmpty());
    read_on_another_stream(false);
    ASSERT_FALSE(problems().empty());
    EXPECT_THAT(problems().front(), HasSubstr("aten::sum on stream 2 reads what aten::add on stream 0"));
    EXPECT_THAT(problems().front(), HasSubstr("wrote, without waiting for it"));
  });
}

void free_while_used(bool records) {
  const c10::Stream other = another_stream();
  at::Tensor tensor = torch::zeros({8}, there());
  c10::Event written(c10::kPrivateUse1);
  written.record(guard().getStream(device()));
  written.block(other);
  {
    const c10::StreamGuard on(other);
    tensor.sum();
  }
  if (records) {
    tensor.record_stream(other);
  }
  tensor.reset();
}

TEST(SimDeviceTest, AMissingRecordStreamIsReported) {
  in_a_child([] {
    free_while_used(true);
    EXPECT_THAT(problems(), IsEmpty());
    free_while_used(false);
    EXPECT_THAT(problems(), ElementsAre(HasSubstr("record_stream() is missing")));
  });
}

TEST(SimDeviceTest, WaitsOfTheHostAreCounted) {
  in_a_child([] {
    const at::Tensor tensor = torch::ones({4}, there());
    reset_host_synchronisations();
    tensor.sum().item<float>();
    EXPECT_EQ(host_synchronisations(), 1);
    tensor.cpu();
    EXPECT_EQ(host_synchronisations(), 2);
    torch::ones({4}).to(device());
    EXPECT_EQ(host_synchronisations(), 3);
    tensor.copy_(pinned({1, 2, 3, 4}), /*non_blocking=*/true);
    EXPECT_EQ(host_synchronisations(), 3) << testing::PrintToString(host_synchronisation_names());
  });
}

TEST(SimDeviceTest, WorkOnTheStreamOfAnotherDeviceIsReported) {
  in_a_child([] {
    const at::Tensor first = torch::ones({4}, there());
    const at::Tensor second = torch::ones({4}, at::TensorOptions(device(1)));
    first.copy_(second);
    EXPECT_THAT(problems(), IsEmpty()) << "a copy may";
    launch("add", {{first.const_data_ptr(), 16, false}, {second.const_data_ptr(), 16, true}});
    EXPECT_THAT(problems(), ElementsAre("add on stream 0 of device 1 reads memory of device 0"));
  });
}

// ZeRO 3 frees and allocates the memory of storages.
TEST(SimDeviceTest, AStorageGrowsOnItsOwnDevice) {
  in_a_child([] {
    const at::Tensor tensor = torch::ones({4}, at::TensorOptions(device(1)));
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(tensor.storage(), 4096);
    EXPECT_EQ(tensor.sum().item<float>(), 4);
    EXPECT_THAT(problems(), IsEmpty());
  });
}

TEST(SimDeviceTest, AnEventIsReadyAfterSomePolls) {
  in_a_child([] {
    set_polls(3);
    torch::ones({4}, there());
    c10::Event event(c10::kPrivateUse1);
    event.record(guard().getStream(device()));
    EXPECT_FALSE(event.query());
    EXPECT_FALSE(event.query());
    EXPECT_TRUE(event.query());
  });
}

TEST(SimDeviceTest, AnEventThatWasWaitedForIsReady) {
  in_a_child([] {
    set_polls(3);
    c10::Event event(c10::kPrivateUse1);
    event.record(guard().getStream(device()));
    event.synchronize();
    EXPECT_TRUE(event.query());
  });
}

TEST(SimDeviceTest, AnEventIsReadyWhenLaterWorkWasWaitedFor) {
  in_a_child([] {
    set_polls(1000);
    c10::Event before(c10::kPrivateUse1), after(c10::kPrivateUse1);
    const at::Tensor tensor = torch::ones({4}, there());
    before.record(guard().getStream(device()));
    tensor.add(1).sum().item();
    EXPECT_TRUE(before.query());
    tensor.add(1);
    after.record(guard().getStream(device()));
    EXPECT_FALSE(after.query());
  });
}

TEST(SimDeviceTest, TimedEventsCountTheKernelsBetweenThem) {
  in_a_child([] {
    c10::Event begin(c10::kPrivateUse1, c10::EventFlag::BACKEND_DEFAULT),
        end(c10::kPrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
    const at::Tensor tensor = torch::ones({4}, there());
    begin.record(guard().getStream(device()));
    tensor.add(1);
    {
      const c10::StreamGuard elsewhere(another_stream());
      torch::ones({4}, there());
    }
    tensor.add(1);
    end.record(guard().getStream(device()));
    EXPECT_EQ(begin.elapsedTime(end), 2);
    const c10::Event untimed(c10::kPrivateUse1);
    EXPECT_THROW(begin.elapsedTime(untimed), c10::ValueError);
  });
}

TEST(SimDeviceTest, ACopyBetweenDevicesIsOrderedOnBoth) {
  in_a_child([] {
    const at::Tensor first = torch::full({3}, 2, there());
    const at::Tensor second = first.to(device(1));
    first.add_(1);
    EXPECT_EQ(second.add(1).sum().item<float>(), 9);
    EXPECT_THAT(problems(), IsEmpty());
  });
}

TEST(SimDeviceTest, TensorsOnForeignPointersShareMemory) {
  in_a_child([] {
    const at::Tensor tensor = torch::zeros({4}, there());
    const at::Tensor part = at::for_blob(static_cast<float*>(tensor.mutable_data_ptr()) + 2, {2})
                                .options(there())
                                .target_device(device())
                                .make_tensor();
    part.fill_(3);
    EXPECT_EQ(tensor.sum().item<float>(), 6);
  });
}

TEST(SimDeviceTest, RandomNumbersAreTheCpus) {
  in_a_child([] {
    torch::manual_seed(11);
    const at::Tensor expected = torch::randn({5});
    torch::manual_seed(11);
    EXPECT_TRUE(torch::randn({5}, there()).cpu().equal(expected));
    at::Generator generator = at::globalContext().defaultGenerator(device());
    const at::Tensor state = generator.get_state();
    const at::Tensor first = torch::rand({3}, there()).cpu();
    generator.set_state(state);
    EXPECT_TRUE(torch::rand({3}, there()).cpu().equal(first));
  });
}

TEST(SimDeviceTest, AutocastIsTheCpus) {
  in_a_child([] {
    const auto run = [](at::Device on) {
      const at::Tensor x = (torch::arange(12, at::kFloat).view({3, 4}) / 7).to(on);
      const at::Tensor w = (torch::arange(8, at::kFloat).view({2, 4}) / 3).to(on);
      at::autocast::set_autocast_enabled(on.type(), true);
      at::autocast::set_autocast_dtype(on.type(), at::kBFloat16);
      const at::Tensor y = at::linear(x, w);
      at::autocast::set_autocast_enabled(on.type(), false);
      at::autocast::clear_cache();
      return y.cpu();
    };
    EXPECT_EQ(run(device()).scalar_type(), at::kBFloat16);
    EXPECT_TRUE(run(device()).equal(run(at::kCPU)));
  });
}

// As on CUDA.
TEST(SimDeviceTest, AutocastPromotesOperationsOfTwoTypes) {
  in_a_child([] {
    const at::Tensor wide = torch::ones({3}, there());
    const at::Tensor narrow = torch::ones({3}, there().dtype(at::kBFloat16));
    at::autocast::set_autocast_enabled(c10::kPrivateUse1, true);
    at::autocast::set_autocast_dtype(c10::kPrivateUse1, at::kBFloat16);
    EXPECT_EQ(at::dot(wide, narrow).scalar_type(), at::kFloat);
    EXPECT_EQ(at::dot(narrow, narrow).scalar_type(), at::kBFloat16);
    EXPECT_EQ(at::atan2(narrow, wide).scalar_type(), at::kFloat);
    EXPECT_EQ(at::norm(narrow, 2).scalar_type(), at::kFloat);
    at::autocast::set_autocast_enabled(c10::kPrivateUse1, false);
    at::autocast::clear_cache();
  });
}

TEST(SimDeviceTest, AutocastTakesSoftmaxInSinglePrecision) {
  in_a_child([] {
    at::autocast::set_autocast_enabled(c10::kPrivateUse1, true);
    at::autocast::set_autocast_dtype(c10::kPrivateUse1, at::kBFloat16);
    EXPECT_EQ(at::softmax(torch::ones({2, 2}, there().dtype(at::kBFloat16)), -1).scalar_type(), at::kFloat);
    at::autocast::set_autocast_enabled(c10::kPrivateUse1, false);
    at::autocast::clear_cache();
  });
}

TEST(SimDeviceTest, MemoryIsCountedAndReused) {
  in_a_child([] {
    at::Tensor tensor = torch::empty({1 << 18}, there());
    EXPECT_EQ(memory().bytes, 1 << 20);
    const void* const first = tensor.const_data_ptr();
    tensor.reset();
    EXPECT_EQ(memory().bytes, 0);
    EXPECT_EQ(torch::empty({1 << 18}, there()).const_data_ptr(), first);
    EXPECT_EQ(memory().peak, 1 << 20);
    const at::Tensor elsewhere = torch::empty({1 << 10}, at::TensorOptions().device(device(1)));
    EXPECT_EQ(memory().bytes, 0);
    EXPECT_EQ(memory(1).bytes, 4 << 10);
    EXPECT_EQ(memory(1).peak, 4 << 10);
  });
}

// As on CUDA: only numbers without dimensions and indices may be on the host.
TEST(SimDeviceTest, TensorsOfTheHostAreRefused) {
  in_a_child([] {
    const at::Tensor table = torch::ones({4, 3}, there());
    const at::Tensor rows = torch::tensor({1, 2});
    EXPECT_THROW(at::embedding(table, rows), c10::Error);
    const at::Tensor weight = torch::ones({1, 2, 3}, there());
    EXPECT_THROW(at::conv1d(torch::ones({1, 2, 5}), weight), c10::Error);
    EXPECT_EQ(at::conv1d(torch::ones({1, 2, 5}, there()), weight).sum().item<float>(), 18);
    EXPECT_EQ(at::embedding(table, rows.to(there().device())).sizes(), (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(table.index({rows}).sizes(), (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(table.mul(torch::tensor(2.0)).sum().item<float>(), 24);
  });
}

TEST(SimDeviceTest, KernelsOfOurOwnAreChecked) {
  in_a_child([] {
    const at::Tensor tensor = torch::ones({4}, there());
    launch("own kernel", {{tensor.const_data_ptr(), 16, true}});
    static_cast<float*>(kernel_pointer(tensor.const_data_ptr()))[2] = 5;
    EXPECT_EQ(tensor.sum().item<float>(), 8);
    EXPECT_THAT(problems(), IsEmpty());
    launch("first", {{tensor.const_data_ptr(), 16, true}});
    const c10::StreamGuard on(another_stream());
    launch("second", {{tensor.const_data_ptr(), 16, false}});
    EXPECT_THAT(problems(),
                ElementsAre("second on stream 1 reads what first on stream 0 wrote, without waiting for it"));
  });
}

} // namespace
} // namespace trireme::sim
