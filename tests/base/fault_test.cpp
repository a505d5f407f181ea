#include <trireme/base/fault.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>

#include <cstdlib>

namespace trireme::fault {
namespace {

using testing::HasSubstr;

class FaultTest : public testing::Test {
 protected:
  ~FaultTest() override { arm("", 0, 1, 0); }
};

std::string refusal(const std::string& text) {
  try {
    arm(text, 0, 2, 0);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST_F(FaultTest, StrikesItsRankStepPhaseAndAttemptOnly) {
  const std::string text = "rank=1,step=7,phase=all_reduce,kind=drop; phase=forward,kind=nan,attempt=2";
  arm(text, 0, 2, 0);
  EXPECT_FALSE(detail::armed);
  arm(text, 1, 2, 0);
  set_step(6);
  EXPECT_EQ(at(Phase::all_reduce), Effect::none);
  set_step(7);
  EXPECT_EQ(at(Phase::send), Effect::none);
  EXPECT_EQ(at(Phase::forward), Effect::none) << "only after two restarts";
  EXPECT_EQ(at(Phase::all_reduce), Effect::drop);
  EXPECT_EQ(at(Phase::all_reduce), Effect::none) << "once a step";
  arm(text, 1, 2, 2);
  set_step(1);
  EXPECT_EQ(at(Phase::forward), Effect::nan);
  set_step(2);
  EXPECT_EQ(at(Phase::forward), Effect::nan) << "no step: every one";
  EXPECT_EQ(at(Phase::all_reduce), Effect::none) << "the first start only";
}

// Each worker of parameter servers is rank 0 of a world of its own.
TEST_F(FaultTest, AWorkerOfServersIsTheRankOfItsNumber) {
  ::setenv("TRIREME_FAULT", "rank=2,phase=forward,kind=nan", 1);
  const auto effect_on = [](const char* worker) {
    ::setenv("TRIREME_WORKER", worker, 1);
    arm_from_environment(0, 1);
    set_step(1);
    return at(Phase::forward);
  };
  EXPECT_EQ(effect_on("0/3"), Effect::none);
  EXPECT_EQ(effect_on("2/3"), Effect::nan);
  EXPECT_THROW(effect_on("0/2"), InputError) << "there is no rank 2";
  ::unsetenv("TRIREME_WORKER");
  EXPECT_THROW(arm_from_environment(0, 1), InputError);
  ::unsetenv("TRIREME_FAULT");
}

TEST_F(FaultTest, NothingStrikesBeforeTheFirstStep) {
  arm("phase=all_reduce,kind=drop", 0, 1, 0);
  set_step(0);
  EXPECT_EQ(at(Phase::all_reduce), Effect::none);
  arm("phase=all_reduce,kind=drop,step=0", 0, 1, 0);
  set_step(0);
  EXPECT_EQ(at(Phase::all_reduce), Effect::drop);
}

TEST_F(FaultTest, WithoutAnEngineOccurrencesAreSteps) {
  arm("phase=send,kind=drop,step=3", 0, 1, 0);
  EXPECT_EQ(at(Phase::send), Effect::none);
  EXPECT_EQ(at(Phase::recv), Effect::none);
  EXPECT_EQ(at(Phase::send), Effect::none);
  EXPECT_EQ(at(Phase::send), Effect::drop);
  EXPECT_EQ(at(Phase::send), Effect::none);
}

TEST_F(FaultTest, RefusesWhatIsWrongByName) {
  EXPECT_THAT(refusal("rank=1,phase=al_reduce,kind=kill"),
              HasSubstr("phase=al_reduce is unknown. Did you mean \"all_reduce\"?"));
  EXPECT_THAT(refusal("rank=1,stp=7"), HasSubstr("unknown key \"stp\". Did you mean \"step\"?"));
  EXPECT_THAT(refusal("phase=step,kind=die"), HasSubstr("kind=die is unknown"));
  EXPECT_THAT(refusal("rnk=1,phase=step,kind=kill"), HasSubstr("\"rank\""));
  EXPECT_THAT(refusal("phase=step"), HasSubstr("\"kind\" is missing"));
  EXPECT_THAT(refusal("kind=kill"), HasSubstr("\"phase\" is missing"));
  EXPECT_THAT(refusal("rank=2,phase=step,kind=kill"), HasSubstr("there are 2 ranks"));
  EXPECT_THAT(refusal("rank=-1,phase=step,kind=kill"), HasSubstr("rank=-1"));
  EXPECT_THAT(refusal("phase=step,phase=step,kind=kill"), HasSubstr("is given twice"));
  EXPECT_THAT(refusal("phase=step,kind=delay,seconds=nan"), HasSubstr("seconds=nan"));
  EXPECT_THAT(refusal("phase=step,kind=delay,seconds="), HasSubstr("no value"));
  EXPECT_THAT(refusal("phase=data,kind=nan"), HasSubstr("kind=nan needs"));
  EXPECT_THAT(refusal("phase=step,kind=drop"), HasSubstr("kind=drop needs"));
  EXPECT_THAT(refusal("nonsense"), HasSubstr("nonsense"));
  EXPECT_EQ(refusal(" ; "), "accepted");
}

} // namespace
} // namespace trireme::fault
