// The CUDA sources, compiled for the CPU against the headers beside this file.
#include <trireme/kernels/cuda/activations.cu>
#include <trireme/kernels/cuda/cross_entropy.cu>
#include <trireme/kernels/cuda/norms.cu>
#include <trireme/kernels/cuda/optimizers.cu>
