#pragma once

#include <trireme/plan/estimate/memory.h>
#include <trireme/plan/estimate/model.h>
#include <trireme/plan/estimate/run.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

namespace trireme::estimate {

/// A small GPT as a list of layers, of which states and parameters are in these places.
inline Run moving(int64_t ranks, int zero_stage, bool on_device, offload::Place states,
                  offload::Place parameters = offload::Place::device) {
  Run run;
  models::GptOptions shape;
  shape.layers = 4;
  shape.hidden = 64;
  shape.heads = 4;
  shape.sequence_length = 16;
  shape.vocab_size = 100;
  run.model = gpt(shape, {.type = Type::bf16, .layer_list = true});
  run.layer_list = true;
  run.bounds = {0, std::ssize(run.model.layers)};
  run.data_ranks = ranks;
  run.zero.stage = zero_stage;
  run.zero.param_persistence_threshold = 0;
  run.precision.compute = Type::bf16;
  run.data_parallel.bucket_bytes = run.data_parallel.first_bucket_bytes = 50'000;
  run.on_device = on_device;
  run.offload.optimizer.place = states;
  run.offload.parameters.place = parameters;
  run.offload.parameters.max_in_cpu = 0;
  return run;
}

inline int64_t bytes_in(const StageMemory& memory, Category category) {
  return memory.item(category).bytes;
}

inline int64_t named(const std::vector<Item>& items, const std::string& name, const std::string& way = "") {
  int64_t bytes = 0;
  for (const Item& item : items) {
    bytes += item.name == name && (way.empty() || item.axis == way) ? item.bytes : 0;
  }
  return bytes;
}

} // namespace trireme::estimate
