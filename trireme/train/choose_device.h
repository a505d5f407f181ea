#pragma once

#include <trireme/config/run_file.h>

#include <c10/core/Device.h>

namespace trireme::comm {
class World;
}

namespace trireme::train {

/// The device of this rank, training.device (device/choose.h), made current. On a GPU the threads of this process move
/// to the cores of its NUMA node, and ranks that share it are said in a warning. Collective. Errors: those of
/// device::choose(), on every rank if they are one rank's.
c10::Device choose_device(const config::TrainingConfig& training, const comm::World& world);

} // namespace trireme::train
