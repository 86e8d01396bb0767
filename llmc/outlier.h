// How far a value is from its recent past, in standard deviations (z-score), over the last 128 values. Before there are so many it is nan.
#pragma once
#include <cmath>
#include <cstdint>

constexpr int OUTLIER_WINDOW = 128;

struct OutlierDetector {
    double values[OUTLIER_WINDOW] = {};
    int64_t count = 0;  // values seen so far

    // The z-score of value against the window, which then holds it in place of its oldest entry.
    double z_score(double value) {
        double z = NAN;
        if (count >= OUTLIER_WINDOW) {
            double mean = 0, variance = 0;
            for (double v : values) mean += v / OUTLIER_WINDOW;
            for (double v : values) variance += (v - mean) * (v - mean) / OUTLIER_WINDOW;
            z = variance > 0 ? (value - mean) / std::sqrt(variance) : 0.0;
        }
        values[count % OUTLIER_WINDOW] = value;
        count++;
        return z;
    }
};
