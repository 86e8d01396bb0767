// From file:// a browser starts no worker of a script in another file, which the search is. There a
// hidden frame runs it; a worker from a Blob is left as it is.
if (location.protocol === "file:") {
    const RealWorker = window.Worker;
    window.Worker = function (url) {
        if (String(url).startsWith("blob:")) return new RealWorker(url);
        const target = new EventTarget(), frame = document.createElement("iframe"), waiting = [];
        const deliver = (data) => frame.contentWindow.dispatchEvent(new MessageEvent("message", {data}));
        let ready = false;
        target.postMessage = (data) => ready ? deliver(data) : waiting.push(data);
        target.terminate = () => frame.remove();
        frame.hidden = true;
        document.body.append(frame);
        frame.contentWindow.importScripts = () => Promise.resolve();  // stemmers of other languages
        frame.contentWindow.postMessage = (data) => {
            const event = new MessageEvent("message", {data});
            target.dispatchEvent(event);
            if (target.onmessage) target.onmessage(event);
        };
        const script = frame.contentDocument.createElement("script");
        script.onload = () => {
            ready = true;
            waiting.forEach(deliver);
        };
        script.src = url;
        frame.contentDocument.body.append(script);
        return target;
    };
}
