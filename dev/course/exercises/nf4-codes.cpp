// ----- task
// Codes of 4 bits for levels that are not evenly spaced, as nf4 has them (Dettmers et al. 2023,
// arXiv:2305.14314). levels (16) rises from -1 to 1. A block of n weights has one scale, its
// largest magnitude; the code of a weight is the number of the level nearest to w / scale, the
// lower one of two that are equally near. Two codes share a byte:
//
//     packed[i] = codes[i] + 16 codes[i + n/2]        for i < n/2; n is even
//
// Write packed (n/2) and return the scale, which is above 0.
float nf4_block(uint8_t* packed, const float* w, int n, const float* levels) {
    // your code
    return -1;
}

// ----- solution
float nf4_block(uint8_t* packed, const float* w, int n, const float* levels) {
    float scale = 0;
    for (int i = 0; i < n; i++) scale = std::max(scale, std::fabs(w[i]));
    const auto code = [&](float x) {
        int best = 0;
        for (int k = 1; k < 16; k++)
            if (std::fabs(x - levels[k]) < std::fabs(x - levels[best])) best = k;
        return best;
    };
    for (int i = 0; i < n / 2; i++) packed[i] = (uint8_t)(code(w[i] / scale) + 16 * code(w[i + n / 2] / scale));
    return scale;
}

// ----- mistakes
//     even: std::fabs(x - levels[k]) < std::fabs(x - levels[best]) ==>
//         std::fabs(x - (2 * k / 15.0f - 1)) < std::fabs(x - (2 * best / 15.0f - 1))
//     neighbours: code(w[i] / scale) + 16 * code(w[i + n / 2] / scale) ==>
//         code(w[2 * i] / scale) + 16 * code(w[2 * i + 1] / scale)
//     swapped: code(w[i] / scale) + 16 * code(w[i + n / 2] / scale) ==>
//         16 * code(w[i] / scale) + code(w[i + n / 2] / scale)
//     below: std::fabs(x - levels[k]) < std::fabs(x - levels[best]) ==> levels[k] <= x

// ----- judge
#include "dev/course/exercises/judge.h"
static std::vector<float> uneven_levels() {
    std::vector<float> levels(16);
    for (int k = 0; k < 16; k++) {
        const float even = 2 * (float)k / 15 - 1;
        levels[k] = even * std::sqrt(std::fabs(even));  // closer together near 0
    }
    return levels;
}
static int nearest_level(double x, const Key& wrong) {
    static const std::vector<float> levels = uneven_levels();
    int best = 0;
    for (int k = 1; k < 16; k++) {
        const auto level = [&](int i) { return wrong == "even" ? 2 * i / 15.0 - 1 : (double)levels[i]; };
        if (wrong == "below" ? level(k) <= x : std::fabs(x - level(k)) < std::fabs(x - level(best))) best = k;
    }
    return best;
}
static Arrays block_in_codes(const std::vector<float>& w, const Key& wrong) {
    const int n = (int)w.size();
    float scale = 0;
    for (float value : w) scale = std::max(scale, std::fabs(value));
    Arrays found(2);
    for (int i = 0; i < n / 2; i++) {
        const bool pairs = wrong == "neighbours";
        const int low = nearest_level(w[pairs ? 2 * i : i] / scale, wrong),
                  high = nearest_level(w[pairs ? 2 * i + 1 : i + n / 2] / scale, wrong);
        found[0].push_back(wrong == "swapped" ? high + 16 * low : low + 16 * high);
    }
    found[1] = {scale};
    return found;
}

void judge(Judge& j, decltype(task::nf4_block)* nf4_block) {
    j.hints = {{"even", "the levels are not evenly spaced: they have to be looked up in `levels`."},
               {"neighbours", "the codes of a byte are n/2 apart, not neighbours."},
               {"swapped", "the lower half of a byte is the code of the first half of the block."},
               {"below", "the nearest level may be above the weight."}};
    for (int n : {2, 6, 64, 250}) {
        j.sizes("n %d", n);
        const std::vector<float> w = j.random(n);
        std::vector<uint8_t> packed(n / 2, 0xAB);
        const float scale = nf4_block(packed.data(), w.data(), n, uneven_levels().data());
        j.check({{"packed", {n / 2}, packed, std::vector<float>(n / 2, 0xAB)},
                 {"scale", {1}, std::vector<float>{scale}, std::vector<float>{-1}}},
                [&](const Key& wrong) { return block_in_codes(w, wrong); });
    }
}
