#include <trireme/memory/activations/impl.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/base/units.h>
#include <trireme/device/host_buffer.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <sys/resource.h>
#include <algorithm>
#include <array>
#include <chrono>

namespace trireme::activations {
namespace {

constexpr int64_t kMostMeasured = int64_t{16} << 20; // bytes of a trial move, which needs memory besides the budget
constexpr size_t kNumbersOfMoves = 10;
constexpr size_t kNumbersOfPart = 7;
constexpr int kTrials = 3;      // of a move to a file
constexpr double kBackward = 2; // times the forward, if its end is unknown

// Measures the seconds since the last call.
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

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// CPU time that the system spent for this process, all threads.
double system_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_stime.tv_sec) + 1e-6 * static_cast<double>(used.ru_stime.tv_usec);
}

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

double measure_gather(const Sharing& sharing, at::Device device, int64_t bytes) {
  const at::NoGradGuard no_grad;
  const int64_t each = share_of(bytes, sharing.ranks);
  const at::Tensor share = at::zeros({each}, at::TensorOptions(at::kByte).device(device));
  const at::Tensor whole = at::zeros({sharing.ranks * each}, share.options());
  Mark begin(device);
  Mark end(device);
  sharing.gather(whole, share); // the first call may open connections
  begin.now();
  sharing.gather(whole, share);
  end.now();
  end.wait();
  return end.seconds_since(begin) / static_cast<double>(bytes);
}

MoveCost measure_nvme(FileSpace& files, const aio::Options& options, int64_t bytes) {
  const int64_t size = bytes / aio::kAlignment * aio::kAlignment;
  const auto piece = files.take(size);
  aio::Transfers transfers(options);
  const at::Tensor source = at::zeros({size}, at::kByte);
  const device::HostBuffer memory(size);
  std::copy_n(source.const_data_ptr<uint8_t>(), size,
              reinterpret_cast<uint8_t*>(memory.data())); // touches the pages of `memory`
  std::array<std::vector<double>, 3> seconds;             // of copies, writes, reads
  const double system_before = system_seconds();
  for (int trial = 0; trial < kTrials; ++trial) {
    Watch watch;
    memory.tensor(size).copy_(source);
    seconds[0].push_back(watch.lap());
    transfers.wait(transfers.write(*piece->file, piece->offset, memory.data(), size));
    seconds[1].push_back(watch.lap());
    transfers.wait(transfers.read(*piece->file, piece->offset, memory.data(), size));
    seconds[2].push_back(watch.lap());
  }
  // The system works for transfers on cores that would otherwise compute.
  const double system = (system_seconds() - system_before) / kTrials;
  const auto each = static_cast<double>(size);
  return {median(seconds[1]) / each, median(seconds[2]) / each, (median(seconds[0]) + system) / each};
}

std::vector<double> Activations::Impl::measured(int64_t host_room) const {
  int64_t largest = 4096;
  int64_t largest_input = 0; // of shared inputs
  for (const Known& known : parts) {
    largest_input = std::max(largest_input, known.share_bytes < known.input_bytes ? known.input_bytes : 0);
    largest = std::max(largest, known.bytes + known.input_bytes);
  }
  largest = std::min(largest, kMostMeasured);
  const double gather = largest_input > 0
                            ? measure_gather(storages->sharing(), device, std::min(largest_input, kMostMeasured))
                            : 0; // collective, so before anything that may fail on one rank
  MoveCost host;
  MoveCost nvme;
  double file_room = 0;
  if (!device.is_cpu()) {
    host = measure_host(device, largest); // the host waits: all marks are there
  }
  if (const int64_t room = options.uses_nvme() ? mover->files()->room(options.ranks_on_host) : 0;
      room >= aio::kAlignment) {
    file_room = kUsableOfDisk * static_cast<double>(room);
    nvme = measure_nvme(*mover->files(), aio, std::min(largest, room / aio::kAlignment * aio::kAlignment));
    if (!device.is_cpu()) { // through pinned memory
      nvme = {std::max(host.out, nvme.out), std::max(host.in, nvme.in), 0};
    }
  }
  const Known* const last = parts.empty() ? nullptr : &parts.back();
  const double after_last = last != nullptr && in_flight == 1 && last->forward_ends.set() && last->backward_begins.set()
                                ? last->backward_begins.seconds_since(last->forward_ends)
                                : 0;
  std::vector<double> numbers = {
      host.out,
      host.in,
      host.busy,
      nvme.out,
      nvme.in,
      nvme.busy,
      gather,
      -after_last,
      -file_room,
      -kUsableOfHost *
          static_cast<double>(
              host_room)}; // the largest over all ranks counts, so negate: least time to overlap, least room
  for (size_t i = 0; i < parts.size(); ++i) {
    const Known& known = parts[i];
    const double forward = known.forward_ends.set() ? known.forward_ends.seconds_since(known.forward_begins) : 0;
    double backward = kBackward * forward;
    if (i > 0 && known.backward_begins.set() && parts[i - 1].backward_begins.set()) { // until the part before begins
      const double all = parts[i - 1].backward_begins.seconds_since(known.backward_begins);
      backward = all > 0 ? std::max(0.0, all - (recomputes(known.way) ? forward : 0)) : backward;
    }
    numbers.insert(numbers.end(), {static_cast<double>(known.bytes), static_cast<double>(known.input_bytes),
                                   static_cast<double>(known.share_bytes), forward, backward,
                                   static_cast<double>(known.stay_bytes), static_cast<double>(known.padding)});
  }
  return numbers;
}

bool Activations::Impl::has_room_for(const Decision& decision, int64_t host_room) const {
  Problem problem;
  problem.budget = std::numeric_limits<int64_t>::max();
  problem.in_flight = in_flight;
  problem.file_room =
      options.uses_nvme()
          ? static_cast<int64_t>(kUsableOfDisk * static_cast<double>(mover->files()->room(options.ranks_on_host)))
          : 0;
  problem.host_room = static_cast<int64_t>(kUsableOfHost * static_cast<double>(host_room));
  for (size_t i = 0; i < decision.ways.size(); ++i) {
    problem.parts.push_back(
        {.bytes = decision.bytes[i], .input_bytes = decision.input_bytes[i], .share_bytes = decision.share_bytes[i]});
  }
  return judge(problem, decision.ways).fits;
}

std::string Activations::Impl::table(const Problem& problem) const {
  std::string lines;
  for (size_t i = 0; i < parts.size(); ++i) {
    const PartCost& cost = problem.parts[i];
    lines += concat("\n  ", i, ' ', parts[i].type, ": forward ", format_seconds(cost.forward), ", backward ",
                    format_seconds(cost.backward), ", saves ", format_bytes(cost.bytes), " beside inputs of ",
                    format_bytes(cost.input_bytes), ", ", name_of(parts[i].way));
  }
  return lines;
}

std::string Activations::Impl::decide(const std::vector<double>& largest) {
  if (largest.size() != kNumbersOfMoves + kNumbersOfPart * parts.size()) {
    throw Error("activations",
                concat("the ranks measured ", largest.size(), " numbers, which do not fit this rank's ", parts.size(),
                       " parts"),
                "All ranks must call the same parts.");
  }
  decided_ = true;
  Problem problem;
  problem.host = {largest[0], largest[1], largest[2]};
  problem.nvme = {largest[3], largest[4], largest[5]};
  problem.gather = largest[6];
  problem.after_last = std::max(0.0, -largest[7]);
  problem.file_room = static_cast<int64_t>(-largest[8]);
  problem.host_room = static_cast<int64_t>(-largest[9]);
  problem.budget = options.memory_budget;
  problem.in_flight = in_flight;
  problem.put_off = put_off;
  problem.moving_copies = moving_copies(!device.is_cpu());
  problem.allowed = ways_that_move(!device.is_cpu(), options.uses_nvme());
  std::vector<int64_t> kinds;
  for (size_t i = 0; i < parts.size(); ++i) {
    const double* const numbers = &largest[kNumbersOfMoves + kNumbersOfPart * i];
    problem.parts.push_back({static_cast<int64_t>(numbers[0]), static_cast<int64_t>(numbers[1]),
                             static_cast<int64_t>(numbers[2]), numbers[3], numbers[4], static_cast<int64_t>(numbers[5]),
                             static_cast<int64_t>(numbers[6])});
    const auto first =
        std::find_if(parts.begin(), parts.end(), [&](const Known& known) { return known.type == parts[i].type; });
    kinds.push_back(first - parts.begin());
  }
  even_out(problem.parts, kinds);
  double seconds = 0;
  for (const PartCost& part : problem.parts) {
    seconds += part.forward + part.backward;
  }
  std::string said;
  if (options.automatic) {
    const Choice choice = choose(problem);
    if (!choice.fits) {
      const NoChoice why = why_none_fits(problem, choice);
      throw InputError("activations", why.what, why.next);
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].way = choice.ways[i];
      parts[i].bytes = problem.parts[i].bytes;
      parts[i].input_bytes = problem.parts[i].input_bytes;
      parts[i].share_bytes = problem.parts[i].share_bytes;
    }
    allow_moves();
    said = concat("activations of ", parts.size(), " parts: at most ", format_bytes(choice.bytes), " of the ",
                  format_bytes(options.memory_budget), " allowed; moves and recomputation add about ",
                  format_seconds(choice.seconds), " to the ", format_seconds(seconds),
                  " of a micro-batch's parts: ", join(to_words(choice.ways), ", "));
  }
  if (options.profile) {
    said += concat(said.empty() ? "" : "\n", "parts of the model, in the order of forward:", table(problem));
  }
  return said;
}

} // namespace trireme::activations
