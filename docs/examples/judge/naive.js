// The member that everybody writes first. It works, until something goes wrong.
//
//     zkconsumer judge docs/examples/judge/naive.js --challenge claim
"use strict";
const readline = require("readline");

// One member. `ask` sends a request, and calls a function with the reply.
class Naive {
  constructor(reset) {
    Object.assign(this, { me: reset.member, topic: reset.topic, streams: reset.streams });
    this.wallMs = reset.wall_ms;
    this.root = "/consumers/" + reset.group;
    this.out = [];
    this.waiting = new Map();
    this.lastId = 0;
    this.session = null;
    this.positions = new Map();
    this.committed = new Map();
  }

  ask(then, op, path, more = {}) {
    this.waiting.set(++this.lastId, then);
    this.out.push({ type: "request", id: this.lastId, op, path, ...more });
  }

  // ---- the group ------------------------------------------------------------------------------

  connected(message) {
    if (this.session !== null) return;
    this.session = message.session;
    const belowTopic = [`/owners/${this.topic}`, `/offsets/${this.topic}`];
    for (const path of ["", "/ids", "/owners", "/offsets", ...belowTopic])
      this.ask(null, "create", this.root + path);
    const subscription = { [this.topic]: this.streams };
    const payload = { version: 1, subscription, pattern: "static", timestamp: `${this.wallMs}` };
    const data = JSON.stringify(payload);
    this.ask(null, "create", `${this.root}/ids/${this.me}`, { data, ephemeral: true });
    this.ask((it) => this.members(it), "children", `${this.root}/ids`, { watch: true });
  }

  watch() {
    this.ask((it) => this.members(it), "children", `${this.root}/ids`);
  }

  members(reply) {
    this.threads = [];
    this.names = new Set(reply.children || []);
    for (const name of this.names)
      this.ask((it) => this.registration(name, it), "get", `${this.root}/ids/${name}`);
  }

  registration(name, reply) {
    const streams = reply.data ? JSON.parse(reply.data).subscription[this.topic] : 0;
    for (let number = 0; number < streams; number++) this.threads.push(`${name}-${number}`);
    this.names.delete(name);
    if (!this.names.size) this.ask((it) => this.assign(it), "get", `/brokers/topics/${this.topic}`);
  }

  assign(reply) {
    if (!reply.data || !this.threads.length) return;
    const partitions = Object.keys(JSON.parse(reply.data).partitions).map(Number);
    partitions.sort((a, b) => a - b);
    this.commit(); // stop the world: give everything back
    for (const partition of this.positions.keys())
      this.ask(null, "delete", `${this.root}/owners/${this.topic}/${partition}`);
    this.positions.clear();
    this.threads.sort();
    const each = Math.floor(partitions.length / this.threads.length);
    const more = partitions.length % this.threads.length;
    this.threads.forEach((thread, at) => {
      const first = each * at + Math.min(at, more);
      if (thread.startsWith(this.me + "-"))
        for (const partition of partitions.slice(first, first + each + (at < more ? 1 : 0)))
          this.claim(partition, thread);
    });
  }

  claim(partition, thread) {
    const path = `${this.root}/owners/${this.topic}/${partition}`;
    this.ask(null, "create", path, { data: thread, ephemeral: true });
    const offsets = `${this.root}/offsets/${this.topic}/${partition}`;
    this.ask((it) => this.offset(partition, it), "get", offsets);
  }

  // ---- messages -------------------------------------------------------------------------------

  offset(partition, reply) {
    if (reply.data !== undefined) this.committed.set(partition, Number(reply.data));
    this.positions.set(partition, this.committed.get(partition) || 0);
  }

  poll(message) {
    for (const [partition, offset] of [...this.positions].sort((a, b) => a[0] - b[0]))
      if (offset < message.ends[partition]) {
        this.positions.set(partition, offset + 1);
        this.out.push({ type: "deliver", partition, offset });
        return;
      }
  }

  tick() {
    this.commit();
  }

  commit() {
    for (const [partition, offset] of this.positions) {
      if (offset === (this.committed.get(partition) || 0)) continue;
      const op = this.committed.has(partition) ? "set" : "create";
      this.committed.set(partition, offset);
      const path = `${this.root}/offsets/${this.topic}/${partition}`;
      this.ask(null, op, path, { data: String(offset) });
    }
  }

  close() {
    this.commit();
  }

  reply(message) {
    const then = this.waiting.get(message.id);
    this.waiting.delete(message.id);
    if (then) then(message);
  }

  // ---- the protocol ---------------------------------------------------------------------------

  answer(message) {
    this.out = [];
    if (this[message.type]) this[message.type](message);
    const done = { type: "done" };
    if (["connected", "tick"].includes(message.type)) done.tick_s = 2.0;
    if (message.type === "close") done.closed = true;
    return [...this.out, done];
  }
}

let member;
readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const message = JSON.parse(line);
  if (message.type === "reset") member = new Naive(message);
  process.stdout.write(member.answer(message).map((one) => JSON.stringify(one) + "\n").join(""));
});
