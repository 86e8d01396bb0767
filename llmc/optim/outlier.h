// The z-score of a value: how many standard deviations it is above the mean of the 128 values
// before it. NAN while fewer have been seen.
#pragma once
#include <cmath>
#include <cstdint>

constexpr int OUTLIER_WINDOW = 128;

struct OutlierDetector {
    double values[OUTLIER_WINDOW] = {};
    int64_t count = 0;  // values seen so far

    // The mean and standard deviation of the window; false while it is not full.
    bool statistics(double& mean, double& deviation) const {
        if (count < OUTLIER_WINDOW) return false;
        double variance = mean = 0;
        for (double v : values) mean += v / OUTLIER_WINDOW;
        for (double v : values) variance += (v - mean) * (v - mean) / OUTLIER_WINDOW;
        deviation = std::sqrt(variance);
        return true;
    }
    // The value whose z-score is z. Infinity if z is 0 (off), and while the window is not full or
    // all its values are the same.
    double limit(double z) const {
        double mean, deviation;
        return z > 0 && statistics(mean, deviation) && deviation > 0 ? mean + z * deviation : INFINITY;
    }
    // The z-score of value; then value replaces the oldest one in the window.
    double z_score(double value) {
        double mean, deviation, z = NAN;
        if (statistics(mean, deviation)) z = deviation > 0 ? (value - mean) / deviation : 0.0;
        values[count % OUTLIER_WINDOW] = value;
        count++;
        return z;
    }
};
