#include "bench_device.h"

#include "bench_optim.h"
#include "device_passes.h"
#include "stepped_optimizer.h"

#include <trireme/base/error.h>
#include <trireme/device/card_peaks.h>
#include <trireme/device/cards.h>
#include <trireme/device/choose.h>
#include <trireme/device/memory.h>
#include <trireme/device/stream.h>
#include <trireme/monitor/series.h>
#include <trireme/optim/aten_kernels.h>
#include <trireme/precision/tf32.h>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/utils.h>
#include <torch/version.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <iomanip>
#include <optional>
#include <ostream>
#include <vector>

namespace trireme::tools {
namespace {

using nlohmann::ordered_json;

constexpr double kGiga = 1e9;
constexpr double kTera = 1e12;

bool has_own_optimizers(at::Device device) {
  return &optim::kernels_for(at::empty({0}, at::TensorOptions(device))) != &optim::kAtenKernels;
}

class DeviceRows {
 public:
  DeviceRows(const BenchDeviceCommand& args, at::Device device, std::ostream& out)
      : args_(args), device_(device), out_(out) {}

  // Also finds the peak of products.
  void describe(bool prints) {
    const auto room = device::memory_room(device_);
    ordered_json row = {{"row", "device"}, {"device", device_.str()}};
    if (device_.is_cuda()) {
      const device::Cards found = device::cuda_cards();
      const auto index = static_cast<size_t>(device::with_index(device_).index());
      if (index < found.cards.size()) {
        const device::Card& card = found.cards[index];
        row["name"] = card.name;
        row["compute"] = concat(card.major, '.', card.minor);
        peak_ = device::peak_of_card(card.name);
      }
      row["driver"] = found.driver;
    }
    if (room) {
      row["memory_bytes"] = room->bytes;
      row["free_bytes"] = room->free_bytes;
    }
    row["libtorch"] = TORCH_VERSION;
    row["kernels"] = has_own_optimizers(device_) ? "trireme" : "aten";
    if (prints) {
      print(row);
    }
  }

  void copy() {
    const at::TensorOptions bytes = at::TensorOptions(device_).dtype(at::kByte);
    const at::Tensor from = at::zeros({args_.bytes}, bytes);
    const at::Tensor to = at::empty({args_.bytes}, bytes);
    const double seconds = time([&] { to.copy_(from); });
    const double moved = 2.0 * static_cast<double>(args_.bytes);
    copied_ = moved / seconds / kGiga;
    print({{"row", "copy"}, {"bytes", 2 * args_.bytes}, {"us", 1e6 * seconds}, {"gb_per_s", copied_}});
  }

  void product(const char* name, at::ScalarType type, device::ProductType kind) {
    const bool before = at::globalContext().allowTF32CuBLAS();
    precision::allow_tf32(kind == device::ProductType::tf32);
    const int64_t n = args_.product;
    const at::TensorOptions there = at::TensorOptions(device_);
    const at::Tensor a = at::randn({n, n}, there).to(type);
    const at::Tensor b = at::randn({n, n}, there).to(type);
    at::Tensor c = at::empty({n, n}, there.dtype(type));
    const double seconds = time([&] { at::mm_out(c, a, b); });
    precision::allow_tf32(before);
    const double per_s = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / seconds;
    ordered_json row = {
        {"row", "product"}, {"dtype", name}, {"size", n}, {"us", 1e6 * seconds}, {"tflops", per_s / kTera}};
    if (peak_ && peak_->of(kind) > 0) {
      row["of_peak"] = per_s / peak_->of(kind);
    }
    print(row);
  }

  void kernel(const std::string& name, const char* dtype, double bytes, const std::function<void()>& call) {
    const double seconds = time(call);
    const double gb_per_s = bytes / seconds / kGiga;
    ordered_json row = {{"row", "kernel"},     {"kernel", name},
                        {"dtype", dtype},      {"bytes", static_cast<int64_t>(bytes)},
                        {"us", 1e6 * seconds}, {"gb_per_s", gb_per_s}};
    if (copied_ > 0) {
      row["of_copy"] = gb_per_s / copied_;
    }
    print(row);
  }

 private:
  void synchronize() const {
    if (!device_.is_cpu()) {
      c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device::with_index(device_).index());
    }
  }

  // Seconds of a call.
  double time(const std::function<void()>& call) const {
    constexpr int kWarmUps = 2;
    constexpr int kMeasurements = 3;
    for (int i = 0; i < kWarmUps; ++i) {
      call();
    }
    std::vector<double> seconds;
    for (int i = 0; i < kMeasurements; ++i) {
      synchronize();
      const double ms = milliseconds([&] {
        for (int n = 0; n < args_.repeats; ++n) {
          call();
        }
        synchronize();
      });
      seconds.push_back(ms / 1e3 / args_.repeats);
    }
    return monitor::median(seconds);
  }

  // A table has the row's values after its kind.
  void print(const ordered_json& row) const {
    if (args_.json) {
      ordered_json whole = {{"bench", "device"}};
      whole.update(row);
      out_ << whole << '\n';
    } else {
      out_ << std::left << std::setw(8) << row.at("row").get<std::string>();
      for (const auto& [key, value] : row.items()) {
        if (key != "row") {
          out_ << "  " << key << ' ';
          if (value.is_number_float()) {
            out_ << std::fixed << std::setprecision(3) << value.get<double>();
          } else {
            out_ << (value.is_string() ? value.get<std::string>() : value.dump());
          }
        }
      }
      out_ << '\n';
    }
    out_.flush();
  }

  const BenchDeviceCommand& args_;
  const at::Device device_;
  std::ostream& out_;
  std::optional<device::CardPeak> peak_;
  double copied_ = 0; // GB/s
};

void passes(const BenchDeviceCommand& args, at::Device device, DeviceRows& rows) {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    for (const DevicePass& pass : device_passes({args.rows, args.hidden, args.vocab}, type, device)) {
      const auto [bytes, call] = pass.make();
      rows.kernel(pass.name, type == at::kFloat ? "fp32" : "bf16", bytes, call);
    }
  }
}

void optimizers(const BenchDeviceCommand& args, at::Device device, DeviceRows& rows) {
  if (!has_own_optimizers(device)) {
    return;
  }
  const at::TensorOptions there = at::TensorOptions(device);
  const auto make = [&](int64_t numel, at::ScalarType type) { return at::empty({numel}, there.dtype(type)); };
  for (const SteppedRule& rule : stepped_rules()) {
    SteppedOptimizer stepped(rule, args.params, make);
    rows.kernel(rule.name, rule.mixed ? "bf16" : "fp32", rule.bytes * static_cast<double>(args.params),
                [&] { stepped.step(); });
  }
  for (const auto& [name, type] : {std::pair("fp32", at::kFloat), std::pair("bf16", at::kBFloat16)}) {
    const at::Tensor grad = at::zeros({args.params}, there.dtype(type));
    const at::Tensor sum = at::zeros({1}, there.dtype(at::kDouble));
    rows.kernel("squared_norm", name, static_cast<double>(grad.nbytes()), [&] { optim::add_squared_norm(grad, sum); });
  }
}

} // namespace

int bench_device(const BenchDeviceCommand& args, std::ostream& out) {
  const at::Device device = device::choose(args.device, 0, 1);
  device::make_current(device);
  const torch::NoGradGuard no_grad;
  const auto wanted = [&](const char* kind) {
    return args.only.empty() || std::find(args.only.begin(), args.only.end(), kind) != args.only.end();
  };
  DeviceRows rows(args, device, out);
  rows.describe(wanted("device"));
  if (wanted("copy")) {
    rows.copy();
  }
  if (wanted("product")) {
    rows.product("fp32", at::kFloat, device::ProductType::fp32);
    if (!device.is_cpu()) {
      rows.product("tf32", at::kFloat, device::ProductType::tf32);
    }
    rows.product("bf16", at::kBFloat16, device::ProductType::half);
  }
  if (wanted("kernel")) {
    passes(args, device, rows);
    optimizers(args, device, rows);
  }
  return 0;
}

} // namespace trireme::tools
