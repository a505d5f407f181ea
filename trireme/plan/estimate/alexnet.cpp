#include <trireme/base/error.h>
#include <trireme/plan/estimate/model.h>

#include <string>
#include <utility>
#include <vector>

namespace trireme::estimate {
namespace {

// Adds the layers of models::alexnet_layers() one by one, with the size of the activation between them.
class Layers {
 public:
  Layers(int64_t samples, int64_t element, int64_t channels, int64_t side)
      : samples_(samples), element_(element), channels_(channels), side_(side) {}

  // Layers from here on are named after a part of torchvision's model and their number in it; "": after their own.
  void begin(const std::string& part) {
    part_ = part;
    first_ = part.empty() ? 0 : std::ssize(layers_);
  }
  void convolution(int64_t out, int64_t kernel, int64_t stride, int64_t padding) {
    const int64_t weights = out * channels_ * kernel * kernel;
    Layer& layer = add("Conv2d");
    layer.parameters = {{"weight", weights, false, channels_ * kernel * kernel}, {"bias", out}};
    layer.kept = keeps_input() ? layer.input : 0;
    channels_ = out;
    side_ = (side_ + 2 * padding - kernel) / stride + 1;
    end(layer);
    layer.put_off = layer.output;
    layer.working += element_ * weights;
  }
  // Backward needs the output, which the next layer may keep too.
  void relu() {
    Layer& layer = add("ReLU");
    end(layer);
    layer.kept = layer.output;
    is_kept_ = true;
  }
  // Backward needs the places of the maxima, and the sizes of the input, which is a ReLU's output.
  void pool() {
    Layer& layer = add("MaxPool2d");
    side_ = (side_ - 3) / 2 + 1;
    end(layer);
    layer.kept = kIndexBytes * samples_ * numel();
  }
  void average(int64_t side) {
    Layer& layer = add("AdaptiveAvgPool2d");
    side_ = side;
    end(layer);
    layer.kept = layer.input; // the pooling before it does not keep its output
  }
  void function() { end(add("function")); }
  void flatten() {
    function();
    channels_ = numel();
    side_ = 1;
  }
  // The noise and the output.
  void dropout(bool drops) {
    const bool was_kept = is_kept_;
    Layer& layer = add("Dropout");
    end(layer);
    layer.kept = drops ? layer.input : 0;
    is_kept_ = !drops && was_kept;
  }
  void linear(int64_t out) {
    const int64_t weights = channels_ * out;
    Layer& layer = add("Linear");
    layer.parameters = {{"weight", weights, false, channels_}, {"bias", out}};
    layer.kept = keeps_input() ? layer.input : 0;
    channels_ = out;
    end(layer);
    layer.put_off = layer.output;
    layer.working += element_ * weights;
  }

  std::vector<Layer> take() { return std::move(layers_); }

 private:
  int64_t numel() const { return channels_ * side_ * side_; }
  int64_t bytes() const { return element_ * samples_ * numel(); }
  bool keeps_input() const { return !is_kept_; }
  Layer& add(const char* type) {
    const std::string number = std::to_string(std::ssize(layers_) - first_);
    Layer& layer = layers_.emplace_back(Layer{part_.empty() ? number : part_ + '.' + number, type});
    layer.input = bytes();
    return layer;
  }
  void end(Layer& layer) {
    layer.output = bytes();
    layer.working = layer.input + layer.output;
    is_kept_ = false;
  }

  int64_t samples_;
  int64_t element_;
  int64_t channels_;
  int64_t side_; // of the image between two layers
  bool is_kept_ = false;
  std::string part_;
  int64_t first_ = 0;
  std::vector<Layer> layers_;
};

} // namespace

Model alexnet(const models::AlexNetOptions& options, const Conditions& conditions) {
  constexpr int64_t kPooledSide = 6;
  const int64_t element = bytes_of(conditions.type);
  if (options.resize == 0) {
    throw InputError("estimate", "the size of the images is unknown: the alexnet takes them as they are",
                     "Set it: --set model.resize=224");
  }
  Layers layers(conditions.samples, element, options.channels, options.resize);
  layers.function(); // enlarges the images
  layers.begin("features");
  layers.convolution(64, 11, 4, 2);
  layers.relu();
  layers.pool();
  layers.convolution(192, 5, 1, 2);
  layers.relu();
  layers.pool();
  for (const int64_t filters : {384, 256, 256}) {
    layers.convolution(filters, 3, 1, 1);
    layers.relu();
  }
  layers.pool();
  layers.begin("");
  layers.average(kPooledSide);
  layers.flatten();
  layers.begin("classifier");
  for (int i = 0; i < 2; ++i) {
    layers.dropout(options.dropout > 0);
    layers.linear(options.hidden);
    layers.relu();
  }
  layers.linear(options.classes);

  Model model;
  model.layers = layers.take();
  model.loss_kept = element * conditions.samples * options.classes; // the log-probabilities
  model.loss_working = 2 * element * conditions.samples * options.classes;
  return model;
}

} // namespace trireme::estimate
