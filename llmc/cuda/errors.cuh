// How errors of the CUDA runtime are reported: one sentence, with a hint where there is one.
#pragma once
#include <cuda_runtime.h>
#include "llmc/base/check.h"

struct CudaHint {
    cudaError_t error;
    const char* text;
};
constexpr const char* KERNEL_FAILED =
    "a kernel before this failed: CUDA_LAUNCH_BLOCKING=1 names it, compute-sanitizer shows the place";
constexpr CudaHint CUDA_HINTS[] = {
    {cudaErrorNoDevice,
     "nvidia-smi shows what the driver sees, CUDA_VISIBLE_DEVICES may hide it; train_gpt2_cpu and train_gpt2sim need "
     "no GPU"},
    {cudaErrorInsufficientDriver, "a newer driver, or a build with an older toolkit, is needed"},
    {cudaErrorMemoryAllocation, "--plan shows what the run needs, a smaller -b or -t or a higher -r lowers it"},
    {cudaErrorDevicesUnavailable, "another process has the GPU for itself, or it has failed: nvidia-smi shows both"},
    {cudaErrorSystemNotReady, "a service of the driver is not running (with NVSwitch: nvidia-fabricmanager)"},
    {cudaErrorSystemDriverMismatch, "the driver was updated while it was loaded: a reboot loads the new one"},
    {cudaErrorCompatNotSupportedOnDevice,
     "CUDA's compatibility libraries need a data-center GPU: install a newer driver"},
    {cudaErrorECCUncorrectable, "the GPU's memory has failed (nvidia-smi -q -d ECC); -y 1 resumes on another GPU"},
    {cudaErrorNvlinkUncorrectable, "the link between two GPUs has failed (nvidia-smi nvlink -e); -y 1 resumes"},
    {cudaErrorLaunchTimeout, "the GPU drives a display, so the driver ends kernels that take seconds"},
    {cudaErrorNoKernelImageForDevice, "built for other GPUs: make GPU_ARCH=native"},
    {cudaErrorUnsupportedPtxVersion, "the driver is older than the toolkit: make GPU_ARCH=native, or a newer driver"},
    {cudaErrorIllegalAddress, KERNEL_FAILED},
    {cudaErrorLaunchFailure, KERNEL_FAILED},
    {cudaErrorMisalignedAddress, KERNEL_FAILED},
    {cudaErrorInvalidAddressSpace, KERNEL_FAILED},
};

// Ends the program (exit 1) if a call of the CUDA runtime failed. `what` is for the message.
inline void check_cuda(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    const char* hint = nullptr;
    for (const CudaHint& known : CUDA_HINTS)
        if (known.error == error) hint = known.text;
    runtime_failure("CUDA, %s: %s%s%s", what, cudaGetErrorString(error), hint ? "; " : "", hint ? hint : "");
}
