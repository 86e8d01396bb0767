#!/bin/sh
# check_headers.sh COMPILER "FLAGS": every header of llmc compiles by itself, and included twice, without a warning.
status=0
for header in llmc/*.h llmc/cpu/*.h dev/test/test.h; do
    printf '#include "%s"\n#include "%s"\n' "$header" "$header" | $1 $2 -Werror -Wno-unused-function -fsyntax-only -x c++ - || { echo "$header does not stand alone"; status=1; }
done
exit $status
