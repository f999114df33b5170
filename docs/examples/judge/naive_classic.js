// The member of the classic protocol that everybody writes first. It works until something changes.
//
//     zkconsumer judge docs/examples/judge/naive_classic.js --challenge heartbeat
"use strict";
const readline = require("readline");

// One member: it joins once, and sends heartbeats and commits from then on.
class Naive {
  constructor() {
    Object.assign(this, { member: "", generation: -1, partitions: 0, apis: [], positions: {} });
  }

  ask(api, more) {
    const id = this.apis.push(api);
    this.out.push({ type: "request", id, api, member: this.member, ...more });
  }

  // ---- the group ------------------------------------------------------------------------------

  metadata(message) {
    this.partitions = message.partitions;
    if (!this.apis.length) this.ask("join_group", { owned: [] });
  }

  join_group(message) {
    if (message.member !== undefined) this.member = message.member;
    if (message.error === "MEMBER_ID_REQUIRED") this.ask("join_group", { owned: [] });
    if (message.error !== "NONE") return;
    this.generation = message.generation;
    const names = Object.keys(message.members || {}).sort(); // only the leader gets the members
    const assignments = Object.fromEntries(names.map((name) => [name, []]));
    for (let one = 0; names.length && one < this.partitions; one++)
      assignments[names[one % names.length]].push(one);
    this.ask("sync_group", { generation: this.generation, assignments });
  }

  sync_group(message) {
    if (message.error !== "NONE") return;
    this.positions = Object.fromEntries(message.assignment.map((one) => [one, 0]));
    this.ask("offset_fetch", { partitions: message.assignment });
  }

  offset_fetch(message) {
    Object.assign(this.positions, message.offsets);
    this.out.push({ type: "deliver", positions: this.positions });
  }

  heartbeat(message) {
    if (message.error === "REBALANCE_IN_PROGRESS") this.ask("join_group", { owned: [] });
  }

  // ---- messages -------------------------------------------------------------------------------

  delivered(message) {
    this.positions[message.partition] = message.offset;
  }

  tick() {
    if (this.generation < 0) return;
    this.ask("heartbeat", { generation: this.generation });
    this.ask("offset_commit", { generation: this.generation, offsets: this.positions });
  }

  close() {
    this.ask("leave_group", {});
  }

  // ---- the protocol ---------------------------------------------------------------------------

  answer(message) {
    this.out = [];
    const handler = message.type === "response" ? this.apis[message.id - 1] : message.type;
    if (this[handler]) this[handler](message);
    const done = { type: "done", closed: message.type === "close" };
    if (["reset", "tick"].includes(message.type)) done.tick_s = 3.0; // replaces an earlier one
    return [...this.out, done];
  }
}

let member;
readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const message = JSON.parse(line);
  if (message.type === "reset") member = new Naive();
  process.stdout.write(member.answer(message).map((one) => JSON.stringify(one) + "\n").join(""));
});
