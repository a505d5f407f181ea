#include <trireme/train/device_room.h>

#include <trireme/train/memory_check.h>
#include <trireme/train/run_estimate.h>

#include <trireme/base/env.h>
#include <trireme/device/memory.h>
#include <trireme/engine/same_options.h>

namespace trireme::train {

void check_device_room(const RunOfRanks& of, const comm::World& world, c10::Device device) {
  if (device.is_cpu() || !of.command.memory_check || !plan::can_describe(of.run)) {
    return;
  }
  engine::check_together(world.group(), [&] {
    const auto room = device::memory_room(device);
    if (!room) {
      return;
    }
    config::RunConfig there = of.run;
    if (!there.training.device.starts_with("cuda")) {
      there.training.device = "cuda"; // "auto" is described as on the CPU
    }
    const estimate::Run described = describe_run(there, of.ranks).run;
    const std::string& asked = of.run.training.device;
    const std::string named = asked == "auto" ? env::text("TRIREME_DEVICE").value_or("") : asked;
    const bool shared = named.find(':') != std::string::npos;
    check_device_memory(described, of.command.run_file, of.command.overrides, of.ranks,
                        room->free_bytes / (shared ? world.local_size() : 1), world.local_size() == world.size(),
                        of.types);
  });
}

} // namespace trireme::train
