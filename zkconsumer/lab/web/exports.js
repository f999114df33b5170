// Exports of a run: a page with a player, SVG, a trace, and the frames.

import { shivizOf } from "./causes.js";
import { paint } from "./colours.js";
import { diagramSvg } from "./diagram.js";
import { NOBODY } from "./model.js";

export async function saveRun(app, kind) {
  const run = app.run;
  const name = `zkconsumer-lab-${(run.title || "run").replace(/[^a-z0-9]+/gi, "-")}-${run.number}`;
  if (kind === "svg") save(`${name}.svg`, "image/svg+xml", svgOf(run));
  else if (kind === "diagram") save(`${name}.diagram.svg`, "image/svg+xml", diagramSvg(run));
  else if (kind === "shiviz") save(`${name}.shiviz.log`, "text/plain", shivizOf(run));
  else if (kind === "frames") save(`${name}.frames.jsonl`, "application/jsonl", [run.scene, ...run.frames].map((one) => JSON.stringify(one)).join("\n") + "\n");
  else if (kind === "html") save(`${name}.html`, "text/html", await pageOf(run));
  else {
    const text = await new Promise((done) => {
      app.traced = done;
      app.command({ do: "trace", run: run.number });
    });
    save(`${name}.jsonl`, "application/jsonl", text);
  }
}

function save(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function eventsOf(run) {
  const opened = { event: "run", run: 1, kind: "recorded", scene: run.scene, title: run.title, lesson: run.lesson, base: {}, about: { words: ABOUT[run.kind] || run.about.words } };
  return [opened, { event: "frames", run: 1, from: 0, frames: run.frames, moves: "" }];
}

const ABOUT = {
  simulated: "A recorded run of the simulator. Nothing can be changed.",
  live: "A recorded run of a real group. Nothing can be changed.",
};

// The page of the lab as one self-contained file. `zkconsumer.lab.site` creates the same file.
async function pageOf(run) {
  const { style, start, icon, imports } = document.querySelector("script[type=importmap]") ? partsOfThisFile() : await partsOfTheServer();
  return `<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:">
<title>zkconsumer lab: a recorded run</title><script>${start}</script><link rel="icon" href="${icon}"><style>${style}</style>
<script type="importmap">${JSON.stringify({ imports })}</script></head>
<body><div id="app"><p class="loading">The player is loading …</p></div>
<script id="recorded" type="application/json">${JSON.stringify(eventsOf(run)).replaceAll("<", "\\u003c")}</script>
<script type="module">import "lab/app";</script></body></html>
`;
}

// An exported file contains all parts, and can load nothing.
function partsOfThisFile() {
  const text = (selector) => document.querySelector(selector).textContent;
  return { style: text("style"), start: text("script"), icon: document.querySelector("link[rel=icon]").href, imports: JSON.parse(text("script[type=importmap]")).imports };
}

async function partsOfTheServer() {
  const read = async (name) => (await fetch(name)).text();
  const imports = {};
  // index.html lists the modules that the page loads; `app` is the last one.
  for (const name of [...document.querySelectorAll("link[rel=modulepreload]")].map((link) => link.getAttribute("href")).concat("app.js")) {
    const source = (await read(name)).replace(/from "\.\/(?:vendor\/)?([\w-]+)\.js"/g, 'from "lab/$1"');
    imports[`lab/${name.split("/").pop().replace(/\.js$/, "")}`] = `data:text/javascript;base64,${base64(source)}`;
  }
  return { style: await read("style.css"), start: await read("start.js"), icon: `data:image/svg+xml;base64,${base64(await read("icon.svg"))}`, imports };
}

function base64(text) {
  const bytes = new TextEncoder().encode(text);
  let found = "";
  for (const one of bytes) found += String.fromCharCode(one);
  return btoa(found);
}

// ---- SVG ----------------------------------------------------------------------------------------

const esc = (text) => String(text).replace(/[&<>"]/g, (one) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[one]);

// Owners over time, one row for each partition, with the announcements of the story.
export function svgOf(run, width = 1000) {
  const left = 70, row = 20, top = 46;
  const count = Math.max(1, run.length);
  const x = (at) => left + ((width - left - 16) * at) / count;
  const height = top + row * run.spans.length + 46;
  const parts = [`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="12">`,
    `<rect width="${width}" height="${height}" fill="#ffffff"/>`,
    `<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" fill="#f1f1f1"/><rect width="2.4" height="6" fill="#9a9a9a"/></pattern></defs>`,
    `<text x="8" y="22" font-size="16" font-weight="bold">${esc(run.title || "a simulated group")}</text>`,
    `<text x="${width - 8}" y="22" text-anchor="end">${run.kind === "simulated" ? "simulated" : run.kind}</text>`];
  run.spans.forEach((spans, number) => {
    const y = top + number * row;
    parts.push(`<text x="8" y="${y + 14}">${esc(run.last.partitions[number][0])}</text>`);
    spans.forEach(([from, owner], n) => {
      const to = n + 1 < spans.length ? spans[n + 1][0] : count;
      const { fill, ink } = paint(owner);
      const wide = Math.max(0.5, x(to) - x(from));
      parts.push(`<rect x="${x(from).toFixed(1)}" y="${y + 2}" width="${wide.toFixed(1)}" height="${row - 4}" fill="${owner === NOBODY ? "url(#hatch)" : fill}"/>`);
      if (owner >= 0 && wide > 30) parts.push(`<text x="${(x(from) + 5).toFixed(1)}" y="${y + 14}" fill="${ink}">${esc(run.last.members[owner].n)}</text>`);
    });
  });
  const bottom = top + row * run.spans.length;
  run.captions.forEach(([at, text], n) => {
    parts.push(`<line x1="${x(at)}" x2="${x(at)}" y1="${top - 8}" y2="${bottom}" stroke="#555555" stroke-dasharray="3 3"/>`);
    if (n < 6) parts.push(`<text x="${x(at) + 3}" y="${top - 6}" font-size="11">${esc(text)}</text>`);
  });
  for (let tick = 0; tick <= 5; tick++) {
    const at = Math.round((count * tick) / 5);
    parts.push(`<text x="${x(at)}" y="${bottom + 18}" text-anchor="${tick === 5 ? "end" : "middle"}">${(run.times[at] ?? 0).toFixed(run.times[count] - run.times[0] < 20 ? 3 : 2)} s</text>`);
  }
  parts.push("</svg>");
  return parts.join("\n") + "\n";
}
