// The engine in a Web Worker: CPython, compiled to WebAssembly, runs the same code as the server.

import { loadPyodide } from "./pyodide/pyodide.mjs";

const ready = start();
ready.catch((error) => self.postMessage({ failed: `the engine in the browser has failed: ${lastLine(error)}` }));

function lastLine(error) {
  return String(error?.message || error).trim().split("\n").pop();
}

// Count the bytes that arrive while Python loads. Pyodide requests its files itself, so `fetch` is wrapped.
function countFetched(report) {
  const original = self.fetch;
  let bytes = 0;
  self.fetch = async (...request) => {
    const reply = await original(...request);
    count(reply.clone()).catch(() => {}); // whoever reads the reply itself gets the error
    return reply;
  };
  async function count(reply) {
    const reader = reply.body.getReader();
    for (let piece; !(piece = await reader.read()).done; ) report((bytes += piece.value.length));
  }
  return () => (self.fetch = original);
}

async function start() {
  const total = Number(new URL(self.location.href).searchParams.get("bytes"));
  const report = (text, share) => self.postMessage({ progress: { text, share } });
  let percent = -1;
  const stop = countFetched((bytes) => {
    const now = Math.min(100, Math.floor((100 * bytes) / total));
    if (now > percent) report(now < 100 ? `Python is loading: ${now} % …` : "Python is starting …", now < 100 ? now / 100 : undefined);
    percent = Math.max(percent, now);
  });
  const modules = fetch("zkconsumer.zip").then((reply) => {
    if (!reply.ok) throw new Error(`zkconsumer.zip cannot be loaded: HTTP status ${reply.status}`);
    return reply.arrayBuffer();
  });
  const python = await loadPyodide({ indexURL: new URL("./pyodide/", self.location.href).href });
  stop();
  report("Python imports the lab's modules …");
  python.FS.writeFile("/zkconsumer.zip", new Uint8Array(await modules));
  python.runPython(`
import json, sys
sys.path.insert(0, "/zkconsumer.zip")
from zkconsumer.lab.engine import Engine
engine = Engine()
def command(text):
    return json.dumps(engine.command(json.loads(text)))
`);
  self.postMessage({ ready: true });
  return python.globals.get("command");
}

self.onmessage = async ({ data }) => {
  const command = await ready.catch(() => null);
  if (!command) return; // the page has got the error
  let events;
  try {
    events = command(data.command);
  } catch (error) {
    events = JSON.stringify([{ event: "error", text: `The engine has failed: ${lastLine(error)}` }]);
  }
  self.postMessage({ number: data.number, events });
};
