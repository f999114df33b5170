// The picture: ZooKeeper above, members as columns with their threads below, and all partitions.

import { Component, html } from "./vendor/preact-htm.js";
import { paint } from "./colours.js";
import { CELL_WORDS, NOBODY, SIDE_WORDS, STRANGER, bridged, cellState, coordinatorOf, deliverers, mayJoin, shortened } from "./model.js";

export const NAMED_MESSAGES = 6; // members whose messages in transit are objects; more members show their number
// Characters of a partition's name in the grid, by size of its cells, and in a member's column. Tooltips show full names.
const NAME_SIZES = { large: 16, medium: 14, small: 6, tiny: 6 };
const COLUMN_NAME = 14;
const WORDS = {
  away: "not started", up: "", dead: "killed", left: "left", frozen: "frozen",
};
const LINKS = {
  on: "connected", off: "not connected", lost: "connection broken, not noticed", muted: "network drops everything",
};

// Draws again only if its own values have changed: a move changes few members and cells.
class Pure extends Component {
  shouldComponentUpdate(next) {
    for (const name in next) if (next[name] !== this.props[name]) return true;
    return false;
  }
}

export function Picture({ picture, run, menu, canAct, selected }) {
  const { by, cells } = derived(picture, run.about.group || SIMULATED_GROUP);
  const shown = picture.members.map((member, who) => [member, who]).filter(([member]) => member.s !== "away");
  const frame = picture.frame;
  const actor = frame ? Number((frame.d || "").split(":")[1] || -1) : -1;
  const verb = frame ? (frame.d || "").split(":")[0] : "";
  const joint = !!picture.zookeeper.coordinator;
  const size = shown.length <= (joint ? 4 : 6) ? "wide" : shown.length <= 16 ? "middle" : "narrow";
  const away = picture.members.filter(mayJoin).length;
  const coordinator = coordinatorOf(picture);
  return html`<div class="picture">
    <div class="bars">${picture.zookeeper.protocol ? null : html`<${ZooKeeper} zookeeper=${picture.zookeeper} menu=${menu} canAct=${canAct} kind=${run.kind} verb=${verb} />`}
      ${coordinator ? html`<${Coordinator} zookeeper=${coordinator} menu=${menu} canAct=${canAct} />` : null}</div>
    <div class="members ${size} ${joint ? "joint" : ""}" role="list" aria-label="members">
      ${shown.map(([member, who]) => html`<${Member} key=${who} who=${who} member=${member} names=${picture.partitions.length}
          menu=${menu} canAct=${canAct} kind=${run.kind} group=${run.about.group || ""} flash=${actor === who ? verb + picture.at : ""} selected=${selected === who}
          crowd=${shown.length > NAMED_MESSAGES} left=${leaseLeft(member, picture.t)} cells=${cells[who]} />`)}
      ${away > 0 && canAct
        ? html`<div class="seat" role="listitem"><button class="join" onClick=${(event) => menu("join", null, event)} title="start another member (key j)">
            <b>+</b><span>${away} may join</span></button></div>`
        : null}
    </div>
    <${Partitions} picture=${picture} by=${by} menu=${menu} />
  </div>`;
}

function leaseLeft(member, t) {
  if (member.k === "jvm" || member.lease === undefined || member.s === "left" || member.s === "dead") return "";
  return Math.max(0, member.lease - t).toFixed(1);
}

// The members that deliver each partition, and each member's cells as one string, so that an unchanged column
// is not drawn again. Most moves change neither members nor partitions.
let last = {};
function derived(picture, group) {
  if (last.partitions === picture.partitions && last.members === picture.members) return last;
  const by = deliverers(picture);
  const texts = partitionNames(picture, COLUMN_NAME);
  const cells = picture.members.map(() => []);
  picture.partitions.forEach((row, number) => {
    const cell = `${number}|${row[0]}|${cellState(row, by[number], picture.members)}|${row[1]}|${threadOf(picture, group, row[0])}|${texts.get(row[0])}`;
    if (row[1] >= 0) cells[row[1]]?.push(cell);
    for (const who of by[number]) if (who !== row[1]) cells[who].push(cell);
    const holder = bridged(row, picture.members)?.znode ?? NOBODY;
    if (holder >= 0 && holder !== row[1]) cells[holder].push(cell.replace(/^(\d+\|[^|]*\|)[^|]*/, "$1lent"));
  });
  last = { partitions: picture.partitions, members: picture.members, by, cells: cells.map((found) => found.join(";")) };
  return last;
}

// name -> text of at most `most` characters; computed again only if a partition was added.
const shown = new Map();
function partitionNames(picture, most) {
  const names = picture.partitions.map((row) => row[0]);
  const last = shown.get(most);
  if (last?.names.length === names.length && names.every((name, n) => name === last.names[n])) return last.texts;
  const texts = shortened(names, most);
  shown.set(most, { names, texts });
  return texts;
}

const SIMULATED_GROUP = "g";

// The number of the thread that the owner znode of a partition names; "" if there is none.
function threadOf(picture, group, name) {
  const data = picture.tree.get(`/consumers/${group}/owners/${name.replace(/-(\d+)$/, "/$1")}`)?.data || "";
  return /-\d+$/.test(data) ? data.slice(data.lastIndexOf("-") + 1) : "";
}

function ZooKeeper({ zookeeper, menu, canAct, kind, verb }) {
  const broken = zookeeper.quorum === false;
  const servers = Array.from({ length: zookeeper.replicas || 0 }, (_, n) => n);
  const text = broken ? "no leader: nothing can be written" : zookeeper.text || "has a leader";
  return html`<div class="zookeeper ${broken ? "broken" : ""}">
    <button class="zk-name" disabled=${!canAct} onClick=${(event) => menu("zookeeper", null, event)} aria-haspopup="menu">ZooKeeper</button>
    <span class="zk-state">${broken ? "✕ " : "✓ "}${text}</span>
    ${servers.map((n) => html`<button key=${n} class="server ${zookeeper.cut?.includes(n) ? "cut" : ""}" disabled=${!canAct}
        onClick=${(event) => menu("server", n, event)} aria-haspopup="menu">server ${n}${
          zookeeper.cut?.includes(n) ? ": cut off" : zookeeper.lag?.includes(n) ? ": lags" : ""}</button>`)}
    <button class="server broker ${zookeeper.brokers === false ? "cut" : ""}" disabled=${!canAct} aria-haspopup="menu"
      onClick=${(event) => menu("broker", null, event)}>${zookeeper.brokers === false ? "no broker is registered" : "broker"}</button>
    ${zookeeper.topic === false ? html`<span class="warn">the topic is deleted</span>` : null}
    ${zookeeper.hostile ? html`<span class="warn">an unreadable registration blocks the group</span>` : null}
  </div>`;
}

// The group's coordinator and the brokers, in the place of ZooKeeper.
function Coordinator({ zookeeper, menu, canAct }) {
  const broken = zookeeper.leader === null;
  return html`<div class="zookeeper ${broken ? "broken" : ""}">
    <button class="zk-name" disabled=${!canAct} onClick=${(event) => menu("coordinator", null, event)} aria-haspopup="menu">coordinator: ${zookeeper.protocol}</button>
    <span class="zk-state">${broken ? "✕ " : "✓ "}${zookeeper.text}</span>
    ${Array.from({ length: zookeeper.kafka }, (_, n) => html`<button key=${n} class="server ${n ? "" : "broker"} ${zookeeper.down.includes(n) ? "cut" : ""}" disabled=${!canAct}
      onClick=${(event) => menu("kafka", n, event)} aria-haspopup="menu">broker ${n}${zookeeper.down.includes(n) ? ": down" : zookeeper.leader === n ? ": coordinator" : ""}</button>`)}
  </div>`;
}

const SHOWN_ITEMS = 2; // messages of each direction that are objects of the picture; a further one is in a menu

// The messages of one direction, if there are few members: requests on the left of the wire, replies and watches on its right.
function Messages({ way, messages, delayed, who, menu, canAct }) {
  const arrow = way === "request" ? "↑" : "↓";
  const look = way === "request" ? "up" : "down";
  const shown = messages.slice(1, 1 + SHOWN_ITEMS);
  const left = messages[0] - shown.length;
  return html`<span class="way ${look}">
    ${shown.map((text, at) => html`<button key=${at} class="chip ${look} fresh ${delayed <= at ? "held" : ""}" disabled=${!canAct} aria-haspopup="menu"
      title=${text} onClick=${(event) => menu("transit", { who, way, at }, event)}>${arrow} ${text}${delayed <= at ? " (delayed)" : ""}</button>`)}
    ${left ? html`<button class="chip ${look} fresh" disabled=${!canAct} aria-haspopup="menu" title="messages in transit"
      onClick=${(event) => menu("transit", { who, way, at: shown.length }, event)}>${arrow} +${left}</button>` : null}</span>`;
}

class Member extends Pure {
  render({ selected, who, member, menu, canAct, flash, crowd, left, cells, kind, group }) {
    const { fill, ink, pattern } = paint(who);
    const state = WORDS[member.s] ?? member.s;
    const busy = member.s === "up" && !["settled", "consuming", "stable", "registered", "standby"].includes(member.ph);
    const word = member.k === "Kafka" ? "session" : "lease";
    const messages = { who, menu, canAct };
    return html`<div class="column ${member.s} ${member.side ? `side-${member.side}` : ""} link-${member.c} ${flash ? "acting" : ""} ${selected ? "selected" : ""}" role="listitem" data-member=${who}>
      <div class="link-box"><button class="link" disabled=${!canAct} onClick=${(event) => menu("link", who, event)} aria-haspopup="menu">
        <span class="hidden">connection of ${member.n}: ${LINKS[member.c] || member.c}</span>
        <svg viewBox="0 0 40 100" preserveAspectRatio="none" aria-hidden="true">
          <line x1="20" y1="0" x2="20" y2="100" class="wire ${member.c}" /></svg>
        ${crowd && member.w ? html`<span class="chip up">↑ ${member.w[0]}</span>` : null}
        ${crowd && member.i ? html`<span class="chip down">↓ ${member.i[0]}</span>` : null}
        ${member.held ? html`<span class="chip held">delayed</span>` : null}
        ${member.c !== "on" && member.s !== "left" && member.s !== "dead" ? html`<span class="chip bad">✕ ${LINKS[member.c] || member.c}</span>` : null}
      </button>
        ${!crowd && member.w ? html`<${Messages} way="request" messages=${member.w} delayed=${member.wd} ...${messages} />` : null}
        ${!crowd && member.i ? html`<${Messages} way="reply" messages=${member.i} delayed=${member.id} ...${messages} />` : null}</div>
      <button class="head p${pattern}" style=${{ background: fill, color: ink }} disabled=${!canAct && !member.why}
          onClick=${(event) => menu("member", who, event)} aria-haspopup="menu">
        <b class=${member.n.length > 8 ? "long" : ""}>${member.n.length > 8 ? `#${who} ` : ""}<span class="full" title=${member.n}>${ownPart(member.n, group)}</span></b>
        <span class="kind" title=${member.why}>${programOf(member)}</span>
      </button>
      <div class="body">
        <div class="phase ${busy ? "busy" : ""}">${state || phaseText(member)}${member.slow ? ", slow user" : ""}</div>
        ${member.k === "jvm" && member.release ? html`<div class="lease release">Kafka ${member.release}</div>` : null}
        ${member.note ? html`<div class="lease">${member.note}</div>` : null}
        ${left !== "" && member.s !== "away"
          ? html`<div class="lease ${left === "0.0" ? "over" : ""}">${word} ${left === "0.0" ? "over" : `${left} s`}</div>`
          : member.k === "jvm" && member.s === "up" && kind === "simulated" ? html`<div class="lease">no lease</div>` : null}
        <${Threads} cells=${cells} member=${member} menu=${menu} who=${who} />
      </div>
    </div>`;
  }
}

export function programOf(member) {
  if (member.role) return member.role === "bridge" ? "the bridge" : "its consumer";
  return member.k === "jvm" ? "JVM" : member.k === "zk" ? "zkconsumer" : member.k;
}

// A long name without the group's name, with which the names of all members begin.
function ownPart(name, group) {
  return name.length > 8 && name.startsWith(`${group}_`) ? name.slice(group.length + 1) : name;
}

function phaseText(member) {
  if (member.k === "jvm" && !member.ph) return "consuming";
  return (member.ph || "").replaceAll("_", " ");
}

// The partitions of a member, by thread if they belong to several threads.
class Threads extends Pure {
  render({ cells, menu, who }) {
    const rows = cells ? cells.split(";").map((one) => one.split("|")) : [];
    const threads = [...new Set(rows.map((row) => row[4]))].sort((a, b) => a - b);
    const draw = (some) => some.map(([number, name, state, owner, , text]) =>
      html`<${Cell} key=${number} number=${Number(number)} name=${name} text=${text} state=${state} owner=${Number(owner)} who=${who} menu=${menu} small=${true} />`);
    if (threads.length > 1)
      return html`${threads.map((thread) => html`<div class="cells thread" key=${thread}><span class="none">${thread === "" ? "no thread" : `thread ${thread}`}</span>${draw(rows.filter((row) => row[4] === thread))}</div>`)}`;
    return html`<div class="cells">${draw(rows)}
      ${rows.length ? null : html`<span class="none">no partition</span>`}</div>`;
  }
}

class Cell extends Pure {
  render({ label, number, name, text, state, owner, who, menu, small, row, both }) {
    const { fill, ink, pattern } = paint(state === "double" || state === "unsure" || state === "foreign" ? who : owner);
    const style = ["free", "double", "unsure", "foreign"].includes(state) ? {} : { background: fill, color: ink };
    return html`<button class="cell ${state} p${pattern} ${both ? `side-${both.side}` : ""}" style=${style} onClick=${(event) => menu("partition", number, event)}
        title="${name}: ${CELL_WORDS[state]}${row ? `; ${progress(row)}` : ""}" aria-haspopup="menu">
      <span class="name">${text}</span>${small ? null : html`<span class="owner">${state === "double" ? "2×" : label}</span>${row?.[5] ? html`<span class="flow">${flow(row)}</span>` : null}`}
      ${both ? html`<span class="flow">${bothOffsets(row, both)}</span>` : null}
      ${row && !small ? html`<${Bar} row=${row} />` : null}</button>`;
  }
}

// Returns a short name unchanged, and for a long name the number that its column shows.
function ownerText(owner, members) {
  if (owner < 0) return owner === NOBODY ? "–" : "?";
  return shortName(members[owner]?.n || "", owner);
}

function shortName(name, who) {
  return name && name.length <= 8 ? name : `#${who}`;
}

// The offsets in both stores, and where a partition is on its way to the other side.
function bothOffsets(row, { kafka, stage }) {
  return `${row[2] ?? "–"} / ${kafka ?? "–"}${stage && stage !== "lent" ? ` ${stage}` : ""}`;
}

export function progress(row) {
  const of = ["stored", "delivered", "end"].map((name, n) => (row[2 + n] === null ? "" : `${name} ${row[2 + n]}`));
  if (row.length >= 9) of[0] = `stored in ZooKeeper ${row[2] ?? "nothing"}, in Kafka ${row[7] ?? "nothing"}${row[8] ? `; for the bridge ${row[8]}` : ""}`;
  return [of[0] || "no offset stored", of[1], of[2], flow(row)].filter(Boolean).join(", ");
}

// The lag of a live group's partition, and its rate or that it is blocked or idle.
function flow(row) {
  return row[5] ? `lag ${Math.max(0, row[4] - row[2])}, ${row[5]}` : "";
}

// Stored, delivered and existing messages as one bar; the last 40 messages are its width.
function Bar({ row }) {
  const end = row[4] || 0;
  const from = Math.max(0, end - 40);
  const width = Math.max(1, end - from);
  const share = (value) => `${Math.max(0, Math.min(100, (100 * (value - from)) / width))}%`;
  return html`<span class="bar" aria-hidden="true"><i class="delivered" style=${{ width: share(row[3]) }}></i>
    <i class="stored" style=${{ width: share(Number(row[2]) || 0) }}></i></span>`;
}

function Partitions({ picture, by, menu }) {
  const count = picture.partitions.length;
  const size = count <= 12 ? "large" : count <= 96 ? "medium" : count <= 600 ? "small" : "tiny";
  const texts = partitionNames(picture, NAME_SIZES[size]);
  return html`<div class="partitions ${size}" style=${{ "--name": longest(picture) }} role="group" aria-label="partitions, each with its owner">
    ${picture.partitions.map((row, number) => html`<${Cell} key=${number} number=${number} name=${row[0]} text=${texts.get(row[0])} row=${size === "large" || size === "medium" ? row : null}
        both=${size === "large" ? bridged(row, picture.members) : null}
        state=${cellState(row, by[number], picture.members)} owner=${row[1]} who=${by[number][0] ?? -1} menu=${menu} label=${ownerText(row[1] < 0 && by[number].length ? by[number][0] : row[1], picture.members)} />`)}
  </div>`;
}

// The number of characters of the longest name, which sets the width of large cells.
function longest(picture) {
  return picture.partitions.length > 12 ? 0 : Math.min(NAME_SIZES.large, Math.max(0, ...picture.partitions.map((row) => row[0].length))) + 1;
}

export function Legend({ joint }) {
  const items = [
    ["read", "delivered"], ["held", "not delivered yet"], ["stalled", "owner not running"],
    ["free", "no owner"], ["double", "delivered by two or a non-owner"],
  ];
  return html`<div class="legend">${items.map(([state, words]) => html`<span><i class="cell ${state}"></i>${words}</span>`)}
    ${joint ? html`${Object.entries(SIDE_WORDS).map(([side, words]) => html`<span><i class="cell side-${side}"></i>${words}</span>`)}<span>5 / 7: offset in ZooKeeper / in Kafka</span>` : null}
    <span><i class="cell"><i class="bar"><i class="delivered" style=${{ width: "70%" }}></i><i class="stored" style=${{ width: "40%" }}></i></i></i>stored, delivered, existing</span></div>`;
}
