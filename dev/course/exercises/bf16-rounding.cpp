// ----- task
// From float to bf16: the upper 16 bits of a float, after rounding to the nearest; of two that are
// equally near, to the one whose last bit is 0. Infinity stays, NaN stays NaN.
//
//     bits of a float:   1 sign | 8 exponent | 23 mantissa         of a bf16:  1 sign | 8 exponent | 7 mantissa
//
// As bits of an integer, floats of one sign are in order of their size, so rounding is an addition
// to the 16 bits that are cut off. memcpy(&bits, &x, 4) gives the bits of x. NaN has all bits of
// the exponent set, and a mantissa that is not 0: what becomes of it if only its lower bits are
// set?
uint16_t round_to_bf16(float x) {
    // your code
    return 0xABCD;
}

// ----- solution
uint16_t round_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (std::isnan(x)) return 0x7FFF;
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// ----- shipped
#include "llmc/base/bf16.h"
uint16_t round_to_bf16(float x) { return bf16(x).bits; }

// ----- mistakes
//     truncated: bits + 0x7FFF + (bits >> 16 & 1) ==> bits
//     ties: bits + 0x7FFF + (bits >> 16 & 1) ==> bits + 0x8000
//     ties-down: bits + 0x7FFF + (bits >> 16 & 1) ==> bits + 0x7FFF
//     nan: if (std::isnan(x)) return 0x7FFF; ==> ;
//     odd: (bits >> 16 & 1) ==> (~bits >> 16 & 1)

// ----- judge
// NaN may have any bits of NaN: they count as one.
static double class_of(uint16_t bits) { return (bits & 0x7F80) == 0x7F80 && (bits & 0x7F) ? 0x7FFF : bits; }

void judge(Judge& j, decltype(task::round_to_bf16)* round_to_bf16) {
    j.tolerance = 0;
    j.hints = {
        {"truncated", "the lower 16 bits are cut off, which rounds towards 0: on average, weights shrink."},
        {"ties", "a tie goes away from 0; of two that are equally near, the one whose last bit is 0 is asked for."},
        {"ties-down", "a tie goes towards 0; of two that are equally near, the one whose last bit is 0 is asked for."},
        {"odd", "a tie goes to the one whose last bit is 1."},
        {"nan", "NaN does not stay NaN: the addition carries into the exponent or the sign, or only zeros remain."}};
    const auto judge_some = [&](const char* what, const std::vector<uint32_t>& patterns) {
        j.sizes("%s", what);
        std::vector<float> got;
        for (uint32_t bits : patterns) {
            float x;
            memcpy(&x, &bits, 4);
            got.push_back((float)class_of(round_to_bf16(x)));
        }
        j.check({{"bits", {(int64_t)got.size()}, got, std::vector<float>(got.size(), 0xABCD)}},
                [&](const Key& wrong) -> Arrays {
                    std::vector<double> expected;
                    for (uint32_t bits : patterns) {
                        const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
                        const uint32_t low = bits & 0xFFFF, odd = bits >> 16 & 1;
                        uint32_t up = low > 0x8000 || (low == 0x8000 && odd);
                        if (low == 0x8000 && wrong == "ties") up = 1;
                        if (low == 0x8000 && wrong == "ties-down") up = 0;
                        if (low == 0x8000 && wrong == "odd") up = !odd;
                        if (wrong == "truncated") up = 0;
                        expected.push_back(nan && wrong != "nan" && wrong != "truncated"
                                               ? 0x7FFF
                                               : class_of((uint16_t)((bits >> 16) + up)));
                        if (nan && wrong == "truncated") expected.back() = ANY;
                    }
                    return {expected};
                });
    };
    std::vector<uint32_t> ordinary;
    for (int i = 0; i < 1000; i++) ordinary.push_back((uint32_t)j.random_below(0x7F000000) | (i % 2 ? 0x80000000u : 0));
    judge_some("random numbers", ordinary);
    judge_some("ties", {0x3F808000, 0x3F818000, 0xBF808000, 0xBF818000, 0x40FF8000, 0x00008000, 0x00018000});
    judge_some("zeros, subnormal numbers, the largest, infinity",
               {0, 0x80000000, 1, 0x8001, 0x7F7FFFFF, 0x7F800000, 0xFF800000});
    judge_some("NaN", {0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF});
}
