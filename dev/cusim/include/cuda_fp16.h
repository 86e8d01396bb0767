// fp16 as this project uses it.
#pragma once
#include "llmc/base/fp16.h"

typedef fp16 __half;
