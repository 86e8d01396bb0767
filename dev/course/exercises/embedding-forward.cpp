// ----- task
// The embedding: what the model knows of a token before it has seen its neighbours. Each token has
// a row in a table, and so has each position. Row r = b * T + t of out is position t of sequence b:
//
//     out[r] = token_table[tokens[r]] + position_table[t]                            a sum of two rows
//
// out.value (B * T, C) is written, from token_table.value (V, C), position_table.value (maxT, C)
// and tokens (B * T).
void embedding_forward(Tensor& out, const Tokens& tokens, Tensor& token_table, Tensor& position_table, int64_t T) {
    // your code
}

// ----- solution: dev/course/gpt2.cpp embedding_forward

// ----- mistakes
//     position: position_table.row(r % T) ==> position_table.row(r / T)
//     no-position:  + position_table.row(r % T)[c] ==>
//     added: out.row(r)[c] = ==> out.row(r)[c] +=
//     row: token_table.row(tokens[r]) ==> token_table.row(r % token_table.rows)
//     batch: position_table.row(r % T) ==> position_table.row(std::min<int64_t>(r, T - 1))

// ----- judge
void judge(Judge& j, decltype(task::embedding_forward)* embedding_forward) {
    j.hints = {{"position", "row r = b * T + t is position t = r % T, not r / T."},
               {"no-position", "the row of the position is not added."},
               {"row", "the row of the token table is that of the token, tokens[r], not row r."},
               {"batch", "the positions count from 0 in every sequence: t = r % T."}};
    struct Case {
        int64_t B, T, C, V;
    };
    for (const Case& c : {Case{1, 1, 3, 4}, {1, 5, 2, 9}, {3, 5, 7, 4}, {4, 33, 20, 50}}) {
        const int64_t rows = c.B * c.T, maxT = c.T + c.B;
        j.sizes("B %d, T %d, C %d, V %d", (int)c.B, (int)c.T, (int)c.C, (int)c.V);
        Tensor out(rows, c.C), token_table(c.V, c.C), position_table(maxT, c.C);
        Tokens tokens;
        for (int64_t r = 0; r < rows; r++) tokens.push_back((int)j.random_below(c.V));
        token_table.value = j.random(c.V * c.C), position_table.value = j.random(maxT * c.C);
        out.value = begins(rows * c.C);
        embedding_forward(out, tokens, token_table, position_table, c.T);
        j.check({{"out", {rows, c.C}, out.value}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> sum;
            for (int64_t r = 0; r < rows; r++)
                for (int64_t i = 0; i < c.C; i++) {
                    const int64_t t = wrong == "position" ? r / c.T : wrong == "batch" ? std::min(r, c.T - 1) : r % c.T;
                    sum.push_back((double)token_table.row(wrong == "row" ? r % c.V : tokens[r])[i] +
                                  (wrong == "no-position" ? 0 : position_table.row(t)[i]));
                }
            return {sum};
        });
    }
}
