// How long attention takes with a window (llmc/gpt2/window.h), beside what its FLOPs say.
//
//     build/bench/window ROUNDS
//
// The kernels of one layer of GPT-2 124M at T 1024, forward and backward, in fp32 and in bf16 on
// this machine's unit, on one thread. Windows take turns; of each the median of the ROUNDS. Prints
// a line for each format and window: format, W, seconds, and the share of FLOPs; W 0 is no window.
#include <vector>
#include "llmc/base/clock.h"
#include "llmc/base/random.h"
#include "llmc/cpu/kernels.h"

constexpr int64_t T = 1024, NH = 12, C = 768, WINDOWS[] = {0, 512, 256, 128, 64, 32};

template <class floatX>
static void measure(const char* name, int rounds) {
    device.scratch_elems = thread_scratch_elems<floatX>(T, C / NH);
    std::vector<floatX> qkv(T * 3 * C), out(T * C), dout(T * C), dqkv(T * 3 * C);
    std::vector<float> lse(NH * T), scratch(device.scratch_elems + 16);
    device.scratch = (float*)round_up((uintptr_t)scratch.data(), (uintptr_t)64);
    for (size_t i = 0; i < qkv.size(); i++) qkv[i] = (floatX)std::sin((float)(i * i % 10007));
    for (size_t i = 0; i < dout.size(); i++) dout[i] = (floatX)std::cos((float)(i * i % 10007));
    std::vector<double> seconds[std::size(WINDOWS)];
    for (int round = -1; round < rounds; round++)  // the first warms up
        for (size_t w = 0; w < std::size(WINDOWS); w++) {
            const double begin = now_seconds();
            attention_forward(out.data(), lse.data(), qkv.data(), 1, T, C, NH, nullptr, WINDOWS[w]);
            attention_backward(dqkv.data(), dout.data(), out.data(), lse.data(), qkv.data(), 1, T, C, NH, nullptr,
                               WINDOWS[w]);
            if (round >= 0) seconds[w].push_back(now_seconds() - begin);
        }
    for (size_t w = 0; w < std::size(WINDOWS); w++) {
        std::sort(seconds[w].begin(), seconds[w].end());
        printf("%s %lld %.6f %.6f\n", name, (long long)WINDOWS[w], seconds[w][seconds[w].size() / 2],
               twice_seen((double)T, (double)WINDOWS[w]) / (double)T);
    }
}

int main(int argc, char** argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 20;
    if (rounds < 1) usage_error("window ROUNDS is accepted, 1 or more");
    device.threads = 1, device.unit = best_matrix_unit();
    measure<float>("fp32", rounds);
    measure<bf16>("bf16", rounds);
}
