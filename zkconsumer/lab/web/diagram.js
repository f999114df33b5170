// The space-time diagram: a vertical line for each member and server, time downwards, messages as arrows.

import { Component, html } from "./vendor/preact-htm.js";
import { causesOf, cutOf } from "./causes.js";
import { paint } from "./colours.js";

const REM = parseFloat(getComputedStyle(document.documentElement).fontSize) || 16;
const ROW = Math.round(REM * 1.15); // pixels of one move
const LEFT = Math.round(REM * 4.2); // pixels of the times
const COLUMN = Math.round(REM * 4.6); // least pixels between two lines
const MARGIN = 30; // moves that are drawn above and below the visible part
const NEAR = REM; // pixels within which the pointer is at an event
const EXPORTED = 2000; // most moves of an exported diagram: the last ones
const ORDINARY = new Set(["serve", "receive", "connect", "notice", "ask", "time", "overtake", "read", "post", "pass_time", "produce"]);

export const KINDS = { request: "request", commit: "commit of offsets", reply: "reply", watch: "watch event", fetch: "fetch from the log", ensemble: "between ZooKeeper's servers" };

// ---- geometry -----------------------------------------------------------------------------------

// Positions in pixels: moves downwards, and the events of one move one below the other within it.
function placed(causes, width) {
  const { events, lines, starts } = causes;
  const step = Math.max(COLUMN, (width - LEFT) / lines.length);
  const columns = new Map(lines.map((line, n) => [line, LEFT + step * (n + 0.5)]));
  const inMove = (event) => (event.number - starts[event.at - 1] + 1) / ((starts[event.at] ?? events.length) - starts[event.at - 1] + 1);
  return { width: LEFT + step * lines.length, columns, x: (event) => columns.get(event.line), y: (event) => (event.at - 1 + inMove(event)) * ROW };
}

// The arrows that touch the moves from `first` to `last`. A message of before the record comes from the top.
function arrowsOf(causes, place, first, last) {
  const found = [];
  const top = (at) => Math.max(0, (at - 1.6) * ROW);
  for (const event of causes.events) {
    if (event.at < first || event.at > last + MARGIN * 4) continue;
    for (const message of event.received) {
      const sender = causes.events[message.sent];
      if (sender && sender.at > last) continue;
      const to = [place.x(event), place.y(event)];
      const from = sender ? [place.x(sender), place.y(sender)] : [to[0] - COLUMN * 0.4, top(event.at)];
      found.push({ ...message, from, to, receiver: event.number });
    }
  }
  for (const message of causes.lost) {
    const sender = causes.events[message.sent];
    if (message.at < first || !place.columns.has(message.line) || (sender && sender.at > last)) continue;
    const y = (message.at - 0.5) * ROW;
    const start = sender ? [place.x(sender), place.y(sender)] : [place.columns.get(message.line) - COLUMN * 0.4, top(message.at)];
    const end = [start[0] + (place.columns.get(message.line) - start[0]) * 0.7, y];
    found.push({ ...message, from: start, to: end, isLost: true });
  }
  return found;
}

function faultsOf(run, first, last) {
  const found = [];
  for (let n = Math.max(1, first); n <= Math.min(run.length, last); n++) {
    const frame = run.frames[n - 1];
    if (!ORDINARY.has((frame.d || "").split(":")[0])) found.push({ at: n, text: frame.l });
  }
  return found;
}

const path = ({ from, to }) => `M${from.map((one) => one.toFixed(1)).join(" ")}L${to.map((one) => one.toFixed(1)).join(" ")}`;

// The cut as points from the left to the right: below its last event on each line, and at the top of other lines.
function cutPath(causes, place, number) {
  const cut = cutOf(causes, number);
  const points = causes.lines.map((line) => {
    const last = cut.get(line);
    return [place.columns.get(line), last === undefined ? 2 : place.y(causes.events[last]) + 4];
  });
  return `M${points.map((point) => point.map((one) => one.toFixed(1)).join(" ")).join("L")}`;
}

// ---- the view -----------------------------------------------------------------------------------

export class Diagram extends Component {
  constructor() {
    super();
    this.state = { top: 0, height: 400, focus: null };
  }

  componentDidMount() {
    this.follow();
    this.sizes = new ResizeObserver(() => this.setState({ height: this.box.clientHeight, width: this.box.clientWidth }));
    this.sizes.observe(this.box);
  }

  componentWillUnmount() {
    this.sizes.disconnect();
  }

  componentDidUpdate(before) {
    if (before.at !== this.props.at || before.run !== this.props.run) this.follow();
  }

  // Keep the shown move in the visible part.
  follow() {
    const y = this.props.at * ROW;
    const { scrollTop, clientHeight } = this.box;
    if (y < scrollTop + 2 * ROW || y > scrollTop + clientHeight - 3 * ROW) this.box.scrollTop = y - clientHeight / 2;
  }

  focus(number) {
    if (number === null || number === this.state.focus) return;
    this.setState({ focus: number });
  }

  // The event that the pointer is at, or null.
  near(event, causes, place) {
    const box = this.svg.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const at = Math.floor(y / ROW) + 1;
    let best = null;
    for (let n = causes.starts[Math.max(0, at - 2)] ?? 0; n < (causes.starts[at + 1] ?? causes.events.length); n++) {
      const far = Math.hypot(place.x(causes.events[n]) - x, place.y(causes.events[n]) - y);
      if (far < NEAR && (!best || far < best.far)) best = { far, n };
    }
    return best?.n ?? null;
  }

  key(event, causes) {
    const { events, lines, starts } = causes;
    const now = Math.min(this.state.focus ?? Math.max(0, (starts[this.props.at] ?? events.length) - 1), events.length - 1);
    const line = lines.indexOf(events[now].line);
    const along = (step) => {
      for (let n = now + step; n >= 0 && n < events.length; n += step) if (events[n].line === events[now].line) return n;
      return now;
    };
    const across = (step) => {
      const wanted = lines[(line + step + lines.length) % lines.length];
      const nearest = events.filter((one) => one.line === wanted).sort((a, b) => Math.abs(a.number - now) - Math.abs(b.number - now));
      return nearest[0]?.number ?? now;
    };
    const found = { ArrowUp: () => along(-1), ArrowDown: () => along(1), ArrowLeft: () => across(-1), ArrowRight: () => across(1) }[event.key];
    if (event.key === "Enter") this.props.seek(events[now].at);
    else if (found) {
      const focus = found();
      this.setState({ focus });
      const y = events[focus].at * ROW;
      if (y < this.box.scrollTop + ROW || y > this.box.scrollTop + this.box.clientHeight - 2 * ROW) this.box.scrollTop = y - this.box.clientHeight / 2;
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  render({ run, at, veiled }, { top, height, focus, width }) {
    const causes = causesOf(run);
    if (!causes) return html`<div class="diagram" ref=${(box) => (this.box = box || this.box)}><p class="hint">${run.length ? "This run has no record of its messages." : "Play, or go one move forward: the diagram begins with the first move."}</p></div>`;
    const shown = Math.min(focus ?? -1, causes.events.length - 1);
    const place = placed(causes, (width || 800) - 4);
    const first = Math.max(1, Math.floor(top / ROW) - MARGIN);
    const last = veiled ? at : Math.min(run.length, Math.ceil((top + height) / ROW) + MARGIN);
    const pointed = (event) => this.focus(this.near(event, causes, place));
    return html`<div class="diagram-view">
      <div class="diagram" ref=${(box) => (this.box = box || this.box)} tabindex="0" role="group" aria-roledescription="space-time diagram" aria-describedby="diagram-event"
          aria-label="space-time diagram: ↑ and ↓ go to the next event of a line, ← and → to another line, Enter shows the move"
          onScroll=${() => this.setState({ top: this.box.scrollTop, height: this.box.clientHeight })} onKeyDown=${(event) => this.key(event, causes)}>
        <div class="diagram-lines" style=${{ width: `${place.width}px` }}>${causes.lines.map((line) => html`<b key=${line} style=${{ left: `${place.columns.get(line)}px` }}>${line}</b>`)}</div>
        <svg ref=${(svg) => (this.svg = svg)} width=${place.width} height=${(run.length + 1) * ROW} aria-hidden="true" onPointerMove=${pointed}
            onClick=${(event) => { const found = this.near(event, causes, place); if (found !== null) this.props.seek(causes.events[found].at); }}>
          ${HEADS}${this.nodes(run, causes, place, first, last)}
          <line class="moment" x1="0" x2=${place.width} y1=${at * ROW} y2=${at * ROW} />
          ${shown >= 0 && causes.events[shown].at <= last ? html`<path class="cut" d=${cutPath(causes, place, shown)} /><circle class="focus" cx=${place.x(causes.events[shown])} cy=${place.y(causes.events[shown])} r="7" />` : null}
        </svg></div>
      <div class="diagram-event" id="diagram-event" role="status">${shown >= 0 && causes.events[shown].at <= last ? html`<${EventText} causes=${causes} run=${run} number=${shown} />` : "Point at an event, or use the arrow keys: the line shows the last events that it depends on, one on each line."}</div>
      <${DiagramLegend} /></div>`;
  }

  nodes(run, causes, place, first, last) {
    const { columns, x, y } = place;
    const nodes = causes.lines.map((line, n) => html`<line key=${line} class="world-line" x1=${columns.get(line)} x2=${columns.get(line)} y1="0" y2=${(run.length + 1) * ROW} style=${colourOf(run, line, n)} />`);
    for (const fault of faultsOf(run, first, last))
      nodes.push(html`<line class="fault" x1=${LEFT} x2=${place.width} y1=${(fault.at - 1) * ROW} y2=${(fault.at - 1) * ROW} /><text class="fault-text" x=${place.width - 4} y=${(fault.at - 1) * ROW - 3} text-anchor="end">⚡ ${fault.text}</text>`);
    for (const arrow of arrowsOf(causes, place, first, last)) {
      if (causes.events[arrow.receiver]?.at > last) continue;
      nodes.push(html`<path class="message ${arrow.kind} ${arrow.isLost ? "lost" : ""}" d=${path(arrow)} marker-end="url(#${arrow.isLost ? "lost" : "arrow"})"><title>${KINDS[arrow.kind]}: ${arrow.text}${arrow.isLost ? " (lost)" : ""}</title></path>`);
    }
    for (const event of causes.events) {
      if (event.at < first || event.at > last) continue;
      nodes.push(html`<circle class="event" cx=${x(event)} cy=${y(event)} r="3.2"><title>${event.line}: ${event.text}</title></circle>`);
    }
    for (let n = first; n <= last; n += 5) nodes.push(html`<text class="tick" x="2" y=${n * ROW - 3}>${run.times[n].toFixed(3)}</text>`);
    return nodes;
  }
}

const HEADS = html`<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" orient="auto"><path class="arrow-head" d="M0 0L8 4L0 8z" /></marker>
  <marker id="lost" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="11" markerHeight="11" markerUnits="userSpaceOnUse"><path class="lost-head" d="M1 1L7 7M7 1L1 7" /></marker></defs>`;

// The colour of a member's line; all other lines have the colour of the text.
function colourOf(run, line) {
  const who = run.last.members.findIndex((member) => member.n === line);
  return who < 0 ? {} : { stroke: paint(who).fill, strokeWidth: 5 };
}

function DiagramLegend() {
  return html`<div class="legend diagram-legend">${Object.entries(KINDS).map(([kind, words]) => html`<span><svg width="30" height="10" aria-hidden="true"><path class="message ${kind}" d="M1 5L28 5" marker-end="url(#arrow)" /></svg>${words}</span>`)}
    <span><svg width="30" height="10" aria-hidden="true"><path class="message request lost" d="M1 5L22 5" marker-end="url(#lost)" /></svg>lost</span>
    <span><svg width="30" height="10" aria-hidden="true"><path class="cut" d="M1 5L28 5" /></svg>consistent cut</span></div>`;
}

// ---- the events of a move, with the rules that decided them ---------------------------------------

function EventText({ causes, run, number }) {
  const event = causes.events[number];
  const cut = [...cutOf(causes, number)].filter(([line, last]) => last !== undefined && line !== event.line);
  return html`<p><b>${event.line}</b>, move ${event.at}, ${run.times[event.at].toFixed(3)} s: ${event.text}</p>
    ${event.received.map((one) => html`<p>${one.kind}: ${one.text}${one.sent < 0 ? " (sent before the first move)" : ` (from ${causes.events[one.sent].line}, move ${causes.events[one.sent].at})`}</p>`)}
    ${event.rules.map((rule) => html`<${Rule} rule=${rule} />`)}
    <p>${cut.length ? `It depends on ${cut.map(([line, last]) => `${line} up to move ${causes.events[last].at}`).join(", ")}.` : "It depends on no other line."}</p>`;
}

function Rule({ rule }) {
  const [name, ...words] = rule.split(": ");
  return html`<p class="rule"><code>${name}</code> ${words.join(": ")}</p>`;
}

export function StepPanel({ run, at }) {
  const causes = causesOf(run);
  if (!at || !causes) return html`<p class="hint">${at ? "This run has no record of its messages." : "No move has happened yet."}</p>`;
  const events = causes.events.slice(causes.starts[at - 1], causes.starts[at] ?? causes.events.length);
  return html`<div class="step"><p class="hint">What each process does in this move, and the rule of the code that decides it.</p>
    ${events.map((event) => html`<section key=${event.number}><h2>${event.line}</h2><p>${event.text}</p>
      ${event.received.map((one) => html`<p class="hint">${one.kind}: ${one.text}</p>`)}${event.rules.map((rule) => html`<${Rule} rule=${rule} />`)}</section>`)}
    ${events.length ? null : html`<p>No process acts.</p>`}</div>`;
}

// ---- export -------------------------------------------------------------------------------------

const INK = { request: "#0072b2", commit: "#7a3e9d", reply: "#333333", watch: "#b35900", fetch: "#2e7d32", ensemble: "#999999" };
const DASHES = { reply: "6 3", watch: "2 3", ensemble: "1 3" };
const esc = (text) => String(text).replace(/[&<>"]/g, (one) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[one]);

// The diagram of a whole run, or of its last moves, as one SVG file.
export function diagramSvg(run, width = 1000) {
  const causes = causesOf(run);
  const place = placed(causes, width);
  const first = Math.max(1, run.length - EXPORTED + 1);
  const top = (first - 1) * ROW - 60;
  const height = (run.length - first + 2) * ROW + 70;
  const parts = [`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 ${top} ${place.width} ${height}" font-family="sans-serif" font-size="11">`,
    `<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>`,
    `<rect x="0" y="${top}" width="${place.width}" height="${height}" fill="#ffffff"/>`,
    `<text x="6" y="${top + 20}" font-size="15" font-weight="bold">${esc(run.title || "a simulated group")}${first > 1 ? `: moves ${first} to ${run.length}` : ""}</text>`];
  for (const line of causes.lines) {
    const x = place.columns.get(line);
    parts.push(`<text x="${x}" y="${top + 44}" text-anchor="middle" font-weight="bold">${esc(line)}</text>`);
    parts.push(`<line x1="${x}" x2="${x}" y1="${top + 50}" y2="${top + height - 6}" stroke="#666666"/>`);
  }
  for (const fault of faultsOf(run, first, run.length)) {
    parts.push(`<line x1="${LEFT}" x2="${place.width}" y1="${(fault.at - 1) * ROW}" y2="${(fault.at - 1) * ROW}" stroke="#b00020" stroke-dasharray="4 3"/>`);
    parts.push(`<text x="${place.width - 4}" y="${(fault.at - 1) * ROW - 3}" text-anchor="end" fill="#b00020">${esc(fault.text)}</text>`);
  }
  for (const arrow of arrowsOf(causes, place, first, run.length)) {
    const dashes = DASHES[arrow.kind] ? ` stroke-dasharray="${DASHES[arrow.kind]}"` : "";
    const end = arrow.isLost ? "" : ' marker-end="url(#arrow)"';
    parts.push(`<path d="${path(arrow)}" stroke="${INK[arrow.kind]}"${dashes}${end} fill="none"><title>${esc(arrow.text)}${arrow.isLost ? " (lost)" : ""}</title></path>`);
    if (arrow.isLost) parts.push(`<text x="${arrow.to[0]}" y="${arrow.to[1] + 4}" text-anchor="middle" fill="#b00020">✕</text>`);
  }
  for (const event of causes.events) {
    if (event.at < first) continue;
    parts.push(`<circle cx="${place.x(event)}" cy="${place.y(event).toFixed(1)}" r="2.8"><title>${esc([`${event.line}: ${event.text}`, ...event.rules].join("\n"))}</title></circle>`);
  }
  for (let n = first; n <= run.length; n += 5) parts.push(`<text x="4" y="${n * ROW - 3}" fill="#555555">${run.times[n].toFixed(3)} s</text>`);
  parts.push("</svg>");
  return parts.join("\n") + "\n";
}
