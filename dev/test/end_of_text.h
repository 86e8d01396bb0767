// A tokenizer file for runs with --document-mask 1: it says which token begins a document.
#pragma once
#include "dev/test/run_program.h"
#include "llmc/data/tokenizer.h"

// A tokenizer file of 257 tokens.
inline std::string tokenizer_with(int end_of_text) {
    Tokenizer tok;
    tok.bytes_of.assign(257, "a"), tok.end_of_text = end_of_text;
    const std::string path = dir(format("tokenizer_%d.bin", end_of_text));
    FileWriter file(path);
    tokenizer_write(tok, file);
    file.commit();
    return path;
}
