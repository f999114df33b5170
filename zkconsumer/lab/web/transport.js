// How the page reaches the engine: over HTTP to the lab's server, or in a worker with Pyodide.

const WAIT_S = [0.3, 0.6, 1, 2]; // seconds before another attempt when the server does not answer

// The answers to the page's first commands if its address names no group: first.json has them. The engine starts meanwhile.
class StoredAnswers {
  constructor() {
    this.answers = fetch("first.json").then((reply) => (reply.ok ? reply.json() : {})).catch(() => ({}));
    this.posted = Promise.resolve();
  }

  // Return the stored answer to a command, or post the command. The engine gets every command, because later ones need the runs that the stored answers show.
  async send(command, post) {
    const answers = await this.answers;
    const key = JSON.stringify(command);
    const first = answers[key];
    delete answers[key];
    if (!first) return this.posted.then(() => post(command));
    const posted = post(command).catch(() => {}); // a later command gets the error
    this.posted = this.posted.then(() => posted);
    return first;
  }
}

export class HttpTransport {
  constructor(onLost, onLive) {
    this.stored = new StoredAnswers();
    this.tab = sessionStorage.getItem("lab.tab") || newTab();
    this.onLost = onLost;
    this.onLive = onLive;
    this.token = null;
  }

  async about() {
    const reply = await fetch("about.json", { cache: "no-store" }).catch(() => null);
    if (!reply?.ok) throw new Error("the lab's server does not answer");
    const about = await reply.json();
    this.token = about.token;
    if (about.kind !== "simulated") this.stored = null;
    return about;
  }

  send(command) {
    return this.stored ? this.stored.send(command, (one) => this.post(one)) : this.post(command);
  }

  // Send a command and return its events; try again while the server does not answer.
  async post(command) {
    let refused = 0;
    for (let attempt = 0; ; attempt++) {
      try {
        if (!this.token) await this.about();
        const reply = await fetch("command", {
          method: "POST",
          headers: { "content-type": "application/json", "x-lab-token": this.token },
          body: JSON.stringify({ ...command, tab: this.tab }),
        });
        if (reply.status === 403) {
          this.token = null; // another server has started on this port: ask for its token
          if (++refused < 3) continue;
        }
        this.onLost(false);
        if (reply.status === 500) return [{ event: "error", text: "The lab's server failed to execute this command. Its terminal shows the error." }];
        return await reply.json();
      } catch (error) {
        this.onLost(true);
        await new Promise((done) => setTimeout(done, 1000 * WAIT_S[Math.min(attempt, WAIT_S.length - 1)]));
      }
    }
  }

  // Follow the events of a live group, which the server sends. The browser resumes by Last-Event-ID.
  listen() {
    const source = new EventSource("events");
    source.onmessage = (message) => {
      this.onLost(false);
      this.onLive(JSON.parse(message.data));
    };
    source.onerror = () => this.onLost(true);
  }
}

function newTab() {
  const tab = crypto.randomUUID ? crypto.randomUUID() : String(Math.random()).slice(2);
  sessionStorage.setItem("lab.tab", tab);
  return tab;
}

export class WorkerTransport {
  // `bytes` is the size of the files that the worker fetches.
  constructor(bytes, onProgress) {
    this.stored = new StoredAnswers();
    this.started = new Promise((done, refuse) => Object.assign(this, { start: done, refuse }));
    this.started.catch(() => {}); // whoever waits for it gets the error
    this.worker = new Worker(`worker.js?bytes=${bytes}`, { type: "module" });
    this.waiting = new Map();
    this.number = 0;
    this.worker.onmessage = ({ data }) => {
      if (data.progress) onProgress(data.progress);
      else if (data.ready) this.start();
      else if (data.failed) this.fail(data.failed);
      else {
        const [done] = this.waiting.get(data.number);
        this.waiting.delete(data.number);
        done(JSON.parse(data.events));
      }
    };
    // The event has a message only if the worker's script raised an error.
    this.worker.onerror = (event) => this.fail(event.message || "worker.js or pyodide/pyodide.mjs cannot be loaded");
  }

  // The engine cannot start, so no command gets an answer.
  fail(what) {
    this.failure = new Error(what);
    this.refuse(this.failure);
    for (const [, refuse] of this.waiting.values()) refuse(this.failure);
    this.waiting.clear();
  }

  async about() {
    return { kind: "static" };
  }

  send(command) {
    return this.stored.send(command, (one) => this.post(one));
  }

  post(command) {
    const number = ++this.number;
    return new Promise((done, refuse) => {
      if (this.failure) return refuse(this.failure);
      this.waiting.set(number, [done, refuse]);
      this.worker.postMessage({ number, command: JSON.stringify(command) });
    });
  }

  listen() {}
}

// A player for one recorded run: nothing runs, so nothing can be changed.
export class RecordedTransport {
  constructor(events) {
    this.events = events;
  }

  async about() {
    return { kind: "recorded", events: this.events };
  }

  async send() {
    return [{ event: "error", text: "this page only plays a recorded run" }];
  }

  listen() {}
}
