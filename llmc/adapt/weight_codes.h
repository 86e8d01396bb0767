// Weights in 8 or 4 bits (--weights), for generation and evaluation, or beside which adapters
// train: a code for each weight, and a scale for each row of a matrix, or for each block of it.
//
//     weight = scale level[code]
//
//     format   codes                        levels                        one scale for      its bits   bits a weight
//     int8     8 bits, -127 to 127          the code                      a row              32         8 + 32/C
//     int4     4 bits, 0 to 15              code - 8                      32 of a row        16         4.5
//     nf4      4 bits, 0 to 15              quantiles of a normal         64 of a row        8          4.13
//                                           distribution (NF4_LEVELS)
//
// Generation reads all weights for each token, and computes little with them: it takes the time of
// their bytes. So do not lose those bits: codes are for the matrices that inputs are multiplied
// with, of the layers and wte, which hold nearly all weights. Gains, biases and wpe stay as they
// are.
//
//     int8     scale = max |w| / 127
//     int4     scale = -w / 8 for the w of largest |w|: that of the two ends of -8 to 7 which is used. The codes and
//              scales are those of ggml's q4_0
//     nf4      scale = max |w|; the codes are those of bitsandbytes (Dettmers et al. 2023, arXiv:2305.14314)
//
// The scales of nf4 are in codes as well, of 8 bits (double quantisation, section 3 there): they
// are positive and of about one size, so that their mean, one for a matrix, is taken away first.
// 256 scales, of blocks that follow each other, share the largest magnitude of what is left:
//
//     scale = group table[code] + mean     group = max |scale - mean| over 256 blocks
//
// table is the dynamic code of optim/small_state.h. Codes of weights are made with the scales
// before.
//
// A code is the one whose level is nearest to w / scale. A row has whole groups of 64 codes; those
// beyond its end are of the level 0. Byte j of a group of 4-bit codes has in its lower half code j,
// and in its upper half code j + 32.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include "llmc/base/check.h"
#include "llmc/base/fp16.h"
#include "llmc/base/host_device.h"
#include "llmc/base/integer_math.h"
#include "llmc/gpt2/tensors.h"
#include "llmc/optim/small_state.h"

enum WeightFormat { WEIGHTS_AS_FLOATS, WEIGHTS_INT8, WEIGHTS_INT4, WEIGHTS_NF4, NUM_WEIGHT_FORMATS };
constexpr const char* WEIGHT_FORMAT_NAMES[] = {"none", "int8", "int4", "nf4"};  // as --weights names them

// The levels of nf4: with q the quantile function of the standard normal distribution and d =
// 0.9677083, 0 and, divided by q(d), 7 quantiles below and 8 above it, at equal steps of
// probability from 1 - d and from d to 1/2 (appendix E there; dev/test/weights.py computes them).
constexpr float NF4_LEVELS[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

constexpr int64_t CODE_GROUP = 64, INT4_BLOCK = 32, NF4_BLOCK = 64, NF4_GROUP = 256;
typedef DynamicCode<true> ScaleCode;
constexpr std::array<float, 256> SCALE_VALUES = ScaleCode::table();

// The codes and scales of one matrix (rows, C), in memory that begins at a multiple of 64 bytes:
// first all codes, row by row, then all scales; of nf4 then the mean of the scales and the scales
// of their groups.
struct CodeMatrix {
    WeightFormat format;
    int64_t rows, C;
    uint8_t* memory;

    HOST_DEVICE int64_t padded_C() const { return round_up(C, CODE_GROUP); }
    HOST_DEVICE int64_t row_code_bytes() const { return format == WEIGHTS_INT8 ? padded_C() : padded_C() / 2; }
    HOST_DEVICE int64_t row_groups() const { return padded_C() / CODE_GROUP; }
    HOST_DEVICE int64_t row_scale_bytes() const {
        return format == WEIGHTS_INT8 ? 4 : row_groups() * (format == WEIGHTS_INT4 ? 4 : 1);
    }
    HOST_DEVICE int64_t row_bytes() const { return row_code_bytes() + row_scale_bytes(); }
    HOST_DEVICE int64_t mean_at() const { return round_up(rows * row_bytes(), 4); }
    int64_t bytes() const {
        const int64_t of_groups = format == WEIGHTS_NF4 ? 4 + ceil_div(rows * row_groups(), NF4_GROUP) * 4 : 0;
        return round_up(mean_at() + of_groups, 64);
    }

    HOST_DEVICE uint8_t* codes(int64_t row) const { return memory + row * row_code_bytes(); }
    // Of int8 one fp32 scale; of int4 an fp16 scale for each 32 codes; of nf4 a code of one for
    // each 64, the mean of all scales, and the scale of a group.
    HOST_DEVICE uint8_t* scale_codes(int64_t row) const {
        return memory + rows * row_code_bytes() + row * row_scale_bytes();
    }
    HOST_DEVICE float* scales(int64_t row) const { return (float*)scale_codes(row); }
    HOST_DEVICE fp16* half_scales(int64_t row) const { return (fp16*)scale_codes(row); }
    HOST_DEVICE float* mean() const { return (float*)(memory + mean_at()); }
    HOST_DEVICE float* group(int64_t row, int64_t block) const {
        return mean() + 1 + (row * row_groups() + block) / NF4_GROUP;
    }
    float nf4_scale(int64_t row, int64_t block) const {
        return std::fma(SCALE_VALUES[scale_codes(row)[block]], *group(row, block), *mean());
    }
};

// All codes of a model: those of the layers, one after the other, then those of wte.
struct WeightCodes {
    WeightFormat format = WEIGHTS_AS_FLOATS;
    GPT2Config config;
    uint8_t* memory = nullptr;

    explicit operator bool() const { return format != WEIGHTS_AS_FLOATS; }
    CodeMatrix matrix(int tensor, int64_t layer = 0) const {
        CodeMatrix found = of_shape(tensor);
        if (!memory) return found;
        int64_t before = 0, in_layer = 0;
        for (int i = 0; i < NUM_TENSORS; i++)
            if (is_layer_matrix(i)) before += i < tensor ? of_shape(i).bytes() : 0, in_layer += of_shape(i).bytes();
        found.memory = memory + (tensor == WTE ? config.L * in_layer : layer * in_layer + before);
        return found;
    }
    // Bytes of all layers of a tensor, and of all tensors.
    int64_t bytes(int tensor) const { return tensor_layers(tensor, config) * of_shape(tensor).bytes(); }
    int64_t bytes() const {
        int64_t total = 0;
        for (int i = 0; i < NUM_TENSORS; i++) total += is_product_matrix(i) ? bytes(i) : 0;
        return total;
    }
    // Rows of a matrix that are turned into numbers at a time, for products with many inputs; the
    // columns of it, in a backward pass; and the most elements of these.
    static int64_t strip_rows(const CodeMatrix& m) {
        return std::min(m.rows, round_up(ceil_div(int64_t(1) << 19, m.C), 48));
    }
    static int64_t strip_columns(const CodeMatrix& m) {
        return std::min(m.C, std::max<int64_t>(1, (int64_t(1) << 19) / m.rows / CODE_GROUP) * CODE_GROUP);
    }
    int64_t strip_elems(bool backward) const {
        int64_t most = 0;
        for (int i = 0; i < NUM_TENSORS; i++) {
            const CodeMatrix m = of_shape(i);
            if (is_product_matrix(i)) most = std::max(most, strip_rows(m) * m.C);
            if (is_product_matrix(i) && backward) most = std::max(most, strip_columns(m) * m.rows);
        }
        return most;
    }

private:
    CodeMatrix of_shape(int tensor) const {
        return {format, dimension(TENSORS[tensor].rows, config), dimension(TENSORS[tensor].cols, config), nullptr};
    }
};

// The format that --weights names; exit 2 if there is none.
inline WeightFormat weight_format(const std::string& name) {
    for (int i = 0; i < NUM_WEIGHT_FORMATS; i++)
        if (name == WEIGHT_FORMAT_NAMES[i]) return (WeightFormat)i;
    if (name.empty()) return WEIGHTS_AS_FLOATS;
    usage_error("--weights %s is not accepted; accepted: none, int8, int4, nf4", name);
}
