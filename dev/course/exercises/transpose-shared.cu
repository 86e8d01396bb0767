// ----- task
// out (cols, rows) = the transpose of inp (rows, cols), stored row by row. A block of 32 x 8
// threads does a tile of 32 x 32: threadIdx.x is 0 to 31, threadIdx.y 0 to 7; a thread does 4
// elements. blockIdx.x counts tiles along cols, blockIdx.y along rows. The tiles at the borders are
// partial.
//
// Read directly, inp or out would be accessed with a stride: each lane of a warp in another sector.
// So the tile goes through shared memory: read by rows, write by rows of out, __syncthreads()
// between. Shared memory has 32 banks of 4 bytes; lanes that access different rows of one column of
// float tile[32][32] meet in one bank. What length of the rows avoids it?
constexpr int TILE = 32, STEP = 8;
__global__ void transpose(float* out, const float* inp, int rows, int cols) {
    // your code
}

// ----- solution
constexpr int TILE = 32, STEP = 8;
__global__ void transpose(float* out, const float* inp, int rows, int cols) {
    __shared__ float tile[TILE][TILE + 1];
    const int x = threadIdx.x, first_row = blockIdx.y * TILE, first_col = blockIdx.x * TILE;
    for (int y = threadIdx.y; y < TILE; y += STEP)
        if (first_row + y < rows && first_col + x < cols) tile[y][x] = inp[(first_row + y) * cols + first_col + x];
    __syncthreads();
    for (int y = threadIdx.y; y < TILE; y += STEP)
        if (first_col + y < cols && first_row + x < rows) out[(first_col + y) * rows + first_row + x] = tile[x][y];
}

// ----- mistakes
//     conflicts: [TILE + 1] ==> [TILE]
//     uninitialised: __syncthreads(); ==> ;
//     strided-store: out[(first_col + y) * rows + first_row + x] = tile[x][y] ==>
//         out[(first_col + x) * rows + first_row + y] = tile[y][x] ;; first_col + y < cols && first_row + x < rows
//         ==>
//         first_col + x < cols && first_row + y < rows
//     bounds: if (first_col + y < cols && first_row + x < rows) out ==> out
//     tiles: out[(first_col + y) * rows + first_row + x] = tile[x][y] ==> out[(first_col + y) * rows + first_row +
//         x] =
//         tile[y][x]
//     alone: int y = threadIdx.y; y < TILE; y += STEP)\n        if (first_row ==> int y = 0; y < TILE && threadIdx.y
//         == 0;
//         y++)\n        if (first_row ;; int y = threadIdx.y; y < TILE; y += STEP)\n        if (first_col ==>
//         int y = 0; y < TILE && threadIdx.y == 0; y++)\n        if (first_col
//     part: y < TILE; y += STEP)\n        if (first_row ==> y < TILE; y += TILE)\n        if (first_row ;;
//         y < TILE; y += STEP)\n        if (first_col ==> y < TILE; y += TILE)\n        if (first_col

// ----- limits
//     counted longest <= 4, alone: one row of threads does the whole tile while the others wait: each thread does 4
//         elements.
//     counted load-sectors <= 4, strided-load: the lanes of a warp read from different rows of inp: threadIdx.x
//         must run
//         along a row.
//     counted store-sectors <= 4, strided-store: the lanes of a warp write to different rows of out: threadIdx.x
//         must run
//         along a row of out too, which is a column of the tile.
//     counted conflicts <= 0, conflicts: the lanes of a warp read different rows of one column of the tile, which
//         lie in
//         one bank. With one element more per row they lie in 32 different ones.

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::transpose)* transpose) {
    j.cuda = true;
    j.hints = {{"tiles", "the tiles change places, but each of them is not transposed: write tile[x][y]."},
               {"part", "8 of the 32 rows of a tile are done: a thread does 4 elements, y, y + 8, y + 16, y + 24."}};
    for (auto [rows, cols] : {std::pair<int, int>{32, 32}, {3, 5}, {33, 70}, {65, 32}, {64, 96}}) {
        j.sizes("rows %d, cols %d", rows, cols);
        const std::vector<float> inp = j.random(rows * cols);
        OnDevice<float> out(begins(rows * cols)), from(inp);
        run(rows == 64 ? "counted" : "transpose", transpose, dim3((cols + 31) / 32, (rows + 31) / 32), dim3(32, 8), out,
            from, rows, cols);
        j.check({{"out", {cols, rows}, out.fetch()}}, [&, rows = rows, cols = cols](const Key& wrong) -> Arrays {
            std::vector<double> expected = doubles(begins(rows * cols));
            for (int r = 0; r < rows; r++)
                for (int c = 0; c < cols; c++) {
                    const int y = c % 32, x = r % 32;  // where the element is in its tile of out
                    size_t from = r * cols + c, to = c * rows + r;
                    if (wrong == "tiles") from = (r - x + y) * cols + c - y + x;
                    const bool exists = wrong != "tiles" || (r - x + y < rows && c - y + x < cols);
                    if (wrong == "part" && c % 32 >= 8) continue;
                    expected[to] = wrong == "part" && r % 32 >= 8 ? NAN : exists ? inp[from] : ANY;
                }
            return {expected};
        });
    }
}
