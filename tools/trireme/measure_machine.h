#pragma once

#include <filesystem>

namespace trireme::tools {

/// One rank of `trireme plan --calibrate`: reads what to measure from `file` (JSON), and rank 0 writes `file`.result.
/// With "compute" all ranks at once time matrix products, attention, the passes between them, a block and an optimizer
/// step of a GPT, with "bytes" collectives. Returns the exit status.
int measure_machine_as_rank(const std::filesystem::path& file);

} // namespace trireme::tools
