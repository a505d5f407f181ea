#include <trireme/parallel/pipeline/program_writer.h>

#include <algorithm>

namespace trireme::pipeline {

// Micro-batches advance in groups of as many as there are stages: the group through chunk 0, then through chunk
// 1, and so on; backward in the opposite order of chunks. A stage runs enough forwards ahead that the first
// backward arrives just in time. An incomplete last group is scheduled as if complete, without the missing
// micro-batches. Removing them cannot cause a deadlock, because a computation only waits for others of its own
// micro-batch.
Program interleaved(const ScheduleShape& shape, int stage) {
  const int p = shape.stages;
  const int groups = (shape.micro_batches + p - 1) / p;
  const int per_group = p * shape.chunks;
  const int total = groups * per_group;
  const int ahead = shape.chunks == 1 ? p - 1 - stage : 2 * (p - 1 - stage) + (shape.chunks - 1) * p;
  const int warmup = std::min(ahead, total);

  ProgramWriter writer(shape, stage);
  for (int i = 0; i < total + warmup; ++i) {
    const auto micro_batch = [&](int k) { return k / per_group * p + k % p; };
    const auto chunk = [&](int k) { return k % per_group / p; };
    if (i < total && micro_batch(i) < shape.micro_batches) {
      writer.whole_forward(micro_batch(i), chunk(i));
    }
    const int k = i - warmup;
    if (k >= 0 && micro_batch(k) < shape.micro_batches) {
      writer.whole_backward(micro_batch(k), shape.chunks - 1 - chunk(k));
    }
  }
  writer.end_step();
  return writer.finish();
}

} // namespace trireme::pipeline
