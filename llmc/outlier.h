// How far a value is from its recent past, in standard deviations (z-score), over the last 128
// values. Before there are so many it is nan.
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
    // The value above which a z-score is greater than z; infinity if z is 0 (off), or nothing can
    // be an outlier yet.
    double limit(double z) const {
        double mean, deviation;
        return z > 0 && statistics(mean, deviation) && deviation > 0 ? mean + z * deviation : INFINITY;
    }
    // The z-score of value against the window, which then holds it in place of its oldest entry.
    double z_score(double value) {
        double mean, deviation, z = NAN;
        if (statistics(mean, deviation)) z = deviation > 0 ? (value - mean) / deviation : 0.0;
        values[count % OUTLIER_WINDOW] = value;
        count++;
        return z;
    }
};
