#include "guard.h"

#include "capture.h"
#include "memory.h"
#include "timeline.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>
#include <optional>

namespace trireme::sim {
namespace {

int devices = 0;
thread_local int the_device = 0;
thread_local std::array<int64_t, kMostDevices> the_streams{};

c10::Device sim_device(int index) {
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

c10::Stream stream(int index, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, sim_device(index), id);
}

int number(c10::Device device) {
  return device.has_index() ? device.index() : the_device;
}

// As CUDA's.
void set_current(c10::Device device) {
  TORCH_CHECK(device.index() >= 0 && device.index() < devices, "sim_device: there is no device ",
              static_cast<int>(device.index()));
  the_device = device.index();
}

struct Event {
  Clock clock{};
  int polls = 0;
  std::optional<double> time; // if it is timed: milliseconds of its stream
  int64_t capture = 0;        // that it was recorded in
};

// Whether all of `done` is known to be done.
bool knows(Clock known, const Clock& done) {
  const Clock before = known;
  join(known, done);
  return known == before;
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return sim_device(std::exchange(the_device, number(device)));
  }
  c10::Device getDevice() const override { return sim_device(the_device); }
  void setDevice(c10::Device device) const override { set_current(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { the_device = number(device); }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(devices); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device device) const override {
    return stream(number(device), the_streams[static_cast<size_t>(number(device))]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(number(device), 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    const std::lock_guard lock(timeline().mutex);
    static std::array<int, kMostDevices> made{};
    return stream(number(device), 1 + made[static_cast<size_t>(number(device))]++ % (kStreamsEach - 1));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(next.device_index(), std::exchange(the_streams[static_cast<size_t>(next.device_index())], next.id()));
  }

  void record(void** event, const c10::Stream& on, c10::DeviceIndex, c10::EventFlag flag) const override {
    const std::lock_guard lock(timeline().mutex);
    if (*event == nullptr) {
      *event = new Event();
    }
    Clock clock = timeline().now(clock_of(on.device_index(), on.id()));
    join(clock, Timeline::host());
    const bool timed = flag == c10::EventFlag::BACKEND_DEFAULT;
    *static_cast<Event*>(*event) = {
        clock, 0, timed ? std::optional(timeline().milliseconds(clock_of(on.device_index(), on.id()))) : std::nullopt,
        capture_of(clock_of(on.device_index(), on.id()))};
  }
  void block(void* event, const c10::Stream& on) const override {
    const std::lock_guard lock(timeline().mutex);
    if (event != nullptr) {
      wait_in_capture(clock_of(on.device_index(), on.id()), static_cast<Event*>(event)->capture);
      timeline().wait(clock_of(on.device_index(), on.id()), static_cast<Event*>(event)->clock);
    }
  }
  bool queryEvent(void* event) const override {
    const std::lock_guard lock(timeline().mutex);
    refuse_in_capture("a query of an event");
    auto* const asked = static_cast<Event*>(event);
    if (asked != nullptr && ++asked->polls < timeline().polls && !knows(Timeline::host(), asked->clock)) {
      return false;
    }
    if (asked != nullptr) {
      timeline().host_waits(asked->clock, "", /*counts=*/false); // who sees that it is ready knows of the work
    }
    return true;
  }
  void synchronizeEvent(void* event) const override {
    const std::lock_guard lock(timeline().mutex);
    if (event != nullptr) {
      static_cast<Event*>(event)->polls = timeline().polls; // ready from now on
    }
    timeline().host_waits(event == nullptr ? Clock{} : static_cast<Event*>(event)->clock, "event.synchronize()");
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    return static_cast<Event*>(second)->time.value() - static_cast<Event*>(first)->time.value();
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& on) const override {
    const std::lock_guard lock(timeline().mutex);
    timeline().host_waits(timeline().now(clock_of(on.device_index(), on.id())), "stream.synchronize()");
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    const std::lock_guard lock(timeline().mutex);
    Clock all{};
    for (int id = 0; id < kStreamsEach; ++id) {
      join(all, timeline().now(clock_of(index < 0 ? the_device : index, id)));
    }
    timeline().host_waits(all, "synchronisation of the device");
  }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& on) const override {
    const std::lock_guard lock(timeline().mutex);
    timeline().recorded(reinterpret_cast<uintptr_t>(pointer.get()), clock_of(on.device_index(), on.id()));
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

/// Draws the numbers that a generator of the CPU with the same seed draws.
class Generator final : public c10::GeneratorImpl {
 public:
  Generator(int index, at::Generator inner)
      : c10::GeneratorImpl(sim_device(index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner(std::move(inner)) {}

  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { inner.set_offset(offset); }
  uint64_t get_offset() const override { return inner.get_offset(); }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    const std::lock_guard lock(timeline().mutex);
    refuse_in_capture("a change of the random state");
    inner.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const std::lock_guard lock(timeline().mutex);
    refuse_in_capture("a read of the random state");
    return inner.unsafeGetGeneratorImpl()->get_state();
  }

  at::Generator inner;

 private:
  Generator* clone_impl() const override { return new Generator(device_.index(), inner.clone()); }
};

at::Generator new_generator(int index) {
  return at::make_generator<Generator>(index, at::detail::createCPUGenerator(67280421310721ull));
}

const at::Generator& default_generator(int index) {
  static auto* const all = new std::array<at::Generator, kMostDevices>{new_generator(0), new_generator(1),
                                                                       new_generator(2), new_generator(3)};
  return (*all)[static_cast<size_t>(index < 0 ? the_device : index)];
}

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return devices > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return devices > 0; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(devices); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(the_device); }
  void setCurrentDevice(c10::DeviceIndex index) const override { the_device = index; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return static_cast<c10::DeviceIndex>(std::exchange(the_device, static_cast<int>(index)));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return new_generator(index < 0 ? the_device : index);
  }
  c10::Device getDeviceFromPtr(void* pointer) const override { return sim_device(device_of(pointer)); }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const c10::DeviceGuard guard(storage.device());
    c10::DataPtr fresh = device_allocator().allocate(bytes);
    if (const size_t kept = std::min(bytes, storage.nbytes()); kept > 0) {
      launch("resize",
             {{storage.data(), static_cast<int64_t>(kept), false}, {fresh.get(), static_cast<int64_t>(kept), true}});
      std::memcpy(kernel_pointer(fresh.get()), kernel_pointer(storage.data()), kept);
    }
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

const bool registered = [] {
  c10::register_privateuse1_backend("sim");
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

} // namespace

int device_count() {
  return devices;
}
void set_device_count(int count) {
  devices = count;
}
int current_device() {
  return the_device;
}
int64_t current_stream(int index) {
  return the_streams[static_cast<size_t>(index)];
}
at::Generator cpu_generator(int index) {
  return cpu_generator(default_generator(index));
}
at::Generator cpu_generator(const at::Generator& of_device) {
  return of_device.device().type() == c10::kPrivateUse1
             ? static_cast<Generator*>(of_device.unsafeGetGeneratorImpl())->inner
             : of_device;
}

c10::Device device(int index) {
  return sim_device(index);
}

void start(int count) {
  TORCH_CHECK(count >= 1 && count <= kMostDevices, "sim_device: 1 to ", kMostDevices, " devices, not ", count);
  if (devices == 0) {
    map_memory(count);
    devices = count;
  }
}

} // namespace trireme::sim
