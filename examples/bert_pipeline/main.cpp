// BERT on the novels as a pipeline whose blocks pass (hidden, mask) on; naive model parallel with --schedule naive
// --micro-batches 1:
//   trireme launch -n 2 -- bert_pipeline --stages 2
// Options: --stages 2, --schedule 1f1b, --batch 16, --micro-batches 4, --steps 250, --layers 4, --hidden 128, --heads
// 4, --length 128,
// --text data/austen/train.txt, --json FILE (what was measured, for benchmarks/run mp-vs-pp).
#include "../arguments.h"
#include "../per_rank.h"
#include "masked_text.h"

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/engine/peak_memory.h>
#include <trireme/models/bert_layers.h>
#include <trireme/monitor/resources.h>
#include <trireme/trireme.h>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <cstdio>

namespace {

namespace models = trireme::models;
namespace pipeline = trireme::pipeline;

struct Options {
  int steps, batch, micro_batches;
  std::string text, json;
  models::BertOptions model;
  pipeline::PipelineOptions pipeline;
};

Options read_options(int argc, char** argv) {
  Arguments arguments(argc, argv);
  Options out;
  out.steps = arguments.whole("--steps", 250);
  out.batch = arguments.whole("--batch", 16);
  out.micro_batches = arguments.whole("--micro-batches", 4);
  out.text = arguments.text("--text", "data/austen/train.txt");
  out.json = arguments.text("--json");
  out.model.layers = arguments.whole("--layers", 4);
  out.model.hidden = arguments.whole("--hidden", 128);
  out.model.heads = arguments.whole("--heads", 4);
  out.model.sequence_length = arguments.whole("--length", 128);
  out.model.vocab_size = MaskedText::kVocabSize;
  out.pipeline.stages = arguments.whole("--stages", 2);
  out.pipeline.schedule = pipeline::parse_schedule(arguments.text("--schedule", "1f1b"));
  out.pipeline.chunks = out.pipeline.schedule == pipeline::ScheduleKind::interleaved && out.pipeline.stages > 1 ? 2 : 1;
  out.pipeline.partition = "type:BertBlock";
  arguments.finish();
  return out;
}

int run(int argc, char** argv) {
  const Options options = read_options(argc, argv);
  auto world = trireme::World::connect();
  const bool talks = world.rank() == 0;

  trireme::InitializeOptions needs;
  needs.pipeline = std::make_shared<pipeline::PipelineModule>(models::bert_layers(options.model),
                                                              models::masked_lm_loss, options.pipeline);
  needs.config.batch.train = options.batch;
  needs.config.batch.accumulation = options.micro_batches;
  needs.config.optimizer.emplace();
  std::get<trireme::optim::AdamOptions>(needs.config.optimizer->rule).lr = 1e-3;
  needs.config.schedule.kind = trireme::optim::ScheduleOptions::Kind::warmup;
  needs.config.schedule.warmup_type = trireme::optim::ScheduleOptions::Warmup::linear;
  needs.config.schedule.warmup_min_lr = 1e-5;
  needs.config.schedule.warmup_num_steps = 50;
  needs.training_data = std::make_shared<MaskedText>(options.text, options.model.sequence_length);
  auto [engine, optimizer, loader, schedule] = trireme::initialize(world, needs);
  if (talks) {
    std::printf("%s\n", needs.training_data->describe().c_str());
  }

  std::vector<double> step_ms, losses;
  for (int step = 1; step <= options.steps; ++step) {
    const double start = trireme::monitor::monotonic_seconds();
    losses.push_back(engine->train_batch().item<double>());
    step_ms.push_back(1e3 * (trireme::monitor::monotonic_seconds() - start));
    if (talks && (step % 50 == 0 || step == 1 || step == options.steps)) {
      std::printf("step %d  loss %.4f  %.0f ms\n", step, losses.back(), step_ms.back());
      std::fflush(stdout);
    }
  }

  const auto memory = of_each_rank(world, static_cast<double>(trireme::engine::peak_memory_bytes()));
  if (talks) {
    for (size_t rank = 0; rank < memory.size(); ++rank) {
      std::printf("rank %zu: at most %.0f MB\n", rank, memory[rank] / (1 << 20));
    }
    if (!options.json.empty()) {
      const nlohmann::json row{{"step_ms", step_ms},
                               {"losses", losses},
                               {"peak_rss_bytes", memory},
                               {"parameters", engine->num_parameters()}};
      trireme::write_file_atomically(options.json, row.dump() + "\n");
    }
  }
  return 0;
}

} // namespace

int main(int argc, char** argv) try { return run(argc, argv); } catch (const std::exception& error) {
  std::fprintf(stderr, "bert_pipeline: %s\n", error.what());
  return 2;
}
