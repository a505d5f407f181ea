#include "measure_machine.h"

#include "bench_comm.h"
#include "bench_optim.h"

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/text.h>
#include <trireme/comm/world.h>
#include <trireme/fused/fused.h>
#include <trireme/models/gpt.h>

#include <nlohmann/json.hpp>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <sstream>

namespace trireme::tools {
namespace {

using nlohmann::json;

constexpr int kRepeats = 21;
constexpr double kLongEnough = 5e-3;
constexpr double kEps = 1e-5;

/// Times calls while all ranks of the job make the same one.
class Timer {
 public:
  explicit Timer(const comm::Group& group) : group_(group) {}

  /// Least seconds of one call here, after a first one: other programs only make it longer. Every measurement begins on all ranks together.
  double seconds(const std::function<void()>& call) const {
    call();
    const int rounds = std::max(1, static_cast<int>(kLongEnough / std::max(1e-7, once(call, 1))));
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kRepeats; ++i) {
      group_.barrier().wait();
      least = std::min(least, once(call, rounds));
    }
    return least;
  }

  /// Seconds of one call which ranks begin together, until the slowest is done, as in training.
  double seconds_of_the_slowest(const std::function<void()>& call) const {
    group_.barrier().wait();
    at::Tensor slowest = at::full({1}, once(call, 1), at::kDouble);
    group_.all_reduce(slowest, comm::ReduceOp::max, "seconds of a block").wait();
    return slowest.item<double>();
  }

 private:
  static double once(const std::function<void()>& call, int rounds) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < rounds; ++i) {
      call();
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / rounds;
  }

  const comm::Group& group_;
};

struct Shape {
  models::GptOptions gpt;
  at::ScalarType type;
  int64_t rows;

  at::Tensor made(at::IntArrayRef sizes) const {
    return torch::randn(sizes).mul_(0.1).to(type).requires_grad_();
  }
};

Shape shape_of(const json& spec) {
  Shape shape;
  shape.gpt.layers = 1;
  shape.gpt.hidden = spec.at("hidden");
  shape.gpt.heads = spec.at("heads");
  shape.gpt.sequence_length = spec.at("length");
  shape.gpt.vocab_size = spec.at("vocabulary");
  shape.gpt.dropout = spec.at("dropout");
  shape.type = spec.at("type") == "fp32" ? at::kFloat : spec.at("type") == "bf16" ? at::kBFloat16 : at::kHalf;
  shape.rows = shape.gpt.sequence_length;
  return shape;
}

// Size and speed of products [rows, inner] x [inner, outer], forward and the two of backward.
json products(const Timer& clock, const Shape& shape) {
  const at::NoGradGuard no_grad;
  const int64_t h = shape.gpt.hidden;
  json points = json::array();
  for (const int64_t samples : {1, 4}) {
    for (const int64_t tensor : {1, 2, 4}) {
      for (const auto& [inner, outer] : {std::pair(h, 3 * h), std::pair(h, 4 * h), std::pair(4 * h, h), std::pair(h, shape.gpt.vocab_size)}) {
        const int64_t rows = samples * shape.rows;
        const int64_t in = inner == 4 * h ? inner / tensor : inner;
        const int64_t out = inner == 4 * h ? outer : std::max<int64_t>(1, outer / tensor);
        if (static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out) > 2e10) { // seconds
          continue;
        }
        const at::Tensor x = shape.made({rows, in});
        const at::Tensor weight = shape.made({out, in});
        const at::Tensor grad = shape.made({rows, out});
        const double t = clock.seconds([&] { at::linear(x, weight); }) + clock.seconds([&] { at::mm(grad, weight); }) + clock.seconds([&] { at::mm(grad.t(), x); });
        const double one = static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
        points.push_back({std::cbrt(one), 6 * one / t});
      }
    }
  }
  return points;
}

// Seconds of an operation forward and backward.
double both_ways(const Timer& clock, const std::vector<at::Tensor>& inputs, const std::function<std::vector<at::Tensor>()>& forward) {
  std::vector<at::Tensor> grads;
  for (const at::Tensor& output : forward()) {
    grads.push_back(at::ones_like(output));
  }
  return clock.seconds([&] { torch::autograd::grad(forward(), inputs, grads); });
}

// A block's operations that are no matrix products.
json between_products(const Timer& clock, const Shape& s) {
  const int64_t h = s.gpt.hidden;
  const at::Tensor x = s.made({1, s.rows, h});
  const at::Tensor y = s.made({1, s.rows, h});
  const at::Tensor weight = s.made({h});
  const at::Tensor shift = s.made({h});
  const at::Tensor wide = s.made({1, s.rows, 4 * h});
  const at::Tensor wide_bias = s.made({4 * h});
  const at::Tensor qkv = s.made({1, s.rows, 3 * h});
  const at::Tensor qkv_bias = s.made({3 * h});
  double passes = both_ways(clock, {x, weight, shift}, [&] { return std::vector{fused::layer_norm(x, weight, shift, kEps)}; });
  passes += both_ways(clock, {x, y, weight, shift}, [&] {
    const auto [sum, normal] = fused::add_layer_norm(x, y, weight, weight, shift, kEps);
    return std::vector{sum, normal};
  });
  passes += both_ways(clock, {wide, wide_bias}, [&] { return std::vector{fused::bias_gelu(wide, wide_bias, fused::Gelu::tanh)}; });
  passes += both_ways(clock, {x, y, weight}, [&] { return std::vector{fused::add_bias(x, y, weight)}; });
  const double attention = both_ways(clock, {qkv, qkv_bias}, [&] { return std::vector{fused::causal_attention(qkv, qkv_bias, s.gpt.heads, s.gpt.dropout)}; });
  return {{"passes_s", passes}, {"attention_s", attention}};
}

/// A whole block forward and backward, for several numbers of samples. They are measured in turns and at several times: what disturbs the machine for a second changes neither
/// the medians nor, which is worse, their difference.
class Blocks {
 public:
  Blocks(const Timer& clock, const Shape& shape) : clock_(clock) {
    double once = 0;
    for (const int64_t samples : {1, 4}) {
      models::GptBlock module(shape.gpt);
      module->to(shape.type);
      const at::Tensor x = shape.made({samples, shape.rows, shape.gpt.hidden});
      std::vector<at::Tensor> inputs = module->parameters();
      inputs.push_back(x);
      const at::Tensor grad = at::ones_like(x);
      blocks_.push_back({samples, [=]() mutable { torch::autograd::grad({module->forward(x)}, inputs, {grad}); }, {}});
      blocks_.back().call();
      once += clock.seconds_of_the_slowest(blocks_.back().call); // the same number on all ranks
    }
    constexpr double kEnough = 2;
    turns_ = std::clamp(static_cast<int>(kEnough / once), 2, kRepeats);
  }
  void measure() {
    for (int i = 0; i < turns_; ++i) {
      for (Block& block : blocks_) {
        block.seconds.push_back(clock_.seconds_of_the_slowest(block.call));
      }
    }
  }
  /// Samples and median seconds of each.
  json medians() {
    json out = json::array();
    for (Block& block : blocks_) {
      const auto middle = block.seconds.begin() + std::ssize(block.seconds) / 2;
      std::nth_element(block.seconds.begin(), middle, block.seconds.end());
      out.push_back({block.samples, *middle});
    }
    return out;
  }

 private:
  struct Block {
    int64_t samples;
    std::function<void()> call;
    std::vector<double> seconds;
  };
  const Timer& clock_;
  std::vector<Block> blocks_;
  int turns_;
};

// Bytes a second of the optimizer's pass.
double optimizer(const comm::Group& group, const json& spec) {
  BenchOptimArgs args;
  args.params = {spec.at("parameters").get<int64_t>()};
  args.threads = {at::get_num_threads()};
  args.impls = {"adam"};
  args.repeats = kRepeats;
  args.json = true;
  std::ostringstream out;
  group.barrier().wait();
  bench_optim(args, out);
  constexpr double kBytes = 28; // parameter, gradient and two states read, all but the gradient written
  return kBytes * static_cast<double>(args.params.front()) / (1e-3 * json::parse(split(out.str(), '\n').front()).at("ms").get<double>());
}

json collectives(const json& spec) {
  BenchCommCommand command;
  command.bytes = spec.at("bytes").get<std::vector<int64_t>>();
  command.backends = {spec.at("backend")};
  command.json = true;
  std::ostringstream out;
  bench_comm(command, out);
  json rows = json::array();
  for (const std::string& line : split(out.str(), '\n')) {
    if (!line.empty() && json::parse(line).at("algorithm") == "backend") {
      const json row = json::parse(line);
      rows.push_back({row.at("bytes"), row.at("us").get<double>() * 1e-6});
    }
  }
  return rows;
}

} // namespace

int measure_machine_as_rank(const std::filesystem::path& file) {
  const json spec = json::parse(read_file(file));
  json result;
  if (spec.contains("bytes")) {
    result["all_reduce"] = collectives(spec);
  } else {
    torch::manual_seed(1);
    comm::World world = comm::World::connect();
    const Timer clock(world.group());
    const Shape shape = shape_of(spec.at("compute"));
    Blocks blocks(clock, shape);
    blocks.measure();
    result = between_products(clock, shape);
    blocks.measure();
    result["products"] = products(clock, shape);
    blocks.measure();
    result["blocks"] = blocks.medians();
    result["optimizer_bytes_per_s"] = optimizer(world.group(), spec.at("compute"));
    result["threads"] = at::get_num_threads();
    world.group().barrier().wait();
    if (world.rank() != 0) {
      return 0;
    }
  }
  if (!spec.contains("bytes") || !result.at("all_reduce").empty()) { // rank 0 has the rows
    write_file_atomically(std::filesystem::path(file) += ".result", result.dump());
  }
  return 0;
}

} // namespace trireme::tools
