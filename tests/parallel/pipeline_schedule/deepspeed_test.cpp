// Instruction by instruction, 1f1b is DeepSpeed's TrainSchedule and forward-only its InferenceSchedule.
#include <tests/support/folders.h>
#include <trireme/base/file.h>
#include <trireme/parallel/pipeline/schedule.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace trireme::pipeline {
namespace {

// As make_reference.py writes them.
std::string encode(const Program& program) {
  std::string text;
  for (const Instruction& instruction : program) {
    switch (instruction.op) {
      case Op::load_micro_batch:
        text += 'L';
        break;
      case Op::forward:
        text += 'F';
        break;
      case Op::backward:
        text += 'B';
        break;
      case Op::send_activation:
        text += 'A';
        break;
      case Op::recv_activation:
        text += 'a';
        break;
      case Op::send_grad:
        text += 'G';
        break;
      case Op::recv_grad:
        text += 'g';
        break;
      case Op::reduce_tied_grads:
        text += 'T';
        break;
      case Op::reduce_grads:
        text += 'R';
        break;
      case Op::optimizer_step:
        text += 'O';
        break;
      default:
        text += '?';
    }
    text += has_micro_batch(instruction.op) ? std::to_string(instruction.buffer) : "";
  }
  return text;
}

void expect_same(ScheduleKind kind, const char* table) {
  const auto reference = nlohmann::json::parse(
      read_file(test::source_dir() + "/tests/parallel/pipeline_schedule/deepspeed_reference.json"));
  EXPECT_EQ(reference.at("deepspeed"), "0.19.8");
  int compared = 0;
  for (int stages = 1; stages <= 6; ++stages) {
    for (int micro_batches = 1; micro_batches <= 12; ++micro_batches) {
      const auto& expected = reference.at(table).at(std::to_string(stages) + "," + std::to_string(micro_batches));
      for (int stage = 0; stage < stages; ++stage) {
        ASSERT_EQ(encode(make_program(kind, {stages, micro_batches, 1}, stage)), expected.at(stage).get<std::string>())
            << table << ", stage " << stage << " of " << stages << ", " << micro_batches << " micro-batches";
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 21 * 12);
}

TEST(DeepSpeedTest, OneForwardOneBackwardIsTrainSchedule) {
  expect_same(ScheduleKind::one_f_one_b, "train");
}

TEST(DeepSpeedTest, ForwardOnlyIsInferenceSchedule) {
  expect_same(ScheduleKind::forward_only, "inference");
}

} // namespace
} // namespace trireme::pipeline
