// The CPU model in bf16 mixed precision.
#define TEST_FLOATX bf16
#include "dev/test/test_model.cpp"
