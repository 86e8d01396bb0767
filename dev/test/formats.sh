#!/bin/sh
# dev/test/formats.py: a call whose values do not fit its format is named; calls that are right are not.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cat > "$dir/bad.cpp" << 'END'
    warning("%s %d", "a");
    warning("%d", "a");
    runtime_failure("%s of "
                    "%d", path, a, b);
    logger.line("%y", 3);
    usage_error(several ? "%s %d" : "%s", x);
    format("%g", (int)x);
    format("100%");
    format("%s", std::min(a, b), c);
    format("%s", 1e-5);
END
cat > "$dir/good.cpp" << 'END'
    format("%s (%d of %*d) %.2f%%", f(a, ","), std::max<int64_t>(b, c), 5, map<int, float>(d)[{1, 2}], (double)e);
    run.log->note(several ? "%s" : "no %s", "(,");  // "%d"
    printf("%d", "a");
    // warning("%d")
END
found=$(python3 dev/test/formats.py "$dir/bad.cpp" | sed -n "s,$dir/bad.cpp:\([0-9]*\):.*,\1,p" | tr '\n' ' ')
[ "$found" = "1 2 3 5 6 7 8 9 10 " ] || { echo "found: $found"; exit 1; }
python3 dev/test/formats.py "$dir/bad.cpp" > /dev/null && { echo "exit status 0 with calls that are wrong"; exit 1; }
python3 dev/test/formats.py "$dir/good.cpp" || { echo "calls that are right were refused"; exit 1; }
