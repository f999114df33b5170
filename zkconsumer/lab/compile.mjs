// Compile the modules of a static site with the site's own Python: node compile.mjs SITE
//
// Otherwise visitors' browsers would compile the source of every imported module at each visit.

import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const site = process.argv[2];
const { loadPyodide } = await import(pathToFileURL(`${site}/pyodide/pyodide.mjs`).href);
const python = await loadPyodide({ indexURL: `${site}/pyodide/` });
const archives = ["zkconsumer.zip", "pyodide/python_stdlib.zip"];
for (const name of archives) python.FS.writeFile(`/${name.split("/").at(-1)}`, new Uint8Array(readFileSync(`${site}/${name}`)));
python.runPython(`
import importlib, importlib._bootstrap_external, importlib.util, sys, zipfile

sys.path.insert(0, "/zkconsumer.zip")
with zipfile.ZipFile("/zkconsumer.zip") as archive:
    for name in archive.namelist():
        importlib.import_module(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
import zkconsumer.lab.engine

engine = zkconsumer.lab.engine.Engine()
for command in ({"do": "catalogue"}, {"do": "open"}, {"do": "open", "world": {"protocol": "consumer"}}, {"do": "compare"}, {"do": "tour", "tour": "join"}):
    engine.command(command)
used = {module.__name__.replace(".", "/") for module in list(sys.modules.values())}


def compiled(path):
    """Replace the source of imported modules by compiled code; other modules keep their source."""
    with zipfile.ZipFile(path) as archive:
        entries = [(name, archive.read(name)) for name in sorted(archive.namelist())]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            module = name.removesuffix(".py").removesuffix("/__init__")
            if name.endswith(".py") and module in used:
                code = compile(data, name, "exec", dont_inherit=True, optimize=0)
                hashed = importlib.util.source_hash(data)
                data = importlib._bootstrap_external._code_to_hash_pyc(code, hashed, False)
                name += "c"
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, bytes(data))


compiled("/zkconsumer.zip")
compiled("/python_stdlib.zip")
`);
for (const name of archives) writeFileSync(`${site}/${name}`, python.FS.readFile(`/${name.split("/").at(-1)}`));
