// ----- task
// The mean of each row of a matrix.
//
//     mean[r] = (sum over c of x[r,c]) / C
//
// mean (rows) is written, from x (rows, C). A matrix is stored row by row: element (r, c) is
// x[r * C + c].
void row_mean(float* mean, const float* x, int64_t rows, int64_t C) {
    // your code
}

// ----- solution
void row_mean(float* mean, const float* x, int64_t rows, int64_t C) {
    for (int64_t r = 0; r < rows; r++) {
        float sum = 0;
        for (int64_t c = 0; c < C; c++) sum += x[r * C + c];
        mean[r] = sum / C;
    }
}

// ----- shipped: dev/course/gpt2.cpp RowStatistics row_statistics
void row_mean(float* mean, const float* x, int64_t rows, int64_t C) {
    for (int64_t r = 0; r < rows; r++) mean[r] = row_statistics(x + r * C, C).mean;
}

// ----- mistakes
//     sum: sum / C ==> sum
//     rows: sum / C ==> sum / rows
//     stride: x[r * C + c] ==> x[c * rows + r]
//     first: c = 0 ==> c = 1
//     unwritten: r < rows ==> r < rows - 1

// ----- judge
void judge(Judge& j, decltype(task::row_mean)* row_mean) {
    j.hints = {{"sum", "this is the sum of the row; the mean is the sum divided by C."},
               {"rows", "the sum is divided by the number of rows; a row has C elements."},
               {"stride", "these are the means of columns: element (r, c) is x[r * C + c]."},
               {"first", "the first element of each row is left out of the sum: c begins at 0."}};
    for (auto [rows, C] : {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {7, 2}, {4, 1000}}) {
        j.sizes("rows %d, C %d", (int)rows, (int)C);
        const std::vector<float> x = j.random(rows * C);
        std::vector<float> mean = begins(rows);
        row_mean(mean.data(), x.data(), rows, C);
        j.check({{"mean", {rows}, mean}}, [&, rows = rows, C = C](const Key& wrong) -> Arrays {
            std::vector<double> expected(rows);
            for (int64_t r = 0; r < rows; r++) {
                for (int64_t c = wrong == "first"; c < C; c++)
                    expected[r] += wrong == "stride" ? x[c * rows + r] : x[r * C + c];
                expected[r] /= wrong == "sum" ? 1 : wrong == "rows" ? rows : C;
            }
            return {expected};
        });
    }
}
