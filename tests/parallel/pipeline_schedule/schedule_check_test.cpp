#include <trireme/base/error.h>
#include <trireme/parallel/pipeline/schedule_check.h>

#include <gmock/gmock.h>

#include <algorithm>

namespace trireme::pipeline {
namespace {

using testing::HasSubstr;
using Programs = std::vector<Program>;

const ScheduleShape kShape{3, 4, 1};

size_t find(const Program& program, Op op, int micro_batch = -1, int chunk = 0) {
  const auto found = std::find_if(program.begin(), program.end(), [&](const Instruction& i) {
    return i.op == op && (!has_micro_batch(op) || (i.micro_batch == micro_batch && i.chunk == chunk));
  });
  EXPECT_NE(found, program.end()) << "the test's own schedule lacks " << describe({op, micro_batch, chunk});
  return static_cast<size_t>(found - program.begin());
}

void remove(Program& program, Op op, int micro_batch = -1, int chunk = 0) {
  program.erase(program.begin() + static_cast<std::ptrdiff_t>(find(program, op, micro_batch, chunk)));
}

void move_to(Program& program, Op op, int micro_batch, size_t to) {
  const size_t from = find(program, op, micro_batch);
  const Instruction instruction = program[from];
  program.erase(program.begin() + static_cast<std::ptrdiff_t>(from));
  program.insert(program.begin() + static_cast<std::ptrdiff_t>(std::min(to, program.size())), instruction);
}

void expect_refused(const Programs& programs, const ScheduleShape& shape, const std::vector<std::string>& words,
                    bool training = true) {
  try {
    check_schedule(programs, shape, training);
    ADD_FAILURE() << "accepted; expected: " << words.front();
  } catch (const InputError& error) {
    for (const std::string& word : words) {
      EXPECT_THAT(error.what(), HasSubstr(word));
    }
  }
}

// GPipe with one defect.
class BrokenTest : public testing::Test {
 protected:
  Programs programs = make_programs(ScheduleKind::gpipe, kShape);

  void refused(const std::vector<std::string>& words) const { expect_refused(programs, kShape, words); }
  std::string place(int stage, size_t instruction) const {
    return concat("stage ", stage, ", instruction ", instruction, " (", describe(programs[stage][instruction]), ')');
  }
};

TEST_F(BrokenTest, WholeIsAccepted) {
  EXPECT_NO_THROW(check_schedule(programs, kShape));
}

TEST_F(BrokenTest, AProgramTooFew) {
  programs.pop_back();
  refused({"there are 2 programs for 3 stages"});
}

TEST_F(BrokenTest, NoInstructionsAtAll) {
  programs[1].clear();
  refused({"stage 1: there is no forward of micro-batch 0, chunk 0 in its 0 instructions"});
}

TEST_F(BrokenTest, AForwardMissing) {
  remove(programs[0], Op::forward, 2);
  refused({"stage 0, instruction", "it needs forward of micro-batch 2, chunk 0, which is nowhere"});
}

TEST_F(BrokenTest, ABackwardMissing) {
  remove(programs[2], Op::backward, 3);
  refused({"stage 2", "it needs backward of micro-batch 3, chunk 0, which is nowhere"});
}

TEST_F(BrokenTest, AForwardTwice) {
  const size_t at = find(programs[1], Op::forward, 1);
  programs[1].insert(programs[1].begin() + static_cast<std::ptrdiff_t>(at) + 1, programs[1][at]);
  refused({place(1, at + 1), concat("instruction ", at, " did it already")});
}

TEST_F(BrokenTest, ABackwardAndAnInputGradient) {
  const size_t at = find(programs[1], Op::backward, 1);
  Instruction input = programs[1][at];
  input.op = Op::backward_input;
  programs[1].insert(programs[1].begin() + static_cast<std::ptrdiff_t>(at) + 1, input);
  refused({place(1, at + 1), "(backward) did it already"});
}

TEST_F(BrokenTest, AnInputGradientWithoutItsWeightGradient) {
  programs[1][find(programs[1], Op::backward, 1)].op = Op::backward_input;
  refused({"stage 1: there is no backward_weight of micro-batch 1, chunk 0"});
}

TEST_F(BrokenTest, AWeightGradientBeforeTheInputGradient) {
  const size_t at = find(programs[1], Op::backward, 1);
  programs[1][at].op = Op::backward_weight;
  Instruction input = programs[1][at];
  input.op = Op::backward_input;
  programs[1].insert(programs[1].begin() + static_cast<std::ptrdiff_t>(at) + 1, input);
  refused({place(1, at), "it needs backward_input of micro-batch 1, chunk 0, which comes later"});
}

TEST_F(BrokenTest, AForwardBeforeItsActivation) {
  const size_t at = find(programs[1], Op::recv_activation, 2);
  std::swap(programs[1][at], programs[1][at + 1]);
  refused({place(1, at), "it needs recv_activation of micro-batch 2, chunk 0, which comes later"});
}

TEST_F(BrokenTest, AForwardWithoutItsActivation) {
  remove(programs[1], Op::recv_activation, 2);
  refused({"stage 1", "it needs recv_activation of micro-batch 2, chunk 0, which is nowhere"});
}

TEST_F(BrokenTest, AForwardWithoutItsLoad) {
  remove(programs[2], Op::load_micro_batch, 0);
  refused({"stage 2", "it needs load_micro_batch of micro-batch 0"});
}

TEST_F(BrokenTest, ALoadThatNobodyNeeds) {
  programs[1].insert(programs[1].begin(), {Op::load_micro_batch, 0, 0, 0});
  refused({place(1, 0), "only the first part of the model needs inputs"});
}

TEST_F(BrokenTest, ABackwardBeforeItsGradient) {
  const size_t at = find(programs[0], Op::recv_grad, 0);
  std::swap(programs[0][at], programs[0][at + 1]);
  refused({place(0, at), "it needs recv_grad of micro-batch 0, chunk 0, which comes later"});
}

TEST_F(BrokenTest, ASendBeforeItsForward) {
  const size_t at = find(programs[0], Op::send_activation, 0);
  std::swap(programs[0][at], programs[0][at - 1]);
  refused({place(0, at - 1), "it needs forward of micro-batch 0, chunk 0, which comes later"});
}

TEST_F(BrokenTest, ASendMissing) {
  remove(programs[0], Op::send_activation, 1);
  refused({"stage 0: there is no send_activation of micro-batch 1, chunk 0"});
}

TEST_F(BrokenTest, AGradientNeverSent) {
  remove(programs[1], Op::send_grad, 1);
  refused({"stage 1: there is no send_grad of micro-batch 1, chunk 0"});
}

TEST_F(BrokenTest, MessagesPastTheEndsOfTheModel) {
  programs[0].insert(programs[0].begin(), {Op::recv_activation, 0, 0, 0});
  refused({place(0, 0), "nothing comes before it"});
  programs = make_programs(ScheduleKind::gpipe, kShape);
  programs[2].push_back({Op::send_activation, 0, 0, 0});
  refused({place(2, programs[2].size() - 1), "nothing comes after it"});
}

TEST_F(BrokenTest, MessagesOfOneStage) {
  Programs one = make_programs(ScheduleKind::naive, {1, 1, 2});
  one[0].push_back({Op::send_activation, 0, 0, 0});
  expect_refused(one, {1, 1, 2}, {"a single stage needs no messages"});
}

TEST_F(BrokenTest, ReceivesInAnotherOrderThanTheSends) {
  // Stage 1 wants micro-batch 1 first.
  std::vector<size_t> first;
  for (const int m : {0, 1}) {
    first.push_back(find(programs[1], Op::recv_activation, m));
  }
  for (int i = 0; i < 3; ++i) {
    std::swap(programs[1][first[0] + i], programs[1][first[1] + i]);
  }
  refused({place(1, first[0]), "stage 0 sends micro-batch 0 first"});
}

TEST_F(BrokenTest, SendsInAnotherOrderThanTheForwards) {
  move_to(programs[0], Op::send_activation, 0, find(programs[0], Op::send_activation, 1));
  refused({"stage 0", "send_activation of micro-batch 1", "micro-batch 0 was made before it"});
}

TEST_F(BrokenTest, NumbersOutOfRange) {
  for (const auto& [change, words] :
       std::vector<std::pair<Instruction, std::string>>{{{Op::forward, 4, 0, 0}, "no micro-batch 4"},
                                                        {{Op::forward, -1, 0, 0}, "no micro-batch -1"},
                                                        {{Op::forward, 0, 1, 0}, "no chunk 1"},
                                                        {{Op::forward, 0, -2, 0}, "no chunk -2"},
                                                        {{Op::forward, 0, 0, 4}, "no buffer 4"},
                                                        {{Op::forward, 0, 0, -1}, "no buffer -1"},
                                                        {{static_cast<Op>(99), 0, 0, 0}, "no operation number 99"}}) {
    Programs broken = programs;
    broken[1].insert(broken[1].begin() + 2, change);
    expect_refused(broken, kShape, {"stage 1, instruction 2", words});
  }
}

TEST_F(BrokenTest, ABufferThatIsStillTaken) {
  for (Instruction& instruction : programs[1]) {
    instruction.buffer = instruction.micro_batch == 3 ? 1 : instruction.buffer;
  }
  const size_t at = find(programs[1], Op::recv_activation, 3);
  refused({place(1, at), "micro-batch 1 is still in buffer 1 of this chunk, until instruction"});
}

TEST_F(BrokenTest, ABufferThatChanges) {
  const size_t at = find(programs[1], Op::backward, 0);
  programs[1][at].buffer = 2;
  refused({place(1, at), "it names buffer 2, and this micro-batch is in buffer 0"});
}

TEST_F(BrokenTest, TheEndOfTheStep) {
  for (const Op op : {Op::reduce_tied_grads, Op::reduce_grads, Op::optimizer_step}) {
    Programs broken = programs;
    remove(broken[1], op);
    expect_refused(broken, kShape, {concat("stage 1: there is no ", op_name(op))});
    broken = programs;
    broken[1].push_back({op});
    expect_refused(broken, kShape, {"did it already"});
  }
  Programs broken = programs;
  std::swap(broken[2][broken[2].size() - 1], broken[2][broken[2].size() - 2]);
  expect_refused(broken, kShape, {"stage 2", "(optimizer_step): it comes before", "(reduce_grads)"});
  broken = programs;
  move_to(broken[0], Op::backward, 3, broken[0].size());
  expect_refused(broken, kShape, {"stage 0", "the gradients were reduced before"});
}

TEST_F(BrokenTest, TrainingInAnEvaluation) {
  expect_refused(programs, kShape, {"an evaluation has only loads"}, false);
  const Programs evaluation = make_programs(ScheduleKind::forward_only, kShape);
  EXPECT_NO_THROW(check_schedule(evaluation, kShape, false));
  expect_refused(evaluation, kShape, {"there is no backward of micro-batch 0"});
}

// Each waits for what the other would send afterwards.
TEST(DeadlockTest, SaysWhoWaitsForWhom) {
  const ScheduleShape shape{2, 2, 1};
  Programs programs = make_programs(ScheduleKind::gpipe, shape);
  // Stage 0 wants the first gradient before it sends the second activation; stage 1 both activations before it sends.
  move_to(programs[0], Op::recv_grad, 0, find(programs[0], Op::forward, 1));
  expect_refused(programs, shape,
                 {"deadlock", "stage 0, instruction 4 (recv_grad of micro-batch 0, chunk 0) waits for stage 1",
                  "stage 1, instruction 3 (recv_activation of micro-batch 1, chunk 0) waits for stage 0"});
}

TEST(DeadlockTest, AGradientSentAfterTheMeetingOfAllStages) {
  const ScheduleShape shape{2, 1, 1};
  Programs programs = make_programs(ScheduleKind::gpipe, shape);
  move_to(programs[1], Op::send_grad, 0, programs[1].size());
  expect_refused(
      programs, shape,
      {"stage 0", "(recv_grad of micro-batch 0, chunk 0) waits for stage 1", "(reduce_tied_grads) waits for stage 0"});
}

TEST(OwnScheduleTest, OneThatIsRightIsAccepted) {
  // GPipe with the backwards in the opposite order, as the paper draws it, buffers left to us.
  const ScheduleFunction lifo = [](const ScheduleShape& shape, int stage) {
    Program program = make_program(ScheduleKind::gpipe, shape, stage);
    for (Instruction& instruction : program) {
      if (instruction.op == Op::backward || instruction.op == Op::recv_grad || instruction.op == Op::send_grad) {
        instruction.micro_batch = shape.micro_batches - 1 - instruction.micro_batch;
      }
    }
    assign_buffers(program);
    return program;
  };
  const ScheduleShape shape{4, 6, 1};
  Programs programs;
  for (int stage = 0; stage < shape.stages; ++stage) {
    programs.push_back(lifo(shape, stage));
  }
  EXPECT_NO_THROW(check_schedule(programs, shape));
}

TEST(OwnScheduleTest, ChunksOfOneStageWaitForEachOther) {
  const ScheduleShape shape{1, 1, 2};
  Programs programs = make_programs(ScheduleKind::naive, shape);
  std::swap(programs[0][find(programs[0], Op::backward, 0, 0)], programs[0][find(programs[0], Op::backward, 0, 1)]);
  expect_refused(programs, shape, {"it needs backward of micro-batch 0, chunk 1, which comes later"});
}

} // namespace
} // namespace trireme::pipeline
