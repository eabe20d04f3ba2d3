// All pages work without scripts. This file refreshes numbers, adds "/" for search, and changes colours without a reload.
"use strict";

(() => {
  const quiet = matchMedia("(prefers-reduced-motion: reduce)").matches;

  // Colours
  document.querySelector(".themes")?.addEventListener("submit", (event) => {
    event.preventDefault();
    const theme = event.submitter.value;
    document.documentElement.dataset.theme = theme;
    document.cookie = `headgate_theme=${theme}; Path=/ui; Max-Age=31536000; SameSite=Strict`;
    for (const button of event.target.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.value === theme));
    }
  });

  // "/" moves to the search field
  document.addEventListener("keydown", (event) => {
    const find = document.getElementById("find");
    const typing = event.target.closest("input, textarea, select");
    if (event.key === "/" && find && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      find.focus();
      find.select();
    }
  });

  // Add a row for a limit
  const rows = document.querySelector("[data-rows]");
  if (rows) {
    const add = document.createElement("button");
    add.type = "button";
    add.className = "text";
    add.textContent = "Add a limit";
    add.addEventListener("click", () => {
      const all = rows.querySelectorAll("[data-row]");
      const row = all[all.length - 1].cloneNode(true);
      const number = all.length + 1;
      for (const input of row.querySelectorAll("input")) {
        input.value = "";
        input.setAttribute("aria-label", input.getAttribute("aria-label").replace(/\d+/, String(number)));
      }
      add.before(row);
      row.querySelector("input").focus();
    });
    rows.append(add);
  }

  // After a link from another site the cookie was not sent: if there is a session, go on
  const login = document.querySelector("[data-login]");
  if (login) {
    fetch(login.dataset.login, { redirect: "manual", method: "HEAD" })
      .then((answer) => answer.ok && location.replace(login.dataset.login))
      .catch(() => {});
  }

  // The part that is refreshed
  const live = document.getElementById("live");
  if (!live) return;
  const pause = document.querySelector("[data-pause]");
  const every = quiet ? 10000 : 2000;
  let saidAt = Date.now();
  let paused = false;

  function show(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    for (const part of fresh.querySelectorAll("[data-live]")) {
      const old = live.querySelector(`[data-live="${part.dataset.live}"]`);
      if (!old || old.contains(document.activeElement)) continue; // keep what has the focus
      if (part.dataset.live !== "said") {
        if (!old.matches(":hover")) old.replaceWith(document.adoptNode(part));
      } else if (Date.now() - saidAt > 30000) {
        old.textContent = part.textContent; // read aloud by screen readers, so not too often
        saidAt = Date.now();
      }
    }
  }

  async function look() {
    if (!paused && !document.hidden) {
      try {
        const answer = await fetch(live.dataset.address, { redirect: "manual", cache: "no-store" });
        if (answer.type === "opaqueredirect") return location.reload(); // the session is over
        if (answer.ok) show(await answer.text());
        live.classList.toggle("stale", !answer.ok);
      } catch {
        live.classList.add("stale");
      }
    }
    setTimeout(look, every);
  }

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Resume" : "Pause";
  });
  setTimeout(look, every);
})();
