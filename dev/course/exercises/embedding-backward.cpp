// ----- task
// The gradient of the embedding. Forward, for row r = b * T + t, position t of sequence b:
//
//     out[r] = token_table[tokens[r]] + position_table[t]                            a sum of two rows
//
// The same row of a table may be used by many positions.
//
// token_table.grad (V, C) and position_table.grad (maxT, C) are added to, from out.grad (B * T, C)
// and tokens (B * T). Rows that are not used keep their gradient.
void embedding_backward(Tensor& out, const Tokens& tokens, Tensor& token_table, Tensor& position_table, int64_t T) {
    // your code
}

// ----- solution: dev/course/gpt2.cpp embedding_backward

// ----- shipped
#include "llmc/cpu/reference.h"
void embedding_backward(Tensor& out, const Tokens& tokens, Tensor& token_table, Tensor& position_table, int64_t T) {
    reference::encoder_backward(token_table.grad_row(0), position_table.grad_row(0), out.grad_row(0), tokens.data(),
                                out.rows / T, T, out.cols, position_table.rows, true);
}

// ----- mistakes
//     last-use: token_table.grad_row(tokens[r])[c] += ==> token_table.grad_row(tokens[r])[c] =
//     batch: position_table.grad_row(r % T)[c] += ==> if (r < T) position_table.grad_row(r % T)[c] +=
//     position: position_table.grad_row(r % T) ==> position_table.grad_row(r / T)
//     tokens: token_table.grad_row(tokens[r])[c] += out.grad_row(r)[c]; ==> ;
//     shifted: tokens[r] ==> tokens[(r + 1) % out.rows]

// ----- judge
void judge(Judge& j, decltype(task::embedding_backward)* embedding_backward) {
    j.hints = {{"last-use",
                "a token that occurs more than once keeps the gradient of one of its uses alone: they must be "
                "added up (+=)."},
               {"batch", "the position table gets the gradient of the first sequence alone; all B sequences use it."},
               {"position", "row r = b * T + t is position t = r % T, not r / T."},
               {"tokens", "the gradient of the token table is left as it was."},
               {"shifted", "row r used the token tokens[r]; this adds to the row of the token after it."}};
    struct Case {
        int64_t B, T, C, V;
    };
    for (const Case& c : {Case{1, 1, 3, 4}, {1, 5, 2, 9}, {3, 5, 7, 4}, {4, 33, 20, 50}}) {
        const int64_t rows = c.B * c.T, maxT = c.T + c.B;
        j.sizes("B %d, T %d, C %d, V %d", (int)c.B, (int)c.T, (int)c.C, (int)c.V);
        Tensor out(rows, c.C), token_table(c.V, c.C), position_table(maxT, c.C);
        Tokens tokens;
        for (int64_t r = 0; r < rows; r++) tokens.push_back((int)j.random_below(c.V));
        out.grad = j.random(rows * c.C), token_table.grad = begins(c.V * c.C), position_table.grad = begins(maxT * c.C);
        embedding_backward(out, tokens, token_table, position_table, c.T);
        j.check({{"Dtoken_table", {c.V, c.C}, token_table.grad}, {"Dposition_table", {maxT, c.C}, position_table.grad}},
                [&](const Key& wrong) -> Arrays {
                    std::vector<double> dt = doubles(begins(c.V * c.C)), dp = doubles(begins(maxT * c.C));
                    for (int64_t r = 0; r < rows; r++)
                        for (int64_t i = 0; i < c.C; i++) {
                            const double d = out.grad_row(r)[i];
                            double& token = dt[tokens[wrong == "shifted" ? (r + 1) % rows : r] * c.C + i];
                            if (wrong == "last-use") token = 0;
                            if (wrong != "tokens") token += d;
                            const int64_t t = wrong == "position" ? r / c.T : r % c.T;
                            if (wrong != "batch" || r < c.T) dp[t * c.C + i] += d;
                        }
                    return {dt, dp};
                });
    }
}
