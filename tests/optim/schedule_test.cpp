#include <tests/support/folders.h>
#include <trireme/optim/schedule.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>

namespace trireme::optim {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

nlohmann::json reference() {
  std::ifstream file(test::source_dir() + "/tests/optim/reference_schedules.json");
  return nlohmann::json::parse(file);
}

void read(const nlohmann::json& params, const char* key, double& value) {
  value = params.value(key, value);
}
void read(const nlohmann::json& params, const char* key, int64_t& value) {
  value = params.value(key, value);
}
void read(const nlohmann::json& params, const char* key, bool& value) {
  value = params.value(key, value);
}
template <class T>
void read(const nlohmann::json& params, const char* key, std::optional<T>& value) {
  if (params.contains(key)) {
    value = params.at(key).get<T>();
  }
}

ScheduleOptions schedule_options(const std::string& name, const nlohmann::json& params) {
  using Kind = ScheduleOptions::Kind;
  ScheduleOptions o;
  o.kind = name == "WarmupLR"         ? Kind::warmup
           : name == "WarmupDecayLR"  ? Kind::warmup_decay
           : name == "WarmupCosineLR" ? Kind::warmup_cosine
           : name == "LRRangeTest"    ? Kind::lr_range_test
                                      : Kind::one_cycle;
  size_t known = 0;
  const auto take = [&](const char* key, auto& value) {
    known += params.count(key);
    read(params, key, value);
  };
  take("warmup_min_lr", o.warmup_min_lr);
  take("warmup_max_lr", o.warmup_max_lr);
  take("warmup_num_steps", o.warmup_num_steps);
  take("total_num_steps", o.total_num_steps);
  take("warmup_min_ratio", o.warmup_min_ratio);
  take("cos_min_ratio", o.cos_min_ratio);
  take("lr_range_test_min_lr", o.lr_range_test_min_lr);
  take("lr_range_test_step_size", o.lr_range_test_step_size);
  take("lr_range_test_step_rate", o.lr_range_test_step_rate);
  take("lr_range_test_staircase", o.lr_range_test_staircase);
  take("cycle_min_lr", o.cycle_min_lr);
  take("cycle_max_lr", o.cycle_max_lr);
  take("decay_lr_rate", o.decay_lr_rate);
  take("cycle_first_step_size", o.cycle_first_step_size);
  take("cycle_second_step_size", o.cycle_second_step_size);
  take("cycle_first_stair_count", o.cycle_first_stair_count);
  take("cycle_second_stair_count", o.cycle_second_stair_count);
  take("decay_step_size", o.decay_step_size);
  take("cycle_momentum", o.cycle_momentum);
  take("cycle_min_mom", o.cycle_min_mom);
  take("cycle_max_mom", o.cycle_max_mom);
  take("decay_mom_rate", o.decay_mom_rate);
  if (params.contains("warmup_type")) {
    ++known;
    o.warmup_type =
        params.at("warmup_type") == "linear" ? ScheduleOptions::Warmup::linear : ScheduleOptions::Warmup::log;
  }
  EXPECT_EQ(known, params.size()) << params;
  return o;
}

void expect_same(double ours, double theirs, const std::string& where) {
  EXPECT_NEAR(ours, theirs, 1e-12 * std::abs(theirs)) << where;
}

TEST(ScheduleTest, EqualsDeepSpeedStepByStep) {
  const nlohmann::json recorded = reference();
  ASSERT_THAT(recorded.at("cases"), SizeIs(22));
  for (const auto& c : recorded.at("cases")) {
    const std::string name = c.at("name");
    const auto schedule = make_schedule(schedule_options(name, c.at("params")), recorded.at("optimizer_lr"));
    EXPECT_EQ(schedule->name(), name);
    for (size_t k = 0; k < recorded.at("steps").size(); ++k) {
      const int64_t step = recorded.at("steps")[k];
      const std::string where = concat(name, c.at("params").dump(), " step ", step);
      expect_same(schedule->lr_at(step), c.at("lr")[k], where);
      const auto betas = schedule->betas_at(step);
      ASSERT_EQ(betas.has_value(), c.contains("beta1")) << where;
      if (betas) {
        expect_same(betas->beta1, c.at("beta1")[k], where + " beta1");
        expect_same(betas->beta2, c.at("beta2")[k], where + " beta2");
      }
    }
  }
}

TEST(ScheduleTest, ConstantIsTheOptimizersLr) {
  const auto schedule = make_schedule({}, 0.25);
  EXPECT_STREQ(schedule->name(), "Constant");
  EXPECT_EQ(schedule->lr_at(1), 0.25);
  EXPECT_EQ(schedule->lr_at(int64_t{1} << 40), 0.25);
  EXPECT_FALSE(schedule->betas_at(3).has_value());
  EXPECT_THAT(schedule->warnings(), IsEmpty());
}

TEST(ScheduleTest, ARateThatWasSetIsPartOfTheState) {
  const auto schedule = make_schedule({}, 0.25);
  schedule->advance();
  const nlohmann::json before = schedule->state();
  schedule->set_lr(0.5);
  schedule->advance();
  const nlohmann::json after = schedule->state();
  schedule->load_state(before);
  EXPECT_EQ(schedule->lr(), 0.25) << "as it was then";
  EXPECT_EQ(schedule->steps_taken(), 1);
  EXPECT_EQ(schedule->state(), before);
  schedule->load_state(nlohmann::json::parse(after.dump()));
  EXPECT_EQ(schedule->lr(), 0.5);
  EXPECT_EQ(schedule->state(), after);
  for (const char* lr : {"-1", "1e999", "null", "\"0.1\"", "[0.1]"}) {
    nlohmann::json wrong = before;
    wrong["lr"] = lr == std::string("1e999") ? nlohmann::json(INFINITY) : nlohmann::json::parse(lr);
    EXPECT_THROW(schedule->load_state(wrong), InputError) << lr;
    EXPECT_EQ(schedule->state(), after) << lr;
  }
}

ScheduleOptions linear_warmup(int64_t steps) {
  ScheduleOptions options;
  options.kind = ScheduleOptions::Kind::warmup;
  options.warmup_type = ScheduleOptions::Warmup::linear;
  options.warmup_num_steps = steps;
  return options;
}

TEST(ScheduleTest, AdvanceMovesToTheNextStep) {
  const auto schedule = make_schedule(linear_warmup(4), 1.0);
  std::vector<double> lrs;
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(schedule->steps_taken(), i);
    lrs.push_back(schedule->lr());
    schedule->advance();
  }
  EXPECT_THAT(lrs, ::testing::ElementsAre(0, 0, 0.25, 0.5, 0.75, 1, 1, 1));
}

TEST(ScheduleTest, SkippedStepKeepsTheRate) {
  const auto schedule = make_schedule(linear_warmup(4), 1.0);
  for (int i = 0; i < 3; ++i) {
    schedule->advance();
  }
  const double before = schedule->lr();
  EXPECT_EQ(schedule->lr(), before); // an overflow: nobody calls advance()
  schedule->advance();
  EXPECT_GT(schedule->lr(), before);
}

TEST(ScheduleTest, ResumesWhereItStood) {
  const auto schedule = make_schedule(linear_warmup(10), 1.0);
  for (int i = 0; i < 6; ++i) {
    schedule->advance();
  }
  const auto resumed = make_schedule(linear_warmup(10), 1.0);
  resumed->load_state(nlohmann::json::parse(schedule->state().dump()));
  EXPECT_EQ(resumed->steps_taken(), 6);
  EXPECT_EQ(resumed->lr(), schedule->lr());
  EXPECT_EQ(resumed->lr(), 0.5);
}

TEST(ScheduleTest, RefusesAnotherSchedulesState) {
  const auto warmup = make_schedule(linear_warmup(10), 1.0);
  warmup->advance();
  const auto constant = make_schedule({}, 1.0);
  try {
    warmup->load_state(constant->state());
    FAIL() << "loaded";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("The checkpoint's schedule is Constant, this run's is WarmupLR."));
  }
  for (const char* text :
       {"null", "[]", "3", "{}", R"({"schedule": "WarmupLR"})", R"({"schedule": 3, "steps_taken": 1})",
        R"({"schedule": "WarmupLR", "steps_taken": -1})", R"({"schedule": "WarmupLR", "steps_taken": "1"})"}) {
    EXPECT_THROW(warmup->load_state(nlohmann::json::parse(text)), InputError) << text;
  }
  EXPECT_EQ(warmup->steps_taken(), 1);
}

TEST(ScheduleTest, WarnsOfStepsThatChangeNothing) {
  EXPECT_THAT(make_schedule(linear_warmup(10), 1.0)->warnings(),
              ::testing::ElementsAre(HasSubstr("steps 1 and 2 at learning rate 0")));
  ScheduleOptions above_zero = linear_warmup(10);
  above_zero.warmup_min_lr = 1e-6;
  EXPECT_THAT(make_schedule(above_zero, 1.0)->warnings(), IsEmpty());
  above_zero.kind = ScheduleOptions::Kind::warmup_decay;
  above_zero.total_num_steps = 9;
  EXPECT_THAT(make_schedule(above_zero, 1.0)->warnings(),
              ::testing::ElementsAre(HasSubstr("total_num_steps 9 is less than warmup_num_steps 10")));
}

TEST(ScheduleTest, NamesTheImpossibleOption) {
  const auto message = [](auto change) -> std::string {
    ScheduleOptions options;
    change(options);
    try {
      make_schedule(options, 1.0);
    } catch (const InputError& error) {
      return error.what();
    }
    return "made";
  };
  using Kind = ScheduleOptions::Kind;
  EXPECT_THAT(message([](auto& o) { o.kind = Kind::warmup, o.warmup_num_steps = -1; }),
              HasSubstr("WarmupLR: warmup_num_steps must be at least 0, got -1"));
  EXPECT_THAT(message([](auto& o) { o.kind = Kind::warmup_decay; }), HasSubstr("WarmupDecayLR needs total_num_steps"));
  EXPECT_THAT(message([](auto& o) { o.kind = Kind::warmup_cosine; }),
              HasSubstr("WarmupCosineLR needs total_num_steps"));
  EXPECT_THAT(message([](auto& o) { o.kind = Kind::lr_range_test, o.lr_range_test_step_size = 0; }),
              HasSubstr("lr_range_test_step_size"));
  EXPECT_THAT(message([](auto& o) { o.kind = Kind::one_cycle, o.cycle_first_step_size = 0; }),
              HasSubstr("cycle_first_step_size"));
  EXPECT_THAT(message([](auto& o) { o.kind = Kind::one_cycle, o.cycle_max_mom = 1.0; }),
              HasSubstr("cycle_max_mom must be in [0, 1), got 1"));
  EXPECT_THAT(message([](auto& o) { o.kind = Kind::one_cycle, o.cycle_min_lr = std::nan(""); }),
              HasSubstr("cycle_min_lr"));
}

TEST(ScheduleTest, StepsCountFromOne) {
  EXPECT_THROW(make_schedule({}, 1.0)->lr_at(0), Error);
  EXPECT_THROW(make_schedule({}, 1.0)->betas_at(-1), Error);
}

} // namespace
} // namespace trireme::optim
