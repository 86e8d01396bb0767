// What a line of tensors.csv says of a tensor (tensor_log.h), as far as it is measured before an
// update.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>
#include "llmc/base/hot_loop.h"

// Of some values: the sum of squares, the largest magnitude (NaN if any value is), and the zeros.
struct TensorSums {
    double squares = 0, max = 0, zeros = 0;

    HOT_LOOP void add(double value) {
        const double magnitude = std::fabs(value);
        squares += value * value, zeros += value == 0;
        if (magnitude > max || magnitude != magnitude) max = magnitude;
    }
    void add(const TensorSums& other) {
        squares += other.squares, zeros += other.zeros;
        if (other.max > max || std::isnan(other.max)) max = other.max;
    }
    template <class T>
    HOT_LOOP void add(const T* values, int64_t n, double factor = 1) {
        TensorSums sums = *this;  // a copy, which stays in registers
        for (int64_t i = 0; i < n; i++) sums.add(values[i] * factor);
        *this = sums;
    }
    HOT_LOOP void add_differences(const float* values, const float* from, int64_t n) {
        TensorSums sums = *this;
        for (int64_t i = 0; i < n; i++) sums.add((double)values[i] - from[i]);
        *this = sums;
    }
};

// What an update overwrites, measured in a step that is logged: of all parts the weights before it,
// but with AdamW; and where the optimizer has directions (directions.h) the gradients.
struct BeforeUpdate {
    std::vector<float> weights;
    std::vector<TensorSums> gradients;
};
