#include "doctor.h"

#include <trireme/train/server_roles.h>
#include "collective_check.h"
#include "device_check.h"

#include <trireme/base/cores.h>
#include <trireme/base/units.h>
#include <trireme/comm/backends.h>
#include <trireme/comm/nccl/nccl_backend.h>
#include <trireme/device/cards.h>
#include <trireme/device/choose.h>
#include <trireme/kernels/simd.h>
#include <trireme/monitor/resources.h>

#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/version.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <iostream>

namespace trireme::tools {
namespace {

enum class Mark { ok, absent, bad };

struct Line {
  std::string what;
  std::string found;
  Mark mark = Mark::ok;
};

const char* text(Mark mark) {
  return mark == Mark::ok ? "  ok  " : mark == Mark::absent ? "  --  " : " BAD  ";
}

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("model name", 0) == 0) {
      return line.substr(line.find(':') + 2);
    }
  }
  return "unknown";
}

int64_t total_memory() {
  std::ifstream in("/proc/meminfo");
  std::string key;
  int64_t kilobytes = 0;
  in >> key >> kilobytes;
  return kilobytes * 1024;
}

// True if libtorch computes a product of ones correctly.
bool libtorch_works() {
  return torch::ones({64, 64}).matmul(torch::ones({64, 64})).eq(64).all().item<bool>();
}

Line line(const DeviceFinding& found) {
  return {found.what, found.found, found.good ? Mark::ok : Mark::bad};
}

void add_cards(std::vector<Line>& lines) {
  const device::Cards found = device::cuda_cards();
  const char* const none = device::knows_cuda() ? "none found by CUDA" : "none: this build has no CUDA";
  lines.push_back(
      {"gpu driver", found.driver.empty() ? none : found.driver, found.driver.empty() ? Mark::absent : Mark::ok});
  for (size_t index = 0; index < found.cards.size(); ++index) {
    const device::Card& card = found.cards[index];
    const std::string text =
        concat(card.name, ", ", format_bytes(card.memory_bytes), ", compute capability ", card.major, '.', card.minor);
    lines.push_back({concat("cuda:", index), card.major > 0 ? text : card.name, card.major > 0 ? Mark::ok : Mark::bad});
  }
  const std::string nccl = comm::nccl_version();
  lines.push_back({"nccl", nccl.empty() ? "none in this build" : nccl, nccl.empty() ? Mark::absent : Mark::ok});
}

std::vector<Line> examine() {
  std::vector<Line> lines;
  lines.push_back({"trireme", TRIREME_VERSION});
  lines.push_back({"libtorch", TORCH_VERSION, libtorch_works() ? Mark::ok : Mark::bad});
  lines.push_back({"cpu", cpu_model()});
  lines.push_back({"cores", std::to_string(usable_cores())});
  lines.push_back({"memory", format_bytes(total_memory())});
  lines.push_back({"kernels", kernels::name(kernels::active_simd())});
  const auto gpus = device::accelerator();
  const int count = gpus ? device::count(*gpus) : 0;
  lines.push_back({"gpus",
                   gpus ? concat(count, count == 1 ? " device of " : " devices of ", c10::DeviceTypeName(*gpus))
                        : "none found by libtorch",
                   gpus ? Mark::ok : Mark::absent});
  add_cards(lines);
  lines.push_back(
      line(check_bf16(gpus ? at::Device(*gpus, 0) : at::Device(at::kCPU)))); // the list already has a GPU that fails
  for (int index = 0; index < count; ++index) {
    for (const DeviceFinding& found : check_device({*gpus, static_cast<c10::DeviceIndex>(index)})) {
      lines.push_back(line(found));
    }
  }
  for (const comm::BackendEntry& backend : comm::backends()) {
    const bool there = backend.available();
    lines.push_back({concat("backend ", backend.name),
                     there ? backend.description : concat("not available here. ", backend.needs),
                     there ? Mark::ok : Mark::absent});
  }
  const std::string grpc = train::grpc_version();
  lines.push_back(
      {"transport grpc",
       grpc.empty() ? "not available here. Built where gRPC is installed, with extensions (docs/grpc.md)" : grpc,
       grpc.empty() ? Mark::absent : Mark::ok});
  for (const DeviceFinding& found : check_all_collectives(device::count(c10::kCUDA))) {
    lines.push_back(line(found));
  }
  std::error_code error;
  const auto space = std::filesystem::space(".", error);
  const bool room = !error && space.available > 1'000'000'000;
  lines.push_back({"free disk here", error ? "unknown" : format_bytes(space.available), room ? Mark::ok : Mark::bad});
  return lines;
}

} // namespace

int doctor(const DoctorCommand& command) {
  const std::vector<Line> lines = examine();
  bool good = true;
  nlohmann::ordered_json json;
  for (const Line& line : lines) {
    good = good && line.mark != Mark::bad;
    json[line.what] = line.found;
    if (!command.json) {
      std::cout << text(line.mark) << line.what << std::string(line.what.size() < 18 ? 18 - line.what.size() : 1, ' ')
                << line.found << '\n';
    }
  }
  if (command.json) {
    json["good"] = good;
    std::cout << json.dump() << '\n';
  }
  return good ? 0 : 1;
}

} // namespace trireme::tools
