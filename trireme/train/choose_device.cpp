#include <trireme/train/choose_device.h>

#include <trireme/base/log.h>
#include <trireme/comm/world.h>
#include <trireme/device/cards.h>
#include <trireme/device/choose.h>
#include <trireme/device/numa.h>
#include <trireme/device/stream.h>
#include <trireme/engine/same_options.h>
#include <trireme/precision/tf32.h>

namespace trireme::train {
namespace {

void prepare_host(c10::Device device, const comm::World& world) {
  if (world.local_size() > device::count(device.type()) && world.local_rank() == 0) {
    log::warning(
        "the ", world.local_size(), " ranks of this host share ", device.str(),
        ": they take turns on it, and tensors between them go through host memory. Start one rank on each GPU.");
  }
  const std::vector<device::Card> cards = device::cuda_cards().cards;
  const auto number = static_cast<size_t>(device.index());
  if (const std::string cores = number < cards.size() ? device::bind_near(cards[number].pci) : ""; !cores.empty()) {
    log::info("rank ", world.rank(), " runs on cores ", cores, ", the NUMA node of ", device.str());
  }
}

} // namespace

c10::Device choose_device(const config::TrainingConfig& training, const comm::World& world) {
  c10::Device device = c10::kCPU;
  // If the host of one rank lacks a GPU, all ranks end.
  engine::check_together(world.group(),
                         [&] { device = device::choose(training.device, world.local_rank(), world.local_size()); });
  device::make_current(device); // zero::Init communicates before initialize()
  if (device.is_cuda()) {
    prepare_host(device, world);
  }
  precision::allow_tf32(training.tf32);
  return device;
}

} // namespace trireme::train
