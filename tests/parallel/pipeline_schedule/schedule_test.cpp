#include <trireme/base/error.h>
#include <trireme/parallel/pipeline/schedule.h>
#include <trireme/parallel/pipeline/schedule_check.h>

#include <gmock/gmock.h>

namespace trireme::pipeline {
namespace {

using testing::HasSubstr;

const std::vector<ScheduleKind> kAll = {ScheduleKind::naive,       ScheduleKind::gpipe,
                                        ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
                                        ScheduleKind::zero_bubble, ScheduleKind::forward_only};

bool has_chunks(ScheduleKind kind) {
  return kind != ScheduleKind::one_f_one_b && kind != ScheduleKind::zero_bubble;
}

TEST(ScheduleTest, EveryKindOfEverySizePassesTheCheck) {
  int checked = 0;
  for (const ScheduleKind kind : kAll) {
    for (int stages = 1; stages <= 6; ++stages) {
      for (int chunks = 1; chunks <= (has_chunks(kind) ? 4 : 1); ++chunks) {
        for (int micro_batches = 1; micro_batches <= 16; ++micro_batches) {
          const ScheduleShape shape{stages, micro_batches, chunks};
          ASSERT_NO_THROW(check_schedule(make_programs(kind, shape), shape, kind != ScheduleKind::forward_only))
              << schedule_name(kind) << ' ' << stages << ' ' << micro_batches << ' ' << chunks;
          ++checked;
        }
      }
    }
  }
  EXPECT_EQ(checked, (4 * 4 + 2) * 6 * 16);
}

TEST(ScheduleTest, AStageAloneGetsTheSameProgramAsAllTogether) {
  for (const ScheduleKind kind : kAll) {
    const ScheduleShape shape{4, 6, has_chunks(kind) ? 2 : 1};
    const std::vector<Program> all = make_programs(kind, shape);
    for (int stage = 0; stage < 4; ++stage) {
      EXPECT_EQ(make_program(kind, shape, stage), all[stage]) << schedule_name(kind);
    }
  }
}

// Gradients add up in the same order whatever the schedule, so sums can be bit-equal.
TEST(ScheduleTest, GradientsComeInTheOrderOfTheMicroBatches) {
  for (const ScheduleKind kind : kAll) {
    const ScheduleShape shape{4, 8, has_chunks(kind) ? 3 : 1};
    for (const Program& program : make_programs(kind, shape)) {
      std::vector<int> next(shape.chunks, 0);
      for (const Instruction& instruction : program) {
        if (instruction.op == Op::backward || instruction.op == Op::backward_weight) {
          ASSERT_EQ(instruction.micro_batch, next[instruction.chunk]++) << schedule_name(kind);
        }
      }
    }
  }
}

TEST(ScheduleTest, OneStageSendsNothing) {
  for (const ScheduleKind kind : kAll) {
    for (const Instruction& instruction : make_program(kind, {1, 3, has_chunks(kind) ? 2 : 1}, 0)) {
      EXPECT_TRUE(instruction.op != Op::send_activation && instruction.op != Op::recv_activation &&
                  instruction.op != Op::send_grad && instruction.op != Op::recv_grad)
          << schedule_name(kind);
    }
  }
}

TEST(ScheduleTest, BuffersAreAsManyAsMicroBatchesInFlight) {
  const ScheduleShape shape{4, 8, 1};
  const auto buffers = [&](ScheduleKind kind, int stage) { return num_buffers(make_program(kind, shape, stage), 0); };
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(buffers(ScheduleKind::naive, stage), 1);
    EXPECT_EQ(buffers(ScheduleKind::gpipe, stage), 8);
    EXPECT_EQ(buffers(ScheduleKind::one_f_one_b, stage), std::max(2, 4 - stage)); // DeepSpeed never has fewer than 2
    EXPECT_LE(buffers(ScheduleKind::zero_bubble, stage), 4);
    EXPECT_EQ(buffers(ScheduleKind::forward_only, stage), 2);
  }
  EXPECT_EQ(num_buffers({}, 0), 0);
}

TEST(ScheduleTest, AssignBuffersReusesTheLowestFreeOne) {
  Program program = {{Op::forward, 0, 0}, {Op::forward, 1, 0},  {Op::forward, 0, 1},  {Op::backward, 0, 0},
                     {Op::forward, 2, 0}, {Op::backward, 1, 0}, {Op::backward, 2, 0}, {Op::optimizer_step}};
  assign_buffers(program);
  std::vector<int> buffers;
  for (const Instruction& instruction : program) {
    buffers.push_back(instruction.buffer);
  }
  EXPECT_EQ(buffers, (std::vector<int>{0, 1, 0, 0, 0, 1, 0, -1}));
  EXPECT_EQ(num_buffers(program, 0), 2);
  EXPECT_EQ(num_buffers(program, 1), 1);
}

TEST(ScheduleTest, NamesGoBothWays) {
  for (const ScheduleKind kind : kAll) {
    EXPECT_EQ(parse_schedule(schedule_name(kind)), kind);
  }
  try {
    parse_schedule("1fb1");
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("Did you mean \"1f1b\"?"));
  }
}

void expect_refused(ScheduleKind kind, const ScheduleShape& shape, int stage, const char* words) {
  try {
    make_program(kind, shape, stage);
    ADD_FAILURE() << "accepted; expected: " << words;
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr(words));
  }
}

TEST(ScheduleTest, NumbersThatMakeNoPipelineAreRefused) {
  expect_refused(ScheduleKind::gpipe, {0, 4, 1}, 0, "the number of stages is 0");
  expect_refused(ScheduleKind::gpipe, {2, -3, 1}, 0, "the number of micro-batches is -3");
  expect_refused(ScheduleKind::gpipe, {2, 4, 0}, 0, "the number of chunks is 0");
  expect_refused(ScheduleKind::gpipe, {2, 4, 1}, 2, "there is no stage 2 among 2 stages");
  expect_refused(ScheduleKind::gpipe, {2, 4, 1}, -1, "there is no stage -1");
  expect_refused(ScheduleKind::one_f_one_b, {2, 4, 2}, 0, "Use interleaved");
  expect_refused(ScheduleKind::zero_bubble, {2, 4, 2}, 0, "Use interleaved");
  expect_refused(ScheduleKind::gpipe, {2, 1 << 30, 1}, 0, "more than 1000000 forwards");
  expect_refused(ScheduleKind::zero_bubble, {1 << 30, 1, 1}, 0, "more than 4096");
}

} // namespace
} // namespace trireme::pipeline
