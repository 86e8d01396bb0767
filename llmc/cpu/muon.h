// All steps of optimizers that look at whole tensors are in one header.
#pragma once
#include "llmc/cpu/whole_tensors.h"
