// The same script on several protocols: their owners on one time axis, and the costs.

import { Component, html, useState } from "./vendor/preact-htm.js";
import { paint } from "./colours.js";
import { Dialog } from "./dialogs.js";
import { NOBODY } from "./model.js";

const SPEED = 6; // virtual seconds in a second while the comparison plays
const LANE = 0.5; // rem: the height of a partition's lane
// The columns of `zkconsumer compare`.
const HEADS = [
  ["session_s", "session timeout of the members, after which the death of a member is noticed"],
  ["moved", "partitions that get another owner"], ["without_need", "moved partitions beyond the minimum that a balanced assignment requires"],
  ["unowned_s", "partition-seconds without an owner, or with a dead or frozen one"], ["stopped_s", "partition-seconds in which a member does not read a partition that it keeps"],
  ["pause_s", "the longest pause of a member"], ["settled_s", "the longest time until the group has settled after a step"],
  ["redelivered", "messages that are delivered again"], ["server", "which servers coordinate the group"],
  ["requests", "requests to these servers"], ["notifications", "watch events"], ["bytes", "bytes of requests, responses and watch events"],
];

// Owners of all partitions of one protocol; drawn once.
class Strip extends Component {
  shouldComponentUpdate(next) {
    return next.run !== this.props.run || next.seconds !== this.props.seconds;
  }

  render({ run, seconds }) {
    const share = (time) => (100 * time) / seconds;
    const bars = [];
    const blocks = new Map(); // neighbouring bars of one owner that begin and end together: they share one label
    run.spans.forEach((spans, number) => spans.forEach(([from, owner], n) => {
      const until = run.times[n + 1 < spans.length ? spans[n + 1][0] : run.length];
      const x = share(run.times[from]);
      const wide = Math.max(0.1, share(until) - x);
      const name = `${run.last.partitions[number][0]}: ${owner === NOBODY ? "no owner" : run.last.members[owner]?.n || "another client"}`;
      bars.push(html`<rect class=${owner === NOBODY ? "none" : ""} x="${x}%" y="${LANE * (number + 0.1)}rem" width="${wide}%" height="${LANE * 0.8}rem"
        fill=${owner === NOBODY ? null : paint(owner).fill}><title>${name}</title></rect>`);
      const key = `${from} ${until} ${owner}`;
      const above = blocks.get(key)?.at(-1);
      if (above && above.last === number - 1) above.last = number;
      else if (owner >= 0 && wide > 2) blocks.set(key, [...(blocks.get(key) || []), { x, owner, first: number, last: number }]);
    }));
    const labels = [...blocks.values()].flat().map(({ x, owner, first, last }) => html`<text x="${x}%" dx="3" y="${(LANE * (first + last + 1)) / 2}rem" fill=${paint(owner).ink}
      style=${{ fontSize: first === last ? `${LANE}rem` : "0.8rem" }}>${owner}</text>`);
    return html`<svg class="strip" style=${{ height: `${LANE * run.spans.length}rem` }} role="img" aria-label="owners over time on ${run.title}">${bars}${labels}</svg>`;
  }
}

export class Compare extends Component {
  state = { t: 0, playing: false };

  componentDidMount() {
    this.loop(performance.now());
  }

  componentWillUnmount() {
    cancelAnimationFrame(this.next);
  }

  loop(now) {
    const seconds = Math.min(0.1, (now - (this.before || now)) / 1000);
    this.before = now;
    if (this.state.playing) {
      const t = Math.min(this.props.compared.seconds, this.state.t + seconds * SPEED);
      this.setState({ t, playing: t < this.props.compared.seconds });
    }
    this.next = requestAnimationFrame((time) => this.loop(time));
  }

  render({ compared, runs, change, close }, { t, playing }) {
    const left = (time) => `${(100 * time) / compared.seconds}%`;
    return html`<section class="compare" aria-label="comparison of protocols">
      <div class="compare-head"><h2>One script on ${compared.runs.length} protocols</h2><code>${compared.script}</code>
        <button onClick=${change}>change</button><button onClick=${close}>close</button></div>
      <div class="compare-time"><button class="primary" onClick=${() => this.setState({ playing: !playing, t: t >= compared.seconds ? 0 : t })} aria-label=${playing ? "pause the comparison" : "play the comparison"}>${playing ? "❚❚" : "▶"}</button>
        <div class="compare-axis"><input type="range" min="0" max=${compared.seconds} step="0.1" value=${t} aria-label="moment of the comparison" aria-valuetext="${t.toFixed(1)} seconds"
            onInput=${(event) => this.setState({ t: Number(event.target.value), playing: false })} />
          ${compared.steps.map((step) => html`<button class="compare-step" style=${{ left: left(step.t) }} onClick=${() => this.setState({ t: step.t, playing: false })}>${step.text}</button>`)}</div>
        <b class="clock">${t.toFixed(1)} s</b></div>
      ${compared.runs.map(({ run: number }) => this.protocol(runs.get(number), t, compared, left))}
      ${this.table(compared)}</section>`;
  }

  protocol(run, t, compared, left) {
    const at = run.atTime(t);
    const picture = run.picture(at);
    const owned = picture.partitions.map((row) => row[1]);
    const free = owned.filter((owner) => owner === NOBODY).length;
    const stalled = owned.filter((owner) => owner >= 0 && picture.members[owner].s !== "up").length;
    return html`<div class="protocol"><div class="protocol-name"><h3>${run.title}</h3>
        <p>${free ? `${free} without an owner` : "all owned"}${stalled ? `, ${stalled} by a member that is not running` : ""}</p></div>
      <div class="protocol-lanes"><${Strip} run=${run} seconds=${compared.seconds} />
        ${compared.steps.map((step) => html`<i class="mark" style=${{ left: left(step.t) }}></i>`)}<i class="cursor" style=${{ left: left(t) }}></i></div>
      <div class="shares">${picture.members.map((member, who) => member.s === "away" ? null : html`<span class="share ${member.s}">
        <i style=${{ background: paint(who).fill }}></i>${member.n} ${owned.filter((one) => one === who).length}${member.s === "up" ? "" : ` ${member.s}`}</span>`)}
        <span class="how">${run.about.words}</span></div></div>`;
  }

  table(compared) {
    return html`<div class="scroll" tabindex="0" role="region" aria-label="costs"><table class="costs"><thead><tr><th scope="col">protocol</th>
        ${HEADS.map(([name, words]) => html`<th scope="col" title=${words}>${name.replaceAll("_", " ")}</th>`)}</tr></thead>
      <tbody>${compared.costs.map((row) => html`<tr><th scope="row">${row.protocol}</th>${HEADS.map(([name]) => html`<td>${row[name]}</td>`)}</tr>`)}</tbody></table>
      <p class="hint">${HEADS.map(([name, words]) => `${name.replaceAll("_", " ")}: ${words}`).join("; ")}. This is the table of “zkconsumer compare”: a step follows 7.5 s after the group has settled, and each partition gets a message in each second.</p></div>`;
  }
}

export function CompareDialog({ catalogue, given, open, close }) {
  const [form, set] = useState(given || { script: catalogue.script, members: 3, partitions: 12, protocols: catalogue.protocols.slice(0, 2) });
  const toggle = (name) => set({ ...form, protocols: catalogue.protocols.filter((one) => (one === name) !== form.protocols.includes(one)) });
  const number = (name, most) => html`<label>${name}<input type="number" name=${name} min="1" max=${most} value=${form[name]} onInput=${(event) => set({ ...form, [name]: Number(event.target.value) })} /></label>`;
  return html`<${Dialog} title="Compare protocols" close=${close}><form class="world" onSubmit=${(event) => { event.preventDefault(); open(form); }}>
    <label class="wide">script: join; leave g_N; kill g_N; freeze g_N SECONDSs<input name="script" value=${form.script} onInput=${(event) => set({ ...form, script: event.target.value })} /></label>
    ${number("members", 16)}${number("partitions", 60)}
    <label>session timeout in seconds; empty: each protocol's default, 6 with ZooKeeper and 45 with a coordinator<input type="number" name="session_s" min="6" max="60" value=${form.session_s || ""} onInput=${(event) => set({ ...form, session_s: Number(event.target.value) || 0 })} /></label>
    <fieldset class="wide"><legend>protocols</legend>${catalogue.protocols.map((name) => html`<label class="check"><input type="checkbox" name=${name} checked=${form.protocols.includes(name)} onChange=${() => toggle(name)} /> ${name}</label>`)}</fieldset>
    <footer><button class="primary" disabled=${!form.protocols.length}>compare</button></footer></form></${Dialog}>`;
}
