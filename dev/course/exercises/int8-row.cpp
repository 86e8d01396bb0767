// ----- task
// A row of weights (C) as whole numbers of 8 bits with one scale, and back: the largest magnitude
// becomes 127.
//
//     scale = max over c of |w[c]| / 127,   codes[c] = round(w[c] / scale),   back[c] = scale codes[c]
//
// A row of zeros has the scale 0 and codes 0. Round to the nearest; ties do not occur. Write codes
// (C) and back (C), and return the scale.
float int8_row(int8_t* codes, float* back, const float* w, int C) {
    // your code
    return -1;
}

// ----- solution
float int8_row(int8_t* codes, float* back, const float* w, int C) {
    float most = 0;
    for (int c = 0; c < C; c++) most = std::max(most, std::fabs(w[c]));
    const float scale = most / 127;
    for (int c = 0; c < C; c++) {
        codes[c] = scale > 0 ? (int8_t)std::lround(w[c] / scale) : 0;
        back[c] = scale * codes[c];
    }
    return scale;
}

// ----- mistakes
//     signed: std::fabs(w[c]) ==> w[c]
//     truncated: (int8_t)std::lround(w[c] / scale) ==> (int8_t)(w[c] / scale)
//     by-128: most / 127 ==> most / 128 ;; (int8_t)std::lround(w[c] / scale) ==>
//         (int8_t)std::min(127l, std::lround(w[c] / scale))
//     last: std::max(most, std::fabs(w[c])) ==> std::fabs(w[c]) ;; (int8_t)std::lround(w[c] / scale) ==>
//         (int8_t)std::min(127l, std::max(-127l, std::lround(w[c] / scale)))

// ----- judge
#include "dev/course/exercises/judge.h"
static Arrays row_in_codes(const std::vector<float>& w, const Key& wrong) {
    double most = 0;
    for (float value : w)
        most =
            wrong == "last" ? std::fabs(value) : std::max(most, wrong == "signed" ? value : std::fabs((double)value));
    const double scale = most / (wrong == "by-128" ? 128 : 127);
    Arrays found(3);
    for (float value : w) {
        const double at = scale > 0 ? value / scale : 0, most_code = wrong == "signed" ? 1e9 : 127;
        double code = wrong == "truncated" ? std::trunc(at) : std::round(at);
        code = std::max(-most_code - (wrong == "by-128"), std::min(most_code, code));
        if (wrong == "signed") code = (int8_t)(long)code;  // what does not fit 8 bits goes round
        found[0].push_back(code), found[1].push_back(scale * code);
    }
    found[2] = {scale};
    return found;
}

void judge(Judge& j, decltype(task::int8_row)* int8_row) {
    j.hints = {{"signed", "the largest value is not the largest magnitude: a row may have its extreme below 0."},
               {"truncated", "a code is the nearest whole number; a cast drops what is behind the point."},
               {"by-128", "128 is no code of 8 bits with a sign: the largest magnitude has to become 127."},
               {"last", "the scale is that of the largest value, not of the last one."}};
    for (int C : {1, 5, 64, 200}) {
        j.sizes("C %d", C);
        std::vector<float> w = j.random(C);
        for (float& value : w) value *= 3;
        w[C / 2] = -4.03f;  // the largest magnitude is below 0
        std::vector<int8_t> codes(C, 99);
        std::vector<float> back = begins(C);
        const float scale = int8_row(codes.data(), back.data(), w.data(), C);
        j.check({{"codes", {C}, codes, std::vector<float>(C, 99)},
                 {"back", {C}, back},
                 {"scale", {1}, std::vector<float>{scale}, std::vector<float>{-1}}},
                [&](const Key& wrong) { return row_in_codes(w, wrong); });
    }
    j.sizes("a row of zeros");
    const std::vector<float> w(7, 0.0f);
    std::vector<int8_t> codes(7, 99);
    std::vector<float> back = begins(7);
    const float scale = int8_row(codes.data(), back.data(), w.data(), 7);
    j.check({{"codes", {7}, codes, std::vector<float>(7, 99)},
             {"back", {7}, back},
             {"scale", {1}, std::vector<float>{scale}, std::vector<float>{-1}}},
            [&](const Key& wrong) { return row_in_codes(w, wrong); });
}
