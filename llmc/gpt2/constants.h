// Constants of the layers, the same on every device.
#pragma once

constexpr int IGNORED_TARGET = -1;  // in place of a target token: this position has no loss and no gradient
constexpr float LAYERNORM_EPS = 1e-5f;
constexpr float GELU_SCALE = 0.7978845608028654f, GELU_CUBIC = 0.044715f;  // sqrt(2/pi); cpu/gelu.h has the formula
