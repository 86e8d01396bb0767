// In a worker: trains, and tells the page of every step; every few seconds it writes some text. It
// stops and goes on as the page says.
let lesson, running = false, shown = {layer: 0, head: 0}, last = 0, step = 0;
const LENGTH = 64, SAMPLE_BYTES = 160, SAMPLE_MS = 8000;

async function start(text, steps) {
    lesson = await Lesson();
    const bytes = Uint8Array.from(text, (char) => char.charCodeAt(0));
    const at = lesson._malloc(bytes.length);
    lesson.HEAPU8.set(bytes, at);
    lesson._begin(at, bytes.length, steps, 1);
    lesson._free(at);
}

function sample() {
    const text = [];
    for (let i = 0; i < SAMPLE_BYTES; i++) text.push(lesson._write(i === 0 ? 1 : 0));
    postMessage({sample: String.fromCharCode(...text)});
}

function attention() {
    const at = lesson._attention(shown.layer, shown.head) / 4;
    postMessage({attention: lesson.HEAPF32.slice(at, at + LENGTH * LENGTH), length: LENGTH});
}

function train(steps) {
    if (!running) return;
    const begin = performance.now();
    const loss = lesson._train();
    postMessage({step: ++step, loss, ms: performance.now() - begin});
    if (performance.now() - last > SAMPLE_MS || step === steps) {
        sample();
        attention();
        last = performance.now();
    }
    if (step < steps) setTimeout(train, 0, steps);
}

self.onmessage = async ({data}) => {
    if (data.head !== undefined) {
        shown = data;
        if (step > 0) attention();
    }
    if (data.stop) running = false;
    if (data.save) {
        lesson._save();
        postMessage({model: lesson.FS.readFile("model.bin")});
    }
    if (data.train) {
        if (!lesson) await start(data.text, data.train);
        running = true;
        train(data.train);
    }
};
