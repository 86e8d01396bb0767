// The functions that g++ -fsanitize=thread calls before each access to memory that other threads
// may see. Those of ThreadSanitizer look for races; these only count, in programs built with
// COUNT=1.
#ifdef CUSIM_COUNTS
#include "dev/cusim/cusim_inside.h"

using namespace cusim;

extern "C" {
void __tsan_init() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_read_range(const void* p, size_t n) { count_access(LOAD, p, n, __builtin_return_address(0)); }
void __tsan_write_range(void* p, size_t n) { count_access(STORE, p, n, __builtin_return_address(0)); }
#define COUNT_ACCESSES(n) \
    void __tsan_read##n(const void* p) { count_access(LOAD, p, n, __builtin_return_address(0)); } \
    void __tsan_write##n(void* p) { count_access(STORE, p, n, __builtin_return_address(0)); } \
    void __tsan_unaligned_read##n(const void* p) { count_access(LOAD, p, n, __builtin_return_address(0)); } \
    void __tsan_unaligned_write##n(void* p) { count_access(STORE, p, n, __builtin_return_address(0)); }
COUNT_ACCESSES(1)
COUNT_ACCESSES(2)
COUNT_ACCESSES(4)
COUNT_ACCESSES(8)
COUNT_ACCESSES(16)

// Atomic operations are replaced by these calls, so they must be carried out here.
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
#define COUNT_UPDATE(T, bits, name) \
    T __tsan_atomic##bits##_##name(volatile T* p, T value, int) { \
        count_access(ATOMIC, (const void*)p, bits / 8, __builtin_return_address(0)); \
        return __atomic_##name(p, value, __ATOMIC_SEQ_CST); \
    }
#define COUNT_EXCHANGE(T, bits, name, weak) \
    int __tsan_atomic##bits##_##name(volatile T* p, T* expected, T value, int, int) { \
        count_access(ATOMIC, (const void*)p, bits / 8, __builtin_return_address(0)); \
        return __atomic_compare_exchange_n(p, expected, value, weak, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }
#define COUNT_ATOMICS(T, bits) \
    T __tsan_atomic##bits##_load(const volatile T* p, int) { \
        count_access(LOAD, (const void*)p, bits / 8, __builtin_return_address(0)); \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST); \
    } \
    void __tsan_atomic##bits##_store(volatile T* p, T value, int) { \
        count_access(STORE, (const void*)p, bits / 8, __builtin_return_address(0)); \
        __atomic_store_n(p, value, __ATOMIC_SEQ_CST); \
    } \
    T __tsan_atomic##bits##_exchange(volatile T* p, T value, int) { \
        count_access(ATOMIC, (const void*)p, bits / 8, __builtin_return_address(0)); \
        return __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST); \
    } \
    COUNT_UPDATE(T, bits, fetch_add) \
    COUNT_UPDATE(T, bits, fetch_sub) \
    COUNT_UPDATE(T, bits, fetch_and) \
    COUNT_UPDATE(T, bits, fetch_or) \
    COUNT_UPDATE(T, bits, fetch_xor) \
    COUNT_EXCHANGE(T, bits, compare_exchange_strong, false) \
    COUNT_EXCHANGE(T, bits, compare_exchange_weak, true)
COUNT_ATOMICS(uint8_t, 8)
COUNT_ATOMICS(uint16_t, 16)
COUNT_ATOMICS(uint32_t, 32)
COUNT_ATOMICS(uint64_t, 64)
}
#endif
