#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

namespace trireme::sim {

int device_count();
void set_device_count(int devices);
/// Of this thread.
int current_device();
int64_t current_stream(int device);

/// The generator of the CPU that gives a device its random numbers.
at::Generator cpu_generator(int device);
/// The same for a generator of a device.
at::Generator cpu_generator(const at::Generator& of_device);

} // namespace trireme::sim
