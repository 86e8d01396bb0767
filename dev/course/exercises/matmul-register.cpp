// ----- task
// A matrix product that keeps its sums in registers: out (rows, OC) = inp (rows, C) weight (C, OC):
//
//     out[r,o] = sum over c of inp[r,c] weight[c,o]
//
// One sum after another, each product waits for the one before, and each needs two loads. Compute a
// tile of 4 rows x 16 columns of out together: for each c, 4 values of inp and 16 neighbours of
// weight make 64 products. The 64 sums are 4 variables of type Vec, which is 16 floats that g++ and
// clang add and multiply together, in vector registers (x * w multiplies all of w by the float x):
//
//     const Vec w = *(const Vec*)p;    loads p[0] ... p[15]            *(Vec*)p = w;    stores them
//
// rows and OC need not be multiples of the tile.
typedef float Vec __attribute__((vector_size(64), aligned(4)));
void product(float* out, const float* inp, const float* weight, int64_t rows, int64_t C, int64_t OC) {
    // your code
}

// ----- solution
typedef float Vec __attribute__((vector_size(64), aligned(4)));
void product(float* out, const float* inp, const float* weight, int64_t rows, int64_t C, int64_t OC) {
    const int64_t whole_rows = rows / 4 * 4, whole_cols = OC / 16 * 16;
    for (int64_t r = 0; r < whole_rows; r += 4)
        for (int64_t o = 0; o < whole_cols; o += 16) {
            const float* x = inp + r * C;
            Vec sum0{}, sum1{}, sum2{}, sum3{};
            for (int64_t c = 0; c < C; c++) {
                const Vec w = *(const Vec*)(weight + c * OC + o);
                sum0 += x[c] * w, sum1 += x[C + c] * w, sum2 += x[2 * C + c] * w, sum3 += x[3 * C + c] * w;
            }
            *(Vec*)(out + r * OC + o) = sum0, *(Vec*)(out + (r + 1) * OC + o) = sum1;
            *(Vec*)(out + (r + 2) * OC + o) = sum2, *(Vec*)(out + (r + 3) * OC + o) = sum3;
        }
    for (int64_t r = 0; r < rows; r++)  // what is left of the rows and columns
        for (int64_t o = r < whole_rows ? whole_cols : 0; o < OC; o++) {
            float sum = 0;
            for (int64_t c = 0; c < C; c++) sum += inp[r * C + c] * weight[c * OC + o];
            out[r * OC + o] = sum;
        }
}

// ----- mistakes
//     slow: whole_rows = rows / 4 * 4, ==> whole_rows = 0,
//     borders: for (int64_t r = 0; r < rows; r++) ==> for (int64_t r = 0; r < 0; r++)
//     transposed: weight[c * OC + o] ==> weight[o * C + c] ;; whole_rows = rows / 4 * 4, ==> whole_rows = 0,
//     row: x[3 * C + c] ==> x[2 * C + c]
//     last: c < C; c++ ==> c < C - 1; c++

// ----- judge
static void naive_product(float* out, const float* inp, const float* weight, int64_t rows, int64_t C, int64_t OC) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < OC; o++) {
            float sum = 0;
            for (int64_t c = 0; c < C; c++) sum += inp[r * C + c] * weight[c * OC + o];
            out[r * OC + o] = sum;
        }
}

void judge(Judge& j, decltype(task::product)* product) {
    j.hints = {{"transposed", "weight is read as if it were (OC, C): here element (c, o) is weight[c * OC + o]."},
               {"last", "the last of the C products is left out."},
               {"borders", "the borders are left out, where rows or columns do not fill a tile."},
               {"row", "row 3 of each tile is computed from row 2 of inp."},
               {"slow", "are the 64 sums in variables of type Vec, for the whole loop over c?"}};
    for (auto [rows, C, OC] : {std::array<int64_t, 3>{4, 3, 16}, {1, 5, 1}, {9, 20, 35}, {16, 7, 48}}) {
        j.sizes("rows %d, C %d, OC %d", (int)rows, (int)C, (int)OC);
        const std::vector<float> inp = j.random(rows * C), weight = j.random(C * OC);
        std::vector<float> out = begins(rows * OC);
        product(out.data(), inp.data(), weight.data(), rows, C, OC);
        j.check({{"out", {rows, OC}, out}}, [&, rows = rows, C = C, OC = OC](const Key& wrong) -> Arrays {
            std::vector<double> expected(rows * OC);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t o = 0; o < OC; o++) {
                    double& sum = expected[r * OC + o];
                    for (int64_t c = 0; c < C - (wrong == "last"); c++)
                        sum +=
                            (double)
                                inp[(wrong == "row" && r % 4 == 3 && r < rows / 4 * 4 && o < OC / 16 * 16 ? r - 1 : r) *
                                        C +
                                    c] *
                            weight[wrong == "transposed" ? o * C + c : c * OC + o];
                    if (wrong == "borders" && (r >= rows / 4 * 4 || o >= OC / 16 * 16)) sum = ANY;
                }
            return {expected};
        });
    }
    const int64_t rows = 96, C = 256, OC = 256;
    const std::vector<float> inp = j.random(rows * C), weight = j.random(C * OC);
    std::vector<float> out(rows * OC);
    j.faster(
        "three plain loops", [&] { naive_product(out.data(), inp.data(), weight.data(), rows, C, OC); },
        [&] { product(out.data(), inp.data(), weight.data(), rows, C, OC); }, 4);
}
