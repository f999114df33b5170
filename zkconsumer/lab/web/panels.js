// The side panel: the tree of znodes, what can happen next, the log, and a guided tour.

import { Component, html, useEffect, useRef } from "./vendor/preact-htm.js";
import { paint } from "./colours.js";
import { compare } from "./model.js";

const SHOWN_NODES = 200; // maximum number of znodes of one list in the tree; the others are counted

// ---- the tree -----------------------------------------------------------------------------------

export class Tree extends Component {
  shouldComponentUpdate(next) {
    return next.picture.tree !== this.props.picture.tree || this.glows || next.canAct !== this.props.canAct;
  }

  // The sorted paths; values change far more often than paths.
  paths(tree) {
    if (this.sorted?.length !== tree.size || !this.sorted.every((path) => tree.has(path))) this.sorted = [...tree.keys()].sort(byNumber);
    return this.sorted;
  }

  render({ picture, menu, sessions }) {
    const lists = new Map();
    this.glows = picture.gone.length > 0 || picture.at === 0;
    for (const path of this.paths(picture.tree)) {
      const parts = path.split("/");
      const [title, name] = parts[1] === "consumers" ? [parts[3], parts.slice(4).join("/")] : [parts.slice(1, 3).join("/"), parts.slice(3).join("/")];
      if (!title || !name || (title === "owners" || title === "offsets") && parts.length < 6) continue;
      if (!lists.has(title)) lists.set(title, []);
      lists.get(title).push([path, name]);
    }
    const order = ["ids", "owners", "offsets", "edits", "brokers/ids", "brokers/topics", "coordinator/group", "coordinator/members", "coordinator/offsets"];
    const names = [...lists.keys()].sort((a, b) => (order.indexOf(a) + 99) % 99 - (order.indexOf(b) + 99) % 99);
    return html`<div class="tree">${names.map((title) => html`<section key=${title}><h2>${title} <span>${lists.get(title).length}</span></h2>
      <ul>${lists.get(title).slice(0, SHOWN_NODES).map(([path, name]) => this.node(picture, path, name, menu, sessions))}</ul>
      ${lists.get(title).length > SHOWN_NODES ? html`<p class="omitted">${lists.get(title).length - SHOWN_NODES} more are not shown.</p>` : null}
      </section>`)}
      ${picture.gone.map((path) => html`<p class="gone" key=${path}>deleted: ${path.replace(/^\/consumers\/[^/]*\//, "")}</p>`)}
    </div>`;
  }

  node(picture, path, name, menu, sessions) {
    const node = picture.tree.get(path);
    const who = node.session ? sessions.get(node.session) : undefined;
    const glows = node.at === picture.at && picture.at > 0;
    this.glows ||= glows;
    return html`<${Znode} key=${path} path=${path} name=${name} data=${node.data} session=${node.session} who=${who} glows=${glows} menu=${menu} />`;
  }
}

class Znode extends Component {
  shouldComponentUpdate(next) {
    return ["data", "session", "who", "glows"].some((name) => next[name] !== this.props[name]);
  }

  render({ path, name, data, session, who, glows, menu }) {
    const mark = who === undefined ? {} : { background: paint(who).fill };
    return html`<li><button class="znode ${glows ? "glow" : ""}" onClick=${(event) => menu("znode", path, event)} aria-haspopup="menu">
      <i class="dot ${session ? "ephemeral" : ""}" style=${mark} title=${session ? "ephemeral: ends with its session" : "persistent"}></i>
      <span class="path" title=${name}>${name}</span> <span class="data">${data}</span></button></li>`;
  }
}

const COLLATOR = new Intl.Collator("en", { numeric: true });

function byNumber(a, b) {
  return COLLATOR.compare(a, b);
}

// ---- what can happen next -----------------------------------------------------------------------

export function Choices({ choices, act, canAct }) {
  if (!canAct) return html`<p class="hint">Nothing can be chosen in this mode.</p>`;
  if (!choices) return html`<p class="hint">Pause to see what can happen next.</p>`;
  return html`<div class="choices">
    <p class="hint">Choose what happens next. The rule would take the first marked one. Keys 1 to 9.</p>
    <ol>${choices.choices.map((one, n) => html`<li key=${one.move}><button onClick=${() => act(one.move)} class=${one.next ? "next" : ""}>
      ${n < 9 ? html`<kbd>${n + 1}</kbd>` : null} ${one.text}${one.next ? " ◂" : ""}</button></li>`)}</ol>
    ${choices.choices.length ? null : html`<p class="hint">Nothing is in progress: the group has settled.</p>`}
    <details><summary>${choices.faults.length} other actions</summary>
      <ul>${choices.faults.map((one) => html`<li key=${one.move}><button onClick=${() => act(one.move)}>${one.text}</button></li>`)}</ul></details>
  </div>`;
}

// ---- the log ------------------------------------------------------------------------------------

const KEPT_LINES = 200; // maximum number of lines of the log that are drawn: the newest up to the shown move

export function Log({ run, at, seek, find, setFind }) {
  const lines = [];
  const wanted = find.toLowerCase();
  for (let n = at - 1; n >= 0 && lines.length < KEPT_LINES; n--) {
    const text = textOf(run, n);
    if (text && (!wanted || text.toLowerCase().includes(wanted))) lines.push([n + 1, run.frames[n].t, text]);
  }
  return html`<div class="log"><label>search <input value=${find} onInput=${(event) => setFind(event.target.value)} placeholder="g_1, owners, SIGKILL …" /></label>
    <ol reversed>${lines.map(([n, t, text]) => html`<li key=${n}><button onClick=${() => seek(n)}><time>${t.toFixed(3)}</time> ${text}</button></li>`)}</ol>
    ${lines.length === KEPT_LINES ? html`<p class="omitted">Earlier lines are not shown; search or go back.</p>` : null}</div>`;
}

function listed(names) {
  const shown = names.slice(0, 6).join(", ");
  return names.length > 6 ? `${shown} and ${names.length - 6} more` : shown;
}

export function textOf(run, n) {
  const frame = run.frames[n];
  const names = run.last.members;
  const who = (number) => names[number]?.n || "another client";
  const more = [];
  const owned = new Map();
  for (const event of frame.x || []) if (event[0] === "ended") more.push(`the session of ${who(event[1])} ${event[2] === "expired" ? "has expired" : "has ended"}`);
  for (const event of frame.x || []) if (event[0] === "owner") owned.set(event[1], [...(owned.get(event[1]) || []), event[2]]);
  for (const [number, names] of owned) more.push(number === -1 ? `${listed(names)} ${names.length > 1 ? "have" : "has"} no owner` : `${who(number)} owns ${listed(names)}`);
  for (const event of frame.x || []) {
    if (event[0] === "phase") more.push(`${who(event[1])} is ${event[2].replaceAll("_", " ")}${event[3] ? `: ${event[3]}` : ""}`);
    else if (event[0] === "watch") more.push(`a watch of ${who(event[1])} fires: ${event[3]} ${event[2]}`);
    else if (event[0] === "delivered") more.push(`${who(event[1])} gets ${event[2]} offset ${event[3]}${event[4] ? " again" : ""}`);
    else if (event[0] === "served" && event[3] !== "OK") more.push(`${event[2]}: ${event[3].toLowerCase().replaceAll("_", " ")}`);
    else if (event[0] === "notice") more.push(`${who(event[1])} reports ${event[2].replaceAll("_", " ")}: ${event[3]}`);
    else if (event[0] === "text") more.push(event[1]);
    else if (event[0] === "bridge") more.push(event[2]);
  }
  return [frame.l, ...more].filter(Boolean).join("; ");
}

// ---- a guided tour ------------------------------------------------------------------------------

export function TourPanel({ tour, step, answered, answer, go, leave, back, away, breakIt }) {
  const shown = useRef(null);
  useEffect(() => {
    if (answered) shown.current?.scrollIntoView({ block: "nearest" });
  }, [answered]);
  const one = tour.steps[step];
  return html`<div class="tour"><h2>${tour.title} <span>${step + 1} of ${tour.steps.length}</span></h2>
    <p class="words">${one.text}</p>
    <div class="question"><p><b>Question.</b> ${one.question}</p>
      ${answered ? html`<p class="answer" ref=${shown}>${one.answer}</p>` : html`<button onClick=${answer}>show the answer</button>`}</div>
    ${step === tour.steps.length - 1 ? html`<div class="question"><p><b>Now break it yourself.</b> ${tour.breaks.text}</p><button onClick=${breakIt}>search for a counterexample</button></div>` : null}
    ${away ? html`<p class="hint">You have left the state of this step. <button onClick=${back}>return to it</button></p>` : null}
    <div class="buttons"><button disabled=${step === 0} onClick=${() => go(step - 1)}>‹ back</button>
      <button class="primary" disabled=${step === tour.steps.length - 1} onClick=${() => go(step + 1)}>next ›</button>
      <button onClick=${leave}>leave the tour</button></div>
  </div>`;
}

// ---- a table that the simulator has counted, and its chart --------------------------------------

export function Table({ table }) {
  return html`<div class="counted"><h2>${table.title}</h2>${table.table === "herd-effect" ? html`<${Growth} table=${table} />` : null}<div class="scroll" tabindex="0" role="region" aria-label=${table.title}><table><thead><tr>${table.head.map((one) => html`<th scope="col">${one}</th>`)}</tr></thead>
    <tbody>${table.rows.map((row) => html`<tr>${row.map((one) => html`<td>${one}</td>`)}</tr>`)}</tbody></table></div>
    ${table.words.map((one) => html`<p>${one}</p>`)}</div>`;
}

// Reads against members, on two logarithmic axes: a power law is a straight line.
function Growth({ table }) {
  const lines = table.head.map((name, n) => [name, n]).filter(([name]) => name.includes("reads") || name.includes("writes"));
  const width = 360, height = 220, left = 44, low = 26;
  const xs = table.rows.map((row) => Math.log10(row[0]));
  const ys = table.rows.flatMap((row) => lines.map(([, n]) => Math.log10(Math.max(1, row[n]))));
  const [x0, x1, y1] = [Math.min(...xs), Math.max(...xs), Math.max(...ys)];
  const x = (value) => left + ((Math.log10(value) - x0) / (x1 - x0)) * (width - left - 90);
  const y = (value) => height - low - (Math.log10(Math.max(1, value)) / y1) * (height - low - 10);
  // The names at the ends of the lines keep a distance of one row.
  let below = height + 12;
  const names = lines.map(([name, n]) => [name, y(table.rows.at(-1)[n]) + 4]).sort((a, b) => b[1] - a[1]).map(([name, at]) => [name, (below = Math.min(at, below - 12))]);
  return html`<svg class="growth" viewBox="0 0 ${width} ${height}" role="img" aria-label="requests against members, both axes logarithmic">
    ${[1, 10, 100, 1000, 10000].filter((one) => Math.log10(one) <= y1).map((one) => html`<g><line class="grid" x1=${left} x2=${width - 90} y1=${y(one)} y2=${y(one)} /><text x=${left - 6} y=${y(one) + 4} text-anchor="end">${one}</text></g>`)}
    ${table.rows.map((row) => html`<text x=${x(row[0])} y=${height - 8} text-anchor="middle">${row[0]}</text>`)}
    ${lines.map(([name, n], at) => html`<g><polyline class="series s${at}" points=${table.rows.map((row) => `${x(row[0])},${y(row[n])}`).join(" ")} /></g>`)}
    ${names.map(([name, at]) => html`<text class="series-name" x=${width - 86} y=${at}>${name}</text>`)}
  </svg>`;
}

// ---- runs and their differences -----------------------------------------------------------------

export function Runs({ runs, current, other, show, compareWith, counters, seek }) {
  const list = [...runs.values()].filter((run) => run.kind !== "compared");
  const two = other && runs.get(other) && other !== current ? compare(runs.get(current), runs.get(other), counters) : null;
  return html`<div class="runs"><ul>${list.map((run) => html`<li key=${run.number} class=${run.number === current ? "current" : ""}>
      <button onClick=${() => show(run.number)}>${nameOf(run)}</button>
      ${run.number === current ? null : html`<button class="small" onClick=${() => compareWith(run.number === other ? 0 : run.number)}>${run.number === other ? "end comparison" : "compare"}</button>`}</li>`)}</ul>
    ${two ? html`<h2>Differences</h2><p>The first ${two.same} moves are the same.</p>
      ${two.ended ? null : html`<p><button onClick=${() => seek(two.same + 1)}>go to the first difference</button></p>
        <dl class="differ">${[current, other].map((number) => html`<dt>${nameOf(runs.get(number))}</dt><dd>${two.same < runs.get(number).length ? textOf(runs.get(number), two.same) : "has ended"}</dd>`)}</dl>`}
      <table><thead><tr><th scope="col">counted</th><th scope="col">${nameOf(runs.get(current))}</th><th scope="col">${nameOf(runs.get(other))}</th></tr></thead>
      <tbody>${two.rows.map(([name, a, b]) => html`<tr class=${a === b ? "" : "differs"}><th scope="row">${name.replaceAll("_", " ")}</th><td>${round(a)}</td><td>${round(b)}</td></tr>`)}</tbody></table>` : null}
    ${list.length === 1 ? html`<p class="hint">To create a second run, go back in time and act. This run is kept.</p>` : null}</div>`;
}

function round(value) {
  return typeof value === "number" ? Math.round(value * 1000) / 1000 : value;
}

export function nameOf(run) {
  const what = run.title || (run.base.world ? "world" : "run");
  return run.parent ? `${what} ${run.number}: fork of ${run.parent} at ${run.forkedAt}` : `${what} ${run.number}`;
}
