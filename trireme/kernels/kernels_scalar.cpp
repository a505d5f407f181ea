#include <trireme/kernels/combine_loops.h>
#include <trireme/kernels/kernel_sets.h>
#include <trireme/kernels/norm_loops.h>
#include <trireme/kernels/optimizer_loops.h>
#include <trireme/kernels/power_loops.h>
#include <trireme/kernels/sign_loops.h>

namespace trireme::kernels {

const KernelSet kScalarKernels = {&adam,          &sgd,        &lion,         &adagrad,         &rmsprop,
                                  &lamb_moments,  &lamb_apply, &decode_state, &encode_state,    &squared_norm,
                                  &combine,       &pack_signs, &add_signs,    &scale_by_powers, &add_momentum,
                                  &add_quotients, &stream_copy};

} // namespace trireme::kernels
