#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

namespace trireme::device {

/// Number of devices of this kind that libtorch sees, 0 without their driver; CUDA_VISIBLE_DEVICES hides some. Never
/// throws.
int count(c10::DeviceType type) noexcept;

/// The kind of GPU (or other accelerator) that this process can compute on: libtorch knows it and sees at least one.
/// Never throws.
std::optional<c10::DeviceType> accelerator() noexcept;

/// Which device a rank trains on, as "training": {"device": ...} says it:
///
///   "auto"     what the environment variable TRIREME_DEVICE says, one of these words; without it the GPU with the
///   number of the rank
///              on its host, where libtorch sees GPUs, else the CPU
///   "cpu"      the CPU
///   "cuda"     the GPU with the number of the rank on its host; required
///   "cuda:K"   GPU K, for each rank of the host; required
///
/// Errors: InputError for another word, for a GPU that is not there, and where a host has more ranks than GPUs.
c10::Device choose(const std::string& wanted, int local_rank, int local_size);
/// The same on a host where libtorch sees `gpus` GPUs.
c10::Device choose_among(int gpus, const std::string& wanted, int local_rank, int local_size);

} // namespace trireme::device
