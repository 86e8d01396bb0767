// Variants of which only the first is right: the harness of benches must fail the others, each by
// its name, and go on after those that end their process. dev/test/planted_bench.sh runs it.
#include <stdexcept>
#include "dev/cpu/bench_cpu.h"

BENCH("planted", dims("n"), shapes({{1000}})) {
    const int64_t n = shape[0];
    float *inp = random_floats(n), *out = buffer<float>(n);
    bytes(8.0 * n);
    output("out", out, n, 1e-6);
    auto twice = [=] {
        for (int64_t i = 0; i < n; i++) out[i] = 2 * inp[i];
    };
    expected(twice);
    variant("right", "", twice);
    variant("wrong", "two values are off by a thousandth", [=] { twice(), out[500] += 1e-3f, out[700] += 1e-3f; });
    variant("idle", "leaves what the reference wrote", [=] {});
    variant("elsewhere", "declares another type than it writes, so that nothing is compared", twice, IN_BF16);
    variant("refuses", "ends the program, as an error of the GPU does",
            [=] { runtime_failure("the launch was refused"); });
    variant("throws", "an exception", [=] { throw std::runtime_error("thrown by a variant"); });
    variant("crashes", "a fault", [=] { raise(SIGSEGV); });
    requested(80.0 * n);
    variant("last", "right again, and says what it requests", twice);
}
