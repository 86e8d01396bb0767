// Denormals count as zero in every thread that computes. They are the numbers too small for a full
// significand: in fp32 those below 2^-126 = 1.2e-38. Most CPUs leave them to microcode, which takes
// a hundred cycles or more for an operation (Dooley & Kale 2006, "Quantifying the interference
// caused by subnormal floating-point values"). At a high learning rate a softmax saturates, the
// gradients behind it vanish by way of denormals, and training becomes many times slower. What they
// would add is lost in the next sum beside a number of ordinary size, and matrix units take them
// for zero in any case. GPUs compute with them at full speed, and keep them (nvcc's default).
//
// The mode is a register of each thread. parallel_for (device.h) sets it for what runs in it, on
// all threads, and main for what runs outside: so results do not depend on the threads.
#pragma once
#include <cstdint>

// While it exists, the thread that made it takes denormals for zero, as operands (denormals are
// zero) and as results (flush to zero).
struct DenormalsAreZero {
    DenormalsAreZero() : before(mode()) {
        if ((before & ZERO) != ZERO) set_mode(before | ZERO);
    }
    ~DenormalsAreZero() {
        if ((before & ZERO) != ZERO) set_mode(before);
    }
    DenormalsAreZero(const DenormalsAreZero&) = delete;

private:
    const uint64_t before;
#if defined(__x86_64__)
    static constexpr uint64_t ZERO = 1 << 15 | 1 << 6;  // of MXCSR: FTZ, DAZ
    static uint64_t mode() { return __builtin_ia32_stmxcsr(); }
    static void set_mode(uint64_t bits) { __builtin_ia32_ldmxcsr((unsigned)bits); }
#elif defined(__aarch64__)
    static constexpr uint64_t ZERO = 1 << 24;  // of FPCR: FZ, which is both
    static uint64_t mode() {
        uint64_t bits;
        asm volatile("mrs %0, fpcr" : "=r"(bits));
        return bits;
    }
    static void set_mode(uint64_t bits) { asm volatile("msr fpcr, %0" ::"r"(bits)); }
#else
    static constexpr uint64_t ZERO = 0;
    static uint64_t mode() { return 0; }
    static void set_mode(uint64_t) {}
#endif
};
