// The table of GPUs: TFLOP/s of the tensor cores with fp32 sums, without sparsity, and of the CUDA
// cores in fp32, for the MFU (model FLOPs utilisation; Chowdhery et al. 2022, arXiv:2204.02311,
// appendix B) in the log line of a step; memory and its bandwidth, for --plan --device.
#pragma once
#include <cstring>

struct GpuPeak {
    const char* name;
    double bf16_tflops, tf32_tflops, fp32_tflops, memory_gib, memory_gb_s;
};
// clang-format off
constexpr GpuPeak GPU_PEAKS[] = {
    // Blackwell: HGX B200/B300 and GB200/GB300 NVL72 datasheets (2024, 2025;
    // nvidia.com/en-us/data-center/hgx, gb200-nvl72, gb300-nvl72), a GPU's share, sparse figures
    // halved
    {"B100", 1750, 875, 60, 180, 8000}, {"B200", 2250, 1125, 75, 180, 8000}, {"B300", 2250, 1125, 75, 270, 8000},
    {"GB200", 2500, 1250, 80, 186, 8000}, {"GB300", 2500, 1250, 80, 279, 8000},
    // NVIDIA RTX Blackwell GPU architecture (whitepaper, 2025), appendices A and B; of the RTX 5060
    // Ti the one with less memory
    {"RTX 5090", 209.5, 104.8, 104.8, 32, 1792}, {"RTX 5080", 112.6, 56.3, 56.3, 16, 960},
    {"RTX 5070 Ti", 87.9, 43.9, 43.9, 16, 896}, {"RTX 5070", 61.7, 30.9, 30.9, 12, 672},
    {"RTX 5060 Ti", 47.4, 23.7, 23.7, 8, 448}, {"RTX 5060", 38.4, 19.2, 19.2, 8, 448},
    // RTX PRO 6000 Blackwell datasheets (2025): fp32, and tensor cores at four times it
    {"RTX PRO 6000 Blackwell Workstation Edition", 504, 252, 126, 96, 1792},
    {"RTX PRO 6000 Blackwell Max-Q Workstation Edition", 440, 220, 110, 96, 1792},
    {"RTX PRO 6000 Blackwell Server Edition", 480, 240, 120, 96, 1597},
    // Hopper: H100, H200 and GH200 datasheets (2022 to 2024; nvidia.com/en-us/data-center/h100,
    // h200, grace-hopper-superchip); of the GH200 the one with HBM3
    {"H100", 989.4, 494.7, 66.9, 80, 3350}, {"H100 PCIe", 756, 378, 51.2, 80, 2000},
    {"H100 NVL", 835, 417.5, 60, 94, 3900}, {"H200", 989.4, 494.7, 66.9, 141, 4800},
    {"H200 NVL", 835, 417.5, 60, 141, 4800}, {"GH200", 989.4, 494.7, 66.9, 96, 4000},
    // Ada: L4, L40, L40S, RTX 6000 Ada datasheets (2023; nvidia.com/en-us/data-center/l4, l40,
    // l40s); NVIDIA Ada GPU architecture (whitepaper, 2022), appendix A
    {"L4", 121, 60, 30.3, 24, 300}, {"L40", 181, 90.5, 90.5, 48, 864}, {"L40S", 362, 183, 91.6, 48, 864},
    {"RTX 4090", 165.2, 82.6, 82.6, 24, 1008}, {"RTX 6000 Ada", 364.2, 182.1, 91.1, 48, 960},
    // Ampere: A100, A40, A30, A10 datasheets (2020, 2021; nvidia.com/en-us/data-center/a100, a40,
    // products/a30-gpu, a10-gpu); NVIDIA Ampere GA102 (whitepaper, 2020), appendix A
    {"A100", 312, 156, 19.5, 80, 2039}, {"A100 80GB PCIe", 312, 156, 19.5, 80, 1935},
    {"A100-SXM4-40GB", 312, 156, 19.5, 40, 1555}, {"A100-PCIE-40GB", 312, 156, 19.5, 40, 1555},
    {"A40", 149.7, 74.8, 37.4, 48, 696}, {"A30", 165, 82, 10.3, 24, 933}, {"A10", 125, 62.5, 31.2, 24, 600},
    {"A10G", 70, 35, 31.2, 24, 600}, {"RTX 3090", 71, 35.6, 35.6, 24, 936}, {"RTX A6000", 154.8, 77.4, 38.7, 48, 768},
};
// clang-format on
// Words that behind the name of a chip mean another chip, slower or faster.
constexpr const char* OTHER_CHIPS[] = {"Ti", "SUPER", "D", "Laptop", "Max-Q", "MIG"};

// If device contains name as whole words, what follows it; otherwise null.
inline const char* behind_words(const char* device, const char* name) {
    const size_t length = strlen(name);
    for (const char* at = device; (at = strstr(at, name)); at++) {
        const char end = at[length];
        if ((at == device || at[-1] == ' ') && (end == '\0' || end == ' ' || end == '-')) return at + length;
    }
    return nullptr;
}
// The GPU with the longest name in the table that the device's name contains; null if there is
// none.
inline const GpuPeak* find_gpu(const char* device) {
    const GpuPeak* best = nullptr;
    for (const GpuPeak& peak : GPU_PEAKS) {
        const char* rest = behind_words(device, peak.name);
        bool other = !rest;
        for (const char* word : OTHER_CHIPS) other = other || behind_words(rest, word);
        if (!other && (!best || strlen(peak.name) > strlen(best->name))) best = &peak;
    }
    return best;
}
inline double peak_flops_of(const GpuPeak& gpu, bool bf16, bool tf32) {
    return 1e12 * (bf16 ? gpu.bf16_tflops : tf32 ? gpu.tf32_tflops : gpu.fp32_tflops);
}
// The peak FLOP/s of the GPU of this name; 0 if it is not in the table.
inline double gpu_peak_flops(const char* device, bool bf16, bool tf32) {
    const GpuPeak* gpu = find_gpu(device);
    return gpu ? peak_flops_of(*gpu, bf16, tf32) : 0;
}
