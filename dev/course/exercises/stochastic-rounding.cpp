// ----- task
// Stochastic rounding to bf16 (Gupta et al. 2015, arXiv:1502.02551): up or down at random, so that
// the mean is exact. An update that is smaller than half the distance of two bf16 would be lost
// each time by rounding to the nearest; so it has its effect now and then.
//
//     P(away from 0) = (the lower 16 bits of x) / 65536,   else towards 0
//
// `random` is uniform in 0 ... 65535, all equally likely. A number that is a bf16 already must
// stay. x is finite and far from the largest float. Returns the 16 bits of the result.
uint16_t round_stochastically(float x, uint32_t random) {
    // your code
    return 0xABCD;
}

// ----- solution
uint16_t round_stochastically(float x, uint32_t random) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + random) >> 16);
}

// ----- shipped
#include "llmc/base/bf16.h"
uint16_t round_stochastically(float x, uint32_t random) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return stochastic_bits(bits, random);
}

// ----- mistakes
//     nearest: bits + random ==> bits + 0x7FFF + (bits >> 16 & 1)
//     truncated: bits + random ==> bits
//     half: bits + random ==> bits + random / 2
//     coin: bits + random ==> bits + (random & 1) * 0xFFFF
//     one-more: bits + random ==> bits + random + 1
//     reversed: bits + random ==> (bits & 0xFFFF0000) + ((bits & 0xFFFF) < random ? 0x10000 : 0)

// ----- judge
void judge(Judge& j, decltype(task::round_stochastically)* round_stochastically) {
    j.tolerance = 0;
    j.hints = {{"nearest", "this is rounding to the nearest: `random` has no effect."},
               {"truncated", "it always rounds towards 0."},
               {"half", "it rounds up about half as often as it should: all 16 random bits must count."},
               {"coin", "up and down are equally likely; the nearer neighbour must be likelier."},
               {"one-more", "one of the 65536 random numbers too many rounds up; numbers that are exact change, too."},
               {"reversed", "it rounds up with the probability to round down."}};
    for (float sign : {1.0f, -1.0f}) {
        const std::vector<float> low = {0, 1, 16384, 32768, 32769, 65535, 40000};
        j.sizes("%s numbers, all 65536 random bits", sign > 0 ? "positive" : "negative");
        std::vector<float> ups, elsewhere;
        for (float bits_below : low) {
            const float x = sign * (1.5f + bits_below / 65536 / 128);
            uint32_t bits, up = 0, other = 0;
            memcpy(&bits, &x, 4);
            for (uint32_t random = 0; random < 65536; random++) {
                const uint16_t rounded = round_stochastically(x, random);
                up += rounded == (bits >> 16) + 1, other += rounded != bits >> 16 && rounded != (bits >> 16) + 1;
            }
            ups.push_back((float)up), elsewhere.push_back(other == 65536 ? 0xABCD : (float)other);
        }
        const int64_t n = (int64_t)low.size();
        const std::vector<float> zeros(n), stub(n, 0xABCD);
        j.check({{"neither neighbour", {n}, elsewhere, stub}, {"times away from 0", {n}, ups, zeros}},
                [&](const Key& wrong) -> Arrays {
                    std::vector<double> expected;
                    for (double below : low) {
                        double times = below;
                        if (wrong == "nearest") times = below > 32768 ? 65536 : 0;  // 1.5 is even: a tie stays
                        if (wrong == "truncated") times = 0;
                        if (wrong == "half") times = 2 * std::max(0.0, below - 32768);
                        if (wrong == "coin") times = below > 0 ? 32768 : 0;
                        if (wrong == "one-more") times = below + 1;
                        if (wrong == "reversed") times = 65535 - below;
                        expected.push_back(times);
                    }
                    return {std::vector<double>(n, 0), expected};
                });
    }
}
