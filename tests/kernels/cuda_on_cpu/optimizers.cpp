// The CUDA source, compiled for the CPU against the headers beside this file.
#include <trireme/kernels/cuda/optimizers.cu>
