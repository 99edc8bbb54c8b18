// Refreshes the parts of a page, shows local times, reads charts at a time, and says so when the dashboard does not answer. A hidden tab
// asks for nothing.
"use strict";

const parts = [...document.querySelectorAll("[data-part]")].map((element) => ({ element, due: 0, tag: null }));
const lost = document.getElementById("lost");
const pause = document.getElementById("pause");
const times = document.getElementById("times");
const theme = document.getElementById("theme");
const help = document.getElementById("help");
const PLACES = { c: "cluster", t: "topics", g: "groups", m: "messages", w: "delays", s: "settings", d: "doctor" }; // after a g
const FOCUSABLE = "a, button[id], summary, .scroll, .chart, pre[tabindex]"; // in parts that are refreshed
let paused = false;
let failures = 0;
let went = -Infinity; // when g was pressed
let gone = false; // what the page shows was deleted
let read = null; // the time at which all charts are read, ms

function stored(name, value) {
  try {
    if (value !== undefined) localStorage.setItem(name, value);
    return localStorage.getItem(name);
  } catch {
    return null; // storage is switched off: the choice lasts as long as the page
  }
}

let utc = stored("times") === "utc";

function offset(at) {
  return utc ? 0 : -new Date(at).getTimezoneOffset(); // minutes
}

function shifted(at) {
  return new Date(at + 60000 * offset(at)).toISOString();
}

function zone(at) {
  const minutes = offset(at);
  return minutes ? `UTC${minutes < 0 ? "-" : "+"}${new Date(60000 * Math.abs(minutes)).toISOString().slice(11, 16)}` : "UTC";
}

function clockTime(at, digits) {
  const text = shifted(at);
  const day = text.slice(0, 10) === shifted(Date.now()).slice(0, 10) ? "" : `${text.slice(0, 10)} `;
  return day + text.slice(11, 11 + digits);
}

function showTimes(root) {
  for (const element of root.querySelectorAll("time")) {
    element.textContent = clockTime(Date.parse(element.dateTime), 12) + (utc ? "Z" : "");
  }
  for (const element of root.querySelectorAll(".picture [data-ms]")) {
    const at = Number(element.dataset.ms);
    element.textContent = element.matches(".zone") ? zone(at) : shifted(at).slice(11, 11 + element.textContent.length);
  }
  root.querySelectorAll(".chart").forEach(readChart);
}

function readChart(chart) {
  const { values, ticks, until, step, unit } = chart.dataset;
  const known = values.split(",");
  const back = read === null ? 0 : Math.round((until - read) / step);
  const value = known[known.length - 1 - back];
  const said = value ? Number(value).toLocaleString(document.documentElement.lang) + unit : "–";
  // The time that was chosen, not that of the sample: a refresh brings samples of times some milliseconds apart.
  const text = Number(until) ? `${clockTime(Number(read ?? until), 8)}  ${said}` : said;
  const cross = chart.querySelector(".cross");
  cross.hidden = read === null || back < 0 || back >= ticks;
  cross.style.left = `${100 - (100 * back) / (ticks - 1)}%`;
  chart.querySelector(".read").textContent = read === null ? "" : text;
  chart.tabIndex = 0;
  const slider = { role: "slider", "aria-valuemin": 1 - ticks, "aria-valuemax": 0, "aria-valuenow": -back, "aria-valuetext": text };
  for (const name in slider) chart.setAttribute(name, slider[name]);
}

function readCharts(at) {
  read = at;
  document.querySelectorAll(".chart").forEach(readChart);
}

function pointed(event) {
  const chart = event.target.closest(".plot")?.parentElement;
  if (chart) {
    const { left, width } = chart.querySelector("svg").getBoundingClientRect();
    const { ticks, until, step } = chart.dataset;
    readCharts(until - step * Math.round(Math.max(0, 1 - (event.clientX - left) / width) * (ticks - 1)));
  } else if (read !== null && !document.activeElement.matches(".chart")) {
    readCharts(null);
  }
}

function movedRead(chart, key) {
  const { ticks, until, step } = chart.dataset;
  const back = Math.round((until - (read ?? until)) / step);
  const wanted = { ArrowLeft: back + 1, ArrowRight: back - 1, Home: ticks - 1, End: 0 }[key];
  if (wanted === undefined) return false;
  readCharts(until - step * Math.min(Math.max(wanted, 0), ticks - 1));
  return true;
}

async function refresh(part) {
  const headers = { "X-Part": part.element.dataset.part };
  if (part.tag) headers["If-None-Match"] = part.tag;
  const response = await fetch(location.href, { headers, cache: "no-store", signal: AbortSignal.timeout(15000) });
  if (response.status === 304) return;
  if (response.status === 401) location.reload(); // to the login, which leads back here
  if (!response.headers.get("etag")) throw new Error(String(response.status));
  const text = await response.text();
  if (part.element.contains(document.activeElement) && document.activeElement.matches("input, select")) return;
  const scrolled = [...part.element.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop]);
  const focused = [...part.element.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement);
  const id = document.activeElement?.id; // rows move: a button acts on one of them, and is found by its id, not by its place
  const at = read;
  part.element.innerHTML = text;
  part.tag = response.headers.get("etag");
  part.element.querySelectorAll(".scroll").forEach((box, index) => {
    [box.scrollLeft, box.scrollTop] = scrolled[index] || [0, 0];
  });
  showTimes(part.element);
  if (focused >= 0) (id ? document.getElementById(id) : part.element.querySelectorAll(FOCUSABLE)[focused])?.focus({ preventScroll: true });
  if (read !== at) readCharts(at);
  gone = part.element.querySelector("[data-gone]") !== null;
}

async function tick() {
  const now = performance.now();
  if (!document.hidden && !paused) {
    for (const part of parts.filter((each) => each.due <= now && !each.element.closest("details:not([open])"))) {
      if (gone) return;
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
  } else if (event.target.matches(".chart") && movedRead(event.target, event.key)) {
    event.preventDefault();
  } else if (event.key === "p") {
    pause.click();
  } else if (event.key === "?") {
    if (help.open) help.close();
    else help.showModal();
  }
});
document.addEventListener("pointermove", pointed);
document.addEventListener("pointerdown", pointed);
document.addEventListener("focusin", (event) => {
  if (event.target.matches(".chart") && read === null) readCharts(Number(event.target.dataset.until));
});
document.addEventListener("focusout", (event) => {
  if (event.target.matches(".chart")) readCharts(null);
});
for (const part of parts) part.due = performance.now() + 1000 * Number(part.element.dataset.every);
showTheme(stored("theme") || "auto");
if (utc) exchange(times);
showTimes(document);
setTimeout(tick, 500);
