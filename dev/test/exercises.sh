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
# Cheats and what shows only by luck: ending before the judge does, saying what it says, being two, reading or writing
# beyond an array.
solved='float m = x[0], sum = 0; for (int64_t i = 1; i < n; i++) m = std::max(m, x[i]);
    for (int64_t i = 0; i < n; i++) sum += p[i] = std::exp(x[i] - m); for (int64_t i = 0; i < n; i++) p[i] /= sum;'
softmax_is() { echo "void softmax(float* p, const float* x, int64_t n) { $1 }" > "$my/softmax.cpp"; }
for cheat in 'exit(0);' 'printf("passed\n"), fflush(stdout), _exit(0);' "$solved static int once = fork();"; do
    softmax_is "$cheat"
    said 1 "hint (unfinished)" $exercise judge softmax
done
softmax_is "$solved"
said 0 "passed" $exercise judge softmax
edit 's/i < n; i++) m/i <= n; i++) m/' "$my/softmax.cpp"
said 1 "hint (" $exercise judge softmax
softmax_is "$solved p[n] = 0;"
said 1 "hint (bounds)" $exercise judge softmax
softmax_is "$solved exit(0);"
said 1 "hint (unfinished)" $exercise judge softmax
said 0 "1 of " $exercise grade
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
