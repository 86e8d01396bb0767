#!/bin/sh
# What runs the tests, on parts that pass, fail, end early, are skipped or do not compile: all are counted, none keeps
# the others from running, and the last line and the exit status say it.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/dev/test"
for file in run.sh part.sh timed.sh log.sh time_limit.sh test.mk; do cp dev/test/$file "$dir/dev/test"; done
cd "$dir" || exit 1
echo 'echo "SKIPPED one"; echo "3 passed, 0 failed, 1 skipped"' > good
echo 'echo "FAILED two"; echo "1 passed, 2 failed, 0 skipped"; exit 1' > bad
echo 'echo "1 passed, 0 failed, 0 skipped"; exit 1' > lies
echo 'echo "5 passed"; kill -SEGV $$' > crash
sed -n '/^PARTS :=/,/^endef/p' dev/test/test.mk > Makefile
cat >> Makefile <<'END'
$(foreach p,good bad lies crash,$(call program,$p,,sh $p))
$(call check,right,a check that passes,,true)
$(call check,wrong,a check that fails,,echo why; false)
$(call check,absent,a check that is skipped,,skip "apt-get install it")
$(call check,unbuilt,a check of what does not compile,nothing,true)
$(call check,last,the last check,,true)
TESTED := $(PARTS)
nothing: ; @$(TIMED) sh -c 'echo no such header; exit 1' -o $@
test: ; @dev/test/run.sh "$(MAKE)" $(TESTED)
$(call check,unstable,a check that passes the second time,,test -e before || { touch before; false; })
unsteady: ; @dev/test/run.sh "$(MAKE)" part-right part-wrong part-unstable
passing: ; @dev/test/run.sh "$(MAKE)" part-right part-last
$(call check,hanging,a check that does not end,,sh -c "sleep 1000; true" || true)
hung: ; @LIMIT=1 dev/test/run.sh "$(MAKE)" part-hanging part-last
END
fail() { echo "$1"; cat log; exit 1; }
make -s test > log 2> /dev/null && fail "exit status 0 where parts failed"
[ "$(tail -n 1 log)" = "7 passed, 6 failed, 2 skipped" ] || fail "another last line"
for line in 'SKIPPED one' 'SKIPPED a check that is skipped (apt-get install it)' 'FAILED two (build/test/bad.log)' \
    'FAILED lies' 'FAILED crash ended early' 'FAILED a check that fails, with status 1' 'FAILED unbuilt was not run' \
    'no such header' 'passed     the last check: [0-9.]* s' 'compiling  nothing' '    [0-9.]* compiling nothing'; do
    grep -q "$line" log || fail "no line '$line'"
done
RERUN=1 make -s unsteady > log 2> /dev/null && fail "exit status 0 where a part failed twice"
[ "$(tail -n 1 log)" = "2 passed, 1 failed" ] || fail "another last line where a part passed the second time"
grep -q '^UNSTABLE unstable failed once' log || fail "a part that failed once is not named"
grep -q '^UNSTABLE wrong' log && fail "a part that failed twice is called unstable"
make -s passing > log 2> /dev/null || fail "exit status not 0 where all passed"
[ "$(tail -n 1 log)" = "2 passed, 0 failed" ] || fail "another last line where all passed"
make -s hung > log 2> /dev/null && fail "exit status 0 where a part hung"
[ "$(tail -n 1 log)" = "1 passed, 1 failed" ] || fail "another last line where a part hung"
for line in 'FAILED a check that does not end, with status 124' 'not done after 1 seconds' 'sleep 1000'; do
    grep -q "$line" log || fail "no line '$line' of a part that hung"
done
