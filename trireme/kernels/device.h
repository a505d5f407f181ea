#pragma once

/// Prefix of functions that CPU and CUDA code share.
#ifdef __CUDACC__
#define TRIREME_DEVICE __host__ __device__
#else
#define TRIREME_DEVICE
#endif
