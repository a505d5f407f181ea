#pragma once

namespace trireme::device {

/// From now on, malloc can use the place of a freed tensor on the CPU again for another of the same size. glibc before
/// 2.38 cannot do that for the aligned blocks of libtorch's allocator: training took up to 1.4 times the memory it had
/// in use. Cost: 64 bytes a tensor. Errors of tensors: c10::OutOfMemoryError.
///
/// For the whole process; tensors that exist keep their memory. Nothing happens where the program has set an allocator
/// of its own (c10::SetCPUAllocator()). engine::initialize() calls it; call it before a model is built. Repeated calls
/// do nothing.
void install_cpu_allocator();

} // namespace trireme::device
