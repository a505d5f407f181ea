#include <trireme/config/verdict_letters.h>

// clang-format off: a line of the table is a line.
namespace trireme::config {
namespace {

const Key kLr = {"lr", H, "real|auto >= 0", "0.001", "Learning rate; a scheduler replaces it. \"auto\": 5e-5, as Hugging Face's Trainer."};
const Key kWeightDecay = {"weight_decay", H, "real|auto >= 0", "0", "Weight decay."};
const Key kDecayRule = {"weight_decay_rule", H, "word all|matrices", "\"all\"",
                        "Which parameters decay: all, as in PyTorch and DeepSpeed, or matrices: those of two dimensions and more, not biases and norms. Ours."};
const Key kMaxGradNorm = {"max_grad_norm", R, "real", "null", "clipping is the engine's. Write \"gradient_clipping\" at the top level instead.", "[0]"};
const Key kEps = {"eps", H, "real|auto >= 0", "1e-8", "Added to the root of the second moment."};
const Key kBetas = {"betas", H, "reals|auto 0..<1", "[0.9, 0.999]", "Decay of the first and the second moment."};
const Key kOneBitCorrection = {"bias_correction", H, "bool", "true", "Correct the moments' start at zero; DeepSpeed offers it and never does."};
const Key kCommBackend = {"comm_backend_name", N, "text", "\"nccl\"", "every backend carries compressed messages."};
const Key kCudaAware = {"cuda_aware", N, "bool", "false", "every backend carries compressed messages."};
const Key kAmsgrad = {"amsgrad", R, "bool", "false", "it is not implemented. Leave it out."};
const Key kEpsInside = {"eps_inside_sqrt", R, "bool", "false", "it is not implemented. Leave it out."};
const Key kFp32Moments = {"state_dtype", R, "text", "\"fp32\"", "the ranks agree on moments in fp32."};
const Key kStateType = {"state_dtype", H, "word fp32|bf16|int8", "\"fp32\"",
                        "Type of the optimizer's states: 4, 2 or 1 bytes an element (int8: blocks of 256 with a scale each). Ours."};
const Key kLastBatch = {"last_batch_iteration", R, "int", "-1", "a checkpoint brings its position along. Leave it out and resume."};
const Key kWarmupMin = {"warmup_min_lr", H, "real|auto >= 0", "0", "Rate at the start. As in DeepSpeed the first two steps run at it."};
const Key kWarmupSteps = {"warmup_num_steps", H, "int|auto >= 0", "1000", "Steps until the largest rate is reached. \"auto\": 0, as Hugging Face's Trainer."};
const Key kWarmupType = {"warmup_type", H, "word log|linear", "\"log\"", "Shape of the rise."};
const Key kTotalSteps = {"total_num_steps", H, "int|auto >= 1", "required", "Step at which the decay ends. \"auto\": the last of the run, where it is known."};

Section choices(std::string_view path, std::string_view text, std::vector<Key> keys) {
  return {path, "", text, false, std::move(keys)};
}

} // namespace

std::vector<Section> optimizer_sections() {
  return {
    {"engine.optimizer", "", "The optimizer.", false, {
      {"type", H, "choice", "required", "Its name, in any case."},
      {"params", H, "object", "null", "Its settings."},
      {"adam_w_mode", N, "bool", "null", "DeepSpeed does not read it here; it belongs in \"params\"."},
      {"legacy_fusion", R, "bool", "false", "parameters always lie in flat buffers. Leave it out."},
    }},
    choices("engine.optimizer.type", "Optimizers.", {
      {"Adam", H, "", "", "Adam with decoupled weight decay: AdamW, unless adam_w_mode is false. Kingma & Ba 2015; Loshchilov & Hutter 2019."},
      {"AdamW", H, "", "", "The same by its own name."},
      {"SGD", H, "", "", "Stochastic gradient descent with momentum as in torch.optim.SGD."},
      {"Lamb", H, "", "", "Adam with steps scaled by |weight| / |update| of each parameter. You et al. 2020."},
      {"FusedLamb", H, "", "", "The same."},
      {"Lion", H, "", "", "Steps by the sign of an averaged gradient; where that is exactly 0, none. Chen et al. 2023."},
      {"Adagrad", H, "", "", "As in torch.optim.Adagrad. Duchi et al. 2011."},
      {"RMSprop", H, "", "", "As in torch.optim.RMSprop. Tieleman & Hinton 2012."},
      {"OneBitAdam", H, "", "", "AdamW until the second moment has settled; then the data ranks exchange momenta of one bit an element. Tang et al. 2021."},
      {"OneBitLamb", H, "", "", "LAMB until the second moment has settled; then the data ranks exchange momenta of one bit an element, and trust ratios follow from those of before. Li et al. 2021."},
      {"ZeroOneAdam", H, "", "", "AdamW whose second moment moves ever more rarely, while the data ranks exchange gradients of one bit an element; later they step alone and average. Lu et al. 2022."},
      {"Muon", R, "", "", "use AdamW."},
      {"MuAdam", R, "", "", "muP is not part of this engine; use AdamW."},
      {"MuAdamW", R, "", "", "muP is not part of this engine; use AdamW."},
      {"MuSGD", R, "", "", "muP is not part of this engine; use SGD."},
    }),
    {"engine.optimizer.params", "Adam AdamW", "", false, {
      kLr,
      {"betas", H, "reals|auto 0..<1", "[0.9, 0.999]", "Decay of the first and the second moment."},
      kEps, kWeightDecay, kDecayRule,
      {"bias_correction", H, "bool", "true", "Correct the moments' start at zero."},
      {"adam_w_mode", H, "bool", "true", "true: decay acts on the weight; false: it is added to the gradient, and the type must be \"Adam\"."},
      {"torch_adam", N, "bool", "false", "there is one implementation; its results are torch's."},
      {"fp32_optimizer_states", H, "bool", "true", "false: the same as \"state_dtype\": \"bf16\"."},
      kStateType,
      {"amsgrad", R, "bool", "false", "it is not implemented. Leave it out."},
      kMaxGradNorm,
    }},
    {"engine.optimizer.params", "OneBitAdam", "", false, {
      kLr, kBetas, kEps, kWeightDecay, kDecayRule, kOneBitCorrection,
      {"freeze_step", H, "int|auto >= 1", "100000", "Steps of AdamW before ranks exchange bits: 15 to 20 % of a run. \"auto\": until the sum of the second moments changes by less than 4 % in 1/(1 - beta2) steps. Ours: \"auto\"."},
      kCommBackend, kCudaAware, kAmsgrad, kEpsInside, kMaxGradNorm, kFp32Moments,
    }},
    {"engine.optimizer.params", "OneBitLamb", "", false, {
      kLr, kBetas, kEps, kWeightDecay, kDecayRule, kOneBitCorrection,
      {"freeze_step", H, "int|auto >= 1", "100000", "Steps of LAMB before ranks exchange bits: 15 to 20 % of a run. \"auto\": as OneBitAdam's."},
      {"max_coeff", H, "real >= 0", "10.0", "Largest trust ratio |weight| / |update| before freeze_step."},
      {"min_coeff", H, "real >= 0", "0.01", "Smallest trust ratio before freeze_step."},
      {"coeff_beta", H, "real 0..<1", "0.9", "Decay of the average of each parameter's trust ratios, which holds after freeze_step."},
      {"factor_max", H, "real >= 1", "4.0", "Largest factor on that average, from the fresh second moment."},
      {"factor_min", H, "real > 0", "0.5", "Smallest factor; at most 1."},
      {"factor_threshold", H, "real 0..<1", "0.1", "Largest relative change of the factor in a step."},
      {"eps_inside_sqrt", H, "bool", "false", "Add eps before the root is taken."},
      kCommBackend, kCudaAware, kAmsgrad, kMaxGradNorm, kFp32Moments,
    }},
    {"engine.optimizer.params", "ZeroOneAdam", "", false, {
      kLr, kBetas, kEps, kWeightDecay, kDecayRule, kOneBitCorrection,
      {"var_freeze_step", H, "int >= 1", "100000", "Steps after which the second moment stays fixed and ranks step alone."},
      {"var_update_scaler", H, "int >= 1", "16", "Moves of the second moment before their interval doubles, which is 1 at first."},
      {"local_step_scaler", H, "int >= 1", "32678", "Steps after var_freeze_step before the interval of averaging steps doubles, which is 1 at first. The number is DeepSpeed's."},
      {"local_step_clipper", H, "int >= 1", "16", "Longest interval of averaging steps. 1: the ranks average in every step, as ZeRO stage 1 needs."},
      kCommBackend, kCudaAware, kAmsgrad, kEpsInside, kMaxGradNorm, kFp32Moments,
    }},
    {"engine.optimizer.params", "SGD", "", false, {
      kLr,
      {"momentum", H, "real 0..<1", "0", "Share of the last step that is kept."},
      {"dampening", H, "real 0..1", "0", "Share of the gradient that does not enter the momentum."},
      kWeightDecay, kDecayRule,
      {"nesterov", H, "bool", "false", "Look ahead; needs momentum > 0 and dampening 0."},
      kStateType, kMaxGradNorm,
    }},
    {"engine.optimizer.params", "Lamb FusedLamb", "", false, {
      kLr,
      {"betas", H, "reals|auto 0..<1", "[0.9, 0.999]", "Decay of the first and the second moment."},
      kEps, kWeightDecay, kDecayRule,
      {"bias_correction", H, "bool", "true", "Correct the moments' start at zero, in the size of the whole step."},
      {"max_coeff", H, "real >= 0", "10.0", "Largest trust ratio |weight| / |update|."},
      {"min_coeff", H, "real >= 0", "0.01", "Smallest trust ratio."},
      {"eps_inside_sqrt", H, "bool", "false", "Add eps before the root is taken."},
      {"state_dtype", H, "word fp32|bf16", "\"fp32\"", "Type of the optimizer's states. Ours."},
      {"amsgrad", R, "bool", "false", "it is not implemented. Leave it out."},
      kMaxGradNorm,
    }},
    {"engine.optimizer.params", "Lion", "", false, {
      kLr,
      {"betas", H, "reals|auto 0..<1", "[0.9, 0.99]", "Share of the average in a step's direction, and the average's decay."},
      kWeightDecay, kDecayRule, kStateType, kMaxGradNorm,
    }},
    {"engine.optimizer.params", "Adagrad", "", false, {
      {"lr", H, "real|auto >= 0", "0.01", "Learning rate; a scheduler replaces it."},
      {"lr_decay", H, "real >= 0", "0", "The rate of step t is lr / (1 + (t - 1) lr_decay)."},
      {"eps", H, "real|auto >= 0", "1e-10", "Added to the root of the sum of squares."},
      kWeightDecay, kDecayRule,
      {"initial_accumulator_value", H, "real >= 0", "0", "First value of the sum of squares."},
      kStateType, kMaxGradNorm,
    }},
    {"engine.optimizer.params", "RMSprop", "", false, {
      {"lr", H, "real|auto >= 0", "0.01", "Learning rate; a scheduler replaces it."},
      {"alpha", H, "real 0..1", "0.99", "Decay of the average of squares."},
      kEps, kWeightDecay, kDecayRule,
      {"momentum", H, "real 0..<1", "0", "Share of the last step that is kept."},
      {"centered", H, "bool", "false", "Divide by the estimated standard deviation instead of the root mean square. Needs state_dtype \"fp32\"."},
      kStateType, kMaxGradNorm,
    }},
    {"engine.scheduler", "", "The learning-rate schedule, one step for each optimizer step.", false, {
      {"type", H, "choice", "required", "Its name."},
      {"params", H, "object", "null", "Its settings."},
    }},
    choices("engine.scheduler.type", "Schedules.", {
      {"WarmupLR", H, "", "", "Rise, then constant."},
      {"WarmupDecayLR", H, "", "", "Rise, then linearly down to 0."},
      {"WarmupCosineLR", H, "", "", "Rise, then down along a cosine."},
      {"OneCycle", H, "", "", "One rise and fall, momentum the other way, then decay. Smith & Topin 2018, arXiv:1708.07120."},
      {"LRRangeTest", H, "", "", "An ever growing rate, to find the largest usable one."},
    }),
    {"engine.scheduler.params", "WarmupLR", "", false, {
      kWarmupMin,
      {"warmup_max_lr", H, "real|auto >= 0", "null", "Rate after the rise; without it the optimizer's."},
      kWarmupSteps, kWarmupType, kLastBatch,
    }},
    {"engine.scheduler.params", "WarmupDecayLR", "", false, {
      kTotalSteps, kWarmupMin,
      {"warmup_max_lr", H, "real|auto >= 0", "0.001", "Rate after the rise. \"auto\": the optimizer's."},
      kWarmupSteps, kWarmupType, kLastBatch,
    }},
    {"engine.scheduler.params", "WarmupCosineLR", "", false, {
      kTotalSteps,
      {"warmup_min_ratio", H, "real >= 0", "0", "Rate at the start as a share of the optimizer's."},
      kWarmupSteps,
      {"cos_min_ratio", H, "real >= 0", "0.0001", "Rate at the end as a share of the optimizer's."},
      kWarmupType, kLastBatch,
    }},
    {"engine.scheduler.params", "OneCycle", "", false, {
      {"cycle_min_lr", H, "real >= 0", "required", "Rate at the start and the end of the cycle."},
      {"cycle_max_lr", H, "real >= 0", "required", "Rate at its top."},
      {"decay_lr_rate", H, "real >= 0", "0", "Decay of the rate after the cycle."},
      {"cycle_first_step_size", H, "int >= 1", "2000", "Steps of the rise."},
      {"cycle_second_step_size", H, "int >= 1", "null", "Steps of the fall; without it those of the rise."},
      {"cycle_first_stair_count", H, "int >= 0", "0", "Stairs of the rise; 0: a ramp."},
      {"cycle_second_stair_count", H, "int >= 0", "null", "Stairs of the fall; without it those of the rise."},
      {"decay_step_size", H, "int >= 0", "0", "Steps of one decay interval after the cycle; 0: no decay."},
      {"cycle_momentum", H, "bool", "true", "Move the momentum (Adam: beta1) against the rate."},
      {"cycle_min_mom", H, "real 0..<1", "0.8", "Momentum at the top of the rate."},
      {"cycle_max_mom", H, "real 0..<1", "0.9", "Momentum at the start and the end."},
      {"decay_mom_rate", H, "real >= 0", "0", "Growth of the momentum after the cycle."},
      kLastBatch,
    }},
    {"engine.scheduler.params", "LRRangeTest", "", false, {
      {"lr_range_test_min_lr", H, "real >= 0", "0.001", "Rate at the start."},
      {"lr_range_test_step_size", H, "int >= 1", "2000", "Steps of one interval."},
      {"lr_range_test_step_rate", H, "real >= 0", "1.0", "Growth in one interval, as a share of the start."},
      {"lr_range_test_staircase", H, "bool", "false", "Grow once an interval instead of every step."},
      kLastBatch,
    }},
  };
}

} // namespace trireme::config
