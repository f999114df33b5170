// The causal record of a run: events on lines, messages between them, vector clocks, and the log for ShiViz.

// events: {number, at, line, text, received: [{kind, sent, text}], rules}; `lost`: messages that never arrive.
// Returns null if the run has no causal record, as a live group's run.
export function causesOf(run) {
  const last = run.frames.at(-1);
  if (run.causes?.last === last && run.causes?.length === run.length) return run.causes.found;
  const found = read(run);
  run.causes = { last, length: run.length, found };
  return found;
}

function read(run) {
  const events = [];
  const lost = [];
  const starts = []; // the number of the first event of each move
  run.frames.forEach((frame, n) => {
    starts.push(events.length);
    for (const [line, text, received, rules] of frame.ev || [])
      events.push({ number: events.length, at: n + 1, line, text, rules, received: received.map(([kind, sent, words]) => ({ kind, sent, text: words })) });
    for (const [kind, sent, text, line] of frame.lost || []) lost.push({ kind, sent, text, line, at: n + 1 });
  });
  if (!events.length) return null;
  return { events, lost, starts, lines: linesOf(run, events), clocks: clocksOf(events) };
}

// Members in their order, then all other lines: servers, the leader, and the logs.
function linesOf(run, events) {
  const used = new Set(events.map((event) => event.line));
  const members = run.last.members.map((member) => member.n).filter((name) => used.has(name));
  const others = [...used].filter((name) => !members.includes(name)).sort();
  return [...members, ...others];
}

// The vector clock of each event: line -> number of that line's events in the event's past, with the event itself.
function clocksOf(events) {
  const last = new Map();
  const clocks = [];
  for (const event of events) {
    const clock = new Map(last.get(event.line));
    for (const { sent } of event.received)
      if (sent >= 0) for (const [line, count] of clocks[sent]) if (count > (clock.get(line) || 0)) clock.set(line, count);
    clock.set(event.line, (last.get(event.line)?.get(event.line) || 0) + 1);
    last.set(event.line, clock);
    clocks.push(clock);
  }
  return clocks;
}

// The cut of a consistent state: on each line the last event that is in the past of an event, or undefined.
export function cutOf({ events, lines, clocks }, number) {
  const wanted = clocks[number];
  const counts = new Map();
  const cut = new Map();
  for (const event of events.slice(0, number + 1)) {
    const count = (counts.get(event.line) || 0) + 1;
    counts.set(event.line, count);
    if (count <= (wanted.get(event.line) || 0)) cut.set(event.line, event.number);
  }
  return new Map(lines.map((line) => [line, cut.get(line)]));
}

const SHIVIZ_ENTRY = String.raw`(?<host>\S*) (?<clock>{.*})\n(?<event>.*)`;

// A file that ShiViz opens: the regular expression of an entry, an empty line (the file has one execution), and the log.
export function shivizOf(run) {
  const { events, clocks } = causesOf(run);
  const host = (line) => line.replaceAll(" ", "-");
  return `${SHIVIZ_ENTRY}\n\n` + events.map((event) => {
    const clock = Object.fromEntries([...clocks[event.number]].map(([line, count]) => [host(line), count]));
    const rule = event.rules.length ? ` [${event.rules.join("; ")}]` : "";
    return `${host(event.line)} ${JSON.stringify(clock)}\n${`${event.text}${rule}`.replace(/\s+/g, " ")}\n`;
  }).join("");
}
