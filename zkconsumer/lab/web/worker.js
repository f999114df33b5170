// The engine in a Web Worker: CPython, compiled to WebAssembly, runs the same code as the server.

import { loadPyodide } from "./pyodide/pyodide.mjs";

const ready = start();
ready.catch((error) => self.postMessage({ failed: `the engine in the browser has failed: ${lastLine(error)}` }));

function lastLine(error) {
  return String(error?.message || error).trim().split("\n").pop();
}

async function start() {
  self.postMessage({ progress: "Python is loading: about 6 MB, once …" });
  const modules = fetch("zkconsumer.zip").then((reply) => {
    if (!reply.ok) throw new Error(`zkconsumer.zip cannot be loaded: HTTP status ${reply.status}`);
    return reply.arrayBuffer();
  });
  const python = await loadPyodide({ indexURL: new URL("./pyodide/", self.location.href).href });
  self.postMessage({ progress: "The lab's modules are loading …" });
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
