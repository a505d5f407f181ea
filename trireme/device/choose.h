#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

namespace trireme::device {

/// Number of devices of this kind that libtorch sees, 0 without a driver. CUDA_VISIBLE_DEVICES hides some. Never
/// throws.
int count(c10::DeviceType type) noexcept;

/// The kind of GPU (or other accelerator) that this process can compute on: libtorch supports it and sees at least one.
/// Never throws.
std::optional<c10::DeviceType> accelerator() noexcept;

/// The device that a rank trains on, as chosen by "training": {"device": ...}:
///
///   "auto"     the choice of the environment variable TRIREME_DEVICE; without it the GPU with the number of the rank
///              on its host if libtorch sees GPUs, else the CPU
///   "cpu"      the CPU
///   "cuda"     the GPU with the number of the rank on its host; required
///   "cuda:K"   GPU K for every rank of the host; required
///
/// Errors: InputError for another word, for a missing GPU, and if a host has more ranks than GPUs.
c10::Device choose(const std::string& wanted, int local_rank, int local_size);
/// The choice on a host where libtorch sees `gpus` GPUs.
c10::Device choose_among(int gpus, const std::string& wanted, int local_rank, int local_size);

} // namespace trireme::device
