// Refreshes the parts of a page, shows local times, and says so when the dashboard does not answer. A hidden tab asks for nothing.
"use strict";

const parts = [...document.querySelectorAll("[data-part]")].map((element) => ({ element, due: 0, tag: null }));
const lost = document.getElementById("lost");
const pause = document.getElementById("pause");
const times = document.getElementById("times");
const theme = document.getElementById("theme");
const help = document.getElementById("help");
const PLACES = { c: "cluster", t: "topics", g: "groups", m: "messages", w: "delays", s: "settings", d: "doctor" }; // after a g
let paused = false;
let failures = 0;
let went = -Infinity; // when g was pressed

function stored(name, value) {
  try {
    if (value !== undefined) localStorage.setItem(name, value);
    return localStorage.getItem(name);
  } catch {
    return null; // storage is switched off: the choice lasts as long as the page
  }
}

let utc = stored("times") === "utc";

function two(number, digits = 2) {
  return String(number).padStart(digits, "0");
}

function showTimes(root) {
  for (const element of root.querySelectorAll("time")) {
    const at = new Date(element.dateTime);
    element.textContent = utc
      ? element.dateTime.slice(11)
      : `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${two(at.getMilliseconds(), 3)}`;
  }
}

async function refresh(part) {
  const headers = { "X-Part": part.element.dataset.part };
  if (part.tag) headers["If-None-Match"] = part.tag;
  const response = await fetch(location.href, { headers, cache: "no-store", signal: AbortSignal.timeout(15000) });
  if (response.status === 304) return;
  if (!response.headers.get("etag")) throw new Error(String(response.status));
  const text = await response.text();
  if (part.element.contains(document.activeElement) && document.activeElement.matches("input, select")) return;
  const scrolled = [...part.element.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop]);
  const focused = [...part.element.querySelectorAll("a, .scroll")].indexOf(document.activeElement);
  part.element.innerHTML = text;
  part.tag = response.headers.get("etag");
  part.element.querySelectorAll(".scroll").forEach((box, index) => {
    [box.scrollLeft, box.scrollTop] = scrolled[index] || [0, 0];
  });
  if (focused >= 0) part.element.querySelectorAll("a, .scroll")[focused]?.focus({ preventScroll: true });
  showTimes(part.element);
}

async function tick() {
  const now = performance.now();
  if (!document.hidden && !paused) {
    for (const part of parts.filter((each) => each.due <= now && !each.element.closest("details:not([open])"))) {
      try {
        await refresh(part);
        failures = 0;
      } catch {
        failures += 1;
      }
      part.due = performance.now() + 1000 * Number(part.element.dataset.every);
      lost.hidden = failures < 2;
      document.body.classList.toggle("old", failures >= 2);
    }
  }
  setTimeout(tick, 500);
}

pause.hidden = times.hidden = theme.hidden = false;
pause.addEventListener("click", () => {
  paused = !paused;
  exchange(pause);
});
function exchange(button) {
  [button.textContent, button.dataset.other] = [button.dataset.other, button.textContent];
}
times.addEventListener("click", () => {
  utc = !utc;
  stored("times", utc ? "utc" : "local");
  exchange(times);
  showTimes(document);
});
function showTheme(name) {
  document.documentElement.dataset.theme = name;
  theme.value = name;
}
theme.addEventListener("change", () => showTheme(stored("theme", theme.value) || theme.value));
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  if (performance.now() - went < 1500 && PLACES[event.key]) {
    document.querySelector(`header [data-place=${PLACES[event.key]}]`).click();
    return;
  }
  went = event.key === "g" ? performance.now() : -Infinity;
  if (event.key === "/") {
    const search = document.getElementById("search");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  } else if (event.key === "p") {
    pause.click();
  } else if (event.key === "?") {
    if (help.open) help.close();
    else help.showModal();
  }
});
for (const part of parts) part.due = performance.now() + 1000 * Number(part.element.dataset.every);
showTheme(stored("theme") || "auto");
if (utc) exchange(times);
showTimes(document);
setTimeout(tick, 500);
