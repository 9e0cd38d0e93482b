"use strict";
// Keeps a page current: parts of it are replaced as the server sends them. Without this script a page is a still picture.
const most = 2000; // lines of a log on a page
const byId = (id) => document.getElementById(id);

function replace(id, html) {
  const part = byId("part-" + id);
  if (!part) return;
  const open = new Set([...part.querySelectorAll("details[open] > summary")].map((one) => one.textContent));
  const chosen = new Set([...part.querySelectorAll("input:checked")].map((one) => one.value));
  const known = new Set([...part.querySelectorAll("tr.job")].map((one) => one.id));
  const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  part.innerHTML = html;
  for (const one of part.querySelectorAll("summary")) if (open.has(one.textContent)) one.parentElement.open = true;
  for (const one of part.querySelectorAll("input[type=checkbox]")) one.checked = chosen.has(one.value);
  for (const one of part.querySelectorAll("tr.job")) if (!known.has(one.id)) one.classList.add("new");
  if (focused) for (const one of part.querySelectorAll("a")) if (one.getAttribute("href") === focused) { one.focus(); break; }
}

function live(isOn) {
  const sign = byId("live");
  sign.textContent = isOn === null ? "" : isOn ? sign.dataset.on : sign.dataset.off;
}

// A browser allows six connections to a server: a page that nobody sees gives its own back.
function connect(address, handlers) {
  let source = null, last = "", isOver = false;
  const open = () => {
    if (source || isOver || document.hidden) return;
    source = new EventSource(last ? address.replace(/([?&]from=)\d+/, "$1" + last) : address);
    source.onopen = () => live(true);
    source.onerror = () => live(false);
    for (const [name, handle] of Object.entries(handlers)) source.addEventListener(name, (event) => {
      last = event.lastEventId || last;
      if (handle(event.data) === "over") { isOver = true; close(); live(null); }
    });
  };
  const close = () => { source?.close(); source = null; };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  open();
}

function watchJobs(part) {
  let asked = 0, shown = 0;
  connect(part.dataset.stream, {
    jobs: async () => {
      const number = ++asked;
      const answer = await fetch(part.dataset.part + location.search);
      const html = answer.ok ? await answer.text() : "";
      if (!html || number < shown) return; // a later answer was faster
      shown = number;
      replace("jobs", html);
    },
  });
}

function watchJob(job) {
  const log = byId("log"), follow = byId("follow");
  if (log) {
    log.scrollTop = log.scrollHeight;
    byId("older")?.remove(); // scrolling does the same
    showLine(log, follow);
    addEventListener("hashchange", () => showLine(log, follow));
    log.addEventListener("scroll", () => {
      follow.checked = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
      if (log.scrollTop < 200) older(log);
    });
    follow.addEventListener("change", () => { if (follow.checked) newest(log); });
  }
  connect(job.dataset.stream, {
    part: (data) => {
      const { name, html } = JSON.parse(data);
      replace(name, html);
      if (name === "head") document.title = document.querySelector("[data-title]")?.dataset.title || document.title;
    },
    log: (data) => {
      const { html, again } = JSON.parse(data);
      if (!log) return;
      if (again) { log.replaceChildren(); delete log.dataset.whole; }
      log.insertAdjacentHTML("beforeend", html);
      if (follow.checked) {
        newest(log);
      }
    },
    end: () => "over",
    other: () => { location.reload(); return "over"; },
  });
}

let isReading = false;
async function older(log) {
  const first = log.firstElementChild;
  if (isReading || !first || first.id === "l0" || log.dataset.whole) return;
  isReading = true;
  try {
    const answer = await fetch(log.dataset.more + "&before=" + first.id.slice(1));
    if (!answer.ok) return;
    const html = await answer.text();
    if (log.firstElementChild !== first) return; // lines were removed meanwhile
    if (!html.trim()) { log.dataset.whole = "yes"; return; }
    const before = log.scrollHeight;
    log.insertAdjacentHTML("afterbegin", html);
    log.scrollTop += log.scrollHeight - before;
  } finally { isReading = false; }
}

// The address of a line may be that of one that is not on the page.
function showLine(log, follow) {
  const number = /^#l(\d+)$/.exec(location.hash)?.[1];
  if (number === undefined) return;
  follow.checked = false;
  const line = byId("l" + number);
  if (line) { line.scrollIntoView({ block: "center" }); return; }
  const query = new URLSearchParams(location.search), before = String(Number(number) + 250);
  if (query.get("before") === before) return;
  query.set("before", before);
  location.replace("?" + query + location.hash);
}

function newest(log) {
  while (log.children.length > most) { log.firstElementChild.remove(); delete log.dataset.whole; }
  log.scrollTop = log.scrollHeight;
}

// Charts: the value of each line where the reader points.
document.addEventListener("pointermove", (event) => {
  const svg = event.target.closest && event.target.closest("svg[data-x]");
  for (const other of document.querySelectorAll("svg[data-x] .cursor")) if (other.parentNode !== svg) { other.closest("figure").querySelector(".at").textContent = ""; other.remove(); }
  if (!svg) return;
  const x = svg.dataset.x.split("|"), y = svg.dataset.y.split("|"), box = svg.getBoundingClientRect();
  const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)), at = Math.round(share * (x.length - 1));
  svg.closest("figure").querySelector(".at").textContent = x[at] + ": " + y[at];
  let line = svg.querySelector(".cursor");
  if (!line) { line = document.createElementNS("http://www.w3.org/2000/svg", "line"); line.setAttribute("class", "cursor"); line.setAttribute("y1", "0"); line.setAttribute("y2", "100"); svg.append(line); }
  line.setAttribute("x1", String(1000 * share)); line.setAttribute("x2", String(1000 * share));
});

// The chart of all runs: a drag filters the table to a span of time.
document.addEventListener("pointerdown", (event) => {
  const svg = event.target.closest && event.target.closest("svg.dots");
  if (!svg || event.button || event.target.closest("a")) return;
  const box = svg.getBoundingClientRect(), at = (e) => Math.min(1, Math.max(0, (e.clientX - box.left) / box.width)), from = at(event);
  const brush = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  brush.setAttribute("class", "brush"); brush.setAttribute("height", "100%"); svg.append(brush);
  const move = (e) => { brush.setAttribute("x", 100 * Math.min(from, at(e)) + "%"); brush.setAttribute("width", 100 * Math.abs(at(e) - from) + "%"); };
  const up = (e) => {
    removeEventListener("pointermove", move); removeEventListener("pointerup", up); brush.remove();
    if (Math.abs(at(e) - from) * box.width < 8) return;
    const left = 0.06, width = 0.93, first = Number(svg.dataset.first), span = Number(svg.dataset.last) - first, time = (share) => first + span * Math.min(1, Math.max(0, (share - left) / width)), query = new URLSearchParams(location.search);
    query.set("since", String(time(Math.min(from, at(e))))); query.set("before", String(time(Math.max(from, at(e))))); query.delete("page");
    location.search = query.toString();
  };
  addEventListener("pointermove", move); addEventListener("pointerup", up);
});

// `/` finds, and the filters act at once.
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) { event.preventDefault(); document.querySelector("input[type=search]")?.focus(); }
  if (event.key === "Escape") document.activeElement.blur();
});
document.addEventListener("change", (event) => { if (event.target.matches("form.filters select")) event.target.form.requestSubmit(); });

const jobs = byId("part-jobs"), job = byId("job");
if (jobs) watchJobs(jobs);
if (job) watchJob(job);
