#include <trireme/base/error.h>
#include <trireme/config/deepspeed_json.h>
#include <trireme/config/precision_json.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace trireme::config {
namespace {

using precision::PrecisionOptions;
using precision::Type;
using testing::AllOf;
using testing::HasSubstr;

PrecisionOptions read_precision(const std::string& text) {
  const JsonNode node = JsonNode::parse(text, "ds.json");
  return read_precision(Values(&node, "engine"));
}

std::string precision_error(const std::string& text) {
  try {
    read_precision(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(PrecisionJsonTest, DefaultsAreFp32AndDeepSpeedsScale) {
  const PrecisionOptions options = read_precision("{}");
  EXPECT_EQ(options.compute, Type::fp32);
  EXPECT_FALSE(options.has_masters() || options.scales_loss() || options.autocast || options.cast_inputs);
  EXPECT_TRUE(options.check_grad_overflow);
  EXPECT_FALSE(options.communication);
  EXPECT_EQ(options.communication_type(), Type::fp32);
  EXPECT_EQ(options.grad_accumulation, Type::fp32);
  EXPECT_EQ(options.loss_scale.loss_scale, 0);
  EXPECT_EQ(options.loss_scale.initial_scale_power, 16);
  EXPECT_EQ(options.loss_scale.loss_scale_window, 1000);
  EXPECT_EQ(options.loss_scale.hysteresis, 2);
  EXPECT_FALSE(options.loss_scale.consecutive_hysteresis);
  EXPECT_EQ(options.loss_scale.min_loss_scale, 1);
}

TEST(PrecisionJsonTest, ReadsHalfPrecision) {
  const PrecisionOptions options = read_precision(R"({
    "fp16": {"enabled": true, "auto_cast": true, "loss_scale": 128, "initial_scale_power": 12, "loss_scale_window": 500, "hysteresis": 3,
             "consecutive_hysteresis": true, "min_loss_scale": 0.25},
    "bf16": {"enabled": false}, "communication_data_type": "fp32", "data_types": {"grad_accum_dtype": "fp16"}})");
  EXPECT_EQ(options.compute, Type::fp16);
  EXPECT_TRUE(options.has_masters() && options.scales_loss() && options.cast_inputs);
  EXPECT_EQ(options.loss_scale.loss_scale, 128);
  EXPECT_EQ(options.loss_scale.initial_scale_power, 12);
  EXPECT_EQ(options.loss_scale.loss_scale_window, 500);
  EXPECT_EQ(options.loss_scale.hysteresis, 3);
  EXPECT_TRUE(options.loss_scale.consecutive_hysteresis);
  EXPECT_EQ(options.loss_scale.min_loss_scale, 0.25);
  EXPECT_EQ(options.communication, Type::fp32);
  EXPECT_EQ(options.grad_accumulation, Type::fp16);
}

TEST(PrecisionJsonTest, ReadsBfloat16) {
  const PrecisionOptions options =
      read_precision(R"({"bf16": {"enabled": true, "check_grad_overflow": false, "immediate_grad_update": true},
                                            "communication_data_type": "bf16"})");
  EXPECT_EQ(options.compute, Type::bf16);
  EXPECT_TRUE(options.has_masters());
  EXPECT_FALSE(options.scales_loss() || options.check_grad_overflow);
  EXPECT_FALSE(options.communication) << "it is what gradients have anyway";
  EXPECT_EQ(options.communication_type(), Type::bf16);
}

TEST(PrecisionJsonTest, ReadsAutocastWithAnyOfItsTypesNames) {
  for (const char* name : {"bf16", "bfloat16", "torch.bfloat16"}) {
    const PrecisionOptions options =
        read_precision(concat(R"({"torch_autocast": {"enabled": true, "dtype": ")", name, "\"}}"));
    EXPECT_TRUE(options.autocast && options.autocast_type == Type::bf16) << name;
    EXPECT_FALSE(options.scales_loss() || options.has_masters());
  }
  for (const char* name : {"fp16", "float16", "half", "torch.float16"}) {
    const PrecisionOptions options =
        read_precision(concat(R"({"torch_autocast": {"enabled": true, "dtype": ")", name, "\"}}"));
    EXPECT_TRUE(options.autocast && options.autocast_type == Type::fp16) << name;
    EXPECT_TRUE(options.scales_loss()) << "its gradients are fp16";
  }
  EXPECT_EQ(read_precision(R"({"torch_autocast": {"enabled": true}})").autocast_type, Type::bf16);
}

TEST(PrecisionJsonTest, NonsenseIsRefusedByPlace) {
  EXPECT_THAT(precision_error(R"({"fp16": {"enabled": true, "min_loss_scale": 17, "initial_scale_power": 4}})"),
              AllOf(HasSubstr("ds.json:1:46: fp16.min_loss_scale: 17 is more than the first scale, 16"),
                    HasSubstr("raise initial_scale_power")));
  EXPECT_THAT(precision_error(R"({"fp16": {"enabled": true, "loss_scale": 1e300}})"),
              HasSubstr("fp16.loss_scale: 1e+300 times a loss is infinite"));
  EXPECT_EQ(precision_error(R"({"fp16": {"enabled": false, "min_loss_scale": 1e300}})"), "") << "nothing uses it";
  EXPECT_EQ(precision_error(R"({"fp16": {"enabled": true, "loss_scale": 8, "min_loss_scale": 1e300}})"), "")
      << "a static scale has no minimum";
  EXPECT_THAT(precision_error(R"({"torch_autocast": {"enabled": true}, "bf16": {"enabled": true}})"),
              AllOf(HasSubstr("ds.json:1:32: torch_autocast.enabled: "), HasSubstr("bf16.enabled at ds.json:1:59")));
  EXPECT_THAT(precision_error(R"({"data_types": {"grad_accum_dtype": "fp16"}, "bf16": {"enabled": true}})"),
              AllOf(HasSubstr("data_types.grad_accum_dtype: gradients of bf16 have a wider range"), HasSubstr("fp32")));
}

std::string whole_error_of(const std::string& text) {
  try {
    read_deepspeed(JsonNode::parse(text, "ds.json"));
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(PrecisionJsonTest, RangesAreTheTables) {
  EXPECT_THAT(whole_error_of(R"({"fp16": {"enabled": true, "initial_scale_power": 128}})"),
              HasSubstr("must be a whole number from 0 to 127, found 128"));
  EXPECT_THAT(whole_error_of(R"({"fp16": {"enabled": true, "loss_scale": true}})"),
              HasSubstr("fp16.loss_scale: must be a number"));
  EXPECT_THAT(whole_error_of(R"({"fp16": {"enabled": true, "loss_scale": -1}})"),
              HasSubstr("must be a number >= 0, found -1"));
  EXPECT_THAT(whole_error_of(R"({"fp16": {"enabled": true, "min_loss_scale": 0}})"),
              HasSubstr("must be a number > 0, found 0"));
  EXPECT_THAT(whole_error_of(R"({"torch_autocast": {"enabled": true, "dtype": "int8"}})"),
              HasSubstr("\"int8\" is not one of the choices"));
}

TEST(PrecisionJsonTest, ReadsFp8) {
  const PrecisionOptions options = read_precision(
      R"({"bf16": {"enabled": true}, "fp8": {"enabled": true, "recipe": "rowwise_with_gw_hp",
          "round_scales_to_power_of_2": false, "filter_fqns": ["lm_head", "layers.0."]}})");
  const fp8::Options expected{.enabled = true,
                              .recipe = fp8::Recipe::rowwise_with_gw_hp,
                              .round_scales_to_power_of_2 = false,
                              .filter_fqns = {"lm_head", "layers.0."}};
  EXPECT_EQ(options.fp8, expected);
  nlohmann::ordered_json written;
  write_precision(options, written);
  EXPECT_EQ(read_precision(written.dump()).fp8, expected);
  EXPECT_EQ(read_precision(R"({"fp8": {}})").fp8, fp8::Options());
  const PrecisionOptions measured = read_precision(R"({"bf16": {"enabled": "auto"}, "fp8": {"enabled": true}})");
  EXPECT_TRUE(measured.compute == Type::bf16 && !measured.bf16_if_faster) << "fp8 needs it";
  EXPECT_THAT(whole_error_of(R"({"bf16": {"enabled": true}, "fp8": {"enabled": true, "recipe": "block"}})"),
              HasSubstr("\"block\" is not one of the choices"));
  EXPECT_THAT(whole_error_of(R"({"fp8": {"enabled": true}})"), HasSubstr("fp8 with products in fp32"));
  EXPECT_THAT(whole_error_of(R"({"fp16": {"enabled": true}, "fp8": {"enabled": true}})"),
              HasSubstr("fp8 with products in fp16"));
}

TEST(PrecisionJsonTest, WhatIsWrittenIsReadAgain) {
  PrecisionOptions options;
  options.compute = Type::fp16;
  options.cast_inputs = true;
  options.loss_scale.hysteresis = 5;
  options.loss_scale.min_loss_scale = 0.5;
  options.autocast_type = Type::fp16;
  options.communication = Type::bf16;
  options.grad_accumulation = Type::fp32;
  nlohmann::ordered_json written;
  write_precision(options, written);
  nlohmann::ordered_json again;
  write_precision(read_precision(written.dump()), again);
  EXPECT_EQ(written, again);
  EXPECT_EQ(written["fp16"]["hysteresis"], 5);
  EXPECT_EQ(written["torch_autocast"]["dtype"], "fp16");
}

TEST(PrecisionJsonTest, Bf16MayBeLeftToAMeasurement) {
  const PrecisionOptions options = read_precision(
      R"({"bf16": {"enabled": "auto", "check_grad_overflow": false}, "communication_data_type": "fp32"})");
  EXPECT_TRUE(options.bf16_if_faster);
  EXPECT_EQ(options.compute, Type::fp32);
  EXPECT_EQ(options.communication, Type::fp32) << "stays, should bf16 be chosen";
  EXPECT_FALSE(options.check_grad_overflow);
  nlohmann::ordered_json written;
  write_precision(options, written);
  EXPECT_EQ(written["bf16"]["enabled"], "auto");
  for (const char* const other : {R"({"bf16": {"enabled": "auto"}, "fp16": {"enabled": true}})",
                                  R"({"bf16": {"enabled": "auto"}, "torch_autocast": {"enabled": true}})",
                                  R"({"bf16": {"enabled": true}})", R"({"bf16": {"enabled": false}})"}) {
    EXPECT_FALSE(read_precision(other).bf16_if_faster) << other;
  }
  EXPECT_EQ(read_deepspeed(JsonNode::parse(R"({"train_batch_size": 1, "bf16": {"enabled": "auto"}})", "ds.json"))
                .precision.bf16_if_faster,
            true);
  EXPECT_THROW(read_deepspeed(JsonNode::parse(R"({"train_batch_size": 1, "bf16": {"enabled": "maybe"}})", "ds.json")),
               InputError);
}

} // namespace
} // namespace trireme::config
