#include <trireme/activations/impl.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/base/units.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>

namespace trireme::activations {
namespace {

constexpr int64_t kMostMeasured = int64_t{64} << 20; // bytes of a trial move
constexpr size_t kNumbersOfMoves = 6;
constexpr size_t kNumbersOfPart = 4;
constexpr double kBackward = 2; // times the forward, where nothing says when it ended

// Seconds since the last call.
class Watch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    begin_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

} // namespace

MoveCost measure_host(at::Device device, int64_t bytes) {
  const at::NoGradGuard no_grad;
  const at::Tensor there = at::zeros({bytes}, at::TensorOptions(at::kByte).device(device));
  const at::Tensor here = device::pinned_host(bytes, at::kByte, device.type());
  here.zero_();
  Mark begin(device);
  Mark out(device);
  Mark in(device);
  begin.now();
  here.copy_(there, /*non_blocking=*/true);
  out.now();
  there.copy_(here, /*non_blocking=*/true);
  in.now();
  in.wait();
  const auto each = static_cast<double>(bytes);
  return {out.seconds_since(begin) / each, in.seconds_since(out) / each, 0};
}

MoveCost measure_nvme(const std::string& folder, const aio::Options& options, int64_t bytes) {
  const auto space = std::make_shared<FileSpace>(folder, bytes);
  const int64_t size = aio::round_up(bytes);
  const auto piece = space->take(size);
  aio::Transfers transfers(options);
  const at::Tensor source = at::zeros({size}, at::kByte);
  const aio::Memory memory(size);
  std::copy_n(source.const_data_ptr<uint8_t>(), size, reinterpret_cast<uint8_t*>(memory.data())); // its pages are there from now on
  Watch watch;
  HostBuffer(nullptr, at::Tensor(), memory.data(), size).tensor(size).copy_(source);
  const double copied = watch.lap();
  transfers.wait(transfers.write(*piece->file, piece->offset, memory.data(), size));
  const double written = watch.lap();
  transfers.wait(transfers.read(*piece->file, piece->offset, memory.data(), size));
  const double read = watch.lap();
  const auto each = static_cast<double>(size);
  return {written / each, read / each, copied / each};
}

std::vector<double> Activations::Impl::measured() const {
  int64_t largest = 4096;
  for (const Known& known : parts) {
    largest = std::max(largest, known.bytes + known.input_bytes);
  }
  largest = std::min(largest, kMostMeasured);
  MoveCost host;
  MoveCost nvme;
  if (!device.is_cpu()) {
    host = measure_host(device, largest); // the host waits: all marks are there
  }
  if (options.uses_nvme()) {
    nvme = measure_nvme(options.nvme_path, aio, largest);
    if (!device.is_cpu()) { // through pinned memory
      nvme = {std::max(host.out, nvme.out), std::max(host.in, nvme.in), 0};
    }
  }
  std::vector<double> numbers = {host.out, host.in, host.busy, nvme.out, nvme.in, nvme.busy};
  for (size_t i = 0; i < parts.size(); ++i) {
    const Known& known = parts[i];
    const double forward = known.forward_ends.set() ? known.forward_ends.seconds_since(known.forward_begins) : 0;
    double backward = kBackward * forward;
    if (i > 0 && known.backward_begins.set() && parts[i - 1].backward_begins.set()) { // from its begin to that of the part before
      const double all = parts[i - 1].backward_begins.seconds_since(known.backward_begins);
      backward = all > 0 ? std::max(0.0, all - (recomputes(known.way) ? forward : 0)) : backward;
    }
    numbers.insert(numbers.end(), {static_cast<double>(known.bytes), static_cast<double>(known.input_bytes), forward, backward});
  }
  return numbers;
}

std::string Activations::Impl::table(const Problem& problem) const {
  std::string lines;
  for (size_t i = 0; i < parts.size(); ++i) {
    const PartCost& cost = problem.parts[i];
    lines += concat("\n  ", i, ' ', parts[i].type, ": forward ", format_seconds(cost.forward), ", backward ", format_seconds(cost.backward), ", saves ",
                    format_bytes(static_cast<double>(cost.bytes)), " beside inputs of ", format_bytes(static_cast<double>(cost.input_bytes)), ", ", name_of(parts[i].way));
  }
  return lines;
}

std::string Activations::Impl::decide(const std::vector<double>& largest) {
  if (largest.size() != kNumbersOfMoves + kNumbersOfPart * parts.size()) {
    throw Error("activations", concat("the ranks measured ", largest.size(), " numbers, and this one has ", parts.size(), " parts"), "All ranks must call the same parts.");
  }
  decided_ = true;
  Problem problem;
  problem.host = {largest[0], largest[1], largest[2]};
  problem.nvme = {largest[3], largest[4], largest[5]};
  problem.budget = options.memory_budget;
  problem.in_flight = in_flight;
  problem.moving_copies = device.is_cpu() ? 2 : 1;
  problem.allowed = {Way::keep, Way::recompute};
  if (!device.is_cpu()) {
    problem.allowed.insert(problem.allowed.end(), {Way::host, Way::recompute_host});
  }
  if (options.uses_nvme()) {
    problem.allowed.insert(problem.allowed.end(), {Way::nvme, Way::recompute_nvme});
  }
  double seconds = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const double* const numbers = &largest[kNumbersOfMoves + kNumbersOfPart * i];
    problem.parts.push_back({static_cast<int64_t>(numbers[0]), static_cast<int64_t>(numbers[1]), numbers[2], numbers[3]});
    seconds += numbers[2] + numbers[3];
  }
  std::string said;
  if (options.automatic) {
    const Choice choice = choose(problem);
    if (!choice.fits) {
      throw InputError("activations",
                       concat("no choice for the activations of ", parts.size(), " parts fits memory_budget, ", format_bytes(static_cast<double>(options.memory_budget)), ": the least is ",
                              format_bytes(static_cast<double>(choice.bytes)), ", with ", join(to_words(choice.ways), ", ")),
                       concat("Raise memory_budget to ", choice.bytes, options.uses_nvme() ? "" : ", give an nvme_path", ", or make the micro-batch smaller."));
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].way = choice.ways[i];
      parts[i].bytes = problem.parts[i].bytes;
      parts[i].input_bytes = problem.parts[i].input_bytes;
    }
    allow_moves();
    said = concat("activations of ", parts.size(), " parts: at most ", format_bytes(static_cast<double>(choice.bytes)), " of the ", format_bytes(static_cast<double>(options.memory_budget)),
                  " allowed; moves and recomputation add about ", format_seconds(choice.seconds), " to the ", format_seconds(seconds), " of a micro-batch's parts: ", join(to_words(choice.ways), ", "));
  }
  if (options.profile) {
    said += concat(said.empty() ? "" : "\n", "parts of the model, in the order of forward:", table(problem));
  }
  return said;
}

} // namespace trireme::activations
