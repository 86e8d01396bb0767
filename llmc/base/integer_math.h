// Integer division and rounding upwards, for sizes and counts.
#pragma once
#include "llmc/base/host_device.h"

// n / divisor, rounded up: how many pieces of `divisor` cover n.
template <class N, class D>
HOST_DEVICE constexpr auto ceil_div(N n, D divisor) {
    return (n + divisor - 1) / divisor;
}

// The smallest multiple of `multiple` that is at least n.
template <class N, class M>
HOST_DEVICE constexpr auto round_up(N n, M multiple) {
    return ceil_div(n, multiple) * multiple;
}
