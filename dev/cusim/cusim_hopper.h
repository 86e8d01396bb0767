// What kernels for Hopper see of the simulator: mbarriers, TMA, and products on their way. The
// twins of dev/cuda/hopper_twins.cuh call it.
//
// Copies and products are late, as far as a GPU allows it. Boxes arrive when no thread of the block
// can go on; products are computed when a thread waits for them, and boxes to be stored are read at
// their wait. With CUSIM_SEED, each of these happens at a random time up to then. So what does not
// wait reads NaN, or what was there before.
//
// To copies and products, the asynchronous proxy, shared memory is a second copy of itself: boxes
// arrive in both, and what threads store reaches the second one at a fence_async_proxy().
#pragma once
#include "dev/cusim/cusim.h"

typedef struct CUtensorMap_st CUtensorMap;

namespace cusim {

uint32_t shared_offset(const void* p);  // its address in shared memory

// An mbarrier is one word: its phase's parity, the arrivals that are missing and that each phase
// has, and the bytes that are missing.
void mbarrier_init(uint64_t* barrier, uint32_t arrivals, Location here);
void mbarrier_arrive(uint64_t* barrier, uint32_t expected_bytes, Location here);
void mbarrier_wait(uint64_t* barrier, uint32_t parity, Location here);

void fence_async_proxy();
uint16_t async_read(uint32_t address);  // two bytes of shared memory, as the asynchronous proxy sees them

// A swizzle within rows of `span` bytes: bits 4-6 of an address, or fewer, are xored with bits 7-9.
inline uint32_t swizzled(uint32_t address, uint32_t span) { return address ^ (address >> 7 & (span / 16 - 1)) << 4; }
void tma_load(void* to, const CUtensorMap& map, const int (&at)[4], uint64_t* barrier, Location here);
void tma_store(const CUtensorMap& map, const void* from, const int (&at)[4], Location here);
void tma_store_wait();

// The 128 threads of a warpgroup wait for each other in each of these. compute() gets a copy of
// what each has passed; `same` must be equal in all.
void wgmma_fence(Location here);
void wgmma_start(const void* arguments, size_t bytes, void (*compute)(void** threads), uint64_t same, Location here);
void wgmma_commit(Location here);
void wgmma_wait(int groups_left, Location here);

// A kernel that runs on Hopper alone: it may have 227 KB of shared memory.
void allow_hopper(const void* kernel);

}  // namespace cusim
