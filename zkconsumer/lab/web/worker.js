// The engine in a Web Worker: CPython, compiled to WebAssembly, runs the same code as the server.

import { loadPyodide } from "./pyodide/pyodide.mjs";

const ready = start();

async function start() {
  self.postMessage({ progress: "Python is loading: about 6 MB, once …" });
  const modules = fetch("zkconsumer.zip").then((reply) => reply.arrayBuffer());
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
  return python.globals.get("command");
}

self.onmessage = async ({ data }) => {
  let events;
  try {
    events = (await ready)(data.command);
  } catch (error) {
    events = JSON.stringify([{ event: "error", text: `The engine has failed: ${error.message.split("\n").slice(-2).join(" ")}` }]);
  }
  self.postMessage({ number: data.number, events });
};
