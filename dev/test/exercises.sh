#!/bin/bash
# What a student sees: the stub is handed out once, fails politely, and the solution in its place passes; a mistake gets
# its hint, code that does not compile one sentence, and `make grade` counts what is done. exercises.sh MAKE cuda: the
# same of an exercise in CUDA.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -eu
cd "$(dirname "$0")/../.."
make=${1:-make}
my=$(mktemp -d)
edit() { sed "$1" "$2" > "$2.new" && mv "$2.new" "$2"; }  # in place, as BSD's sed can
trap 'rm -rf "$my"' EXIT
export EXERCISE_MY=$my
unset MAKEFLAGS MFLAGS
said() {  # said STATUS TEXT COMMAND...: the command ends with this status and prints this text
    local status=$1 text=$2 got=0
    shift 2
    "$@" > "$my/out" 2>&1 || got=$?
    if [ "$got" != "$status" ] || ! grep -qF -- "$text" "$my/out"; then
        echo "$*: status $got, expected $status and: $text"
        cat "$my/out"
        exit 1
    fi
}
if [ "${2:-}" = cuda ]; then
    said 0 "it needs no GPU" "$make" -s CXX=g++ exercise EX=vector-add
    said 2 "hint (nothing)" "$make" -s CXX=g++ exercise EX=vector-add
    loop='for (int i = threadIdx.x + blockDim.x * blockIdx.x; i < n; i += blockDim.x * gridDim.x)'
    edit "s|// your code|$loop out[i] = a[i] + b[i];|" "$my/vector-add.cu"
    said 0 "passed" "$make" -s CXX=g++ exercise EX=vector-add
    said 0 "1 of " "$make" -s CXX=g++ grade
    { echo '__device__ float warp_sum(float x) { return x; }  // llmc has this name, too'; cat "$my/vector-add.cu"; } \
        > "$my/vector-add.new" && mv "$my/vector-add.new" "$my/vector-add.cu"
    edit 's|i < n|i <= n|' "$my/vector-add.cu"
    said 2 "hint (bounds)" "$make" -s CXX=g++ exercise EX=vector-add
    # Reads that only luck makes right, in device memory and in shared memory. What llmc has of these names is not used.
    vector_add_is() {
        printf '__global__ void vector_add(float* out, const float* a, const float* b, int n) { %s }\n' "$1" \
            > "$my/vector-add.cu"
    }
    vector_add_is "$loop { out[i] = a[i] + b[i]; if (a[i + 1] > 1e38f) out[i] = 0; }"
    said 2 "hint (bounds)" "$make" -s CXX=g++ exercise EX=vector-add
    vector_add_is "__shared__ float s [32], t[32]; s[threadIdx.x % 32] = t[threadIdx.x % 32] = 1; $loop
        out[i] = fmaxf(a[i] + b[i], -1e30f * (s[32 + threadIdx.x % 2] > 0));"
    said 2 "hint (bounds)" "$make" -s CXX=g++ exercise EX=vector-add
    # What does not end, or ends too early.
    vector_add_is "$loop { out[i] = a[i] + b[i]; } if (threadIdx.x == 0) for (volatile int i = 0;; i = 1) { }"
    EXERCISE_SECONDS=1 said 2 "hint (endless)" "$make" -s CXX=g++ exercise EX=vector-add
    vector_add_is "$loop { out[i] = a[i] + b[i]; } exit(0);"
    said 2 "hint (unfinished)" "$make" -s CXX=g++ exercise EX=vector-add
    vector_add_is "warp_sum(1.0f);"
    said 2 "does not compile" "$make" -s CXX=g++ exercise EX=vector-add
    vector_add_is "::warp_sum(1.0f);"
    said 2 "hint (forbidden)" "$make" -s CXX=g++ exercise EX=vector-add
    # CUDA as others write it: what is shared in one line, a sum by __shfl_down_sync, floats added by atomicAdd.
    said 0 "about" "$make" -s CXX=g++ exercise EX=warp-sum
    cat > "$my/warp-sum.cu" <<'END'
__global__ void row_sums(float* sums, const float* x, int rows, int C) {
    int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sum = 0;
    for (int c = lane; c < C; c += 32) sum += x[row * C + c];
    for (int distance = 16; distance; distance >>= 1) sum += __shfl_down_sync(0xFFFFFFFFu, sum, distance);
    if (!lane) sums[row] = sum;
}
END
    said 0 "passed" "$make" -s CXX=g++ exercise EX=warp-sum
    # A barrier is missing between the reads of one sum and the writes of the next: both lines are named.
    said 0 "about" "$make" -s CXX=g++ exercise EX=block-sum
    sed -n '/^\/\/ ----- solution/,/^\/\/ ----- shipped/p' dev/course/exercises/block-sum.cu |
        awk '!/__syncthreads/ || barriers++' > "$my/block-sum.cu"
    said 2 "hint (race): two threads access the same memory" "$make" -s CXX=g++ exercise EX=block-sum SANITIZE=thread
    for line in 'warps[threadIdx.x / 32] = value' 'total += warps[w]'; do
        number=$(grep -nF "$line" "$my/block-sum.cu" | cut -d: -f1)
        grep -q "block-sum.cu:$number" "$my/out" || { cat "$my/out"; exit 1; }
    done
    rm "$my/block-sum.cu"
    # A training step with what has passed; and one that is wrong for sizes that its judge does not try.
    vector_add_is "$loop out[i] = a[i] + b[i];"
    said 0 "2 of 9 kernels of a CUDA training step are yours: vector-add, warp-sum." "$make" -s CXX=g++ mine
    [ "$(grep -cE '^  (yours|the original) +loss .* after 8 steps' "$my/out")" = 2 ] || { cat "$my/out"; exit 1; }
    vector_add_is "$loop out[i] = a[i] + (n == 4096 && gridDim.x == 32 ? -b[i] : b[i]);"
    said 2 "further apart than rounding explains" "$make" -s CXX=g++ mine
    exit
fi
exercise="python3 dev/course/exercises/exercise.py"
said 0 "about 10 minutes" "$make" -s exercise EX=softmax
cp "$my/softmax.cpp" "$my/stub"
said 2 "hint (nothing)" "$make" -s exercise EX=softmax
cmp "$my/softmax.cpp" "$my/stub"
said 0 "0 of " "$make" -s grade
sed 's|// your code|for (int64_t i = 0; i < n; i++) p[i] = std::exp(x[i]);|' "$my/stub" > "$my/softmax.cpp"
said 1 "hint (" $exercise judge softmax
cat > "$my/softmax.cpp" <<'END'
#include <vector>
void softmax(float* p, const float* x, int64_t n) {
    float m = x[0], sum = 0;
    for (int64_t i = 1; i < n; i++) m = x[i] > m ? x[i] : m;
    std::vector<float> e(n);
    for (int64_t i = 0; i < n; i++) sum += e[i] = std::exp(x[i] - m);
    for (int64_t i = 0; i < n; i++) p[i] = e[i] / sum;
}
END
said 0 "passed" $exercise judge softmax
said 0 "1 of " "$make" -s grade
edit 's/ \/ sum//' "$my/softmax.cpp"
said 1 "hint (sum): " $exercise judge softmax
# Another layout of the loops than the solution's, and its own way to be off by one.
cat > "$my/attention-forward.cpp" <<'END'
void attention_forward(Tensor& out, Tensor& p, Tensor& qkv, int64_t NH, int64_t T) {
    const int64_t C = out.cols, HS = C / NH;
    for (int64_t row = 0; row < out.rows; row++)
        for (int64_t c = 0; c < C; c += HS) {
            const int64_t b = row / T, t = row % T, last = std::min(t + 2, T);
            std::vector<double> weight(last);
            double sum = 0, most = -1e300;
            for (int64_t u = 0; u < last; u++) {
                for (int64_t i = 0; i < HS; i++) weight[u] += qkv.row(row)[c + i] * qkv.row(b * T + u)[C + c + i];
                most = std::max(most, weight[u] *= std::pow(HS, -0.5));
            }
            for (double& w : weight) sum += w = std::exp(w - most);
            for (int64_t i = 0; i < HS; i++) out.row(row)[c + i] = 0;
            for (int64_t u = 0; u < last; u++) {
                p.row((b * NH + c / HS) * T + t)[u] = weight[u] / sum;
                const float* v = qkv.row(b * T + u) + 2 * C + c;
                for (int64_t i = 0; i < HS; i++) out.row(row)[c + i] += weight[u] / sum * v[i];
            }
        }
}
END
said 1 "hint (mask-next)" $exercise judge attention-forward
edit 's/std::min(t + 2, T)/t + 1/' "$my/attention-forward.cpp"
said 0 "passed" $exercise judge attention-forward
edit 's/float sum/flat sum/; s/float m/flat m/' "$my/softmax.cpp"
said 1 "does not compile" $exercise judge softmax
printf 'void softmax(float* p, const float*, int64_t) { *(volatile float*)nullptr = p[0]; }\n' > "$my/softmax.cpp"
said 1 "hint (crash)" $exercise judge softmax
# Cheats: ending before the judge does, saying what it says, being two, reading what it gets or the
# files that it is made of, taking the place of its functions, never ending. Each is refused in one
# sentence.
solved='float m = x[0], sum = 0; for (int64_t i = 1; i < n; i++) m = std::max(m, x[i]);
    for (int64_t i = 0; i < n; i++) sum += p[i] = std::exp(x[i] - m); for (int64_t i = 0; i < n; i++) p[i] /= sum;'
softmax_is() {
    printf '%s\nvoid softmax(float* p, const float* x, int64_t n) { %s }\n' "${2-}" "$1" > "$my/softmax.cpp"
}
cheat() {  # cheat HINT BODY [BEFORE]
    softmax_is "$2" "${3-}"
    EXERCISE_SECONDS=1 said 1 "hint ($1): " $exercise judge softmax
    [ "$(grep -c '^passed' "$my/out")" = 0 ] || [ "$1" = unfinished ] || { echo "it says passed: $2"; exit 1; }
}
cheat unfinished 'exit(0);'
cheat unfinished 'printf("passed\n"), fflush(stdout), _Exit(0);'
cheat unfinished "$solved exit(0);"
cheat endless 'for (volatile int i = 0;; i = 1) p[0] = x[0];'
cheat flood 'for (;;) puts("on and on and on and on and on and on and on and on and on and on and on and on");'
cheat crash 'throw 1;'
softmax_is "$solved sum = Tree<40, 0>::size;" 'template <int N, long M> struct Tree {
    static constexpr long size = Tree<N - 1, 2 * M>::size + Tree<N - 1, 2 * M + 1>::size;
};
template <long M> struct Tree<0, M> { static constexpr long size = 1; };'
EXERCISE_SECONDS=1 said 1 "does not compile" $exercise judge softmax
softmax_is "$solved" '#include "/dev/zero"'
EXERCISE_SECONDS=1 said 1 "does not compile" $exercise judge softmax
cheat forbidden "$solved static int once = fork();" '#include <unistd.h>'
cheat forbidden 'char t[99]; if (fgets(t, 99, stdin)) printf("passed%s", t), _Exit(0);'
cheat forbidden 'exit(0);' \
    'static int early = [] { std::string t; std::getline(std::cin, t); return puts(t.c_str()); }();'
cheat forbidden 'std::ifstream("dev/course/exercises/softmax.cpp");' '#include <fstream>'
cheat forbidden 'if (FILE* f = fopen("build/exercises/judge_softmax.cpp", "r")) fclose(f);'
cheat forbidden 'system("true");'
cheat forbidden 'Judge().verdict();'
cheat forbidden "$solved" '#include "llmc/base/bf16.h"'
cheat forbidden "$solved" '#include <llmc/base/bf16.h>'
cheat forbidden "$solved" '%:include "llmc/base/bf16.h"'
cheat forbidden "$solved" "$(printf '#inc\\\nlude "llmc/base/bf16.h"')"
cheat forbidden 'asm("syscall");'
cheat forbidden 'puts(R"(" )"); asm("syscall"); puts(R"( ")");'
softmax_is 'PASTE(as, m)("syscall");' '#define PASTE(a, b) a##b'
said 1 "does not compile" $exercise judge softmax
cheat forbidden 'asm("syscall");' '#undef asm'
for call in 'char t[9]; iovec to{t, 9}; readv(0, &to, 1);' 'char t[9]; recv(0, t, 9, 0);' 'getchar_unlocked();' \
    'char t[9]; pread(0, t, 9, 0);' 'splice(0, nullptr, 1, nullptr, 9, 0);' 'sendfile(1, 0, nullptr, 9);' \
    'char t[9]; fgets_unlocked(t, 9, nullptr);'; do
    cheat forbidden "$call" "$(printf '#include <%s>\n' sys/uio.h sys/socket.h sys/sendfile.h unistd.h fcntl.h)"
done
cheat forbidden 'allocated_bytes = 0;'
cheat forbidden "$solved" 'extern "C" double exp(double x) { return x; }'
cheat forbidden "$solved" 'extern "C" __attribute__((weak)) double exp(double x) { return x; }'
cheat forbidden "$solved" '} double judged(double x) { return x; } namespace mine {'
cheat forbidden 'std::thread([] {}).detach();' '#include <thread>'
cheat forbidden "$solved atexit([] { puts(\"passed\"); });"
softmax_is "$solved"
said 0 "passed" $exercise judge softmax
edit 's/i < n; i++) m/i <= n; i++) m/' "$my/softmax.cpp"
said 1 "hint (" $exercise judge softmax
softmax_is "$solved p[n] = 0;"
said 1 "hint (bounds)" $exercise judge softmax
# Numbers that are so many times what is expected, and those that only seem to be.
softmax_is "$solved for (int64_t i = 0; i < n; i++) p[i] *= 1.5f;"
said 1 "hint (factor): every element of p is 1.5 times" $exercise judge softmax
softmax_is "$solved for (int64_t i = 0; i < n; i++) p[i] *= n + 1;"
said 1 "another number of times at others" $exercise judge softmax
for wrong in 'for (int64_t i = 0; i < n; i += 2) p[i] *= 1.5f;' 'p[0] *= 1.5f;' 'if (n == 1) p[0] = 2;'; do
    softmax_is "$solved $wrong"
    said 1 "hint (unknown)" $exercise judge softmax
done
softmax_is 'fprintf(stderr, "n is %d\n", (int)n);'
said 1 "n is 33" $exercise judge softmax
softmax_is "$solved"
said 0 "passed" $exercise judge softmax
# Where memory is limited: what operator new does not see.
said 0 "about" $exercise judge online-softmax
weighted_mean_is() {
    echo "using Next = std::function<bool(const float*& score, const float*& v, int& n)>;
    void weighted_mean(float* result, int HS, const Next& next) { $1 result[0] = all[HS]; }" > "$my/online-softmax.cpp"
}
weighted_mean_is 'static volatile float all[1 << 16]; all[HS] = 1;'
said 1 "hint (forbidden)" $exercise judge online-softmax
weighted_mean_is 'volatile float* all = (volatile float*)malloc(1 << 16);'
said 1 "hint (forbidden)" $exercise judge online-softmax
weighted_mean_is 'float all[1 << 16]; next((const float*&)all, (const float*&)all, HS);'
said 1 "does not compile" $exercise judge online-softmax
rm "$my/online-softmax.cpp"
said 0 "2 of " $exercise grade
said 0 "2 of 18 parts of lesson zero are yours: softmax, attention-forward." $exercise mine
for row in "yours  *loss .* after 60 steps" "the original  *loss"; do
    grep -q "$row" "$my/out" || { cat "$my/out"; exit 1; }
done
said 2 "there is no exercise 'nothing'" $exercise judge nothing
$exercise table --check

# The example in README.md is what is printed.
$exercise judge row-mean > /dev/null
cat > "$my/row-mean.cpp" <<'END'
void row_mean(float* mean, const float* x, int64_t rows, int64_t C) {
    for (int64_t r = 0; r < rows; r++) mean[r] = std::accumulate(x + r * C, x + (r + 1) * C, 0.0f) / rows;
}
END
said 1 "hint (rows)" $exercise judge row-mean
sed -n '/^    row-mean$/,/^$/p' dev/course/exercises/README.md | sed '1d;/^$/d;s/^    //' > "$my/example"
[ -s "$my/example" ]
while read -r line; do
    grep -qF -- "$line" "$my/out" || { echo "README.md shows what is not printed: $line"; cat "$my/out"; exit 1; }
done < "$my/example"
