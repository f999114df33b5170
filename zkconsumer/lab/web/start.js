// Shows one sentence if the page cannot start: a script cannot be loaded, or one raises an error.
// It is no module and imports nothing, so it runs even if no module can be loaded.

(() => {
  const missing = new Set();
  const name = (address) => String(address || "").split(/[?#]/)[0].split("/").pop().slice(0, 60);

  function failed(what) {
    const isOver = document.querySelector(".failed, .lab[aria-busy=false]");
    if (isOver || what.startsWith("ResizeObserver")) return;
    const words = document.createElement("p");
    words.className = "failed";
    words.setAttribute("role", "alert");
    words.textContent = `The lab cannot start: ${what.slice(0, 300)}. Reload the page; if that does not help, use a current browser, or start the lab (or build the site) again.`;
    document.body.prepend(words);
    for (const one of document.querySelectorAll("[aria-busy]")) one.setAttribute("aria-busy", "false");
    for (const one of document.querySelectorAll(".loading")) one.remove();
  }

  // Errors of elements do not bubble, so the window must capture them. A failed preload says which module is
  // missing; the error of the script itself follows, and does not say it.
  addEventListener("error", (event) => {
    const { target } = event;
    if (target instanceof HTMLLinkElement && target.rel === "modulepreload") missing.add(name(target.href));
    else if (target instanceof HTMLScriptElement) failed(`${[...missing].join(", ") || name(target.src)} cannot be loaded`);
    else if (event.message) failed(`${event.message}${event.filename?.startsWith("http") ? ` in ${name(event.filename)}` : ""}`);
  }, true);
  addEventListener("unhandledrejection", ({ reason }) => failed(String(reason?.message || reason)));
})();
