// The page: its state, the address, the keyboard, and playing.

import { Component, html, render } from "./vendor/preact-htm.js";
import { causesOf } from "./causes.js";
import { Compare, CompareDialog } from "./compare.js";
import { Diagram, StepPanel } from "./diagram.js";
import { Dialog, ExportDialog, HelpDialog, LibraryDialog, WorldDialog } from "./dialogs.js";
import { saveRun } from "./exports.js";
import { acceptDrops, chooseFiles, readFiles } from "./files.js";
import { Lanes, LanesLegend } from "./lanes.js";
import { Menu } from "./menus.js";
import { Run, mayJoin } from "./model.js";
import { Choices, Log, Runs, Table, TourPanel, Tree, nameOf, textOf } from "./panels.js";
import { Legend, Picture } from "./picture.js";
import { SearchDialog, searchedWorld } from "./search.js";
import { HttpTransport, RecordedTransport, WorkerTransport } from "./transport.js";

const SPEEDS = [1, 2, 5, 15, 50, 150, 500]; // moves per second
const AHEAD = 400; // moves that are fetched before they are played
const LANES = 0.2; // share of the window's height that the lanes take at least; they also use the picture's free space
const SPARE = 3; // rem of the picture's free space that the lanes leave, because columns grow when members get partitions
const LIMIT = 10_000; // moves of a run that the page keeps

// key, tour, number of the step, the situation that the key opens
const SITUATIONS = [
  ["R", "race", 1, "two members race for one owner"],
  ["B", "gives-up", 2, "the loser rolls back"],
  ["G", "gives-up", 3, "a JVM member gives up"],
  ["Z", "zombie", 3, "a zombie wakes"],
  ["Q", "quorum", 1, "the quorum is lost"],
];

// Commands that may take seconds in a large world; the page says so after half a second.
const SLOW = new Set(["open", "tour", "table", "compare"]);
const COMPUTES = "The lab is computing …";
const WAITS = "The page carries this out as soon as Python has started.";

const BANDS = {
  simulated: ["SIMULATED", "Production code; ZooKeeper, network and clock are simulated."],
  live: ["LIVE", "A real group. The lab only reads."],
  sandbox: ["LIVE SANDBOX", "Real servers and members that the lab has started. Actions are real."],
  compared: ["COMPARED", "Simulated groups. No real group is involved."],
  recorded: ["RECORDED", "A past run. Nothing can be changed."],
};

class App extends Component {
  constructor() {
    super();
    this.runs = new Map();
    this.state = {
      ready: false, at: 0, playing: false, speed: 3, view: "picture", panel: "tree", byTime: false, zoom: 0, find: "", selected: 0, width: 900, lanes: 0, answered: -1,
      theme: localStorage.getItem("lab.theme") || "", current: 0, other: 0,
    };
  }

  async componentDidMount() {
    this.transport = transportFor(this);
    document.documentElement.dataset.theme = this.state.theme;
    addEventListener("keydown", (event) => this.key(event));
    addEventListener("pointerdown", () => (this.byPointer = true), true);
    addEventListener("hashchange", () => location.hash !== this.hash && this.openAddress());
    new ResizeObserver(() => this.measure()).observe(document.getElementById("app"));
    const about = await this.transport.about();
    this.setState({ about });
    if (about.kind === "static") acceptDrops(this.openFiles);
    if (about.kind === "recorded") {
      this.take(about.events);
      if (this.runs.size > 1) this.setState({ current: 1, other: 2, panel: "runs" });
      this.showMoment();
    } else {
      const listed = this.transport.send({ do: "catalogue" }).then(([catalogue]) => this.setState({ catalogue }));
      if (about.kind === "live") this.transport.listen();
      else await this.openAddress();
      await listed;
    }
    await this.transport.started;
    this.setState({ ready: true });
    if (this.state.toast === WAITS && this.state.playing) this.hush();
    this.loop(performance.now());
  }

  measure() {
    const box = document.querySelector(".axis");
    if (!box) return;
    const lanes = this.lanesHeight();
    if (Math.abs(box.clientWidth - this.state.width) > 1 || Math.abs(lanes - this.state.lanes) > 4) this.setState({ width: box.clientWidth, lanes });
  }

  // The height of the lanes: their share of the window, and what the picture does not use.
  lanesHeight() {
    const picture = document.querySelector(".picture");
    if (!picture) return innerHeight * LANES; // the diagram takes the free space
    const used = [...picture.children].reduce((sum, one) => sum + one.offsetHeight, 0);
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize) || 16;
    const grown = this.state.lanes ? Math.max(0, this.state.lanes - innerHeight * LANES) : 0;
    return innerHeight * LANES + Math.max(0, picture.clientHeight + grown - used - SPARE * rem);
  }

  componentDidUpdate(_, before) {
    if (before.current !== this.state.current || before.other !== this.state.other) this.measure();
    clearTimeout(this.later);
    this.later = setTimeout(() => this.writeAddress(), 250);
  }

  get run() {
    return this.runs.get(this.state.current);
  }

  // Whether the page shows the stored picture, and Python, which will carry out the user's actions, still starts.
  get isStarting() {
    return !!this.transport?.started && !this.state.ready && !!this.run;
  }

  get simulates() {
    return this.run?.kind === "simulated" && this.state.about?.kind !== "recorded";
  }

  // Whether the engine can open other runs.
  get opens() {
    return !!this.state.catalogue && ["simulated", "recorded"].includes(this.run?.kind);
  }

  get opensFiles() {
    return this.opens && this.state.about.kind === "static";
  }

  // Whether the run comes from a file of the user, which no address can open.
  get isFile() {
    return this.run?.kind === "recorded" && this.state.about?.kind === "static";
  }

  // Actions of a real group's page are real; only the lab's own sandbox permits them.
  get canAct() {
    return this.simulates || (this.run?.kind === "live" && !!this.state.about?.sandbox);
  }

  // Whether a move exists here: a real group permits fewer moves than a simulated one.
  permits = (move) => this.simulates || this.state.about.sandbox.includes(move.split(":")[0]);

  // ---- commands and events ----------------------------------------------------------------------

  async command(command) {
    if (this.isStarting) this.toast(WAITS, 600_000);
    const slow = !this.isStarting && SLOW.has(command.do) ? setTimeout(() => this.toast(COMPUTES, 600_000), 500) : 0;
    let events;
    try {
      events = await this.transport.send(command);
    } finally {
      clearTimeout(slow);
      if ([COMPUTES, WAITS].includes(this.state.toast)) this.hush();
    }
    this.take(events);
    // Steps are fetched ahead, so they are kept when the user sees them; other frames are kept at once.
    if (command.do !== "step") for (const one of events) if (one.event === "frames") this.runs.get(one.run)?.keep(one.from + one.frames.length);
    return events;
  }

  take(events) {
    for (const event of events) {
      if (event.event === "run") {
        const run = new Run(event);
        const parent = this.runs.get(event.parent);
        if (parent && event.kind !== "live") run.put(0, parent.frames.slice(0, event.forked_at));
        this.runs.set(event.run, run);
        if (event.kind === "compared") continue;
        this.place = event.kind === "live" ? run.length : event.parent ? event.forked_at : 0;
        this.setState((old) => ({ current: event.run, at: event.kind === "live" ? run.length : event.parent ? event.forked_at : 0, choices: null, menu: null, playing: event.kind === "live" ? true : old.playing, table: null, other: event.parent ? old.other : 0 }));
      } else if (event.event === "frames") {
        const run = this.runs.get(event.run);
        if (!run) continue;
        run.put(event.from, event.frames);
        run.moves = event.moves ?? "";
        run.rests = event.rests;
        run.omitted = event.omitted || 0;
        this.setState({ changed: {} });
      } else if (event.event === "more") {
        const run = this.runs.get(event.run);
        const wasLast = this.place >= run.length;
        run.put(run.length, event.frames);
        const dropped = run.trim(LIMIT);
        this.place = wasLast && this.state.playing ? run.length : Math.max(0, this.place - dropped);
        this.news = true; // the loop draws once per picture, however many events have arrived
      } else if (event.event === "choices") this.setState({ choices: event });
      else if (event.event === "tour") this.setState({ tour: event, panel: "tour", step: 0, answered: -1, playing: false });
      else if (event.event === "table") this.setState({ table: event });
      else if (event.event === "compared") this.setState({ compared: event, playing: false, menu: null });
      else if (event.event === "search") this.setState({ search: event });
      else if (event.event === "explained") this.toast(event.text, 12000);
      else if (event.event === "findings") this.setState({ findings: event.findings });
      else if (event.event === "error") isForgotten([event]) || this.toast(event.text, 8000);
      else if (event.event === "trace") this.traced?.(event.text);
    }
  }

  toast(text, ms) {
    this.setState({ toast: text });
    clearTimeout(this.fading);
    this.fading = setTimeout(this.hush, ms);
  }

  // Close the message: it may explain a state that is no longer shown.
  hush = () => this.state.toast && this.setState({ toast: "" });

  // ---- the address ------------------------------------------------------------------------------

  // A recorded run: the address contains only the moment that is shown.
  showMoment() {
    const given = new URLSearchParams(location.hash.slice(1));
    const number = Number(given.get("run") || 1);
    const run = this.runs.get(number);
    if (run && given.has("at")) this.setState({ current: number, at: (this.place = Math.max(0, Math.min(run.length, Number(given.get("at")) || 0))) });
  }

  async openAddress() {
    if (this.state.about?.kind === "recorded") return this.showMoment();
    const given = new URLSearchParams(location.hash.slice(1));
    this.hash = location.hash;
    this.setState({ tour: null, dialog: "", playing: false, compared: null, view: given.get("view") === "diagram" ? "diagram" : "picture" });
    if (given.get("compare")) {
      await this.command({ do: "open" });
      return this.compare({
        script: given.get("compare"), protocols: (given.get("protocols") || "").split(","),
        members: Number(given.get("members") || 3), partitions: Number(given.get("partitions") || 12),
        session_s: Number(given.get("session_s") || 0),
      });
    }
    if (given.get("tour")) {
      await this.command({ do: "tour", tour: given.get("tour") });
      return this.goStep(Number(given.get("step") || 0));
    }
    const command = { do: "open", moves: given.get("moves") || "" };
    if (given.get("scenario")) {
      command.scenario = given.get("scenario");
      if (given.has("cut")) command.cut = Number(given.get("cut"));
    } else {
      try {
        command.world = JSON.parse(given.get("world") || "{}");
      } catch {
        this.toast("The page cannot read the world from this address.", 8000);
        command.world = {};
      }
    }
    const events = await this.command(command);
    if (events[0].event === "error") [events[0]] = await this.command({ do: "open" });
    if (events[0].event === "error") throw new Error(events[0].text);
    const at = given.has("at") ? Number(given.get("at")) : given.get("scenario") ? 0 : this.run.length;
    this.seek(at);
  }

  writeAddress() {
    const { tour, at, step, about } = this.state;
    const run = this.run;
    if (!run || !about || run.kind === "live") return;
    const found = new URLSearchParams();
    const { compared, comparison, view } = this.state;
    if (about.kind === "recorded") {
      if (!at && !location.hash) return;
      found.set("run", run.number);
      found.set("at", at);
    } else if (compared) {
      found.set("compare", comparison.script);
      for (const name of ["members", "partitions", "protocols"]) found.set(name, comparison[name]);
      if (comparison.session_s) found.set("session_s", comparison.session_s);
    } else if (this.isFile) {
      history.replaceState(null, "", location.pathname + location.search);
      this.hash = "";
      return;
    } else if (tour && run.number === tour.run && run.length === tour.length) {
      found.set("tour", tour.tour);
      found.set("step", step);
    } else {
      if (run.base.scenario) {
        found.set("scenario", run.base.scenario);
        if (run.parent) found.set("cut", run.base.cut);
      } else found.set("world", JSON.stringify(run.base.world || {}));
      if (run.moves) found.set("moves", run.moves);
      found.set("at", at);
    }
    if (view === "diagram" && !compared) found.set("view", view);
    this.hash = "#" + found.toString().replaceAll("%2C", ",").replaceAll("%3A", ":").replaceAll("%22", '"');
    if (location.hash !== this.hash) history.replaceState(null, "", this.hash);
    this.hash = location.hash;
  }

  // A browser may refuse to copy, and offers it only on this machine and over HTTPS.
  share = async () => {
    this.writeAddress();
    const copied = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
    if (copied) this.toast("The address is copied. It opens this state.", 3000);
    else this.toast("The browser refuses to copy. Copy the address of this page yourself: it opens this state.", 12000);
  };

  // ---- moving in time ---------------------------------------------------------------------------

  seek(at) {
    const to = Math.max(0, Math.min(this.run?.length ?? 0, Math.round(at)));
    this.exact = this.place = to;
    this.run?.keep(to);
    this.setState({ at: to, choices: null, menu: null });
    if (this.state.panel === "next" && !this.state.playing) this.askChoices(to);
  }

  async askChoices(at) {
    if (this.simulates) await this.command({ do: "choices", run: this.run.number, at });
  }

  // Commands run in their order, regardless of how fast the user presses keys.
  serial(work) {
    this.queue = (this.queue || Promise.resolve()).then(work, work);
    return this.queue;
  }

  async more(count, until) {
    const run = this.run;
    if (!this.simulates || run.length >= LIMIT) return;
    const events = await this.command({ do: "step", run: run.number, count, ...(until ? { until } : {}) });
    if (isForgotten(events)) await this.reopen(this.place);
  }

  // Fetch moves before they are played; at most one such request is in progress.
  async ahead(count) {
    if (this.asking) return;
    this.asking = this.more(count);
    try {
      await this.asking;
    } finally {
      this.asking = null;
    }
  }

  // Do work during which playing neither shows nor fetches moves.
  async hold(work) {
    this.held = (this.held || 0) + 1;
    try {
      return await work();
    } finally {
      this.held--;
    }
  }

  // Remove the moves that were fetched and never shown: the run then ends where the user sees it end.
  async forget() {
    await this.asking;
    const run = this.run;
    if (!run || !this.simulates) return;
    run.keep(this.place);
    if (run.kept >= run.length) return;
    const events = await this.command({ do: "forget", run: run.number, at: run.kept });
    if (!isForgotten(events)) return;
    await this.reopen(this.place);
    await this.forget();
  }

  forward = () => this.serial(async () => {
    await this.asking;
    const at = this.place;
    if (at >= this.run.length) await this.more(1);
    this.seek(at + 1);
  });

  goTo = (place) => this.serial(() => this.seek(place()));

  nextChange = (direction) => this.serial(() => this.toChange(direction));

  async toChange(direction) {
    await this.asking;
    const at = this.place;
    let found = this.run.change(at, direction);
    if (found === null && direction > 0 && this.simulates) {
      await this.more(2000, "owner");
      found = this.run.change(at, 1);
    }
    if (found === null) this.toast(direction > 0 ? "No owner changes: the group has settled." : "No owner has changed before.", 4000);
    else this.seek(found);
  }

  play(playing = !this.state.playing) {
    this.exact = this.place ?? this.state.at;
    this.setState({ playing, choices: null });
    if (!playing && this.state.panel === "next") this.askChoices(this.state.at);
  }

  // Start to play, or pause at the move that is shown.
  toggle = () => {
    const stops = this.state.playing;
    this.play(!stops);
    if (this.isStarting && !stops) this.toast(WAITS, 600_000);
    if (stops) this.serial(() => this.hold(() => this.forget()));
  };

  loop(now) {
    const seconds = Math.min(0.1, (now - (this.before || now)) / 1000);
    this.before = now;
    const run = this.run;
    if (run && this.state.playing) {
      if (run.kind === "live") {
        if (this.place !== run.length) this.news = !!(this.place = run.length);
      } else this.advance(run, seconds);
    }
    if (this.news) this.setState({ at: this.place, changed: {} });
    this.news = false;
    requestAnimationFrame((time) => this.loop(time));
  }

  advance(run, seconds) {
    if (this.held) return;
    const speed = SPEEDS[this.state.speed];
    this.exact = Math.min(run.length, (this.exact ?? this.state.at) + seconds * speed);
    const left = run.length - this.exact;
    if (left < Math.min(AHEAD, speed * 2) && !run.rests) this.ahead(Math.max(20, Math.min(AHEAD, speed * 3)));
    const at = Math.floor(this.exact);
    if (at !== this.state.at) {
      run.keep(at);
      this.setState({ at: (this.place = at) });
    }
    if (left <= 0 && (run.rests || !this.simulates || run.length >= LIMIT)) this.play(false);
  }

  // ---- acting -----------------------------------------------------------------------------------

  menu = (what, which, event) => {
    const box = event.currentTarget.getBoundingClientRect();
    this.opener = event.currentTarget;
    this.hush();
    // A live group does not wait; its page continues to follow it.
    if (this.state.playing && this.run.kind !== "live") this.toggle();
    this.setState({ menu: { what, which, x: box.left, y: box.bottom + 4 } });
  };

  closeMenu = () => {
    this.setState({ menu: null });
    this.opener?.focus();
  };

  choose = (move) => {
    this.setState({ menu: null });
    this.opener?.focus();
    if (typeof move === "string") this.act(move);
    else if (move.explain !== undefined && this.run.kind === "recorded") this.toast("A recorded run does not contain the reasons.", 8000);
    else if (move.explain !== undefined) this.command({ do: "explain", run: this.run.number, at: this.state.at, partition: move.explain });
    else if (move.say) this.toast(move.say, 12000);
    else if (move.offset) this.setState({ dialog: "offset", offset: move.offset });
  };

  act = (move) => this.serial(() => this.hold(() => this.actNow(move)));

  async actNow(move) {
    if (!this.canAct) return;
    this.hush();
    if (!this.simulates) {
      this.play(true); // an action on a real group happens now, regardless of the moment that is shown
      await this.command({ do: "act", run: this.run.number, move });
      return;
    }
    await this.forget();
    const at = this.place;
    const events = await this.command({ do: "act", run: this.run.number, at, move });
    if (isForgotten(events)) await this.reopen(at, move);
    else if (events[0].event !== "error") this.seek(at + 1);
  }

  // The engine has forgotten the run, because the server has restarted: reopen the run from its address.
  async reopen(at, move) {
    const run = this.run;
    this.runs.delete(run.number);
    const { world, scenario, cut } = run.base;
    const [opened] = await this.command({ do: "open", moves: run.moves, ...(scenario ? { scenario, ...(run.parent ? { cut } : {}) } : { world }) });
    if (opened.event === "error") return;
    this.run.kept = run.kept;
    this.seek(at);
    if (move) await this.actNow(move);
  }

  async tour(name, step = 0) {
    this.setState({ dialog: "", menu: null });
    await this.command({ do: "tour", tour: name });
    this.goStep(step);
  }

  async goStep(step) {
    const { tour } = this.state;
    if (!tour) return;
    const at = Math.max(0, Math.min(tour.steps.length - 1, step));
    tour.length ??= this.runs.get(tour.run)?.length;
    this.setState({ step: at, answered: at === this.state.answered ? at : -1, current: tour.run, panel: "tour" });
    this.seek(tour.steps[at].at);
    if (tour.table && at === tour.steps.length - 1) await this.command({ do: "table", table: tour.table });
  }

  async openWorld(world) {
    this.setState({ dialog: "", tour: null });
    await this.command({ do: "open", world });
  }

  async compare(comparison) {
    this.setState({ dialog: "", comparison });
    await this.command({ do: "compare", ...comparison });
  }

  // Search in slices, and show the progress after each of them; the user may stop the search.
  searchFor = async (form) => {
    const mine = (this.searching = {});
    this.setState({ searchForm: form });
    let events = await this.command({ do: "search", world: searchedWorld(form) });
    while (this.searching === mine && ["searching", "shortening"].includes(events.at(-1).state)) events = await this.command({ do: "search_on" });
    if (this.searching !== mine || events.at(-1).state !== "found") return;
    this.setState({ dialog: "", search: null, tour: null, compared: null, panel: "log" });
    this.seek(this.run.length);
    this.toast(events.at(-1).text, 60_000);
  };

  stopSearch = () => {
    this.searching = null;
    this.setState({ search: null });
  };

  // Show trace files as one recorded run.
  openFiles = (files) => this.serial(async () => {
    this.toast("The trace is being read …", 60_000);
    const events = await readFiles(files).then((read) => this.transport.send({ do: "play", files: read }))
      .catch((error) => [{ event: "error", text: error.message }]);
    if (events[0].event === "error") return this.toast(events[0].text, 60_000);
    this.hush();
    this.play(false);
    this.setState({ dialog: "", tour: null, compared: null });
    this.take(events);
  });

  async openScenario(name) {
    this.setState({ dialog: "", tour: null });
    await this.command({ do: "open", scenario: name });
  }

  // ---- the keyboard -----------------------------------------------------------------------------

  key(event) {
    if (["Tab", "ArrowUp", "ArrowDown"].includes(event.key)) this.byPointer = false;
    if (event.ctrlKey || event.metaKey || event.altKey || !this.run) return;
    if (["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName) && event.target.type !== "range") return;
    if (this.state.menu && event.key === "Escape") return this.closeMenu();
    if (event.key === "Escape") this.hush();
    if (document.querySelector("dialog[open]") || this.state.menu) return;
    if (this.state.compared && !["x", "d", "?"].includes(event.key)) return;
    const action = this.keys()[event.key];
    if (!action) return;
    if (event.key === " " && event.target.tagName === "BUTTON") {
      if (!this.byPointer) return; // someone who moves the focus with the keyboard presses the button
      event.target.blur(); // a click left the focus on the button; the key is meant for the run
    }
    event.preventDefault();
    action(event);
  }

  keys() {
    const { at, selected, choices, speed, theme } = this.state;
    const member = this.run?.last.members[selected];
    const now = this.run?.picture(at).members[selected];
    const count = this.run?.last.members.length || 1;
    const found = {
      " ": this.toggle,
      ArrowRight: (event) => (event.shiftKey ? this.nextChange(1) : this.forward()),
      ArrowLeft: (event) => (event.shiftKey ? this.nextChange(-1) : this.goTo(() => this.place - 1)),
      Home: () => this.goTo(() => 0),
      End: () => this.goTo(() => this.run.length),
      "+": () => this.setState({ speed: Math.min(SPEEDS.length - 1, speed + 1) }),
      "-": () => this.setState({ speed: Math.max(0, speed - 1) }),
      "[": () => this.select((selected + count - 1) % count),
      "]": () => this.select((selected + 1) % count),
      j: () => {
        const who = this.run.picture(at).members.findIndex(mayJoin);
        if (who >= 0) this.act(`join:${who}`);
      },
      k: () => member && this.act(`kill:${selected}`),
      f: () => member && this.act(`${now?.s === "frozen" ? "thaw" : "freeze"}:${selected}`),
      c: () => member && this.act(`cut:${selected}`),
      l: () => member && this.act(`leave:${selected}`),
      w: () => this.setState({ dialog: "world" }),
      t: () => this.setState({ dialog: "library" }),
      x: () => this.setState({ dialog: "compare" }),
      b: () => this.setState({ dialog: "search" }),
      e: () => this.setState({ dialog: "export" }),
      v: this.turn,
      o: () => chooseFiles(this.openFiles),
      "?": () => this.setState({ dialog: "help" }),
      d: () => this.theme(isDark(theme) ? "light" : "dark"),
    };
    for (const [key, tour, step] of SITUATIONS) found[key] = () => this.tour(tour, step);
    if (choices) choices.choices.slice(0, 9).forEach((one, n) => (found[String(n + 1)] = () => this.act(one.move)));
    if (!this.canAct) for (const key of "jkfcl") delete found[key];
    if (!this.opens) for (const key of "wtxbRBGZQ") delete found[key];
    if (!this.opensFiles) delete found.o;
    return found;
  }

  // Show the picture or the space-time diagram.
  turn = () => this.setState((old) => ({ view: old.view === "diagram" ? "picture" : "diagram", menu: null }));

  select(selected) {
    this.setState({ selected });
    this.toast(`${this.run.last.members[selected].n} is selected: k kills, f freezes, c cuts, l shuts down.`, 3000);
  }

  theme(theme) {
    localStorage.setItem("lab.theme", theme);
    document.documentElement.dataset.theme = theme;
    this.setState({ theme });
  }

  show(panel) {
    this.setState({ panel });
    if (panel === "next" && !this.state.playing) this.askChoices(this.state.at);
  }

  // ---- drawing ----------------------------------------------------------------------------------

  render(_, state) {
    const run = this.run;
    if (!run) return html`<p class="loading">${state.progress?.text || (state.about?.kind === "live" ? "Reading the group …" : "The lab is loading …")} ${state.progress ? startBar(state.progress) : null}</p>${this.notices()}`;
    const picture = run.picture(state.at);
    const sessions = new Map(run.last.members.map((member, who) => [member.ses, who]));
    const band = BANDS[state.compared ? "compared" : run.kind === "live" && state.about.sandbox ? "sandbox" : run.kind];
    const two = state.other && state.other !== run.number && this.runs.has(state.other);
    return html`<div class="lab ${run.kind} ${band === BANDS.sandbox ? "sandbox" : ""} ${two ? "two-runs" : ""}" aria-busy=${!state.ready}>
      ${this.header(run, band)}
      ${state.compared ? html`<main><${Compare} compared=${state.compared} runs=${this.runs} close=${() => this.setState({ compared: null })} change=${() => this.setState({ dialog: "compare" })} /></main>
        ${this.dialog()}${this.notices()}` : this.workbench(run, picture, sessions, state)}</div>`;
  }

  workbench(run, picture, sessions, state) {
    return html`<div class="above">
        <main>${this.narration(run, picture)}
          ${state.view === "diagram" ? html`<${Diagram} run=${run} at=${state.at} length=${run.length} veiled=${this.isVeiled(run)} seek=${(to) => { this.play(false); this.seek(to); }} />`
            : html`<${Picture} picture=${picture} run=${run} menu=${this.menu} canAct=${this.canAct} selected=${this.canAct ? state.selected : -1} /><${Legend} joint=${!!picture.zookeeper.coordinator} />`}
          ${this.counters(run, picture)}
          ${state.menu ? html`<${Menu} open=${state.menu} picture=${picture} choose=${this.choose} close=${this.closeMenu} canAct=${this.canAct} permits=${this.permits} />` : null}</main>
        <aside aria-label="details">${this.side(run, picture, sessions)}</aside>
      </div>
      ${this.timeline(run, picture)}
      ${this.dialog()}${this.notices()}`;
  }

  notices() {
    const { toast, lost, progress } = this.state;
    return html`<div class="notices" role="status" aria-live="polite">${lost ? html`<p class="lost">The lab's server does not answer; the page tries again.</p>` : null}
      ${this.isStarting && progress ? html`<p class="engine">${startBar(progress)} <span>${progress.text} You can use the page: it carries out your actions as soon as Python has started.</span></p>` : null}
      ${toast ? html`<p class="toast"><span>${toast}</span><button onClick=${this.hush} aria-label="close the message">✕</button></p>` : null}</div>`;
  }

  header(run, band) {
    const button = (label, key, action) => html`<button onClick=${action} title="key ${key}">${label}</button>`;
    const words = (!this.state.compared && run.about?.words) || band[1];
    return html`<header class="top"><h1><img src=${ICON} alt="" width="22" height="22" /> zkconsumer lab</h1>
      <p class="band" title=${words}><b>${band[0]}</b> <span>${words}</span></p>
      <nav aria-label="lab">${this.opens ? [button("world", "w", () => this.setState({ dialog: "world" })), button("tours", "t", () => this.setState({ dialog: "library" })), button("break it", "b", () => this.setState({ dialog: "search" })), button("protocols", "x", () => this.setState({ dialog: "compare" }))] : null}
        ${this.opensFiles ? button("open a trace", "o", () => chooseFiles(this.openFiles)) : null}
        ${this.state.compared ? null : button(this.state.view === "diagram" ? "picture" : "diagram", "v", this.turn)}
        ${this.state.compared ? null : button("export", "e", () => this.setState({ dialog: "export" }))}
        ${run.kind !== "live" && !this.isFile ? html`<button onClick=${this.share}>share</button>` : null}
        ${button("dark / light", "d", () => this.theme(isDark(this.state.theme) ? "light" : "dark"))}${button("help", "?", () => this.setState({ dialog: "help" }))}</nav></header>`;
  }

  narration(run, picture) {
    const { at } = this.state;
    const said = run.caption(at) || run.lesson;
    let last = at; // the last move with words; readings of a live group have none
    while (last > 1 && !textOf(run, last - 1)) last--;
    const text = at ? textOf(run, last - 1) || (run.kind === "live" ? "No change since the page was opened." : "") : run.kind === "simulated" ? "Press space to play, or → for one move." : "The beginning.";
    return html`<div class="narration ${run.title || said ? "" : "bare"}"><p class="said">${run.title ? html`<b>${run.title}</b>${said ? ": " : ""}` : null}${said}</p>
      <p class="happens" title=${text} aria-live=${this.state.playing ? "off" : "polite"}><span class="clock">${picture.t.toFixed(3)} s</span> ${text}</p></div>`;
  }

  counters(run, picture) {
    const names = this.state.catalogue?.counters || COUNTERS;
    // Live groups show "–" for what ZooKeeper hides; a simulated protocol lacks what it does not count.
    const has = (n) => picture.counters[n] !== undefined && (picture.counters[n] !== null || !picture.zookeeper.protocol);
    return html`<dl class="counters">${names.map((name, n) => has(n) && html`<div class=${picture.counters[n] ? "" : "zero"}><dt>${COUNTER_WORDS[name] || name}</dt>
      <dd title=${picture.counters[n] === null ? run.kind === "live" ? "ZooKeeper does not show this" : "this run does not contain it" : ""}>${picture.counters[n] === null ? "–" : name === "unowned_s" ? (picture.counters[n] ?? 0).toFixed(1) : picture.counters[n] ?? 0}</dd></div>`)}</dl>`;
  }

  side(run, picture, sessions) {
    const { panel, tour, step, table, choices, find, at, other, findings } = this.state;
    const tabs = [["tree", picture.zookeeper.protocol ? "coordinator" : picture.zookeeper.coordinator ? "both stores" : "ZooKeeper"], ...(this.simulates ? [["next", "next"]] : []), ["step", "step"], ["log", "log"], ...(this.runs.size > 1 ? [["runs", "runs"]] : []),
      ...(tour ? [["tour", "tour"]] : []), ...(findings ? [["findings", `doctor ${findings.length || ""}`]] : [])];
    const shown = tabs.some(([name]) => name === panel) ? panel : "tree";
    const bodies = {
      tree: () => html`<${Tree} picture=${picture} menu=${this.menu} sessions=${sessions} canAct=${this.canAct} />`,
      next: () => html`<${Choices} choices=${choices?.at === at ? choices : null} act=${this.act} canAct=${this.simulates} />`,
      step: () => html`<${StepPanel} run=${run} at=${at} />`,
      log: () => html`<${Log} run=${run} at=${at} seek=${(to) => this.seek(to)} find=${find} setFind=${(text) => this.setState({ find: text })} />`,
      runs: () => html`<${Runs} runs=${this.runs} current=${run.number} other=${other} counters=${(this.state.catalogue?.counters || COUNTERS).map((one) => COUNTER_WORDS[one])} seek=${(to) => this.seek(to)}
        show=${(number) => { this.setState({ current: number }); this.seek(Math.min(at, this.runs.get(number).length)); }} compareWith=${(number) => this.setState({ other: number })} />`,
      tour: () => html`<${TourPanel} key=${tour.tour} tour=${tour} step=${step} answered=${this.state.answered === step} answer=${() => this.setState({ answered: step })} breakIt=${() => this.setState({ dialog: "search", search: null, searchForm: { asks: "", comparison: "deliverers(partition) <= 1", ...tour.breaks.search } })} go=${(to) => this.goStep(to)} leave=${() => this.setState({ tour: null, panel: "tree", table: null })}
        back=${() => this.goStep(step)} away=${run.number !== tour.run || at !== tour.steps[step].at} />${table ? html`<${Table} table=${table} />` : null}`,
      findings: () => findings.length ? html`<ul class="findings">${findings.map((one) => html`<li class=${one.severity}><b>${one.severity}: ${one.code}</b> ${one.text}</li>`)}</ul>` : html`<p>doctor finds nothing.</p>`,
    };
    return html`<div class="tabs" role="tablist">${tabs.map(([name, label]) => html`<button role="tab" aria-selected=${shown === name} onClick=${() => this.show(name)}>${label}</button>`)}</div>
      <div class="panel" role="tabpanel" aria-label=${shown} tabindex="0">${bodies[shown]()}</div>`;
  }

  timeline(run, picture) {
    const { at, playing, speed, width, byTime, zoom, other } = this.state;
    const second = other && other !== run.number ? this.runs.get(other) : null;
    const share = innerHeight * LANES;
    const height = second ? (share + this.state.lanes) / 2 : Math.max(share, this.state.lanes);
    const lanes = (one, beside) => html`<${Lanes} run=${one} beside=${beside} at=${at} length=${run.length + (second?.length || 0)} width=${width} byTime=${byTime} zoom=${zoom} height=${height} veiled=${this.isVeiled(one)}
      seek=${(to) => { if (one !== run) this.setState({ current: one.number, other: run.number }); this.play(false); this.seek(to); }} />`;
    const icon = (label, text, action, more = {}) => html`<button onClick=${action} aria-label=${label} title=${label} ...${more}>${text}</button>`;
    return html`<footer class="timeline"><div class="controls">
        ${icon("start of the run (Home)", "|◀", () => this.seek(0))}${icon("previous change of owner (shift ←)", "⇤", () => this.nextChange(-1))}
        ${icon("one move back (←)", "‹", () => this.goTo(() => this.place - 1))}
        <button class="primary" onClick=${this.toggle} aria-label=${playing ? "pause (space)" : "play (space)"} title="space">${playing ? "❚❚" : "▶"}</button>
        ${icon("one move forward (→)", "›", () => this.forward())}${icon("next change of owner (shift →)", "⇥", () => this.nextChange(1))}
        ${icon("end of the run (End)", "▶|", () => this.seek(run.length))}
        <label>speed <select aria-label="moves per second" value=${speed} onChange=${(event) => this.setState({ speed: Number(event.target.value) })}>
          ${SPEEDS.map((one, n) => html`<option value=${n} selected=${n === speed}>${one} / s</option>`)}</select></label>
        <label>axis <select value=${byTime ? "time" : "moves"} onChange=${(event) => this.setState({ byTime: event.target.value === "time" })}><option value="moves">moves</option><option value="time">time</option></select></label>
        <label>show <select value=${zoom} onChange=${(event) => this.setState({ zoom: Number(event.target.value) })}><option value="0">all</option><option value="100">100 moves</option><option value="500">500 moves</option></select></label>
        <span class="place">move ${at} of ${run.length}${run.length >= LIMIT ? ": the limit; later moves are not kept" : ""}${run.omitted ? `; ${run.omitted} earlier events are no longer kept` : ""}</span></div>
      <input class="scrub" type="range" min="0" max=${run.length} value=${at} aria-label="moment of the run" aria-valuetext="${picture.t.toFixed(2)} seconds, move ${at}"
        onInput=${(event) => { this.play(false); this.seek(Number(event.target.value)); }} />
      <${LanesLegend} />
      <div class="axis ${second ? "two" : ""}" style=${second ? {} : { maxHeight: `${height}px` }} tabindex="0" role="region" aria-label="lanes">${second ? html`<p class="which">${nameOf(run)}</p>` : null}${lanes(run, second)}
        ${second ? html`<p class="which">${nameOf(second)}</p>${lanes(second, run)}` : null}</div></footer>`;
  }

  // Whether what follows the step of a tour is hidden: until the learner has asked for the answer, or has acted.
  isVeiled(run) {
    const { tour, step, answered, at } = this.state;
    return !!tour && run.number === tour.run && answered !== step && at === tour.steps[step].at;
  }

  dialog() {
    const { dialog, catalogue } = this.state;
    const close = () => this.state.dialog === dialog && this.setState({ dialog: "" });
    switch (dialog) {
      case "world":
        return html`<${WorldDialog} catalogue=${catalogue} open=${(world) => this.openWorld(world)} close=${close} />`;
      case "library":
        return html`<${LibraryDialog} catalogue=${catalogue} tour=${(name) => this.tour(name)} scenario=${(name) => this.openScenario(name)} open=${(address) => (location.hash = address)} close=${close} />`;
      case "compare":
        return html`<${CompareDialog} catalogue=${catalogue} given=${this.state.comparison} open=${(given) => this.compare(given)} close=${close} />`;
      case "search":
        return html`<${SearchDialog} key=${this.state.search ? "progress" : "form"} catalogue=${catalogue} given=${this.state.searchForm} progress=${this.state.search} start=${this.searchFor} stop=${this.stopSearch} close=${close} />`;
      case "export":
        return html`<${ExportDialog} close=${close} kinds=${["html", "svg", ...(this.run && causesOf(this.run) ? ["diagram", "shiviz"] : []), ...(this.simulates ? ["jsonl"] : []), "frames"]} save=${(kind) => { close(); saveRun(this, kind); }} />`;
      case "help":
        return html`<${HelpDialog} close=${close} situations=${SITUATIONS} opensFiles=${this.opensFiles} />`;
      case "offset":
        return html`<${Dialog} title="Write an offset of ${this.state.offset.replace("~", "-")}" close=${close}><form onSubmit=${(event) => {
          event.preventDefault(); close(); this.act(`set_offset::${this.state.offset}:${Number(event.target.elements.offset.value)}`); }}>
          <label>offset <input name="offset" type="number" min="1" value="1" /></label> <button class="primary">write it</button></form></${Dialog}>`;
    }
    return null;
  }
}

const COUNTERS = ["notifications", "reads", "writes", "unowned_s", "redelivered", "moved", "delivered", "requests"];
export const COUNTER_WORDS = {
  notifications: "watch notifications", reads: "reads", writes: "writes", unowned_s: "partition-s without owner",
  redelivered: "redelivered", moved: "partitions moved", delivered: "delivered", requests: "requests to the coordinator",
};

const ICON = document.querySelector("link[rel=icon]")?.href || "";

// Whether the engine does not know the run: the server has started again, or has dropped the run.
function isForgotten(events) {
  return events[0]?.event === "error" && events[0].text.startsWith("there is no run");
}

// The progress of Python's start. A stage whose length nobody knows has no share; the browser then animates the bar.
function startBar({ share }) {
  return html`<progress aria-label="start of Python" max="1" ...${share === undefined ? {} : { value: share }}></progress>`;
}

function isDark(theme) {
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function transportFor(app) {
  const recorded = document.getElementById("recorded");
  if (recorded) return new RecordedTransport(JSON.parse(recorded.textContent));
  const site = document.querySelector("meta[name=lab-worker]");
  if (site) return new WorkerTransport(site.content, (progress) => app.setState({ progress }));
  return new HttpTransport(
    (lost) => lost !== !!app.state.lost && app.setState({ lost }),
    (events) => app.take(events),
  );
}

render(html`<${App} />`, clear(document.getElementById("app")));

function clear(element) {
  element.replaceChildren();
  return element;
}
