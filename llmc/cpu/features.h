// What this machine has to compute with, and whether the program was built for it. Matrix units are
// found and used at run time (matrix_unit.h); the width of vectors is the compiler's choice
// (vec.h).
#pragma once
#include "llmc/base/cores.h"
#include "llmc/cpu/matrix_unit.h"
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

inline std::string cpu_name() {
    char name[200] = "CPU";
#ifdef __APPLE__
    size_t bytes = sizeof(name);
    if (sysctlbyname("machdep.cpu.brand_string", name, &bytes, nullptr, 0) != 0) return "CPU";
#else
    FILE* file = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (file && fgets(line, sizeof(line), file) && sscanf(line, "model name : %199[^\n]", name) != 1) {}
    if (file) fclose(file);
#endif
    return name;
}

inline const char* vector_name(int bytes) {
    if (bytes == 64) return "AVX-512";
    if (bytes == 32) return "AVX2";
#ifdef __aarch64__
    return "NEON";
#else
    return "SSE";
#endif
}
// The widest vectors of this CPU that vec.h knows, in bytes.
inline int cpu_vector_bytes() {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) return 64;
    if (__builtin_cpu_supports("avx2")) return 32;
#endif
    return 16;
}

// The CPU, its vectors and best matrix unit: "AMD EPYC (AVX-512, AVX512-BF16), 1 of 2 cores".
inline std::string cpu_text() {
    std::string units = vector_name(cpu_vector_bytes());
    const MatrixUnit unit = best_matrix_unit();
    if (unit != UNIT_PORTABLE) units += std::string(", ") + MATRIX_UNIT_NAMES[unit];
    const int cores = std::max(1, (int)std::thread::hardware_concurrency()), usable = available_threads();
    const std::string of = usable < cores ? format("%d of ", usable) : "";
    return format("%s (%s), %s%d core%s", cpu_name(), units, of, cores, cores == 1 ? "" : "s");
}

// A sentence, if the CPU has wider vectors than the program was built for; else empty.
inline std::string unused_vectors(int built_for = VEC_BYTES, int has = cpu_vector_bytes()) {
    if (has <= built_for) return "";
    return format(
        "this CPU has vectors of %d bytes (%s), and this program was built for %d (%s): `make` on this "
        "machine, without ARCH, builds one that uses them",
        has, vector_name(has), built_for, vector_name(built_for));
}
