// unigram TRAIN.bin VAL.bin V: prints the loss on VAL of a model that knows only how often each
// token occurs in TRAIN (with one added to each count). A network with a lower loss has learned
// something about the order of tokens.
#include <cmath>
#include "llmc/tokens_file.h"

static std::vector<uint16_t> read_shard(const char* path, int64_t vocab) {
    FileReader file(path);
    std::vector<uint16_t> tokens(read_tokens_header(file));
    file.read(tokens.data(), tokens.size() * 2, "the tokens");
    for (uint16_t token : tokens)
        if (token >= vocab)
            runtime_failure("%s: token %d is not in a vocabulary of %lld", path, token, (long long)vocab);
    return tokens;
}

int main(int argc, char** argv) {
    if (argc != 4 || atoll(argv[3]) < 1) usage_error("usage: unigram TRAIN.bin VAL.bin V");
    const int64_t vocab = atoll(argv[3]);
    const std::vector<uint16_t> train = read_shard(argv[1], vocab), val = read_shard(argv[2], vocab);
    if (val.empty()) runtime_failure("%s is empty", argv[2]);
    std::vector<double> count(vocab, 1.0);
    for (uint16_t token : train) count[token]++;
    double loss = 0;
    for (uint16_t token : val) loss -= std::log(count[token] / ((double)train.size() + (double)vocab));
    printf("%.4f\n", loss / (double)val.size());
}
