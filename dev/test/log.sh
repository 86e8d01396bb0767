# Sourced by the scripts that run the tests: what the log says, and what build/test keeps.

say() {  # what happens, to what, how it went: with the minutes and seconds since the tests began
    now=$(date +%s)
    elapsed=$((now - $(cat build/test/began 2>/dev/null || echo "$now")))
    printf '%3d:%02d  %-9s  %s\n' $((elapsed / 60)) $((elapsed % 60)) "$1" "$2${3:+: $3}"
}
clock() {  # in seconds; whole ones where date has no parts of them (BSD)
    case $(date +%N) in *N) date +%s ;; *) date +%s.%N ;; esac
}
start_clock() { began=$(clock); }
stop_clock() {  # file, what was timed: sets seconds, and keeps those of all cores together
    seconds=$(echo "$began $(clock)" | awk '{ printf "%.1f", $2 - $1 }')
    times > "build/test/$1.time"  # of this shell, then of what it started: as 1m2.5s
    computed=$(tr ms '  ' < "build/test/$1.time" |
        awk 'NR == 2 { printf "%.1f", 60 * ($1 + $3) + $2 + $4 }')
    echo "$computed $2" > "build/test/$1.time"
}
