// The actions on an object of the picture: a member, a connection, a partition, a znode, …

import { html, useEffect, useRef } from "./vendor/preact-htm.js";
import { coordinatorOf, mayJoin } from "./model.js";
import { NAMED_MESSAGES, programOf, progress } from "./picture.js";

// Return the title and the entries of a menu: [label, move or command, whether it is dangerous].
export function entries(what, which, picture) {
  const member = picture.members[which];
  switch (what) {
    case "member":
      return [member.n, [...(member.why ? [["which program is it, and how does the lab know?", { say: member.why }]] : []), ...memberEntries(member, which)]];
    case "link":
      return [`connection of ${member.n}`, [...linkEntries(member, which), ...crowdEntries(picture, member, which)]];
    case "join":
      return ["start a member", picture.members.map((one, who) => [one, who]).filter(([one]) => mayJoin(one))
        .map(([one, who]) => [`start ${one.n} (${programOf(one)})`, `join:${who}`])];
    case "partition":
      return partitionEntries(picture, which);
    case "zookeeper":
      return ["ZooKeeper", picture.zookeeper.quorum
        ? [["the leader dies; another is elected", "leader_dies"], ["lose the quorum", "quorum_lost"], ["restart all servers", "restart"]]
        : [["the servers come back", "quorum"]]];
    case "server":
      return [`server ${which} of ZooKeeper`, [
        picture.zookeeper.cut.includes(which) ? ["it finds its leader again", `rejoin:${which}`] : ["it loses its leader and keeps its clients", `isolate:${which}`],
        picture.zookeeper.lag.includes(which) ? ["it catches up", `catch_up:${which}`] : ["it lags behind", `lag:${which}`],
      ]];
    case "coordinator":
      return ["the group's coordinator", coordinatorEntries(coordinatorOf(picture))];
    case "kafka":
      return [`broker ${which}`, brokerEntries(coordinatorOf(picture), which)];
    case "transit":
      return transitEntries(picture.members[which.who], which);
    case "broker":
      return ["broker and topic", [
        picture.zookeeper.brokers ? ["the broker's znode disappears", "no_brokers"] : ["the broker comes back", "brokers"],
        ["one more message for each partition", "produce:::1"],
        ["ten more messages for each partition", "produce:::10"],
        ["add a partition", "grow"],
        ...(picture.zookeeper.coordinator ? [] : [picture.zookeeper.topic ? ["delete the topic", "delete_topic"] : ["create the topic", "create_topic"]]),
        picture.zookeeper.hostile ? ["delete the unreadable registration", "disarm"] : ["register an unreadable payload", "hostile:0"],
      ]];
    case "znode":
      return [which, znodeEntries(which, picture)];
  }
  return ["", []];
}

function coordinatorEntries({ leader, kafka, down }) {
  const others = Array.from({ length: kafka }, (_, n) => n).filter((n) => n !== leader && !down.includes(n));
  return [
    ...others.map((n) => [`broker ${n} becomes the coordinator`, `coordinate:${n}`]),
    ...(leader === null ? [] : [["no broker coordinates the group", "no_coordinator"]]),
    ["one more message for each partition", "produce:::1"],
    ["ten more messages for each partition", "produce:::10"],
    ["add a partition", "grow"],
  ];
}

function brokerEntries({ leader, down }, n) {
  if (down.includes(n)) return [["start it again", `revive_broker:${n}`]];
  return [...(leader === n ? [] : [["it becomes the coordinator", `coordinate:${n}`]]), ["it dies", `kill_broker:${n}`]];
}

// One message in transit. TCP keeps the order of messages and loses none alone, so both actions affect those behind it.
function transitEntries(member, { who, way, at }) {
  const isRequest = way === "request";
  const all = (isRequest ? member.w : member.i) || [0];
  const found = [];
  all.slice(1).forEach((text, n) => {
    if (n < at) return;
    const name = n === at ? "it" : `“${text}”`;
    if (n === 0 && member.s === "up") found.push([`${isRequest ? "execute" : "deliver"} ${name} now`, `${isRequest ? "serve" : "receive"}:${who}`]);
    if (isRequest ? text === "held back" : !/^watch|repl/.test(text)) return;
    found.push([`delay ${name}${member.k === "Kafka" ? " by 10 s" : ""}, and all behind it`, `delay_${way}:${who}::${n}`]);
    found.push([`drop ${name}: break the connection before it arrives (TCP cannot lose one message alone)`, `drop_${way}:${who}::${n}`]);
  });
  if ((isRequest ? member.wd : member.id) !== undefined) found.push(["end the delay", `let_go:${who}`]);
  return [`${isRequest ? "from" : "to"} ${member.n}: ${all[1 + at] || `${all[0] - at} more messages`}`, found];
}

// With many members, the first message of each direction has its actions in the menu of the connection.
function crowdEntries(picture, member, who) {
  if (picture.members.filter((one) => one.s !== "away").length <= NAMED_MESSAGES || member.c !== "on") return [];
  return ["request", "reply"].flatMap((way) =>
    transitEntries(member, { who, way, at: 0 })[1].filter(([, move]) => /^(delay|drop)_\w+:\d+::0$/.test(move)).map(([label, move]) => [`${way}: ${label}`, move]));
}

// What an operator can tell a bridge, and how its process ends. Its consumers end with it.
function bridgeEntries(member, who) {
  if (member.role === "consumer") return [];
  if (member.ph === "standby") return [["kill (SIGKILL)", `kill:${who}`]];
  return [
    ["stop (Ctrl-C): it gives all partitions back", `leave:${who}`], ["kill (SIGKILL)", `kill:${who}`],
    ["finish: it leaves both groups when no old member is left", "finish"], ["rollback: it gives all partitions back to the old side", "rollback"],
    ["pause: it keeps the number of its consumers", "pause_bridge"], ["resume", "resume_bridge"],
    ...[25, 50, 75].map((share) => [`the new side gets ${share} %`, `share:::${share}`]), ["the new side's share follows the members", "share"],
  ];
}

function memberEntries(member, who) {
  if (member.s === "away") return [["start", `join:${who}`]];
  if (member.s === "dead" || member.s === "left") return [["start again under its id", `revive:${who}`]];
  if (member.role) return bridgeEntries(member, who);
  const freeze = member.s === "frozen" ? ["thaw (SIGCONT)", `thaw:${who}`] : ["freeze (SIGSTOP)", `freeze:${who}`];
  return [
    ...(member.s === "frozen" ? [] : [["shut down", `leave:${who}`]]),
    ["kill (SIGKILL)", `kill:${who}`],
    freeze,
    member.slow ? ["its user finishes messages again", `hurry:${who}`] : ["its user becomes slow", `slow:${who}`],
    ...(member.k === "Kafka" ? [["an operator removes it from the group", `remove:${who}`]]
      : [["commit now", `commit:${who}`], ["delete its id znode", `delete_id:${who}`]]),
  ];
}

function linkEntries(member, who) {
  if (member.s === "dead" || member.s === "left") return [];
  if (member.k === "Kafka")
    return [
      ["cut the connections", `cut:${who}`],
      member.c === "muted" ? ["the network works again", `unmute:${who}`] : ["the network drops everything", `mute:${who}`],
      member.held ? ["deliver the requests that are held back", `let_go:${who}`] : ["hold back all requests", `hold:${who}`],
    ];
  return [
    ...(member.c === "on" ? [["cut the connection", `cut:${who}`], ["lose the next reply", `lose_reply:${who}`], ["the network drops everything", `mute:${who}`], ["ZooKeeper ends the session", `expire:${who}`]] : []),
    ...(member.c === "muted" ? [["the network works again", `unmute:${who}`]] : []),
    member.held || member.wd !== undefined || member.id !== undefined ? ["end the delay", `let_go:${who}`] : ["delay all requests, replies and watches, but no heartbeats", `hold:${who}`],
    ...(member.w && member.c === "on" && !member.held ? [["ZooKeeper executes the next request now", `serve:${who}`]] : []),
    ...(member.i && member.s === "up" && !member.held ? [["deliver the next reply or watch now", `receive:${who}`]] : []),
  ];
}

function partitionEntries(picture, number) {
  const row = picture.partitions[number];
  const tp = row[0].replace(/-(\d+)$/, "~$1");
  const found = [[`which member should own it, and why?`, { explain: number }]];
  if (picture.zookeeper.protocol) return [`${row[0]}: ${progress(row)}`, found];
  if (row[1] >= 0) found.push(["delete its owner znode", `delete_owner::${tp}`]);
  if (row[1] === -1) found.push(["another client claims it", `stuck::${tp}`], ["a persistent owner znode appears", `orphan::${tp}`]);
  if (row[1] === -2) found.push(["delete the other client's owner znode", `unstick::${tp}`]);
  if (row[2] !== null)
    found.push(["an operator resets its offset to 0", `edit::${tp}`], ["a former owner commits offset 0", `zombie::${tp}`],
      ["write an offset …", { offset: tp }], ["write an unreadable offset", `mangle::${tp}`]);
  if (row[2] !== null && !/^\d+$/.test(row[2])) found.push(["make the offset readable", `repair::${tp}`]);
  return [`${row[0]}: ${progress(row)}`, found];
}

function znodeEntries(path, picture) {
  const parts = path.split("/");
  const [, , , directory, name, number] = parts;
  if (path.startsWith("/coordinator/members/")) {
    const who = picture.members.findIndex((one) => one.n === parts[3]);
    return who < 0 || picture.members[who].role ? [] : [["an operator removes it from the group", `remove:${who}`]];
  }
  if (directory === "owners" && number !== undefined) return [["delete it", `delete_owner::${name}~${number}`]];
  if (directory === "offsets" && number !== undefined)
    return [["write an offset …", { offset: `${name}~${number}` }], ["an operator resets it to 0", `edit::${name}~${number}`], ["make it unreadable", `mangle::${name}~${number}`]];
  const who = picture.members.findIndex((one) => one.n === name);
  if (directory === "ids" && picture.members[who]?.role) return [];
  if (directory === "ids" && who >= 0) return [["delete it", `delete_id:${who}`]];
  if (directory === "ids" && name) return [["delete it", "disarm"]];
  if (path.startsWith("/brokers/ids/")) return [["delete it", "no_brokers"]];
  if (path.startsWith("/brokers/topics/")) return [["add a partition", "grow"], ...(picture.zookeeper.coordinator ? [] : [["delete it", "delete_topic"]])];
  return [];
}

export function Menu({ open, picture, choose, close, canAct, permits }) {
  const ref = useRef(null);
  useEffect(() => {
    ref.current?.querySelector("button")?.focus();
  }, [open]);
  const [title, all] = entries(open.what, open.which, picture);
  const found = all.filter(([, move]) => move.explain !== undefined || move.say || (canAct && permits(typeof move === "string" ? move : "set_offset")));
  const keys = (event) => {
    const buttons = [...ref.current.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    if (event.key === "Escape") close();
    else if (event.key === "ArrowDown") buttons[(at + 1) % buttons.length]?.focus();
    else if (event.key === "ArrowUp") buttons[(at + buttons.length - 1) % buttons.length]?.focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const style = { left: `${Math.min(open.x, innerWidth - 300)}px`, top: `${Math.max(8, Math.min(open.y, innerHeight - 60 - 34 * (found.length + 1)))}px` };
  return html`<div class="menu-ground" onClick=${close}><div class="menu" role="menu" aria-label=${title} style=${style} ref=${ref} onKeyDown=${keys}
      onClick=${(event) => event.stopPropagation()}>
    <div class="menu-title">${title}</div>
    ${found.map(([label, move]) => html`<button role="menuitem" onClick=${() => choose(move)}>${label}</button>`)}
    ${found.length ? null : html`<button role="menuitem" onClick=${close}>nothing can be done here</button>`}
  </div></div>`;
}
