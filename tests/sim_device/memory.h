#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace trireme::sim {

/// Device memory: a memory file mapped twice, handed out in blocks that are reused on the stream that they were
/// allocated on.
c10::Allocator& device_allocator();
/// Host memory that copies do not wait for.
c10::Allocator& pinned_allocator();
bool is_pinned(const void* pointer);
bool is_device_pointer(const void* pointer);
/// Maps the memory of `devices` devices.
void map_memory(int devices);
/// The device that the pointer belongs to.
int device_of(const void* pointer);

} // namespace trireme::sim
