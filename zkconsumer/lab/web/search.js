// The search for a counterexample: what is asked, which parts are weakened, and how far the search is.

import { html, useState } from "./vendor/preact-htm.js";
import { Dialog } from "./dialogs.js";

const COMPARISON = "comparison";
const SIGNS = "<= < >= > = !="; // htm would read a tag in a text

export function SearchDialog({ catalogue, given, progress, start, stop, close }) {
  const [form, set] = useState(given || { weak: [catalogue.weaknesses[0].name], asks: "", comparison: "deliverers(partition) <= 1", members: 2, spare: 1, partitions: 4 });
  const put = (name) => (event) => set({ ...form, [name]: event.target.type === "number" ? Number(event.target.value) : event.target.value });
  const toggle = (name) => set({ ...form, weak: catalogue.weaknesses.map((one) => one.name).filter((one) => (one === name) !== form.weak.includes(one)) });
  const number = (name, label, least, most) => html`<label>${label}<input type="number" name=${name} min=${least} max=${most} value=${form[name]} onInput=${put(name)} /></label>`;
  const leave = () => { stop(); close(); };
  if (progress)
    return html`<${Dialog} title="Searching for a counterexample" close=${leave}><div class="search">
      <p>${progress.sentence}</p>
      <progress max=${progress.limit} value=${progress.state === "searching" ? progress.schedules : progress.limit} aria-label="schedules of the search"></progress>
      <p role="status">${progress.text} ${progress.seconds.toFixed(1)} s.</p>
      ${progress.state === "none" ? html`<button class="primary" onClick=${stop}>ask another question</button>` : html`<button onClick=${leave}>stop the search</button>`}</div></${Dialog}>`;
  return html`<${Dialog} title="Break it: ask for a counterexample" close=${close}><form class="world" onSubmit=${(event) => { event.preventDefault(); start(form); }}>
    <p class="wide">The lab searches random runs of this group for one that breaks a promise, and shortens it. With no weakened part, the members keep their promises.</p>
    <fieldset class="wide switches"><legend>weakened parts</legend>${catalogue.weaknesses.map((one) => html`<label class="check"><input type="checkbox" name=${one.name} checked=${form.weak.includes(one.name)} onChange=${() => toggle(one.name)} />
      <span><b>${one.name}</b>: ${one.what}${one.who ? ` Known from: ${one.who}.` : ""}</span></label>`)}</fieldset>
    <label class="wide">promise<select name="asks" value=${form.asks} onChange=${put("asks")}>
      <option value="" selected=${form.asks === ""}>what the weakened part usually breaks</option>
      <option value="any" selected=${form.asks === "any"}>any promise</option>
      <option value=${COMPARISON} selected=${form.asks === COMPARISON}>a comparison</option>
      ${catalogue.promises.map((one) => html`<option value=${one.number} selected=${form.asks === one.number}>${one.number}: ${one.sentence.slice(0, 120)}</option>`)}</select></label>
    ${form.asks === COMPARISON ? html`<label class="wide">comparison that must hold for each partition<input name="comparison" value=${form.comparison} onInput=${put("comparison")} /></label>
      <p class="wide hint">${catalogue.quantities.map((one) => `${one.name}(partition): ${one.what}`).join("; ")}. Compare with ${SIGNS} and a number or another quantity.</p>` : null}
    ${number("members", "members", 1, 5)}${number("spare", "members that may join later", 0, 3)}${number("partitions", "partitions", 1, 12)}
    <footer><button class="primary">search</button></footer></form></${Dialog}>`;
}

// The world of a form, as the engine expects it.
export function searchedWorld({ weak, asks, comparison, members, spare, partitions }) {
  return { weak, members, spare, partitions, asks: asks === COMPARISON ? comparison : asks };
}
