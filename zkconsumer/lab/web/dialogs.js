// Dialogs: a new world, the list of tours and scenarios, export, and help.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";

export function Dialog({ title, close, children }) {
  const ref = useRef(null);
  useEffect(() => {
    const dialog = ref.current;
    if (dialog && !dialog.open) dialog.showModal();
    dialog?.querySelector("form select, form input, li button")?.focus();
  }, []);
  return html`<dialog ref=${ref} aria-label=${title} onClose=${close} onClick=${(event) => event.target === ref.current && close()}>
    <header><h2>${title}</h2><button onClick=${close} aria-label="close">✕</button></header>${children}</dialog>`;
}

export function WorldDialog({ catalogue, open, close }) {
  const [world, set] = useState({ members: 3, jvm: "none", spare: 3, partitions: 6, threads: 1, topics: "", strategy: "range", release: catalogue.releases[0], flow: 1, seed: 0, session_s: 6, protocol: "zookeeper", new_members: 3 });
  const hasBridge = world.protocol.startsWith("bridge");
  const coordinated = world.protocol !== "zookeeper" && !hasBridge;
  const choose = (event) => set({ ...world, protocol: event.target.value, session_s: SESSIONS_S[event.target.value.split("-")[0]] });
  const field = (name, label, type = "number", more = {}) => html`<label>${label}<input type=${type} name=${name} value=${world[name]} ...${more}
    onInput=${(event) => set({ ...world, [name]: type === "number" ? Number(event.target.value) : event.target.value })} /></label>`;
  const choice = (name, label, options) => html`<label>${label}<select name=${name} value=${world[name]} onChange=${(event) => set({ ...world, [name]: event.target.value })}>
    ${options.map(([value, text]) => html`<option value=${value} selected=${value === world[name]}>${text}</option>`)}</select></label>`;
  const submit = (event) => {
    event.preventDefault();
    if (coordinated) {
      const { members, spare, partitions, flow, seed, session_s, protocol } = world;
      return open({ members, spare, partitions, flow, seed, session_s, protocol });
    }
    const slots = world.members + world.spare;
    const { new_members, ...withoutNew } = world;
    const every = { none: [], all: [...Array(slots).keys()], second: [...Array(slots).keys()].filter((n) => n % 2) };
    if (hasBridge) {
      const { members, spare, partitions, flow, seed, session_s, protocol } = world;
      return open({ members, spare, jvm: every[world.jvm], new_members, partitions, flow, seed, session_s, protocol });
    }
    open({ ...withoutNew, jvm: every[world.jvm], topics: world.topics.split(/[\s,]+/).filter(Boolean) });
  };
  return html`<${Dialog} title="New world" close=${close}><form class="world" onSubmit=${submit}>
    <label class="wide">protocol<select name="protocol" value=${world.protocol} onChange=${choose}>
      ${catalogue.worlds.map((one) => html`<option value=${one} selected=${one === world.protocol}>${WORLD_WORDS[one] || one}</option>`)}</select></label>
    ${field("members", hasBridge ? "old members" : "members", "number", { min: 0, max: catalogue.limits.members })}
    ${field("spare", hasBridge ? "old members that may join later" : "members that may join later", "number", { min: 0, max: catalogue.limits.members })}
    ${coordinated ? null : choice("jvm", "JVM members", [["none", "none"], ["second", "every second one"], ["all", "all"]])}
    ${hasBridge ? field("new_members", "new members that may join", "number", { min: 0, max: catalogue.limits.members }) : null}
    ${field("partitions", "partitions", "number", { min: 1, max: catalogue.limits.partitions })}
    ${coordinated || hasBridge ? null : html`${field("threads", "threads of each member", "number", { min: 1, max: 16 })}
    ${field("topics", "further topics", "text", { placeholder: "more other" })}
    ${choice("strategy", "strategy", catalogue.strategies.map((one) => [one, one]))}
    ${choice("release", "rules of Kafka", catalogue.releases.map((one) => [one, one]))}`}
    ${field("flow", coordinated || hasBridge ? "new messages in each second" : "new messages when time advances", "number", { min: 0, max: 10 })}
    ${field("session_s", hasBridge ? "session timeout in ZooKeeper, in seconds" : "session timeout in seconds", "number", { min: hasBridge ? 10 : coordinated ? 6 : 1, max: 60 })}
    ${field("seed", coordinated ? "seed (0: all messages take 1 ms)" : "seed (0: the client or server that has waited longest acts next)", "number", { min: 0 })}
    <footer><button class="primary">open the world</button></footer></form></${Dialog}>`;
}

const SESSIONS_S = { zookeeper: 6, classic: 45, consumer: 45, bridge: 12 };

const WORLD_WORDS = {
  "bridge-eager": "ZooKeeper and coordinator, with a bridge (new members: range)",
  "bridge-cooperative": "ZooKeeper and coordinator, with a bridge (new members: cooperative-sticky)",
  zookeeper: "ZooKeeper (zkconsumer, JVM members)", "classic-eager": "coordinator, classic, eager (range)",
  "classic-cooperative": "coordinator, classic, cooperative (cooperative-sticky)", consumer: "coordinator, KIP-848 (consumer)",
};

export function LibraryDialog({ catalogue, tour, scenario, open, close }) {
  const card = (one) => html`<li><button onClick=${() => tour(one.name)}>${one.lesson ? `${one.lesson} ` : ""}${one.title}</button></li>`;
  return html`<${Dialog} title="Tours and scenarios" close=${close}>
    <h3>The ten lessons</h3><ol class="cards">${catalogue.tours.filter((one) => one.lesson).map(card)}</ol>
    <h3>More tours</h3><ul class="cards">${catalogue.tours.filter((one) => !one.lesson).map(card)}</ul>
    <h3>Famous runs</h3><ul class="stories famous">${catalogue.famous.map((one) => html`<li><button onClick=${() => open(one.address)}><b>${one.title}</b> ${one.text}</button>
      <a href=${one.url} target="_blank" rel="noreferrer">report: ${one.report}</a></li>`)}</ul>
    <h3>What happens when …</h3><ul class="stories">${catalogue.scenarios.map((one) => html`<li><button onClick=${() => scenario(one.name)}><b>${one.title}</b> ${one.lesson}</button></li>`)}</ul>
  </${Dialog}>`;
}

export function ExportDialog({ save, close, kinds }) {
  const all = [["html", "a page with a player: one file, no server"], ["svg", "the lanes as SVG"], ["diagram", "the space-time diagram as SVG"], ["shiviz", "a log with vector clocks; ShiViz reads it with its default regular expression"], ["jsonl", "JSON lines: a trace, in which `zkconsumer trace check` replays the zkconsumer members"], ["frames", "JSON lines: the frames of this page"]];
  return html`<${Dialog} title="Export this run" close=${close}><ul class="stories framed">${all.filter(([kind]) => kinds.includes(kind)).map(([kind, text]) =>
    html`<li><button onClick=${() => save(kind)}><b>${kind === "frames" ? "frames.jsonl" : kind}</b> ${text}</button></li>`)}</ul></${Dialog}>`;
}

const KEYS = [
  ["space", "play or pause"], ["→ ←", "one move forward or back"], ["shift → ←", "next or previous change of owner"], ["Home End", "start, end of the run"],
  ["+ −", "faster, slower"], ["1 … 9", "choose what happens next (panel “next”)"], ["j", "start the next member"], ["[ ]", "select a member"],
  ["k f c l", "kill, freeze or thaw, cut, shut down the selected member"], ["w t b x e", "new world, tours and scenarios, search for a counterexample, compare protocols, export"], ["v", "the space-time diagram, or the picture again; in the diagram, the arrow keys go from event to event"], ["d", "dark or light"], ["?", "this help"],
];

export function HelpDialog({ close, situations, opensFiles }) {
  return html`<${Dialog} title="Help" close=${close}>
    <p>Each column is a member. Each cell is a partition in its owner's colour, with the owner's name. A hatched cell has no owner. A red cell is delivered by two members, or by a member that does not own it. Click a member, its connection, a cell, a znode, ZooKeeper or the broker to act on it.</p>
    <p>An action in the past creates a second run; the first run is kept, and you can compare both. The address contains the world and all actions, so everyone who opens it sees the same run.</p>
    <table class="keys"><tbody>${[...KEYS, ...(opensFiles ? [["o", "open the trace of a recorded run; you can also drop the file on the page"]] : [])].map(([key, words]) => html`<tr><th scope="row"><kbd>${key}</kbd></th><td>${words}</td></tr>`)}
      ${situations.map(([key, , , words]) => html`<tr><th scope="row"><kbd>shift ${key}</kbd></th><td>${words}</td></tr>`)}</tbody></table>
  </${Dialog}>`;
}
