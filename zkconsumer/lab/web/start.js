// Shows one sentence if the page cannot start: a script cannot be loaded, or one raises an error.
// It is no module and imports nothing, so it runs even if no module can be loaded.

(() => {
  const name = (address) => String(address || "").split(/[?#]/)[0].split("/").pop().slice(0, 60);

  function failed(what) {
    const isOver = document.querySelector(".failed, .lab[aria-busy=false]");
    if (isOver || what.startsWith("ResizeObserver")) return;
    const words = document.createElement("p");
    words.className = "failed";
    words.setAttribute("role", "alert");
    const advice = location.protocol === "file:"
      ? "Browsers load no modules from local files. Open the page through a web server: run python3 -m http.server in its directory, and open the address that it prints."
      : "Reload the page; if that does not help, use a current browser, or start the lab (or build the site) again.";
    words.textContent = `The lab cannot start: ${what.slice(0, 300)}. ${advice}`;
    document.body.prepend(words);
    for (const one of document.querySelectorAll("[aria-busy]")) one.setAttribute("aria-busy", "false");
    for (const one of document.querySelectorAll(".loading")) one.remove();
  }

  // The error event of a script does not say which of its modules is missing, so the page requests each module again.
  async function scriptFailed(script) {
    const modules = [...document.querySelectorAll("link[rel=modulepreload]")].map((link) => link.href);
    const replies = await Promise.all(modules.map((address) => fetch(address).catch(() => null)));
    const missing = modules.filter((_, n) => !replies[n]?.ok).map(name);
    failed(`${missing.join(", ") || name(script.src)} cannot be loaded`);
  }

  // Errors of elements do not bubble, so the window must capture them.
  addEventListener("error", (event) => {
    const { target } = event;
    if (target instanceof HTMLScriptElement) scriptFailed(target);
    else if (event.message) failed(`${event.message}${event.filename?.startsWith("http") ? ` in ${name(event.filename)}` : ""}`);
  }, true);
  addEventListener("unhandledrejection", ({ reason }) => failed(String(reason?.message || reason)));
})();
