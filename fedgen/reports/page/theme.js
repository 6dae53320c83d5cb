"use strict";
// Light and dark colours, and what a reader has chosen.

// What was chosen is kept while the page loads itself again; from a file or in a notebook's frame that may be refused.
const chosen = (() => {
  let kept = {};
  try { kept = JSON.parse(sessionStorage.getItem(`fedgen ${location.pathname}`)) || {}; } catch { kept = {}; }
  return {
    get: (key, otherwise) => (key in kept ? kept[key] : otherwise),
    set: (key, value) => {
      kept[key] = value;
      try { sessionStorage.setItem(`fedgen ${location.pathname}`, JSON.stringify(kept)); } catch { /* not kept */ }
    },
  };
})();

function setTheme(name) {
  document.documentElement.dataset.theme = name;
}

function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(chosen.get("theme", dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => { if (!chosen.get("theme")) setTheme(dark.matches ? "dark" : "light"); });
  document.getElementById("theme").addEventListener("click", () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    setTheme(next);
    chosen.set("theme", next);
  });
  let before = null;
  window.addEventListener("beforeprint", () => { before = document.documentElement.dataset.theme; setTheme("light"); });
  window.addEventListener("afterprint", () => { if (before) setTheme(before); });
}

