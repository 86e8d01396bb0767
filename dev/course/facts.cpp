// The constants and tables of the code that ships, as JSON, for the pictures of the course
// (pictures.py): what is drawn is what the code computes.
//
//     build/course_facts
#include <cstdio>
#include <string>
#include "llmc/cpu/attention.h"
#include "llmc/cpu/gemm.h"
#include "llmc/cpu/gemm_bf16.h"
#include "llmc/schedule.h"
#include "llmc/tensors.h"

static void number(const char* name, int64_t value) {
    printf("{\"name\": \"%s\", \"value\": %lld}\n", name, (long long)value);
}

// The numbers f(0), ..., f(count - 1).
template <class F>
static void numbers(const std::string& name, int64_t count, F f) {
    printf("{\"name\": \"%s\", \"value\": [", name.c_str());
    for (int64_t i = 0; i < count; i++) printf("%s%.9g", i ? ", " : "", (double)f(i));
    printf("]}\n");
}

int main() {
    // gemm.h: how a product in fp32 is cut
    number("gemm_mr", GEMM_MR), number("gemm_nr", GEMM_NR), number("vec_floats", VEC_FLOATS);
    number("gemm_mc", GEMM_IN_PLACE.MC), number("gemm_nc", GEMM_IN_PLACE.NC), number("gemm_kc", GEMM_IN_PLACE.KC);
    number("attention_block", ATT_BLOCK);  // attention.h
    // tensors.h: the buckets of the 124M model on four processes, and the slice of each
    GPT2Config c;
    c.maxT = 1024, c.V = 50257, c.Vp = 50304, c.L = 12, c.NH = 12, c.C = 768;
    const ParameterLayout layout = parameter_layout(c, 4);
    number("zero_elems", layout.total_elems());
    numbers("zero_slice_elems", layout.buckets(), [&](int64_t bucket) { return layout.slice_elems(bucket); });
    // schedule.h: the rates of a run of 200 steps, of them 20 of warmup, from 1 to 0.1
    for (const char* schedule : {"constant", "linear", "cosine", "wsd"})
        numbers(std::string("schedule_") + schedule, 200,
                [&](int64_t step) { return learning_rate_at(schedule, step, 200, 20, 1.0, 0.1); });
}
