#include <trireme/config/verdict_letters.h>

// Element types for computing, accumulating and communicating in less than fp32.
// clang-format off: a line of the table is a line.
namespace trireme::config {
namespace {

constexpr std::string_view kAmp = "apex is a Python package. Use \"fp16\", \"bf16\" or \"torch_autocast\" instead.";

Section bf16(std::string_view path, std::string_view text) {
  return {path, "", text, true, {
    {"enabled", H, "bool|auto", "false", "Parameters and gradients in bfloat16, with fp32 masters. \"auto\": a small GPT is timed in both types at the start, for about a second, and bf16 is taken if it is at least 5 % faster. `trireme train --resume` keeps the checkpoint's type; a program of yours does with `engine::resolve_precision()` before `initialize()`."},
    {"immediate_grad_update", N, "bool", "false", "a gradient is always added to its sum as soon as it is there."},
    {"check_grad_overflow", H, "bool", "true", "Skip a step whose gradients hold NaN or Inf."},
    {"check_overflow", R, "bool", "true", "it is called \"check_grad_overflow\"."},
    {"bf16_master_weights_and_grads", L, "bool", "false", "masters are fp32."},
    {"bf16_optimizer_states", H, "bool", "false", "Optimizer states in bfloat16, as the optimizer's \"state_dtype\": \"bf16\"."},
  }};
}

} // namespace

std::vector<Section> precision_sections() {
  return {
    {"engine.fp16", "", "Half precision with loss scaling. Micikevicius et al. 2018, arXiv:1710.03740.", true, {
      {"enabled", H, "bool|auto", "false", "Parameters and gradients in fp16, with fp32 masters and a loss scale. \"auto\": no."},
      {"auto_cast", H, "bool", "false", "Cast the model's floating-point inputs to fp16."},
      {"loss_scale", H, "real >= 0", "0", "The factor of every loss; 0: dynamic, found while training. A fixed one is lowered to what a loss in fp16 holds."},
      {"initial_scale_power", H, "int 0..127", "16", "The first dynamic scale is 2 to this power."},
      {"loss_scale_window", H, "int >= 1", "1000", "Steps without overflow after which the scale doubles."},
      {"hysteresis", H, "int >= 1", "2", "Overflows until the scale is halved; each of them skips its step."},
      {"consecutive_hysteresis", H, "bool", "false", "Every good step restores the hysteresis, not only a doubling."},
      {"min_loss_scale", H, "real > 0", "1", "A dynamic scale never falls below this."},
      {"fp16_master_weights_and_grads", L, "bool", "false", "masters are fp32."},
      {"opt_level", N, "text", "null", "it belongs to apex."},
    }},
    bf16("engine.bf16", "bfloat16 parameters with fp32 master copies."),
    bf16("engine.bfloat16", "Another name of bf16; a file has one of the two."),
    {"engine.torch_autocast", "", "Automatic mixed precision by operation: parameters stay fp32.", true, {
      {"enabled", H, "bool", "false", "Run forward under autocast; with fp16 the loss is scaled as in \"fp16\"."},
      {"dtype", H, "word fp16|float16|half|torch.float16|bf16|bfloat16|torch.bfloat16", "\"bfloat16\"", "The lower type."},
      {"lower_precision_safe_modules", L, "texts", "null", "gradients of every module are sent in their own type."},
    }},
    {"engine.fp8", "", "Products of linear layers in FP8, forward and backward; needs \"bf16\" or \"torch_autocast\" with bf16. Keys and recipes of torchao's Float8Linear; docs/fp8.md.", true, {
      {"enabled", H, "bool", "false", "Multiply in FP8 in the attention and MLP layers of a gpt, llama or bert whose sizes are multiples of 16."},
      {"recipe", H, "word tensorwise|rowwise|rowwise_with_gw_hp", "\"tensorwise\"", "One scale per tensor with gradients in e5m2, or one per row, all in e4m3. rowwise_with_gw_hp computes the gradients of weights in bf16."},
      {"round_scales_to_power_of_2", H, "bool", "true", "Round scales down to powers of two, so that scaling is exact and every device computes the same but for the order of sums."},
      {"filter_fqns", H, "texts", R"(["lm_head"])", "Layers whose name contains one of these stay in bf16."},
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
      {"grad_accum_dtype", H, "word fp32|bf16|fp16", "\"fp32\"", "The type in which gradients of micro-batches are added up."},
      {"param_dtype", L, "word fp32|fp16|bf16", "null", "parameters keep the type the model gave them.", R"(["fp32"])"},
      {"buffer_dtype", L, "word fp32|fp16|bf16", "null", "buffers keep the type the model gave them.", R"(["fp32"])"},
    }},
  };
}

} // namespace trireme::config
