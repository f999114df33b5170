// The time axis: one lane for each partition and each member, as SVG. A click or a drag scrubs.

import { Component, html } from "./vendor/preact-htm.js";
import { paint } from "./colours.js";
import { NOBODY, shortened } from "./model.js";

export const SHOWN_LANES = 40; // maximum number of partitions' lanes; the page counts the omitted ones
const REM = parseFloat(getComputedStyle(document.documentElement).fontSize) || 16;
const ROW = Math.max(14, Math.round(REM * 1.05)); // pixels, as all text of the page grows with the screen
const LABEL = 16; // characters of a lane's name; the tooltip shows the full name
const LETTER = REM * 0.46; // mean width of a character of a label, in pixels

export class Lanes extends Component {
  shouldComponentUpdate(next) {
    return next.at !== this.props.at || next.run !== this.props.run || next.length !== this.props.length ||
      next.width !== this.props.width || next.byTime !== this.props.byTime || next.zoom !== this.props.zoom || next.beside !== this.props.beside || next.height !== this.props.height || next.veiled !== this.props.veiled;
  }

  // `beside` is the second of two runs; both share one axis, and `at` is a move of the first one.
  // `height` is the height in pixels into which the rows shall fit; `veiled` hides what follows `at`.
  render({ run, at, width, byTime, seek, zoom, beside, height: free, veiled }) {
    const scale = scaleOf(run, width, byTime, at, zoom, beside || run);
    const key = `${scale.key}:${free}`;
    if (this.drawn?.key !== key) this.drawn = { key, nodes: draw(run, scale, free, beside ? 0.66 : 0.78) };
    const { nodes, ticks, height, omitted } = this.drawn.nodes;
    const x = scale.x(Math.min(at, run.length));
    const point = (event) => {
      const box = event.currentTarget.getBoundingClientRect();
      seek(scale.at(event.clientX - box.left));
    };
    return html`<div class="lanes">
      <svg width=${width} height=${height} role="img" aria-label="owners of each partition over time; use the slider to move"
          onPointerDown=${(event) => { event.currentTarget.setPointerCapture(event.pointerId); point(event); }}
          onPointerMove=${(event) => { if (event.buttons) point(event); }}>
        ${nodes}
      </svg>
      <svg class="ticks" width=${width} height=${ROW + 6} aria-hidden="true">${ticks}</svg>
      ${veiled ? html`<div class="veil" style=${{ left: `${x + 2}px`, height: `${height + ROW + 6}px` }}><span>hidden until you show the answer</span></div>` : null}
      <i class="now" style=${{ transform: `translateX(${x}px)`, height: `${height + ROW + 6}px` }}></i>
      ${omitted ? html`<p class="omitted">${omitted} more partitions have no lane here.</p>` : null}
    </div>`;
  }
}

// Positions by number of moves, or by virtual time; a run that is longer than the zoom scrolls.
function scaleOf(run, width, byTime, at, zoom, beside) {
  const left = Math.max(leftOf(run), leftOf(beside));
  const inner = Math.max(50, width - left - 12);
  const count = Math.max(1, run.length, beside.length);
  const span = zoom ? Math.min(count, zoom) : count;
  const page = zoom ? Math.floor(Math.max(0, at - 1) / span) * span : 0;
  const first = Math.min(page, Math.max(0, count - span));
  const time = (one, n) => one.times[Math.min(n, one.length)];
  const t0 = Math.min(time(run, first), time(beside, first));
  const t1 = Math.max(time(run, first + span), time(beside, first + span), t0 + 0.001);
  const x = byTime
    ? (n) => left + (inner * (run.times[Math.min(n, run.length)] - t0)) / (t1 - t0)
    : (n) => left + (inner * (n - first)) / span;
  const back = byTime
    ? (px) => run.atTime(t0 + ((px - left) / inner) * (t1 - t0))
    : (px) => Math.round(first + ((px - left) / inner) * span);
  return {
    x, first, span, last: Math.min(Math.max(1, run.length), first + span), key: `${run.number}:${run.length}:${beside.number}:${beside.length}:${width}:${byTime}:${first}:${span}`,
    at: (px) => Math.max(0, Math.min(run.length, back(px))), t0, t1, byTime, inner, left,
  };
}

// The texts of the lanes: of partitions in their order, and of members.
function labelsOf(run) {
  const partitions = run.last.partitions.slice(0, SHOWN_LANES).map((row) => row[0]);
  const members = run.last.members.map((member) => member.n);
  return { partitions: shortened(partitions, LABEL), members: shortened(members, LABEL) };
}

// Width of the labels in pixels.
function leftOf(run) {
  const { partitions, members } = labelsOf(run);
  return Math.round(8 + LETTER * Math.max(8, ...[...partitions.values(), ...members.values()].map((text) => text.length)));
}

// Rows become lower, at least `least` rem, if all of them then fit without scrolling.
function rowHeight(rows, height, least) {
  const fits = (height - ROW - 14) / rows;
  return fits < REM * least ? ROW : Math.min(ROW, fits);
}

function draw(run, scale, height, least) {
  const nodes = [];
  const labels = labelsOf(run);
  const shown = Math.min(SHOWN_LANES, run.spans.length);
  const members = run.states.map((states, who) => [states, who]).filter(([states]) => states.length > 1 || states[0][1] !== "away");
  const row = rowHeight(shown + Math.min(SHOWN_LANES, members.length), height, least);
  const base = row * 0.76; // from the top of a row to the base of its text
  const end = scale.last;
  for (let n = 0; n < shown; n++) {
    const y = n * row;
    const name = run.last.partitions[n][0];
    nodes.push(html`<text class="label" x="4" y=${y + base}>${labels.partitions.get(name)}<title>${name}</title></text>`);
    bars(run.spans[n], scale, end, (from, to, owner) => {
      const x = scale.x(from);
      const wide = Math.max(0.8, scale.x(to) - x);
      const { fill, ink } = paint(owner);
      if (owner === NOBODY) nodes.push(html`<rect class="hole" x=${x} y=${y + 3} width=${wide} height=${row - 6} fill="url(#hatch)" />`);
      else nodes.push(html`<rect x=${x} y=${y + 1} width=${wide} height=${row - 3} rx="2" fill=${fill}><title>${name}: ${memberName(run, owner)}</title></rect>`);
      if (owner !== NOBODY && wide > 16) nodes.push(html`<text class="inbar" x=${x + 4} y=${y + base} fill=${ink}>${owner < 0 ? "?" : owner}</text>`);
    });
  }
  let y = shown * row + 6;
  for (const [states, who] of members.slice(0, SHOWN_LANES)) {
    const top = y;
    const { fill } = paint(who);
    nodes.push(html`<text class="label" x="4" y=${top + base}>${labels.members.get(memberName(run, who)) ?? memberName(run, who)}<title>${memberName(run, who)}</title></text>`);
    bars(states, scale, end, (from, to, look) => {
      if (look === "away" || look === "left") return;
      const x = scale.x(from);
      nodes.push(html`<rect class="life ${look}" x=${x} y=${look === "busy" ? top + 3 : top + row / 2 - 1.5} width=${Math.max(0.8, scale.x(to) - x)}
        height=${look === "busy" ? row - 6 : 3} fill=${fill}><title>${memberName(run, who)}: ${look}</title></rect>`);
    });
    y += row;
  }
  const rows = new Map(members.map(([, who], n) => [who, shown * row + 6 + n * row + row / 2]));
  for (const [at, who, what] of run.marks) {
    if (at < scale.first || at > end || !rows.has(who)) continue;
    nodes.push(what === "watch"
      ? html`<circle class="watch" cx=${scale.x(at)} cy=${rows.get(who)} r="2.6" />`
      : html`<path class="again" d="M${scale.x(at) - 3} ${rows.get(who) - 3}l6 6m0-6l-6 6"><title>${what === "ended" ? "session ended" : "redelivered"}</title></path>`);
  }
  for (const [at, text] of run.captions) {
    if (at < scale.first || at > end) continue;
    nodes.push(html`<line class="said" x1=${scale.x(at)} x2=${scale.x(at)} y1="0" y2=${y}><title>${text}</title></line>`);
  }
  if (run.parent && run.forkedAt >= scale.first) {
    nodes.push(html`<line class="forked" x1=${scale.x(run.forkedAt)} x2=${scale.x(run.forkedAt)} y1="0" y2=${y} />`);
  }
  const ticks = [];
  const last = Math.max(2, Math.min(8, Math.floor(scale.inner / (5 * REM))));
  const digits = scale.t1 - scale.t0 < 20 ? 3 : scale.t1 < 100 ? 2 : 0;
  for (let tick = 0; tick <= last && run.length > 1; tick++) {
    const x = scale.left + (scale.inner * tick) / last;
    const t = scale.byTime ? scale.t0 + ((scale.t1 - scale.t0) * tick) / last : run.times[Math.round(scale.first + (scale.span * tick) / last)];
    if (t === undefined) break; // the run is shorter than the run beside it
    ticks.push(html`<text class="tick" x=${tick === last ? x - 4 : x} y=${ROW} text-anchor=${tick === last ? "end" : "middle"}>${t.toFixed(digits)} s</text>`);
  }
  return { nodes: [html`<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
      <rect width="6" height="6" class="hatch-ground" /><rect width="2.4" height="6" class="hatch-line" /></pattern></defs>`, nodes], ticks,
    height: y, omitted: run.spans.length - shown };
}

export function LanesLegend() {
  const line = (look) => html`<svg width="22" height="10" aria-hidden="true"><rect class="life ${look}" x="1" y=${look === "busy" ? 1 : 3.5} width="20" height=${look === "busy" ? 8 : 3} /></svg>`;
  const items = [
    [html`<svg width="22" height="10" aria-hidden="true"><rect x="1" y="0" width="20" height="10" rx="2" class="bar-sample" /><text class="inbar" x="8" y="9">1</text></svg>`, "owned by member 1"],
    [html`<svg width="22" height="10" aria-hidden="true"><rect class="hole" x="1" y="1" width="20" height="8" fill="url(#hatch)" /></svg>`, "no owner"],
    [line("settled"), "member has settled"], [line("busy"), "member rebalances"], [line("offline"), "not connected"], [line("frozen"), "frozen"], [line("dead"), "killed"],
    [html`<svg width="10" height="10" aria-hidden="true"><circle class="watch" cx="5" cy="5" r="2.6" /></svg>`, "a watch fires"],
    [html`<svg width="10" height="10" aria-hidden="true"><path class="again" d="M2 2l6 6m0-6l-6 6" /></svg>`, "session ended, or message redelivered"],
  ];
  return html`<div class="legend lanes-legend">${items.map(([sample, words]) => html`<span>${sample}${words}</span>`)}</div>`;
}

function memberName(run, who) {
  return who < 0 ? "another client" : run.last.members[who]?.n || `member ${who}`;
}

function bars(spans, scale, end, each) {
  for (let n = 0; n < spans.length; n++) {
    const from = Math.max(spans[n][0], scale.first);
    const to = Math.min(n + 1 < spans.length ? spans[n + 1][0] : end, end);
    if (to > from || (to === from && n === spans.length - 1 && from === scale.first)) each(from, to, spans[n][1]);
  }
}
