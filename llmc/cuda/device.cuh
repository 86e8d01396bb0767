// Finds the GPU of this process and checks that it will do, before anything runs on it: driver,
// number of GPUs, compute capability. What does not fit is reported in one sentence.
#pragma once
#include "llmc/cuda/common.cuh"

constexpr int LEAST_CAPABILITY = 80;  // sm_80 is the first with bf16 on tensor cores and with cp.async

inline void check_driver() {
    int driver = 0, runtime = 0;
    check_cuda(cudaDriverGetVersion(&driver), "asking for the driver");
    check_cuda(cudaRuntimeGetVersion(&runtime), "asking for the runtime");
    if (driver == 0)
        runtime_failure(
            "no GPU: no NVIDIA driver is loaded on this machine; train_gpt2_cpu and the simulator "
            "(make train_gpt2sim, make check-cuda) need none");
    if (driver / 1000 < runtime / 1000)
        runtime_failure(
            "the GPU's driver is too old: it knows CUDA %d.%d, this program was built with %d.%d; install "
            "a newer driver, or build with an older toolkit",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
}

// Checks and selects the GPU of this process. Its number is the launcher's rank on this machine or,
// without a launcher, `otherwise`, modulo the number of GPUs.
inline cudaDeviceProp choose_gpu(long long otherwise) {
    check_driver();
    int devices = 0;
    check_cuda(cudaGetDeviceCount(&devices), "looking for a GPU");
    const char* const local_ranks[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "LOCAL_RANK"};
    const long long local = launcher_value(local_ranks);
    const int number = (int)((local >= 0 ? local : otherwise) % devices);
    cudaDeviceProp gpu;
    check_cuda(cudaGetDeviceProperties(&gpu, number), "asking for the GPU's properties");
    if (10 * gpu.major + gpu.minor < LEAST_CAPABILITY)
        runtime_failure(
            "GPU %d, %s, is too old: its compute capability is %d.%d, %d.%d or more is needed, for bf16 on tensor "
            "cores (A100, RTX 30xx and newer); CUDA_VISIBLE_DEVICES chooses another, train_gpt2_cpu needs none",
            number, gpu.name, gpu.major, gpu.minor, LEAST_CAPABILITY / 10, LEAST_CAPABILITY % 10);
    check_cuda(cudaSetDevice(number), "choosing a GPU");
    return gpu;
}
