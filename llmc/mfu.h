// What a GPU can do at most, for the MFU (model FLOPs utilisation; Chowdhery et al. 2022, arXiv:2204.02311, appendix B) on the line of a step:
// dense FLOP/s of the matrix units as the makers' datasheets say, no sparsity.
#pragma once
#include <cstring>

struct GpuPeak { const char* name; double bf16_tflops, tf32_tflops, fp32_tflops; };
constexpr GpuPeak GPU_PEAKS[] = {  // the first name that is part of the device's
    {"H100 PCIe", 756, 378, 51.2}, {"H100 NVL", 835, 417.5, 60}, {"H100", 989.4, 494.7, 66.9}, {"H200", 989.4, 494.7, 66.9}, {"GH200", 989.4, 494.7, 66.9},
    {"A100", 312, 156, 19.5},      {"A40", 149.7, 74.8, 37.4},   {"A10G", 70, 35, 31.2},       {"A10", 125, 62.5, 31.2},     {"A30", 165, 82, 10.3},
    {"L40S", 362, 183, 91.6},      {"L4", 121, 60, 30.3},        {"RTX 4090", 165.2, 82.6, 82.6}, {"RTX 3090", 71, 35.6, 35.6}, {"RTX A6000", 154.8, 77.4, 38.7},
};

// FLOP/s, 0 if the GPU is not in the table.
inline double gpu_peak_flops(const char* name, bool bf16, bool tf32) {
    for (const GpuPeak& peak : GPU_PEAKS)
        if (strstr(name, peak.name)) return 1e12 * (bf16 ? peak.bf16_tflops : tf32 ? peak.tf32_tflops : peak.fp32_tflops);
    return 0;
}
