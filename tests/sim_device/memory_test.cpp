// The simulated device's memory and the host's pinned one: when they are used again, and by whom.
#include "child.h"

#include <trireme/device/host_buffer.h>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <cmath>
#include <set>

namespace trireme::sim {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(SimDeviceMemoryTest, PinnedMemoryArrivesWhenTheHostHasWaited) {
  in_a_child([] {
    const at::Tensor tensor = torch::full({2}, 3, there());
    const at::Tensor here = pinned({0, 0});
    here.copy_(tensor, /*non_blocking=*/true);
    EXPECT_TRUE(std::isnan(here[0].item<float>()));
    c10::Event copied(c10::kPrivateUse1);
    copied.record(guard().getStream(device()));
    copied.synchronize();
    EXPECT_EQ(here[1].item<float>(), 3);
  });
}

TEST(SimDeviceMemoryTest, PinnedMemoryThatIsChangedTooEarlyIsReported) {
  in_a_child([] {
    const at::Tensor from = pinned({1, 2});
    const at::Tensor tensor = torch::empty({2}, there());
    tensor.copy_(from, /*non_blocking=*/true);
    from.fill_(9);
    tensor.cpu();
    EXPECT_THAT(problems(), ElementsAre(HasSubstr("changed pinned memory")));
  });
}

// As CUDA's allocator, which asks the events of recorded streams.
TEST(SimDeviceMemoryTest, MemoryIsReusedWhenRecordedStreamsAreDone) {
  in_a_child([] {
    set_polls(3);
    const auto fresh = [](int64_t numel) { return torch::empty({numel}, there()).const_data_ptr(); };
    const auto used_elsewhere = [](int64_t numel) {
      const at::Tensor tensor = torch::empty({numel}, there());
      const c10::Stream other = another_stream();
      const c10::StreamGuard on(other);
      launch("kernel", {{tensor.const_data_ptr(), 4, false}});
      tensor.record_stream(other);
      return tensor.const_data_ptr();
    };
    EXPECT_EQ(fresh(8), fresh(8));
    const void* const small = used_elsewhere(1000);
    EXPECT_NE(fresh(1000), small);
    EXPECT_NE(fresh(2000), small);
    const at::Tensor one = torch::empty({1000}, there());
    const at::Tensor two = torch::empty({1000}, there());
    EXPECT_TRUE(one.const_data_ptr() == small || two.const_data_ptr() == small);
    set_polls(1000);
    const void* const large = used_elsewhere(5000);
    EXPECT_NE(fresh(5000), large);
    guard().synchronizeDevice(0); // the host knows: nothing to ask
    const at::Tensor first = torch::empty({5000}, there());
    const at::Tensor second = torch::empty({5000}, there());
    EXPECT_TRUE(first.const_data_ptr() == large || second.const_data_ptr() == large);
    EXPECT_THAT(problems(), IsEmpty());
  });
}

// The stream that it was allocated on may still work with it, for an earlier owner.
TEST(SimDeviceMemoryTest, MemoryOfOneStreamIsNotUsedOnAnotherBeforeItIsFree) {
  for (const bool waits : {true, false}) {
    in_a_child([waits] {
      torch::zeros({8}, there());
      const at::Tensor tensor = torch::empty({8}, there());
      const c10::Stream other = another_stream();
      c10::Event allocated(c10::kPrivateUse1);
      allocated.record(guard().getStream(device()));
      if (waits) {
        allocated.block(other);
      }
      const c10::StreamGuard on(other);
      launch("fill", {{tensor.const_data_ptr(), 32, true}});
      EXPECT_THAT(problems(), waits ? testing::Matcher<std::vector<std::string>>(IsEmpty())
                                    : ElementsAre("fill on stream 1 writes what an earlier owner of the memory on "
                                                  "stream 0 wrote, without waiting for it"));
    });
  }
}

TEST(SimDeviceMemoryTest, ACopyThatNeedsOtherHostMemoryWaits) {
  in_a_child([] {
    const at::Tensor tensor = torch::ones({4}, there());
    const at::Tensor here = pinned({1, 2, 3, 4});
    const auto waits = [&](const at::Tensor& to, const at::Tensor& from) {
      reset_host_synchronisations();
      to.copy_(from, /*non_blocking=*/true);
      return host_synchronisations();
    };
    EXPECT_EQ(waits(tensor, here), 0);
    EXPECT_EQ(waits(tensor.slice(0, 0, 4, 2), here.slice(0, 0, 2)), 0);
    EXPECT_EQ(waits(here, tensor), 0);
    EXPECT_EQ(waits(tensor, torch::ones({4})), 1) << "not pinned";
    EXPECT_EQ(waits(torch::ones({4}), tensor), 1) << "not pinned";
    EXPECT_EQ(waits(tensor, here.slice(0, 0, 1)), 1) << "another shape";
    EXPECT_EQ(waits(here.slice(0, 0, 4, 2), tensor.slice(0, 0, 2)), 1) << "with gaps";
    EXPECT_EQ(waits(torch::ones({4}, there().dtype(at::kBFloat16)), here), 1) << "another type";
    EXPECT_EQ(waits(here, torch::ones({4}, there().dtype(at::kBFloat16))), 1) << "another type";
  });
}

TEST(SimDeviceMemoryTest, PinnedMemoryThatACopyFillsIsNotTheHosts) {
  in_a_child([] {
    const at::Tensor tensor = torch::ones({2}, there());
    const auto here = [&] {
      const at::Tensor memory = pinned({0, 0});
      memory.copy_(tensor, /*non_blocking=*/true);
      return memory;
    };
    const auto expect_reported = [](const char* what) {
      EXPECT_THAT(problems(), ElementsAre(HasSubstr(what)));
      clear_problems();
    };
    const at::Tensor written = here();
    written.fill_(9);
    tensor.cpu(); // waits
    expect_reported("the host changed pinned memory while stream 0 copied into it");
    const at::Tensor seen_at_the_end = here();
    seen_at_the_end.fill_(9);
    expect_reported("copied into it");
    const at::Tensor twice = here();
    {
      const c10::StreamGuard on(another_stream());
      twice.copy_(torch::ones({2}, there()), /*non_blocking=*/true);
    }
    expect_reported("stream 1 copies into pinned memory that stream 0 still writes, without waiting for it");
    const at::Tensor sent = pinned({1, 2});
    torch::empty({2}, there()).copy_(sent, /*non_blocking=*/true);
    {
      const c10::StreamGuard on(another_stream());
      sent.copy_(torch::ones({2}, there()), /*non_blocking=*/true);
    }
    expect_reported("stream 2 copies into pinned memory that stream 0 still reads, without waiting for it");
    const at::Tensor in_order = pinned({1, 2});
    torch::empty({2}, there()).copy_(in_order, /*non_blocking=*/true);
    in_order.copy_(tensor, /*non_blocking=*/true);
    tensor.cpu();
    EXPECT_THAT(problems(), IsEmpty());
    EXPECT_EQ(in_order[1].item<float>(), 1);
  });
}

TEST(SimDeviceMemoryTest, BuffersOfAPoolAreGivenAgainWhenTheDeviceHasCopied) {
  in_a_child([] {
    const auto pool = std::make_shared<device::HostPool>(c10::kPrivateUse1);
    const at::Tensor tensor = torch::ones({1000}, there());
    const auto copied_to = [&] {
      const auto buffer = pool->take(4000);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 4096, 0u);
      const at::Tensor here = buffer->tensor(1000, at::kFloat);
      here.copy_(tensor, /*non_blocking=*/true);
      const auto copied = std::make_shared<device::Event>(c10::kPrivateUse1);
      copied->record(device::current_stream(device()));
      buffer->used_until(copied);
      return static_cast<void*>(buffer->data());
    };
    set_polls(3);
    reset_host_synchronisations();
    const void* const first = copied_to();
    const void* const second = copied_to();
    EXPECT_NE(second, first) << "it is still copied to";
    EXPECT_EQ(host_synchronisations(), 0);
    device::Event done(c10::kPrivateUse1);
    done.record(device::current_stream(device()));
    done.synchronize();
    const auto again = pool->take(4096);
    const auto other = pool->take(4096);
    EXPECT_EQ(std::set<const void*>({again->data(), other->data()}), std::set<const void*>({first, second}));
    EXPECT_EQ(again->tensor(1000, at::kFloat).sum().item<float>(), 1000);
    EXPECT_THAT(problems(), IsEmpty());
  });
}

TEST(SimDeviceMemoryTest, ABufferIsFreedOnceTheDeviceHasCopied) {
  in_a_child([] {
    const at::Tensor tensor = torch::ones({1000}, there());
    set_polls(3);
    reset_host_synchronisations();
    {
      device::HostBuffer buffer(4000, c10::kPrivateUse1);
      buffer.tensor(1000, at::kFloat).copy_(tensor, /*non_blocking=*/true);
      const auto copied = std::make_shared<device::Event>(c10::kPrivateUse1);
      copied->record(device::current_stream(device()));
      buffer.used_until(copied);
      EXPECT_EQ(host_synchronisations(), 0);
    }
    EXPECT_GT(host_synchronisations(), 0) << "freed while the device copies to it";
    EXPECT_THAT(problems(), IsEmpty());
  });
}

TEST(SimDeviceMemoryTest, AStreamGoesOnAfterAnotherOne) {
  in_a_child([] {
    const at::Tensor tensor = torch::zeros({8}, there());
    const c10::Stream other = another_stream();
    {
      const device::OnStream on(other, device::current_stream(device()));
      tensor.fill_(1);
    }
    EXPECT_THAT(problems(), IsEmpty());
    const device::OnStream on(another_stream());
    tensor.fill_(2);
    EXPECT_THAT(problems(), Contains(HasSubstr("without waiting for it")));
  });
}

} // namespace
} // namespace trireme::sim
