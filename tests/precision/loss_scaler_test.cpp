#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/precision/loss_scaler.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <array>
#include <bit>
#include <cmath>

namespace trireme::precision {
namespace {

using testing::HasSubstr;

// splitmix64, as in reference_loss_scaler.py.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next(uint64_t below) {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (z ^ (z >> 31)) % below;
  }

 private:
  uint64_t state_;
};

struct Pattern {
  LossScaleOptions options;
  std::vector<bool> overflows;
};

Pattern pattern(uint64_t number) {
  Random random(number);
  Pattern out;
  out.options.initial_scale_power = static_cast<int64_t>(random.next(25));
  out.options.loss_scale_window = std::array{1, 2, 3, 5, 10, 50, 100}[random.next(7)];
  out.options.hysteresis = 1 + static_cast<int64_t>(random.next(4));
  out.options.consecutive_hysteresis = random.next(2) == 1;
  out.options.min_loss_scale = std::min(std::array{0.25, 1.0, 2.0, 5.0}[random.next(4)],
                                        std::ldexp(1.0, static_cast<int>(out.options.initial_scale_power)));
  const uint64_t chance = std::array{0, 10, 50, 200, 500, 900}[random.next(6)];
  const uint64_t burst = std::array{0, 300, 800}[random.next(3)];
  for (int i = 0; i < (out.options.loss_scale_window == 1 ? 100 : 200); ++i) {
    const uint64_t draw = random.next(1000);
    out.overflows.push_back(draw < (i > 0 && out.overflows.back() ? burst : chance));
  }
  return out;
}

void add(uint64_t& digest, const LossScaler::Update& update, int64_t hysteresis) {
  const uint64_t word =
      std::bit_cast<uint64_t>(update.scale) ^ (static_cast<uint64_t>(hysteresis) << 1 | (update.at_minimum ? 1 : 0));
  digest = (digest ^ word) * 0x100000001B3u;
  digest ^= digest >> 29;
}

// reference_loss_scaler.py has the rule a second time, and DeepSpeed's own class gives the same 5,000.
TEST(LossScalerTest, FollowsTheDocumentedRuleThroughRandomOverflows) {
  const auto reference =
      nlohmann::json::parse(read_file(test::source_dir() + "/tests/precision/reference_loss_scaler.json"));
  const auto count = reference["patterns"].get<uint64_t>();
  ASSERT_EQ(count, 5000u);
  for (uint64_t k = 0; k < count; ++k) {
    const Pattern all = pattern(k);
    LossScaler scaler(all.options);
    uint64_t digest = 0xCBF29CE484222325u;
    for (const bool overflow : all.overflows) {
      const double before = scaler.scale();
      const LossScaler::Update update = scaler.update(overflow);
      ASSERT_EQ(update.skipped, overflow);
      ASSERT_EQ(update.used, before) << "gradients are unscaled with the scale they carry";
      ASSERT_EQ(update.scale, scaler.scale());
      add(digest, update, scaler.hysteresis());
    }
    char text[9];
    std::snprintf(text, sizeof text, "%08x", static_cast<unsigned>(digest >> 32));
    ASSERT_EQ(reference["digests"][k].get<std::string>(), text)
        << "pattern " << k << ": reference_loss_scaler.py --show " << k;
  }
}

TEST(LossScalerTest, ARestoredOneGoesOnAsIfNeverInterrupted) {
  for (const uint64_t k : {3, 77, 1234, 4999}) {
    const Pattern all = pattern(k);
    LossScaler whole(all.options);
    LossScaler first(all.options);
    const size_t half = all.overflows.size() / 2;
    for (size_t i = 0; i < half; ++i) {
      whole.update(all.overflows[i]);
      first.update(all.overflows[i]);
    }
    LossScaler second(all.options);
    second.load_state(nlohmann::json::parse(first.state().dump()));
    for (size_t i = half; i < all.overflows.size(); ++i) {
      ASSERT_EQ(second.update(all.overflows[i]).scale, whole.update(all.overflows[i]).scale);
      ASSERT_EQ(second.overflows_in_a_row(), whole.overflows_in_a_row());
    }
    EXPECT_EQ(second.state(), whole.state());
  }
}

TEST(LossScalerTest, DefaultsAreDeepSpeeds) {
  LossScaler scaler{LossScaleOptions()};
  EXPECT_EQ(scaler.scale(), 65536);
  EXPECT_EQ(scaler.update(true).scale, 65536) << "hysteresis 2: the first overflow only skips its step";
  EXPECT_EQ(scaler.update(true).scale, 32768);
  EXPECT_EQ(scaler.overflows_in_a_row(), 2);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(scaler.update(false).scale, 32768);
  }
  EXPECT_EQ(scaler.update(false).scale, 65536);
  EXPECT_EQ(scaler.hysteresis(), 2);
  EXPECT_EQ(scaler.overflows_in_a_row(), 0);
}

TEST(LossScalerTest, AStaticScaleNeverMovesAndStillSkips) {
  LossScaleOptions options;
  options.loss_scale = 100;
  options.initial_scale_power = 5000; // nobody looks at it
  LossScaler scaler(options);
  EXPECT_FALSE(scaler.dynamic());
  for (int i = 0; i < 10; ++i) {
    const auto update = scaler.update(i % 2 == 0);
    EXPECT_EQ(update.scale, 100);
    EXPECT_EQ(update.skipped, i % 2 == 0);
    EXPECT_FALSE(update.at_minimum);
  }
  LossScaler dynamic{LossScaleOptions()};
  scaler.load_state(dynamic.state());
  EXPECT_EQ(scaler.scale(), 100) << "the configuration decides";
  LossScaler none;
  EXPECT_TRUE(none.update(true).skipped);
  EXPECT_EQ(none.scale(), 1);
}

TEST(LossScalerTest, TheScaleStaysANumberOfFp32) {
  LossScaleOptions options;
  options.initial_scale_power = 126;
  options.loss_scale_window = 1;
  LossScaler scaler(options);
  for (int i = 0; i < 10; ++i) {
    scaler.update(false);
  }
  EXPECT_EQ(scaler.scale(), 0x1p127);
  EXPECT_TRUE(std::isfinite(static_cast<float>(scaler.scale())));
}

std::string error_of(const LossScaleOptions& options) {
  try {
    LossScaler scaler(options);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(LossScalerTest, NonsenseIsRefusedByName) {
  const auto with = [](auto change) {
    LossScaleOptions options;
    change(options);
    return error_of(options);
  };
  EXPECT_THAT(with([](auto& o) { o.loss_scale = -1; }), HasSubstr("loss_scale must be 0 (dynamic) or"));
  EXPECT_THAT(with([](auto& o) { o.loss_scale = NAN; }), HasSubstr("got nan"));
  EXPECT_THAT(with([](auto& o) { o.initial_scale_power = 128; }),
              HasSubstr("initial_scale_power must be from 0 to 127, got 128"));
  EXPECT_THAT(with([](auto& o) { o.loss_scale_window = 0; }), HasSubstr("loss_scale_window must be >= 1"));
  EXPECT_THAT(with([](auto& o) { o.hysteresis = 0; }), HasSubstr("hysteresis must be >= 1"));
  EXPECT_THAT(with([](auto& o) { o.min_loss_scale = 0; }), HasSubstr("min_loss_scale must be > 0"));
  EXPECT_THAT(with([](auto& o) { o.min_loss_scale = 65537; }), HasSubstr("at most 2^initial_scale_power, got 65537"));
}

TEST(LossScalerTest, ADamagedStateChangesNothing) {
  LossScaler scaler{LossScaleOptions()};
  scaler.update(true);
  const nlohmann::json good = scaler.state();
  const nlohmann::json values = nlohmann::json::parse(R"([null, "x", true, -5, 0, 1e300, [], {}])");
  for (const auto& [key, value] : good.items()) {
    nlohmann::json without = good;
    without.erase(key);
    if (key != "largest") { // younger than the others
      EXPECT_THROW(scaler.load_state(without), InputError) << key;
    }
    for (const nlohmann::json& bad : values) {
      nlohmann::json state = good;
      state[key] = bad;
      try {
        scaler.load_state(state);
        EXPECT_TRUE(bad == 0 || bad == 1e300) << state; // some are possible values of some keys
        scaler.load_state(good);
      } catch (const InputError&) {
        EXPECT_EQ(scaler.state(), good);
      }
    }
  }
  EXPECT_THROW(scaler.load_state(nlohmann::json(5)), InputError);
}

TEST(LossScalerTest, ALimitLowersAFixedScaleForGood) {
  LossScaleOptions options;
  options.loss_scale = 65536;
  LossScaler fixed(options);
  EXPECT_FALSE(fixed.limit(0x1p20));
  EXPECT_EQ(fixed.scale(), 0x1p16);
  EXPECT_TRUE(fixed.limit(0x1p15));
  EXPECT_FALSE(fixed.limit(0x1p15));
  EXPECT_EQ(fixed.scale(), 0x1p15);
  nlohmann::json saved = fixed.state();
  saved["loss_scale"] = 0x1p18;
  fixed.load_state(saved);
  EXPECT_EQ(fixed.scale(), 0x1p15);
  LossScaler resumed(options);
  resumed.load_state(saved);
  EXPECT_EQ(resumed.scale(), 0x1p15) << "else every resumed run would skip a step that the uninterrupted one makes";
  saved.erase("largest");
  resumed.load_state(saved);
  EXPECT_EQ(resumed.scale(), 0x1p16) << "as checkpoints without it were written";
  LossScaler dynamic{LossScaleOptions()};
  EXPECT_FALSE(dynamic.limit(0x1p15));
  EXPECT_EQ(dynamic.scale(), 0x1p16) << "its rule lowers it";
}

} // namespace
} // namespace trireme::precision
