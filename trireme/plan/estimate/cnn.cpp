#include <trireme/plan/estimate/model.h>

namespace trireme::estimate {
namespace {

// Convolution 3x3, ReLU, maximum 2x2. Backward needs the input, the output of ReLU and the indices of the maxima.
Layer convolution(const std::string& name, int64_t in, int64_t out, int64_t side, int64_t samples, int64_t element) {
  const int64_t pixels = samples * side * side;
  Layer layer{name, "Conv2d", {{"weight", 9 * in * out}, {"bias", out}}};
  layer.input = element * in * pixels;
  layer.output = element * out * pixels / 4;
  layer.kept = layer.input + element * out * pixels + kIndexBytes * out * pixels / 4;
  layer.working = 2 * element * out * pixels;
  layer.put_off = element * out * pixels;
  return layer;
}

Layer linear(const std::string& name, int64_t in, int64_t out, int64_t samples, int64_t element) {
  Layer layer{name, "Linear", {{"weight", in * out}, {"bias", out}}};
  layer.input = element * in * samples;
  layer.output = element * out * samples;
  layer.kept = layer.input;
  layer.working = element * (in * samples + out * samples + in * out);
  layer.put_off = layer.output;
  return layer;
}

} // namespace

Model cnn(const models::CnnOptions& shape, const Conditions& conditions) {
  const int64_t element = bytes_of(conditions.type);
  const int64_t samples = conditions.samples;
  const int64_t flat = 2 * shape.width * (shape.side / 4) * (shape.side / 4);
  Model model;
  model.layers = {convolution("conv1", shape.channels, shape.width, shape.side, samples, element),
                  convolution("conv2", shape.width, 2 * shape.width, shape.side / 2, samples, element),
                  linear("fc1", flat, 4 * shape.width, samples, element),
                  linear("fc2", 4 * shape.width, shape.classes, samples, element)};
  if (shape.dropout > 0) { // its noise, and ReLU's output beside the dropout's
    model.layers[2].kept += 2 * element * 4 * shape.width * samples;
  }
  model.loss_kept = element * samples * shape.classes; // the log-probabilities
  model.loss_working = 2 * element * samples * shape.classes;
  return model;
}

} // namespace trireme::estimate
