// See compiled_once.h.
#include "llmc/cpu/compiled_once.h"

COMPILED_ONCE(template)
