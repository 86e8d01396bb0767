// The constants and tables of the code that ships, as JSON, for the pictures of the course (pictures.py): what is drawn
// is what the code computes.
//
//     build/course_facts
#include <cstdio>
#include <string>
#include "llmc/cpu/attention.h"
#include "llmc/cpu/gemm.h"
#include "llmc/cpu/gemm_bf16.h"

static void number(const char* name, int64_t value) { printf("{\"name\": \"%s\", \"value\": %lld}\n", name, (long long)value); }

int main() {
    // gemm.h: how a product in fp32 is cut
    number("gemm_mr", GEMM_MR), number("gemm_nr", GEMM_NR), number("vec_floats", VEC_FLOATS);
    number("gemm_mc", GEMM_IN_PLACE.MC), number("gemm_nc", GEMM_IN_PLACE.NC), number("gemm_kc", GEMM_IN_PLACE.KC);
}
