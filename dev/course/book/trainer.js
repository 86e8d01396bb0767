// The first page: starts the worker in which lesson zero trains, and draws what it says. The
// worker is made of text that is here already, so the page works from a file as well.
(() => {
    const STEPS = 1000, MOST_LOSS = 6;
    const find = (id) => document.getElementById(id);
    const losses = [];
    let worker = null, running = false;

    function color(name) { return getComputedStyle(document.body).getPropertyValue(name) || "#888"; }

    function drawLoss() {
        const canvas = find("loss"), g = canvas.getContext("2d");
        const x = (step) => 40 + step / Math.max(losses.length, 50) * (canvas.width - 50);
        const y = (loss) => canvas.height - 20 - loss / MOST_LOSS * (canvas.height - 30);
        g.clearRect(0, 0, canvas.width, canvas.height);
        g.font = "16px sans-serif";
        g.fillStyle = g.strokeStyle = color("--md-default-fg-color--light");
        for (let loss = 0; loss <= MOST_LOSS; loss += 2) {
            g.fillText(loss, 10, y(loss) + 5);
            g.fillRect(40, y(loss), canvas.width - 50, 1);
        }
        g.strokeStyle = color("--md-accent-fg-color");
        g.lineWidth = 2;
        g.beginPath();
        losses.forEach((loss, step) => g.lineTo(x(step), y(loss)));
        g.stroke();
    }

    function drawAttention(p, length) {
        const g = find("attention").getContext("2d"), image = g.createImageData(length, length);
        for (let t = 0; t < length; t++) {
            const row = p.subarray(t * length, (t + 1) * length), most = Math.max(...row.subarray(0, t + 1));
            for (let u = 0; u < length; u++) {
                const shade = u > t ? 0 : Math.sqrt(row[u] / most), at = (t * length + u) * 4;
                image.data.set([255 * shade, 160 * shade, 60 + 40 * shade, 255], at);
            }
        }
        g.putImageData(image, 0, 0);
    }

    function show({data}) {
        if (data.step) {
            losses.push(data.loss);
            find("save").disabled = false;
            find("state").textContent =
                `step ${data.step} of ${STEPS}, loss ${data.loss.toFixed(3)}, ${data.ms.toFixed(0)} ms`;
            drawLoss();
            if (data.step === STEPS) find("go").disabled = true;
        }
        if (data.sample !== undefined) find("sample").textContent = data.sample;
        if (data.attention) drawAttention(data.attention, data.length);
        if (data.model) {
            const link = document.createElement("a");
            link.href = URL.createObjectURL(new Blob([data.model]));
            link.download = "model.bin";
            link.click();
        }
    }

    function go() {
        running = !running;
        find("go").textContent = running ? "Pause" : "Go on";
        if (!worker) {
            const program = new Blob([LESSON_PROGRAM], {type: "text/javascript"});
            worker = new Worker(URL.createObjectURL(program));
            worker.onmessage = show;
            worker.onerror = (error) => { find("state").textContent = `It does not run here: ${error.message}`; };
            choose();
        }
        worker.postMessage(running ? {train: STEPS, text: LESSON_TEXT} : {stop: true});
    }

    function choose() {
        if (worker) worker.postMessage({layer: +find("layer").value, head: +find("head").value});
    }

    for (const name of ["layer", "head"]) {
        for (let i = 0; i < 4; i++) find(name).add(new Option(`${name} ${i + 1}`, i));
        find(name).onchange = choose;
    }
    find("go").onclick = go;
    find("save").onclick = () => worker.postMessage({save: true});
    drawLoss();
})();
