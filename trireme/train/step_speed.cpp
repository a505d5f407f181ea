#include <trireme/train/step_speed.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/data/tokenizer.h>
#include <trireme/device/cards.h>

#include <iomanip>
#include <sstream>
#include <utility>

namespace trireme::train {
namespace {

using device::ProductType;

// ", bf16 (...) would be up to 2.0 times as fast here", or nothing.
std::string gain_of_half(ProductType type, const std::optional<device::CardPeak>& peak) {
  if (!peak || peak->of(type) <= 0 || peak->half <= peak->of(type)) {
    return "";
  }
  std::ostringstream times;
  times << std::fixed << std::setprecision(1) << peak->half / peak->of(type);
  return concat("; with bf16 (engine.bf16.enabled) they would be up to ", times.str(), " times as fast here");
}

} // namespace

ProductType product_type(const precision::PrecisionOptions& precision, bool tf32) {
  if (precision.compute != precision::Type::fp32 || precision.autocast) {
    return ProductType::half;
  }
  return tf32 ? ProductType::tf32 : ProductType::fp32;
}

std::string describe_products(ProductType type, const std::optional<device::CardPeak>& peak) {
  switch (type) {
    case ProductType::tf32:
      return concat("fp32 matrix products use TF32 on this GPU (training.tf32=false for full fp32)",
                    gain_of_half(type, peak));
    case ProductType::fp32:
      return concat("fp32 matrix products use no TF32 (training.tf32=true for speed)", gain_of_half(type, peak));
    default:
      return "";
  }
}

double operations_per_token(const models::TransformerShape& shape, double trained) {
  const auto head = static_cast<double>(shape.vocab_size) * static_cast<double>(shape.hidden);
  const double matrices = static_cast<double>(shape.layers) * static_cast<double>(shape.block_parameters()) + head;
  const double seen = shape.family == models::TransformerShape::Family::bert ? 1 : 0.5; // share of the tokens
  const double attention = 12 * static_cast<double>(shape.layers) * static_cast<double>(shape.query_width()) *
                           static_cast<double>(shape.sequence_length) * seen;
  return (4 + 2 * trained) * matrices + attention;
}

void StepSpeed::compare(const std::string& card, ProductType type, const Work& work) {
  const auto peak = device::peak_of_card(card);
  if (const std::string products = describe_products(type, peak); !products.empty()) {
    log::info(products);
  }
  if (peak && peak->of(type) > 0 && work.shape) {
    const double operations = work.tokens_of_step * operations_per_token(*work.shape, work.trained);
    seconds_at_peak_ = operations / (peak->of(type) * static_cast<double>(work.ranks));
  }
}

void StepSpeed::compare(const config::RunConfig& run, const Task& task, const engine::Engine& engine,
                        const data::Datasets& datasets, int64_t ranks) {
  if (engine.device().is_cpu()) {
    return;
  }
  Work work;
  work.shape = computed_shape(run.model, datasets.tokenizer ? datasets.tokenizer->vocab_size() : 0);
  work.trained = static_cast<double>(engine.num_trained_parameters()) / static_cast<double>(engine.num_parameters());
  work.tokens_of_step = static_cast<double>(engine.train_batch_size() * task.tokens_per_sample);
  work.ranks = ranks;
  compare(card_name(engine.device()), product_type(run.engine.precision, run.training.tf32), work);
}

void StepSpeed::end(monitor::StepMetrics& metrics, double samples, double tokens_per_sample) {
  const Clock::time_point begin = std::exchange(begin_, Clock::now());
  const double seconds = std::chrono::duration<double>(begin_ - begin).count();
  metrics.step_ms = seconds * 1e3;
  if (tokens_per_sample > 0) {
    metrics.tokens_per_s = samples * tokens_per_sample / seconds;
  } else {
    metrics.samples_per_s = samples / seconds;
  }
  if (seconds_at_peak_) {
    metrics.mfu = *seconds_at_peak_ / seconds;
  }
}

std::optional<models::TransformerShape> computed_shape(const config::ModelConfig& model, int64_t tokenizer_size) {
  if (!model.reads_tokens()) {
    return std::nullopt;
  }
  models::TransformerShape shape = model.shape();
  if (shape.vocab_size == 0) {
    shape.vocab_size = tokenizer_size;
  }
  if (model.kind == config::ModelConfig::Kind::bert && model.bert.head != models::BertOptions::Head::masked_lm) {
    shape.vocab_size = 0; // no logits of it
  }
  return shape;
}

std::string card_name(c10::Device device) {
  if (!device.is_cuda()) {
    return "";
  }
  const device::Cards found = device::cuda_cards();
  const auto index = static_cast<size_t>(device.index());
  return index < found.cards.size() ? found.cards[index].name : "";
}

} // namespace trireme::train
