#pragma once

#include <trireme/fp8/options.h>

#include <cstdint>
#include <optional>

namespace trireme::precision {

/// Element types that training computes in.
enum class Type { fp32, bf16, fp16 };

/// "fp32", "bf16", "fp16": the names in configurations.
constexpr const char* type_name(Type type) {
  return type == Type::fp32 ? "fp32" : type == Type::bf16 ? "bf16" : "fp16";
}

/// Bytes of an element.
constexpr int64_t bytes_of(Type type) {
  return type == Type::fp32 ? 4 : 2;
}

/// How losses are scaled so that small fp16 gradients do not vanish; see LossScaler for the rule. DeepSpeed's names and
/// defaults.
struct LossScaleOptions {
  /// 0: dynamic. Else the scale of every step.
  double loss_scale = 0;
  /// The first dynamic scale is 2 to this power, 0 to 127.
  int64_t initial_scale_power = 16;
  /// Steps without overflow after which the scale doubles.
  int64_t loss_scale_window = 1000;
  /// Overflows until the scale is halved: with 2 the first one only skips its step.
  int64_t hysteresis = 2;
  /// true: every good step restores `hysteresis`; false: only a doubling does.
  bool consecutive_hysteresis = false;
  /// The scale never falls below this.
  double min_loss_scale = 1;
};

/// Types of computation, accumulation and communication. The default is fp32 throughout.
struct PrecisionOptions {
  /// Parameters and gradients of forward and backward. Other than fp32: the optimizer's shards keep fp32 masters.
  Type compute = Type::fp32;
  /// `compute` becomes bf16 if this machine is faster with it (engine::resolve_precision()); fp32 until then.
  bool bf16_if_faster = false;
  /// Used if scales_loss().
  LossScaleOptions loss_scale;
  /// fp16: floating-point inputs of the model are cast.
  bool cast_inputs = false;
  /// bf16: gradients are checked, and a step with NaN or Inf is skipped. fp16 always checks.
  bool check_grad_overflow = true;
  /// Forward runs under autocast with `autocast_type`; parameters stay fp32.
  bool autocast = false;
  Type autocast_type = Type::bf16;
  /// Type of gradients in communication; absent: `compute`, as in DeepSpeed.
  std::optional<Type> communication;
  /// Type in which the gradients of micro-batches are accumulated.
  Type grad_accumulation = Type::fp32;
  /// Products of linear layers in FP8, forward and backward. Needs bf16, as `compute` or by autocast.
  fp8::Options fp8;

  Type communication_type() const { return communication.value_or(compute); }
  /// Type of the gradients that a step of so many micro-batches leaves: those that are added up need the range of
  /// grad_accumulation.
  Type gradient_type(int64_t micro_batches) const {
    return micro_batches > 1 ? grad_accumulation : communication_type();
  }
  /// fp16 gradients, whether by the parameters' type or by autocast's.
  bool scales_loss() const { return compute == Type::fp16 || (autocast && autocast_type == Type::fp16); }
  bool has_masters() const { return compute != Type::fp32; }
  /// The type of products of matrices.
  Type product_type() const { return autocast ? autocast_type : compute; }
};

} // namespace trireme::precision
