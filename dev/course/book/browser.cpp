// Lesson zero for the browser: the functions of gpt2.cpp, and a step, a sample and the
// probabilities of a head as functions that JavaScript calls. trainer.js does, in a worker.
#include <emscripten.h>
#include <memory>
#define main lesson_zero
#include "../gpt2.cpp"
#undef main

struct Lesson {
    Settings settings;
    std::mt19937 rng;
    Model model;
    Data data;
    Activations act, sample_act;
    std::string text;
    int64_t step = 0;

    Lesson(const Settings& s, Tokens tokens)
        : settings(s),
          rng((uint32_t)s.seed),
          model(make_model(s, rng)),
          act(model.config, s.batch, s.length),
          sample_act(model.config, 1, s.length) {
        data.tokens = std::move(tokens);
        data.T = s.length;
        data.windows = ((int64_t)data.tokens.size() - 1) / data.T;
        data.train_windows = data.windows * 9 / 10;
    }
};
static std::unique_ptr<Lesson> lesson;

extern "C" {

// A new model that has seen nothing, of the size that Settings has. text (bytes) is what it learns
// from, in windows drawn at random if shuffle is 1.
EMSCRIPTEN_KEEPALIVE void begin(const uint8_t* text, int bytes, int steps, int shuffle) {
    Settings s;
    s.steps = steps, s.shuffle = shuffle;
    lesson = std::make_unique<Lesson>(s, Tokens(text, text + bytes));
}

// One step of training: main() of gpt2.cpp without its printing. Returns the loss.
EMSCRIPTEN_KEEPALIVE float train() {
    Lesson& m = *lesson;
    const Batch batch = training_batch(m.data, m.settings, m.step, m.rng);
    forward(m.model, m.act, batch.inputs);
    const float loss = cross_entropy_forward(m.act.logits, m.act.probs, batch.targets, m.model.config.V);
    backward(m.model, m.act, batch.inputs, batch.targets);
    const double norm = gradient_norm(m.model), rate = learning_rate(m.settings, m.step);
    adamw(m.model, m.settings, rate, norm, ++m.step);
    return loss;
}

// Adds a byte to what the model has written, and returns it. sample() of gpt2.cpp, byte by byte.
EMSCRIPTEN_KEEPALIVE int write(int is_first) {
    Lesson& m = *lesson;
    if (is_first) m.text = "\n";
    const int64_t V = m.model.config.V, T = m.sample_act.T, seen = std::min<int64_t>(T, (int64_t)m.text.size());
    Tokens inputs;
    for (char c : m.text.substr(m.text.size() - seen)) inputs.push_back((unsigned char)c);
    inputs.resize(T);
    forward(m.model, m.sample_act, inputs);
    std::vector<float> p(V);
    softmax(p.data(), m.sample_act.logits.row(seen - 1), V);
    m.text.push_back((char)std::discrete_distribution<int>(p.begin(), p.end())(m.rng));
    return (unsigned char)m.text.back();
}

// Writes the model into the file model.bin, which the page has in memory; ./gpt2 reads it.
EMSCRIPTEN_KEEPALIVE void save() { write_model(lesson->model, "model.bin"); }

// p (T, T) of one head, of the text that write() has seen last.
EMSCRIPTEN_KEEPALIVE const float* attention(int layer, int head) {
    return lesson->sample_act.blocks[layer].p.row(head * lesson->sample_act.T);
}
}
