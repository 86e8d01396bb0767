// fp16 as this project uses it.
#pragma once
#include "llmc/fp16.h"

typedef fp16 __half;
