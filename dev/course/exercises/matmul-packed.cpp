// ----- task
// A linear layer as a packed product: out (rows, OC) = inp (rows, C) weight (OC, C)^T:
//
//     out[r,o] = sum over c of inp[r,c] weight[o,c]
//
// Vectors want 16 neighbouring outputs o, but in memory these weights are C apart. So pack the
// weight first, once for all rows: panel p holds outputs 16 p to 16 p + 15, and for each c their 16
// weights side by side,
//
//     packed[(p * C + c) * 16 + k] = weight[16 p + k, c],    0 where 16 p + k >= OC
//
// Then each tile of 4 rows x 16 outputs reads its panel from begin to end. packed has room for
// (OC rounded up to a multiple of 16) * C numbers. Both functions are judged.
void pack(float* packed, const float* weight, int64_t OC, int64_t C) {
    // your code
}
void product(float* out, const float* inp, const float* packed, int64_t rows, int64_t C, int64_t OC) {
    // your code
}

// ----- solution
void pack(float* packed, const float* weight, int64_t OC, int64_t C) {
    for (int64_t p = 0; p * 16 < OC; p++)
        for (int64_t c = 0; c < C; c++)
            for (int64_t k = 0; k < 16; k++)
                packed[(p * C + c) * 16 + k] = p * 16 + k < OC ? weight[(p * 16 + k) * C + c] : 0.0f;
}
void product(float* out, const float* inp, const float* packed, int64_t rows, int64_t C, int64_t OC) {
    const int R = 4, O = 16;
    for (int64_t o = 0; o < OC; o += O)
        for (int64_t r = 0; r < rows; r += R) {
            const float* panel = packed + o * C;
            const float* x[R];  // beyond the last row, the last row again
            for (int i = 0; i < R; i++) x[i] = inp + std::min(r + i, rows - 1) * C;
            float sum[R][O] = {};
            for (int64_t c = 0; c < C; c++)
                for (int i = 0; i < R; i++)
                    for (int k = 0; k < O; k++) sum[i][k] += x[i][c] * panel[c * O + k];
            for (int64_t i = 0; i < R && r + i < rows; i++)
                for (int64_t k = 0; k < O && o + k < OC; k++) out[(r + i) * OC + o + k] = sum[i][k];
        }
}

// ----- mistakes
//     slow: sum[i][k] += x[i][c] * panel[c * O + k] ==> { volatile float* s = &sum[i][k]; *s = *s + x[i][c] *
//         panel[c * O + k]; }
//     unpacked: packed[(p * C + c) * 16 + k] = ==> packed[(p * 16 + k) * C + c] =
//     padding: p * 16 + k < OC ? weight[(p * 16 + k) * C + c] : 0.0f ==>
//         weight[std::min(p * 16 + k, OC - 1) * C + c]
//     panels: packed + o * C ==> packed
//     borders: i < R && r + i < rows ==> i < R && r + R <= rows

// ----- judge
static void naive_product(float* out, const float* inp, const float* weight, int64_t rows, int64_t C, int64_t OC) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < OC; o++) {
            float sum = 0;
            for (int64_t c = 0; c < C; c++) sum += inp[r * C + c] * weight[o * C + c];
            out[r * OC + o] = sum;
        }
}

void judge(Judge& j, decltype(task::pack)* pack, decltype(task::product)* product) {
    j.hints = {
        {"unpacked", "the 16 weights of one c must be side by side: packed[(p * C + c) * 16 + k]."},
        {"padding", "outputs from OC on do not exist: their packed weights must be 0."},
        {"panels", "all outputs use the first panel: panel p begins at p * 16 * C."},
        {"borders", "rows that do not fill a tile are left out."},
        {"slow", "are the sums in registers, and does the innermost loop go along the 16 neighbours of a panel?"}};
    for (auto [rows, C, OC] : {std::array<int64_t, 3>{4, 3, 16}, {1, 5, 1}, {9, 20, 35}, {16, 7, 48}}) {
        j.sizes("rows %d, C %d, OC %d", (int)rows, (int)C, (int)OC);
        const int64_t padded = (OC + 15) / 16 * 16;
        const std::vector<float> inp = j.random(rows * C), weight = j.random(OC * C);
        std::vector<float> packed = begins(padded * C), out = begins(rows * OC), right(padded * C);
        pack(packed.data(), weight.data(), OC, C);
        for (int64_t i = 0; i < padded * C; i++) {
            const int64_t o = i / (16 * C) * 16 + i % 16, c = i / 16 % C;
            right[i] = o < OC ? weight[o * C + c] : 0;
        }
        product(out.data(), inp.data(), right.data(), rows, C, OC);
        j.check({{"packed", {padded / 16, C, 16}, packed}, {"out", {rows, OC}, out}},
                [&, rows = rows, C = C, OC = OC](const Key& wrong) -> Arrays {
                    std::vector<double> expected(rows * OC), p = doubles(right);
                    for (int64_t r = 0; r < rows; r++)
                        for (int64_t o = 0; o < OC; o++) {
                            double& sum = expected[r * OC + o];
                            const int64_t from = wrong == "panels" ? o % 16 : o;
                            for (int64_t c = 0; c < C; c++) sum += (double)inp[r * C + c] * weight[from * C + c];
                            if (wrong == "borders" && r >= rows / 4 * 4) sum = ANY;
                        }
                    for (int64_t o = 0; o < padded; o++)
                        for (int64_t c = 0; c < C; c++) {
                            const double w = o < OC ? weight[o * C + c] : 0;
                            if (wrong == "unpacked") p[o * C + c] = w;
                            if (wrong == "padding" && o >= OC) p[(o / 16 * C + c) * 16 + o % 16] = ANY;
                        }
                    return {p, expected};
                });
    }
    const int64_t rows = 96, C = 256, OC = 256;
    const std::vector<float> inp = j.random(rows * C), weight = j.random(OC * C);
    std::vector<float> out(rows * OC), packed(OC * C);
    j.faster(
        "three plain loops", [&] { naive_product(out.data(), inp.data(), weight.data(), rows, C, OC); },
        [&] { pack(packed.data(), weight.data(), OC, C), product(out.data(), inp.data(), packed.data(), rows, C, OC); },
        6);
}
