// Browsers refuse to start a worker from file://. There, run its script in a hidden frame, so that the
// site's search works without a server. The name that the site gives this file, iframe-worker.js, tells
// the theme not to load a script of another host for this purpose.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      // A script posts its messages with this function, as in a worker.
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.inside.document.createElement("script");
      this.started = new Promise((resolve) => { script.onload = resolve; });
      script.src = url;
      this.inside.document.head.append(script);
    }

    postMessage(data) {
      this.started.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
