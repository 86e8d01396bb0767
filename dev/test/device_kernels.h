// What tests of CUDA kernels share: arrays on the device, of floatX or fp32, random values, and how
// far results may be from those of naive loops.
#pragma once
#include <vector>

static cudaStream_t stream;

// Device memory with the given values, converted to T; or n elements of 0xFFFF.., which are NaN.
template <class T>
struct DeviceArray {
    T* data;
    int64_t n;
    explicit DeviceArray(int64_t n) : n(n) {
        check_cuda(cudaMalloc(&data, n * sizeof(T)), "allocating");
        check_cuda(cudaMemsetAsync(data, 0xFF, n * sizeof(T), stream), "poisoning");
    }
    template <class V>
    explicit DeviceArray(const std::vector<V>& values) : DeviceArray((int64_t)values.size()) {
        const std::vector<T> raw(values.begin(), values.end());
        copy_to_device(data, raw.data(), n * sizeof(T), stream);
    }
    DeviceArray(const DeviceArray&) = delete;
    ~DeviceArray() { check_cuda(cudaFree(data), "freeing"); }
    operator T*() { return data; }
    std::vector<float> values() const {
        std::vector<T> raw(n);
        copy_to_host(raw.data(), data, n * sizeof(T), stream);
        return std::vector<float>(raw.begin(), raw.end());
    }
};
typedef std::vector<float> Floats;
typedef DeviceArray<floatX> Array;
typedef DeviceArray<float> Array32;

inline Floats floats(const std::vector<floatX>& values) { return Floats(values.begin(), values.end()); }
// Random values that floatX represents exactly, so that both sides start from the same numbers.
inline Floats random_floatX(size_t n, double scale = 1) {
    Floats values = random_values(n, scale);
    for (float& v : values) v = (float)(floatX)v;
    return values;
}
// For results with `roundings` roundings to floatX and sums of `terms` terms in fp32.
inline double kernel_tolerance(double roundings, double terms) {
    const double roundoff = is_fp16<floatX>() ? FP16_ROUNDOFF : BF16_ROUNDOFF;
    return sizeof(floatX) == 2 ? bf16_tolerance(roundings, terms, roundoff) : sum_tolerance(terms);
}
