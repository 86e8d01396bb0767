// HOST_DEVICE marks a function that nvcc compiles for the host and for the GPU.
#pragma once

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif
