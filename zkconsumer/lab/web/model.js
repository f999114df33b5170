// A run as the page keeps it: the first picture, one frame for each move, and pictures in between.
// Pictures are never changed: applying a frame gives a new picture that shares the unchanged parts.

const KEY_EVERY = 100; // number of frames between two kept pictures: a jump applies at most this many frames
export const NOBODY = -1;
export const STRANGER = -2;

export function firstPicture(scene) {
  return {
    t: scene.t,
    at: 0,
    members: scene.members,
    partitions: scene.partitions,
    tree: new Map(Object.entries(scene.tree).map(([path, [data, session]]) => [path, { data, session, at: -1 }])),
    gone: [],
    zookeeper: scene.zookeeper,
    counters: scene.counters,
    frame: null,
  };
}

export function apply(picture, frame) {
  const next = { ...picture, t: frame.t, at: picture.at + 1, frame, gone: [] };
  if (frame.c) next.counters = frame.c;
  if (frame.k) next.zookeeper = frame.k;
  if (frame.m) {
    next.members = picture.members.slice();
    for (const who in frame.m) next.members[who] = frame.m[who];
  }
  if (frame.flow || frame.p || frame.new) {
    const rows = frame.flow
      ? picture.partitions.map((row) => [row[0], row[1], row[2], row[3], row[4] + frame.flow])
      : picture.partitions.slice();
    for (const name of frame.new || []) rows.push([name, NOBODY, null, 0, 0]);
    for (const number in frame.p || {}) rows[number] = [rows[number][0], ...frame.p[number]];
    next.partitions = rows;
  }
  if (frame.z) {
    next.tree = new Map(picture.tree);
    for (const [path, node] of Object.entries(frame.z)) {
      if (node === null) {
        next.tree.delete(path);
        next.gone.push(path);
      } else next.tree.set(path, { data: node[0], session: node[1], at: next.at });
    }
  }
  return next;
}

export class Run {
  constructor(opened) {
    this.number = opened.run;
    this.kind = opened.kind || "simulated";
    this.scene = opened.scene;
    this.parent = opened.parent || 0;
    this.forkedAt = opened.forked_at || 0;
    this.title = opened.title || "";
    this.lesson = opened.lesson || "";
    this.base = opened.base || {};
    this.about = opened.about || {};
    this.moves = "";
    this.rests = false;
    this.frames = [];
    this.kept = 0; // number of moves that the user has seen; the later ones were only fetched
    this.omitted = 0;
    this.clear();
  }

  clear() {
    this.keys = [this.base0 || firstPicture(this.scene)];
    this.last = this.keys[0];
    this.spans = this.last.partitions.map((row) => [[0, row[1]]]);
    this.changes = [];
    this.captions = [];
    this.marks = [];
    this.states = this.last.members.map((member) => [[0, lane(member)]]);
    this.times = [this.last.t];
    if (this.scene.say) this.captions.push([0, this.scene.say]);
  }

  get length() {
    return this.frames.length;
  }

  keep(length) {
    this.kept = Math.max(this.kept, length);
  }

  // Replace the frames from a move on.
  put(from, frames) {
    if (from < this.frames.length) {
      const kept = this.frames.slice(0, from);
      this.frames = [];
      this.clear();
      this.put(0, kept);
    }
    for (const frame of frames) this.add(frame);
  }

  add(frame) {
    this.frames.push(frame);
    const picture = apply(this.last, frame);
    const at = picture.at;
    this.times.push(frame.t);
    for (const name of frame.new || []) this.spans.push([[at, NOBODY]]);
    for (const number in frame.p || {}) {
      const spans = this.spans[number];
      const owner = frame.p[number][0];
      if (spans[spans.length - 1][1] !== owner) spans.push([at, owner]);
    }
    for (const who in frame.m || {}) {
      const look = lane(frame.m[who]);
      const states = (this.states[who] ||= [[0, "away"]]);
      if (states[states.length - 1][1] !== look) states.push([at, look]);
    }
    for (const event of frame.x || []) {
      if (event[0] === "watch" || event[0] === "ended" || (event[0] === "delivered" && event[4]))
        this.marks.push([at, event[1], event[0]]);
    }
    if (frame.o) this.changes.push(at);
    if (frame.say) this.captions.push([at, frame.say]);
    if (at % KEY_EVERY === 0) this.keys.push(picture);
    this.last = picture;
  }

  // Drop the oldest frames, so that a page that is open for days does not grow.
  trim(most) {
    if (this.length <= most) return 0;
    const dropped = this.length - Math.floor(most / 2);
    const kept = this.frames.slice(dropped);
    this.base0 = { ...this.picture(dropped), at: 0, frame: null, gone: [] };
    this.frames = [];
    this.omitted += dropped;
    this.clear();
    this.put(0, kept);
    return dropped;
  }

  // The picture after `at` moves.
  picture(at) {
    if (at >= this.length) return this.last;
    let picture = this.keys[Math.floor(at / KEY_EVERY)];
    for (let n = picture.at; n < at; n++) picture = apply(picture, this.frames[n]);
    return picture;
  }

  caption(at) {
    let found = "";
    for (const [from, text] of this.captions) if (from <= at) found = text;
    return found;
  }

  // The move after which the next (or previous) change of owner is done; null if none is known.
  change(at, direction) {
    if (direction > 0) return this.changes.find((one) => one > at) ?? null;
    return this.changes.findLast((one) => one < at) ?? null;
  }

  // The move that was the last one at a time, by bisection.
  atTime(t) {
    let low = 0;
    let high = this.times.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.times[middle] <= t) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}

function lane(member) {
  if (member.s !== "up") return member.s;
  if (member.c !== "on") return "offline";
  return BUSY.has(member.ph) ? "busy" : "settled";
}

const BUSY = new Set([
  "registering", "recovering", "reading", "stopping", "committing", "before_release", "releasing",
  "claiming", "before_start", "loading", "verifying", "waiting", "leaving", "rebalancing", "failed", "idle",
  "unjoined", "preparing", "completing", "joining", "reconciling", "acknowledging", "fenced", "stale",
]);

// partition -> the members that deliver it now
export function deliverers(picture) {
  const by = picture.partitions.map(() => []);
  picture.members.forEach((member, who) => {
    if (member.s === "up" && member.open) for (const number of member.f) by[number]?.push(who);
  });
  return by;
}

export function cellState(row, by, members) {
  const owner = row[1];
  if (by.length > 1) return "double";
  if (owner === NOBODY) return by.length ? "unsure" : "free";
  if (owner === STRANGER) return "stranger";
  const member = members[owner];
  if (!member || member.s !== "up") return "stalled";
  if (by.length === 1 && by[0] !== owner) return "foreign";
  return by.length ? "read" : "held";
}

// name -> text of at most about `most` characters. A shortened name shows an ellipsis, keeps its end with the
// number of the partition, and differs from all other texts.
export function shortened(names, most) {
  const found = new Map();
  let open = [...new Set(names)];
  for (let length = most; open.length; length++) {
    const texts = open.map((name) => (name.length <= length ? name : ellipsis(name, length)));
    const taken = new Map();
    for (const text of [...found.values(), ...texts]) taken.set(text, (taken.get(text) || 0) + 1);
    open.forEach((name, n) => taken.get(texts[n]) === 1 && found.set(name, texts[n]));
    open = open.filter((name) => !found.has(name));
  }
  return found;
}

function ellipsis(name, length) {
  const head = Math.floor((length - 1) / 2);
  return `${name.slice(0, head)}…${name.slice(head + 1 - length)}`;
}

// Whether the user can start a member; a bridge starts and ends its consumers itself.
export function mayJoin(member) {
  return member.s === "away" && member.role !== "consumer";
}

// The group's coordinator, in a world that has one; with a bridge the group uses ZooKeeper, too.
export function coordinatorOf(picture) {
  return picture.zookeeper.protocol ? picture.zookeeper : picture.zookeeper.coordinator;
}

// What a bridge adds to the row of a partition; null without a bridge.
export function bridged(row, members) {
  if (row.length < 9) return null;
  const [znode, kafka, stage] = row.slice(6);
  return { znode, kafka, stage, side: members[row[1]]?.side || "none" };
}

export const SIDE_WORDS = { old: "old side", bridge: "bridge", new: "new side" };

export const CELL_WORDS = {
  lent: "held for the new side",
  double: "two members deliver it",
  unsure: "delivered by a member, but without an owner",
  free: "no owner",
  stranger: "owned by another client",
  stalled: "its owner is not running",
  foreign: "delivered by a member that does not own it",
  read: "owned and delivered",
  held: "owned, not delivered yet",
};

// The value by which two frames are compared: the move, or in a recorded run the text of the event.
function deed(frame) {
  return frame.d || frame.l;
}

// Differences between two runs, as rows [name, value in the first run, value in the second run].
export function compare(one, other, names) {
  const a = one.last;
  const b = other.last;
  const rows = names.map((name, n) => [name, a.counters[n] ?? "–", b.counters[n] ?? "–"]).filter(([, one, two]) => one !== "–" || two !== "–");
  rows.unshift(["virtual seconds", a.t, b.t]);
  rows.unshift(["moves", one.length, other.length]);
  const owners = a.partitions.filter((row, n) => row[1] !== b.partitions[n]?.[1]).length;
  rows.push(["partitions with another owner at the end", owners, owners]);
  let same = 0;
  while (same < one.length && same < other.length && deed(one.frames[same]) === deed(other.frames[same])) same++;
  return { same, rows, ended: same === one.length && same === other.length };
}
