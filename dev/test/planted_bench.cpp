// Four variants, of which only the first is right: the harness of benches must fail the others. dev/test/planted_bench.sh runs it.
#include "dev/cpu/bench_cpu.h"

BENCH("planted", dims("n"), shapes({{1000}})) {
    const int64_t n = shape[0];
    float *inp = random_floats(n), *out = buffer<float>(n);
    bytes(8.0 * n);
    output("out", out, n, 1e-6);
    expected([=] { for (int64_t i = 0; i < n; i++) out[i] = 2 * inp[i]; });
    variant("right", "", [=] { for (int64_t i = 0; i < n; i++) out[i] = inp[i] + inp[i]; });
    variant("wrong", "one value is off by a thousandth", [=] { for (int64_t i = 0; i < n; i++) out[i] = 2 * inp[i] + (i == 500 ? 1e-3f : 0.0f); });
    variant("idle", "leaves what the reference wrote", [=] {});
    variant("elsewhere", "declares another type than it writes, so that nothing is compared", [=] { for (int64_t i = 0; i < n; i++) out[i] = 2 * inp[i]; }, IN_BF16);
}
