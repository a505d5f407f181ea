#pragma once

/// Before what CPU and CUDA code share.
#ifdef __CUDACC__
#define TRIREME_DEVICE __host__ __device__
#else
#define TRIREME_DEVICE
#endif
