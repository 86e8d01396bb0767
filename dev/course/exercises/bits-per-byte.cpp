// ----- task
// The bits per byte of a text of n tokens:
//
//     bits per byte = (sum of the losses) / (ln 2 * sum of the bytes)
//
// loss (n) in nats, bytes (n): the length of each token's text. A target with mask (n) 0 does not
// count, neither its loss nor its bytes. An end of text stands for 0 bytes; its loss counts. Where
// no bytes are left it is 0. Add up in double: a validation text has millions of tokens.
double bits_per_byte(const float* loss, const int* bytes, const unsigned char* mask, int64_t n) {
    // your code
    return 0;
}

// ----- solution
double bits_per_byte(const float* loss, const int* bytes, const unsigned char* mask, int64_t n) {
    double nats = 0, length = 0;
    for (int64_t i = 0; i < n; i++)
        if (mask[i]) nats += loss[i], length += bytes[i];
    return length > 0 ? nats / (std::log(2.0) * length) : 0;
}

// ----- mistakes
//     nats: std::log(2.0) * length ==> length
//     tokens: length += bytes[i] ==> length += 1
//     mask: if (mask[i]) ==>
//     mean-of-ratios: nats += loss[i], length += bytes[i] ==> nats += bytes[i] ? loss[i] / bytes[i] : 0,
//         length += bytes[i] > 0
//     ends: if (mask[i]) ==> if (mask[i] && bytes[i] > 0)
//     masked-bytes: if (mask[i]) nats += loss[i], length += bytes[i]; ==> { length += bytes[i]; if (mask[i]) nats +=
//         loss[i]; }
//     single: double nats = 0, length = 0; ==> float nats = 0; double length = 0;
//     empty: length > 0 ? nats / (std::log(2.0) * length) : 0 ==> nats / (std::log(2.0) * length)

// ----- judge
#include "dev/course/exercises/judge.h"
static double bits_of(const std::vector<float>& loss, const std::vector<int>& bytes,
                      const std::vector<unsigned char>& mask, const Key& wrong) {
    double nats = 0, length = 0;
    float single = 0;
    for (size_t i = 0; i < loss.size(); i++) {
        if (wrong == "masked-bytes") length += bytes[i];
        if (wrong != "mask" && !mask[i]) continue;
        if (wrong == "ends" && bytes[i] == 0) continue;
        single += loss[i];
        nats += wrong == "mean-of-ratios" ? (bytes[i] ? loss[i] / bytes[i] : 0) : loss[i];
        length += wrong == "tokens"           ? 1
                  : wrong == "mean-of-ratios" ? bytes[i] > 0
                  : wrong == "masked-bytes"   ? 0
                                              : bytes[i];
    }
    if (length == 0) return wrong == "empty" ? NAN : 0;
    return (wrong == "single" ? single : nats) / length / (wrong == "nats" ? 1 : std::log(2.0));
}

void judge(Judge& j, decltype(task::bits_per_byte)* bits_per_byte) {
    j.hints = {
        {"nats", "losses are in nats, of which ln 2 are a bit: divide by ln 2."},
        {"tokens", "this is bits per token: divide by bytes, which do not depend on the vocabulary."},
        {"mask", "targets that do not count are counted."},
        {"mean-of-ratios", "this is a mean of what each token has per byte; sum first, then divide."},
        {"ends", "the loss at an end of text counts, though it stands for no byte: it has to be predicted too."},
        {"masked-bytes", "the bytes of targets that do not count are among those divided by."},
        {"empty", "no bytes count, and 0 / 0 is not a number."},
        {"single", "the sum is a float: in millions of losses each addition is rounded to a larger and larger unit."}};
    j.tolerance = 1e-7;
    for (int64_t n : {1, 2, 7, 300, 3000000}) {
        j.sizes("%d tokens", (int)n);
        std::vector<float> loss = j.random(n, 4);
        for (float& x : loss) x += 4;
        std::vector<int> bytes(n);
        std::vector<unsigned char> mask(n);
        for (int64_t i = 0; i < n; i++) bytes[i] = i % 7 == 3 ? 0 : 1 + i % 5, mask[i] = n != 1 && i % 4 != 1;
        const std::vector<double> got = {bits_per_byte(loss.data(), bytes.data(), mask.data(), n)};
        j.check({{"bits per byte", {1}, got, {0.0f}}},
                [&](const Key& wrong) -> Arrays { return {{bits_of(loss, bytes, mask, wrong)}}; });
    }
}
