// ----- task
// A transpose that the caches like: out (cols, rows) = the transpose of inp (rows, cols), both
// stored row by row. In two plain loops one of the two is accessed with a stride: each access
// brings a cache line of 64 bytes and uses 4 of them, and the line is evicted before its other 15
// numbers are needed. Go through the matrix in square tiles so small that the lines of both tiles
// stay in the cache. rows and cols need not be multiples of the tile.
void transpose(float* out, const float* inp, int64_t rows, int64_t cols) {
    // your code
}

// ----- solution
void transpose(float* out, const float* inp, int64_t rows, int64_t cols) {
    const int64_t TILE = 16;
    for (int64_t first_r = 0; first_r < rows; first_r += TILE)
        for (int64_t first_c = 0; first_c < cols; first_c += TILE)
            for (int64_t c = first_c; c < std::min(first_c + TILE, cols); c++)
                for (int64_t r = first_r; r < std::min(first_r + TILE, rows); r++)
                    out[c * rows + r] = inp[r * cols + c];
}

// ----- mistakes
//     slow: TILE = 16 ==> TILE = 1 << 20
//     whole-tiles: first_r < rows; ==> first_r + TILE <= rows; ;; first_c < cols; ==> first_c + TILE <= cols;
//     copied: out[c * rows + r] ==> out[r * cols + c]
//     pitch: out[c * rows + r] ==> out[(c * cols + r) % (rows * cols)]

// ----- judge
static void naive_transpose(float* out, const float* inp, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) out[c * rows + r] = inp[r * cols + c];
}

void judge(Judge& j, decltype(task::transpose)* transpose) {
    j.hints = {{"copied", "this is a copy: element (r, c) of inp is element (c, r) of out, out[c * rows + r]."},
               {"whole-tiles", "the partial tiles at the right and the lower border are left out."},
               {"pitch", "a row of out has `rows` elements, not `cols`."},
               {"slow",
                "the lines of a tile must stay in the cache, both of inp and of out: 16 floats are one line, so tiles "
                "of 8 x 8 to 32 x 32 use all of each line."}};
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{32, 32}, {1, 5}, {33, 70}, {100, 17}}) {
        j.sizes("rows %d, cols %d", (int)rows, (int)cols);
        const std::vector<float> inp = j.random(rows * cols);
        std::vector<float> out = begins(rows * cols);
        transpose(out.data(), inp.data(), rows, cols);
        j.check({{"out", {cols, rows}, out}}, [&, rows = rows, cols = cols](const Key& wrong) -> Arrays {
            std::vector<double> expected(rows * cols);
            if (wrong == "pitch" && rows != cols) return {std::vector<double>(rows * cols, ANY)};
            for (int64_t r = 0; r < rows; r++)
                for (int64_t c = 0; c < cols; c++) {
                    double& to = expected[wrong == "copied" ? r * cols + c : c * rows + r];
                    bool whole = false;
                    for (int64_t tile : {8, 16, 32, 64}) whole |= r < rows / tile * tile && c < cols / tile * tile;
                    to = wrong == "whole-tiles" && !whole ? ANY : inp[r * cols + c];
                }
            return {expected};
        });
    }
    // A line of out is needed again after `cols` others, here 4 MiB: more than most second levels
    // of a cache hold.
    const int64_t rows = 256, cols = 65536;
    std::vector<float> inp = j.random(rows * cols), out(rows * cols);
    j.faster(
        "two plain loops", [&] { naive_transpose(out.data(), inp.data(), rows, cols); },
        [&] { transpose(out.data(), inp.data(), rows, cols); }, 1.4);
}
