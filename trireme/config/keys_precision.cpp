#include <trireme/config/key_table.h>

// Element types: what is computed, added up and sent in less than fp32.
// clang-format off: a line of the table is a line.
namespace trireme::config {
namespace {

constexpr auto R = Verdict::refused;
constexpr auto L = Verdict::not_yet;

// What the engine acts on so far: the keys of the others are refused as "not yet".
constexpr bool kFp16 = false;
constexpr bool kBf16 = false;
constexpr bool kImmediateUpdate = false;
constexpr bool kAutocast = false;
constexpr bool kAccumulation = false;

Key key_if(bool built, std::string_view name, std::string_view type, std::string_view otherwise, std::string_view text, std::string_view until) {
  return {name, built ? Verdict::honoured : Verdict::not_yet, type, otherwise, built ? text : until};
}

constexpr std::string_view kIsFp16 = "it belongs to fp16.";
constexpr std::string_view kIsBf16 = "it belongs to bf16.";
constexpr std::string_view kIsAutocast = "it belongs to torch_autocast.";
constexpr std::string_view kIsFp32 = "training is in fp32.";
constexpr std::string_view kAmp = "apex is a Python package. Use \"fp16\", \"bf16\" or \"torch_autocast\" instead.";

} // namespace

std::vector<Section> precision_sections() {
  return {
    {"engine.fp16", "", "Half precision with loss scaling. Micikevicius et al. 2018, arXiv:1710.03740.", true, {
      key_if(kFp16, "enabled", "bool", "false", "Parameters and gradients in fp16, with fp32 masters and a loss scale.", kIsFp32),
      key_if(kFp16, "auto_cast", "bool", "false", "Cast the model's floating-point inputs to fp16.", kIsFp16),
      key_if(kFp16, "loss_scale", "real >= 0", "0", "The factor of every loss; 0: dynamic, found while training.", kIsFp16),
      key_if(kFp16, "initial_scale_power", "int 0..127", "16", "The first dynamic scale is 2 to this power.", kIsFp16),
      key_if(kFp16, "loss_scale_window", "int >= 1", "1000", "Steps without overflow after which the scale doubles.", kIsFp16),
      key_if(kFp16, "hysteresis", "int >= 1", "2", "Overflows until the scale is halved; each of them skips its step.", kIsFp16),
      key_if(kFp16, "consecutive_hysteresis", "bool", "false", "Every good step restores the hysteresis, not only a doubling.", kIsFp16),
      key_if(kFp16, "min_loss_scale", "real > 0", "1", "A dynamic scale never falls below this.", kIsFp16),
      {"fp16_master_weights_and_grads", L, "bool", "false", "masters are fp32."},
    }},
    {"engine.bf16", "", "bfloat16 parameters with fp32 master copies.", true, {
      key_if(kBf16, "enabled", "bool", "false", "Parameters and gradients in bfloat16, with fp32 masters.", kIsFp32),
      key_if(kBf16 && kImmediateUpdate, "immediate_grad_update", "bool", "false", "Add each gradient to its fp32 sum as soon as it is there.", kIsBf16),
      key_if(kBf16, "check_grad_overflow", "bool", "true", "Skip a step whose gradients hold NaN or Inf.", kIsBf16),
      {"check_overflow", R, "bool", "true", "it is called \"check_grad_overflow\"."},
      {"bf16_master_weights_and_grads", L, "bool", "false", "masters are fp32."},
      {"bf16_optimizer_states", L, "bool", "false", "optimizer states are fp32."},
    }},
    {"engine.torch_autocast", "", "Automatic mixed precision by operation: parameters stay fp32.", true, {
      key_if(kAutocast, "enabled", "bool", "false", "Run forward under autocast; with fp16 the loss is scaled as in \"fp16\".", kIsFp32),
      key_if(kAutocast, "dtype", "word fp16|float16|half|torch.float16|bf16|bfloat16|torch.bfloat16", "\"bfloat16\"",
             "The lower type.", kIsAutocast),
      {"lower_precision_safe_modules", L, "texts", "null", "gradients travel in their own type whatever module they belong to."},
    }},
    {"engine.amp", "", "NVIDIA apex.", true, {
      {"enabled", R, "bool", "false", kAmp},
      {"opt_level", R, "text", "null", kAmp},
      {"loss_scale", R, "text", "null", kAmp},
      {"keep_batchnorm_fp32", R, "bool", "null", kAmp},
      {"master_weights", R, "bool", "null", kAmp},
      {"min_loss_scale", R, "real", "null", kAmp},
      {"max_loss_scale", R, "real", "null", kAmp},
    }},
    {"engine.data_types", "", "Element types of what is neither computed nor sent.", false, {
      key_if(kAccumulation, "grad_accum_dtype", "word fp32|bf16|fp16", "\"fp32\"", "The type in which gradients of micro-batches are added up.",
             "gradients are accumulated in fp32."),
      {"param_dtype", L, "word fp32|fp16|bf16", "null", "parameters keep the type the model gave them.", R"(["fp32"])"},
      {"buffer_dtype", L, "word fp32|fp16|bf16", "null", "buffers keep the type the model gave them.", R"(["fp32"])"},
    }},
  };
}

} // namespace trireme::config
