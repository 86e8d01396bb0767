// What a line of tensors.csv says of a tensor (tensor_log.h), as far as it is measured before an
// update.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

// Of some values: the sum of squares, the largest magnitude (NaN if any value is), and the zeros.
struct TensorSums {
    double squares = 0, max = 0, zeros = 0;

    void add(double value) {
        const double magnitude = std::fabs(value);
        squares += value * value, zeros += value == 0;
        if (magnitude > max || std::isnan(magnitude)) max = magnitude;
    }
    void add(const TensorSums& other) {
        squares += other.squares, zeros += other.zeros;
        if (other.max > max || std::isnan(other.max)) max = other.max;
    }
    template <class T>
    void add(const T* values, int64_t n) {
        for (int64_t i = 0; i < n; i++) add((double)values[i]);
    }
};

// What an update overwrites, measured in a step that is logged: of all parts the weights before it,
// but with AdamW; and where the optimizer has directions (directions.h) the gradients.
struct BeforeUpdate {
    std::vector<float> weights;
    std::vector<TensorSums> gradients;
};
