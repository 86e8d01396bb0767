// The peak of each GPU, for the MFU (model FLOPs utilisation; Chowdhery et al. 2022,
// arXiv:2204.02311, appendix B) in the log line of a step: dense TFLOP/s of its tensor cores with
// fp32 sums, without sparsity, and of its CUDA cores in fp32.
#pragma once
#include <cstring>

struct GpuPeak {
    const char* name;
    double bf16_tflops, tf32_tflops, fp32_tflops;
};
// clang-format off
constexpr GpuPeak GPU_PEAKS[] = {
    // Blackwell: HGX B200/B300 and GB200/GB300 NVL72 datasheets (2024, 2025), a GPU's share, sparse
    // figures halved
    {"B100", 1750, 875, 60}, {"B200", 2250, 1125, 75}, {"B300", 2250, 1125, 75},
    {"GB200", 2500, 1250, 80}, {"GB300", 2500, 1250, 80},
    // NVIDIA RTX Blackwell GPU architecture (whitepaper, 2025), appendices A and B
    {"RTX 5090", 209.5, 104.8, 104.8}, {"RTX 5080", 112.6, 56.3, 56.3}, {"RTX 5070 Ti", 87.9, 43.9, 43.9},
    {"RTX 5070", 61.7, 30.9, 30.9}, {"RTX 5060 Ti", 47.4, 23.7, 23.7}, {"RTX 5060", 38.4, 19.2, 19.2},
    // RTX PRO 6000 Blackwell datasheets (2025): fp32, and tensor cores at four times it
    {"RTX PRO 6000 Blackwell Workstation Edition", 504, 252, 126},
    {"RTX PRO 6000 Blackwell Max-Q Workstation Edition", 440, 220, 110},
    {"RTX PRO 6000 Blackwell Server Edition", 480, 240, 120},
    // Hopper: H100, H200 and GH200 datasheets (2022 to 2024)
    {"H100", 989.4, 494.7, 66.9}, {"H100 PCIe", 756, 378, 51.2}, {"H100 NVL", 835, 417.5, 60},
    {"H200", 989.4, 494.7, 66.9}, {"H200 NVL", 835, 417.5, 60}, {"GH200", 989.4, 494.7, 66.9},
    // Ada: L4, L40, L40S datasheets (2023); NVIDIA Ada GPU architecture (whitepaper, 2022),
    // appendix A
    {"L4", 121, 60, 30.3}, {"L40", 181, 90.5, 90.5}, {"L40S", 362, 183, 91.6},
    {"RTX 4090", 165.2, 82.6, 82.6}, {"RTX 6000 Ada", 364.2, 182.1, 91.1},
    // Ampere: A100, A40, A30, A10 datasheets (2020, 2021); NVIDIA Ampere GA102 (whitepaper, 2020),
    // appendix A
    {"A100", 312, 156, 19.5}, {"A40", 149.7, 74.8, 37.4}, {"A30", 165, 82, 10.3}, {"A10", 125, 62.5, 31.2},
    {"A10G", 70, 35, 31.2}, {"RTX 3090", 71, 35.6, 35.6}, {"RTX A6000", 154.8, 77.4, 38.7},
};
// clang-format on
// These words behind the name of a chip mean another chip, slower or faster.
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
// Peak FLOP/s of the GPU with the longest name in the table that the device's name contains; 0 if
// there is none.
inline double gpu_peak_flops(const char* device, bool bf16, bool tf32) {
    const GpuPeak* best = nullptr;
    for (const GpuPeak& peak : GPU_PEAKS) {
        const char* rest = behind_words(device, peak.name);
        bool other = !rest;
        for (const char* word : OTHER_CHIPS) other = other || behind_words(rest, word);
        if (!other && (!best || strlen(peak.name) > strlen(best->name))) best = &peak;
    }
    return best ? 1e12 * (bf16 ? best->bf16_tflops : tf32 ? best->tf32_tflops : best->fp32_tflops) : 0;
}
