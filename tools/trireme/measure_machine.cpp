#include "measure_machine.h"

#include "bench_optim.h"

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/text.h>
#include <trireme/comm/world.h>
#include <trireme/fused/fused.h>
#include <trireme/models/lone_block.h>
#include <trireme/parallel/tensor/attention.h>
#include <trireme/precision/half_products.h>

#include <torch/autograd.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <sstream>

namespace trireme::tools {
namespace {

using nlohmann::json;

// Measures the operations of a block in three sweeps, seconds apart, of 7 repeats each, or fewer if one takes
// long.
constexpr int kSweeps = 3;
constexpr int kRepeats = 7;
constexpr double kLongEnough = 5e-3;
constexpr double kTooLong = 0.15;
constexpr double kEps = 1e-5;
constexpr int64_t kTensorRanks = 4; // ranks that split a block, if they divide its heads

/// Times calls while all ranks of the job make the same one.
class Timer {
 public:
  explicit Timer(const comm::Group& group) : group_(group) {}

  /// Least seconds of one call on this rank, after a first one: other programs can only slow it down. All ranks begin
  /// every measurement at the same time.
  double seconds(const std::function<void()>& call) const {
    call();
    const double about = std::max(1e-7, seconds_of_the_slowest(call)); // the same on all ranks
    const int rounds = std::max(1, static_cast<int>(kLongEnough / about));
    const int repeats = std::clamp(static_cast<int>(kTooLong / (rounds * about)), 1, kRepeats);
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < repeats; ++i) {
      group_.barrier().wait();
      least = std::min(least, once(call, rounds));
    }
    return least;
  }

  /// Seconds of one call which all ranks begin at once, until the slowest is done, as in training.
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
  models::TransformerShape model;
  at::ScalarType type;
  int64_t rows;

  at::Tensor made(at::IntArrayRef sizes) const { return torch::randn(sizes).mul_(0.1).to(type).requires_grad_(); }
  /// Ranks that a block is split among: up to kTensorRanks that divide all of it.
  int64_t tensor_ranks() const {
    const int64_t heads = std::gcd(model.heads, model.kv_heads == 0 ? model.heads : model.kv_heads);
    return std::gcd(std::gcd(heads, model.width_of_mlp()), kTensorRanks);
  }
};

// The sizes that train::calibrate() sends.
Shape shape_of(const json& spec) {
  using Family = models::TransformerShape::Family;
  Shape shape;
  models::TransformerShape& model = shape.model;
  model.family = spec.at("family") == "llama" ? Family::llama : Family::gpt;
  model.layers = 1;
  for (const auto& [name, size] : {std::pair("hidden", &model.hidden),
                                   {"heads", &model.heads},
                                   {"kv_heads", &model.kv_heads},
                                   {"head_dim", &model.head_dim},
                                   {"intermediate", &model.intermediate},
                                   {"length", &model.sequence_length},
                                   {"vocabulary", &model.vocab_size}}) {
    *size = spec.at(name);
  }
  for (const auto& [name, has] : {std::pair("attention_bias", &model.attention_bias),
                                  {"attention_output_bias", &model.attention_output_bias},
                                  {"mlp_bias", &model.mlp_bias},
                                  {"qk_norm", &model.qk_norm}}) {
    *has = spec.at(name);
  }
  model.dropout = spec.at("dropout");
  shape.type = spec.at("type") == "fp32" ? at::kFloat : spec.at("type") == "bf16" ? at::kBFloat16 : at::kHalf;
  shape.rows = model.sequence_length;
  return shape;
}

/// A block forward and backward, for several numbers of samples, and for one sample a tensor rank's part of it. They
/// are measured in turns, many times between the other measurements. So a short disturbance of the machine changes
/// neither these times nor, more important, their differences.
class Blocks {
 public:
  Blocks(const Timer& clock, const Shape& shape) : clock_(clock) {
    for (const auto& [samples, tensor] : {std::pair<int64_t, int64_t>(1, 1), {4, 1}, {1, shape.tensor_ranks()}}) {
      const models::LoneBlock block = models::lone_block(shape.model, tensor);
      block.module->to(shape.type);
      const at::Tensor x = shape.made({samples, shape.rows, shape.model.hidden});
      std::vector<at::Tensor> inputs = block.module->parameters();
      int64_t parameters = 0;
      for (const at::Tensor& parameter : inputs) {
        parameters += parameter.numel();
      }
      inputs.push_back(x);
      const at::Tensor grad = at::ones_like(x);
      blocks_.push_back(
          {samples, tensor, parameters, [=] { torch::autograd::grad({block.forward(x)}, inputs, {grad}); }, {}});
      blocks_.back().call();
      double least = std::numeric_limits<double>::infinity();
      for (int i = 0; i == 0 || (i < kSweeps && least < kTooLong); ++i) {
        least = std::min(least, clock.seconds_of_the_slowest(blocks_.back().call)); // the same number on all ranks
      }
      once_ += least;
    }
  }
  /// Called between two other measurements; if blocks take long, it skips some.
  void measure() {
    constexpr double kEnough = 0.08;
    due_ += std::min(1.0, kEnough / once_);
    if (due_ < 1) {
      return;
    }
    due_ -= 1;
    if (once_ < kTooLong) { // warms the caches, as a layer before them does
      std::for_each(blocks_.begin(), blocks_.end(), [](Block& block) { block.call(); });
    }
    for (Block& block : blocks_) {
      block.seconds.push_back(clock_.seconds_of_the_slowest(block.call));
    }
  }
  /// Samples, tensor ranks, seconds and parameters of each: the lower quartile, because other programs can only slow it
  /// down.
  json quartiles() {
    json out = json::array();
    for (Block& block : blocks_) {
      const auto quarter = block.seconds.begin() + std::ssize(block.seconds) / 4;
      std::nth_element(block.seconds.begin(), quarter, block.seconds.end());
      out.push_back({block.samples, block.tensor, *quarter, block.parameters});
    }
    return out;
  }

 private:
  struct Block {
    int64_t samples;
    int64_t tensor;
    int64_t parameters;
    std::function<void()> call;
    std::vector<double> seconds;
  };
  const Timer& clock_;
  std::vector<Block> blocks_;
  double once_ = 0;
  double due_ = 1; // the first is measured
};

/// Size of products [rows, inner] x [inner, outer], and seconds of the forward one and the two of backward.
struct Product {
  double multiplications;
  double seconds;
};

// One sweep of the same products in the same order. Skips those that take seconds, except for the first, the
// smallest.
std::vector<Product> products(const Timer& clock, const Shape& shape, Blocks& blocks) {
  constexpr double kMostMultiplications = 5e9;
  const models::TransformerShape& model = shape.model;
  const int64_t h = model.hidden, mlp = model.width_of_mlp();
  struct Matrix {
    int64_t inner;
    int64_t outer;
    bool splits_inner = false;
  };
  const std::array matrices = {Matrix{h, model.query_width() + 2 * model.key_width()}, Matrix{h, mlp},
                               Matrix{mlp, h, true}, Matrix{h, model.vocab_size}};
  std::vector<Product> found;
  for (const int64_t samples : {1, 4}) {
    for (const int64_t tensor : {1, 2, 4}) {
      for (const auto& [inner, outer, splits_inner] : matrices) {
        const int64_t rows = samples * shape.rows;
        const int64_t in = splits_inner ? std::max<int64_t>(1, inner / tensor) : inner;
        const int64_t out = splits_inner ? outer : std::max<int64_t>(1, outer / tensor);
        const double one = static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
        blocks.measure();
        if (one > kMostMultiplications && !found.empty()) {
          continue;
        }
        const at::Tensor x = shape.made({rows, in});
        const at::Tensor weight = shape.made({out, in});
        const at::Tensor grad = shape.made({rows, out});
        const at::NoGradGuard no_grad;
        found.push_back({one, clock.seconds([&] { at::linear(x, weight); }) + clock.seconds([&] {
                           at::mm(grad, weight);
                         }) + clock.seconds([&] { at::mm(grad.t(), x); })});
      }
    }
  }
  return found;
}

// Seconds of an operation forward and backward.
double both_ways(const Timer& clock, const std::vector<at::Tensor>& inputs,
                 const std::function<std::vector<at::Tensor>()>& forward) {
  std::vector<at::Tensor> grads;
  for (const at::Tensor& output : forward()) {
    grads.push_back(at::ones_like(output));
  }
  return clock.seconds([&] { torch::autograd::grad(forward(), inputs, grads); });
}

/// Seconds of a block's operations other than matrix products.
struct BetweenProducts {
  double passes;
  double attention;
  /// Elements that the passes read and write, as plan::layer_costs() counts them.
  double elements;
};

BetweenProducts between_llama_products(const Timer& clock, const Shape& s) {
  const models::TransformerShape& model = s.model;
  const int64_t h = model.hidden, head = model.width_of_head(), heads = model.heads,
                kv_heads = model.kv_heads == 0 ? heads : model.kv_heads;
  const at::Tensor x = s.made({1, s.rows, h});
  const at::Tensor y = s.made({1, s.rows, h});
  const at::Tensor weight = s.made({h});
  const at::Tensor gate = s.made({1, s.rows, model.width_of_mlp()});
  const at::Tensor up = s.made({1, s.rows, model.width_of_mlp()});
  const auto of_heads = [&](int64_t number) { return s.made({1, s.rows, number, head}).transpose(1, 2).detach(); };
  const at::Tensor q = of_heads(heads).requires_grad_(), k = of_heads(kv_heads).requires_grad_(),
                   v = of_heads(kv_heads).requires_grad_();
  const at::Tensor angles = torch::rand({s.rows, head / 2});
  double passes = both_ways(clock, {x, weight}, [&] { return std::vector{fused::rms_norm(x, weight, kEps)}; });
  passes += both_ways(clock, {x, y, weight}, [&] {
    const auto [sum, normal] = fused::add_rms_norm(x, y, weight, kEps);
    return std::vector{sum, normal};
  });
  passes += both_ways(clock, {gate, up}, [&] { return std::vector{fused::gated_silu(gate, up)}; });
  passes += both_ways(clock, {x, y}, [&] { return std::vector{x + y}; });
  passes += both_ways(clock, {q, k}, [&] {
    const auto [turned_q, turned_k] = fused::rotate(q, k, angles, angles);
    return std::vector{turned_q, turned_k};
  });
  // Forward 2 + 4 + 3 of the stream, gate, up and product, queries and keys twice; backward twice as many.
  const auto forward =
      static_cast<double>(9 * h + 3 * model.width_of_mlp() + 2 * (model.query_width() + model.key_width()));
  tensor::ParallelAttention attention(
      tensor::ParallelAttentionOptions{.hidden = h, .heads = heads, .kv_heads = kv_heads, .head_size = head});
  return {passes, both_ways(clock, {q, k, v}, [&] { return std::vector{attention->mix({q, k, v})}; }),
          3 * forward * static_cast<double>(s.rows)};
}

BetweenProducts between_products(const Timer& clock, const Shape& s) {
  if (s.model.is_gated()) {
    return between_llama_products(clock, s);
  }
  const int64_t h = s.model.hidden;
  const at::Tensor x = s.made({1, s.rows, h});
  const at::Tensor y = s.made({1, s.rows, h});
  const at::Tensor weight = s.made({h});
  const at::Tensor shift = s.made({h});
  const at::Tensor wide = s.made({1, s.rows, 4 * h});
  const at::Tensor wide_bias = s.made({4 * h});
  const at::Tensor qkv = s.made({1, s.rows, 3 * h});
  const at::Tensor qkv_bias = s.made({3 * h});
  double passes =
      both_ways(clock, {x, weight, shift}, [&] { return std::vector{fused::layer_norm(x, weight, shift, kEps)}; });
  passes += both_ways(clock, {x, y, weight, shift}, [&] {
    const auto [sum, normal] = fused::add_layer_norm(x, y, weight, weight, shift, kEps);
    return std::vector{sum, normal};
  });
  passes += both_ways(clock, {wide, wide_bias},
                      [&] { return std::vector{fused::bias_gelu(wide, wide_bias, fused::Gelu::tanh)}; });
  passes += both_ways(clock, {x, y, weight}, [&] { return std::vector{fused::add_bias(x, y, weight)}; });
  return {
      passes,
      both_ways(clock, {qkv, qkv_bias},
                [&] { return std::vector{fused::causal_attention(qkv, qkv_bias, s.model.heads, s.model.dropout)}; }),
      3 * 17 * static_cast<double>(s.rows * h)}; // forward 17, backward 34
}

// Operations between products, products, and blocks, each the best of all sweeps.
json of_a_block(const Timer& clock, const Shape& shape) {
  Blocks blocks(clock, shape);
  BetweenProducts between = between_products(clock, shape);
  std::vector<Product> best = products(clock, shape, blocks);
  for (int sweep = 1; sweep < kSweeps; ++sweep) {
    const BetweenProducts again = between_products(clock, shape);
    between = {std::min(between.passes, again.passes), std::min(between.attention, again.attention), again.elements};
    const std::vector<Product> found = products(clock, shape, blocks);
    for (size_t i = 0; i < best.size(); ++i) {
      best[i].seconds = std::min(best[i].seconds, found[i].seconds);
    }
  }
  json points = json::array();
  for (const Product& product : best) {
    points.push_back({std::cbrt(product.multiplications), 6 * product.multiplications / product.seconds});
  }
  return {{"passes_s", between.passes},
          {"passes_elements", between.elements},
          {"attention_s", between.attention},
          {"products", points},
          {"blocks", blocks.quartiles()}};
}

// Bytes per second of the optimizer's pass.
double optimizer(const comm::Group& group, const json& spec) {
  BenchOptimArgs args;
  args.params = {spec.at("parameters").get<int64_t>()};
  args.threads = {at::get_num_threads()};
  args.impls = {"adam"};
  args.repeats = kSweeps * kRepeats;
  args.json = true;
  std::ostringstream out;
  group.barrier().wait();
  bench_optim(args, out);
  constexpr double kBytes = 28; // parameter, gradient and two states read, all but the gradient written
  return kBytes * static_cast<double>(args.params.front()) /
         (1e-3 * json::parse(split(out.str(), '\n').front()).at("ms").get<double>());
}

// Bytes, and seconds on the slowest rank of a gather (the mean of all-gather and reduce-scatter) and of an all-reduce.
// In training every collective uses other memory than the one before, so this does too.
json collectives(const comm::Group& group, const json& spec) {
  constexpr int64_t kOtherMemory = 48 << 20, kMostPlaces = 16;
  constexpr double kEnough = 0.5;
  const Timer clock(group);
  const auto least = [&](const std::vector<at::Tensor>& places, const std::function<void(const at::Tensor&)>& call) {
    double seconds = std::numeric_limits<double>::infinity();
    double all = 0;
    for (int repeat = 0; repeat < kSweeps * kRepeats && (repeat < kSweeps || all < kEnough); ++repeat) {
      const double once = clock.seconds_of_the_slowest([&] { std::for_each(places.begin(), places.end(), call); });
      seconds = std::min(seconds, once);
      all += once; // the same on all ranks
    }
    return seconds / static_cast<double>(places.size());
  };
  json rows = json::array();
  for (const int64_t bytes : spec.at("bytes").get<std::vector<int64_t>>()) {
    const int64_t own = bytes / static_cast<int64_t>(sizeof(float)) / group.size();
    std::vector<at::Tensor> places;
    for (int64_t i = 0; i < std::clamp(kOtherMemory / bytes, int64_t{3}, kMostPlaces); ++i) {
      places.push_back(group.allocate(own * group.size(), at::kFloat).zero_());
    }
    const auto part = [&](const at::Tensor& whole) { return whole.narrow(0, group.rank() * own, own); };
    const double gathered = least(places, [&](const at::Tensor& whole) {
      group.all_gather(whole, part(whole), "gather that is measured").wait();
    });
    const double scattered = least(places, [&](const at::Tensor& whole) {
      group.reduce_scatter(part(whole), whole, comm::ReduceOp::sum, "sum that is measured").wait();
    });
    const double reduced = least(places, [&](const at::Tensor& whole) {
      group.all_reduce(whole, comm::ReduceOp::sum, "sum that is measured").wait();
    });
    rows.push_back({own * group.size() * static_cast<int64_t>(sizeof(float)), (gathered + scattered) / 2, reduced});
  }
  return rows;
}

} // namespace

int measure_machine_as_rank(const std::filesystem::path& file) {
  precision::multiply_halves_in_fp32(); // as an engine does
  const json spec = json::parse(read_file(file));
  json result;
  comm::World world = comm::World::connect();
  if (spec.contains("bytes")) {
    result["collectives"] = collectives(world.group(), spec);
  } else {
    torch::manual_seed(1);
    const Timer clock(world.group());
    result = of_a_block(clock, shape_of(spec.at("compute")));
    result["optimizer_bytes_per_s"] = optimizer(world.group(), spec.at("compute"));
    world.group().barrier().wait();
  }
  if (world.rank() == 0) {
    write_file_atomically(std::filesystem::path(file) += ".result", result.dump());
  }
  return 0;
}

} // namespace trireme::tools
