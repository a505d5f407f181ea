#pragma once

#include <trireme/generate/options.h>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace trireme::generate {

/// Errors: InputError naming a value outside its range.
void check(const Choice& choice);

/// The logits [V], fp32 on the CPU, with what Choice excludes at minus infinity. `text`: the tokens so far.
at::Tensor choice_logits(const at::Tensor& logits, std::span<const int32_t> text, const Choice& choice);

/// One token.
int32_t choose_token(const at::Tensor& logits, std::span<const int32_t> text, const Choice& choice,
                     at::Generator& generator);

} // namespace trireme::generate
