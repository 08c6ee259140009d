
"use strict";
// Asks its server once in a while how the simulation stands, and shows it. Texts come ready made
// and are only ever set as text: names from files can do nothing here.
const SVG = "http://www.w3.org/2000/svg";
const EVERY = 700, HIDDEN = 5000, PATIENCE = 5000;  // ms
const ROUTES = ["edge", "cloud", "fallback", "error"];
const $ = (id) => document.getElementById(id);
let last = null, heard = null, failures = 0, timer = 0, drawn = "";

function set(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

function make(name, attributes, parent, text) {
  const element = parent.namespaceURI === SVG || name === "svg"
    ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return parent.appendChild(element);
}

function list(id, texts, classes) {
  const key = JSON.stringify([texts, classes]);
  if ($(id).dataset.key === key) return;
  $(id).dataset.key = key;
  $(id).replaceChildren();
  texts.forEach((text, i) => make("li", classes[i] ? { class: classes[i] } : {}, $(id), text));
}

function show(state) {
  const percent = Math.round(100 * state.done);
  document.title = (state.final ? "Done" : percent + " %") + " \u00b7 Gatewise";
  set("title", state.title);
  set("status", state.status);
  $("done").value = state.done;
  set("percent", percent + " %");
  set("left", state.left && state.phase === "running" ? "about " + state.left + " left; " : "");
  set("where", state.where);
  set("answered", state.answered[0]);
  set("rest", state.answered[1]);
  routes(state.routes);
  figures(state.figures);
  list("faults", state.faults.map((f) => f.text), state.faults.map((f) => f.when));
  list("legs", state.legs, []);
  $("legs-place").hidden = !state.legs.length;
  chart(state);
  if (state.final && state.report) report(state.report, true);
}

// A link while there is somebody to ask for it; where the file is, in any case.
function report(path, served) {
  const place = $("report"), key = String(served);
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  place.textContent = "";
  const said = "The report is finished";
  if (served) make("a", { href: "/report.html" }, place, said); else place.append(said);
  place.append(": " + path);
  place.hidden = false;
}

function routes(rows) {
  const body = $("routes");
  rows.forEach(([name, share, count], i) => {
    let row = body.children[i];
    if (!row) {
      row = make("tr", {}, body);
      make("th", { scope: "row" }, row, name);
      const cell = make("td", {}, row);
      const svg = make("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none",
                                "aria-hidden": "true" }, cell);
      make("rect", { class: "rest", width: 100, height: 10 }, svg);
      make("rect", { class: name, width: 0, height: 10 }, svg);
      make("span", {}, cell);
      make("td", {}, row);
    }
    row.querySelector("rect." + name).setAttribute("width", share ? Math.max(100 * share, .7) : 0);
    row.querySelector("span").textContent = (100 * share).toFixed(1) + " %";
    row.lastChild.textContent = count;
  });
}

function figures(pairs) {
  const place = $("figures");
  while (place.children.length > pairs.length) place.lastChild.remove();
  pairs.forEach(([name, value], i) => {
    const pair = place.children[i] || make("div", {}, place);
    if (!pair.children.length) { make("dt", {}, pair); make("dd", {}, pair); }
    if (pair.firstChild.textContent !== name) pair.firstChild.textContent = name;
    if (pair.lastChild.textContent !== value) pair.lastChild.textContent = value;
  });
}

// Two panels over one axis of time: shares of the routes, stacked, and latency on a log scale.
function chart(state) {
  const svg = $("chart"), width = Math.max(svg.clientWidth, 200);
  const key = JSON.stringify([width, state.bins, state.faults, state.span, state.at]);
  if (key === drawn) return;
  drawn = key;
  const fast = !state.bins.length && state.done > .5;
  svg.toggleAttribute("hidden", fast);
  $("key").hidden = fast;
  set("how", fast ? "This leg went too fast to be drawn; the report has it all."
    : "Who answered, and the latency then; shaded where something is down.");
  while (svg.lastChild !== svg.querySelector("defs")) svg.lastChild.remove();
  svg.setAttribute("viewBox", "0 0 " + width + " 300");
  const left = 56, right = width - 8, top = 6, middle = 150, low = 178, bottom = 272;
  const x = (at) => left + (right - left) * Math.min(Math.max(at / (state.span || 1), 0), 1);
  const line = (x1, y1, x2, y2, name) => make("line", { x1, y1, x2, y2, class: name }, svg);
  const label = (at, y, text, anchor, name) =>
    make("text", { x: at, y, "text-anchor": anchor, ...(name ? { class: name } : {}) }, svg, text);

  for (const share of [0, .5, 1]) {
    const y = middle - share * (middle - top);
    line(left, y, right, y, "grid");
    label(left - 6, y + 4, 100 * share + " %", "end");
  }
  shares(state, svg, x, (share) => middle - share * (middle - top));
  latency(state, svg, x, left, right, low, bottom, line, label);
  faults(state, svg, x, top, bottom);
  names(state, x, right, label);
  state.ticks.forEach(([at, text]) => {
    line(x(at), bottom, x(at), bottom + 4, "grid");
    label(x(at), bottom + 18, text, at === 0 ? "start" : x(at) > right - 20 ? "end" : "middle");
  });
  if (state.phase === "running") line(x(state.at), top, x(state.at), bottom, "now");
}

function shares(state, svg, x, y) {
  const paths = { edge: "", cloud: "", fallback: "", error: "" };
  state.bins.forEach((bin, i) => {
    const whole = bin[0] + bin[1] + bin[2] + bin[3];
    if (!whole) return;
    const from = x(i * state.width).toFixed(2), to = x((i + 1) * state.width).toFixed(2);
    let below = 0;
    ROUTES.forEach((route, r) => {
      if (!bin[r]) return;
      const above = below + bin[r] / whole;
      paths[route] += "M" + from + " " + y(below).toFixed(2) + "H" + to + "V"
        + y(above).toFixed(2) + "H" + from + "Z";
      below = above;
    });
  });
  for (const route of ROUTES) if (paths[route]) make("path", { d: paths[route], class: route }, svg);
}

function latency(state, svg, x, left, right, low, bottom, line, label) {
  const known = state.bins.flatMap((bin) => [bin[4], bin[5]]).filter((v) => v !== null && v > 0);
  if (!known.length) return;
  const from = Math.floor(Math.log10(Math.min(...known)));
  const to = Math.max(Math.ceil(Math.log10(Math.max(...known))), from + 1);
  const y = (ms) => bottom - (Math.log10(ms) - from) / (to - from) * (bottom - low);
  const step = Math.ceil((to - from) / 3);
  for (let power = from; power <= to; power += step) {
    line(left, y(10 ** power), right, y(10 ** power), "grid");
    const text = power < 3 ? Number((10 ** power).toPrecision(1)) + " ms" : 10 ** (power - 3) + " s";
    label(left - 6, y(10 ** power) + 4, text, "end");
  }
  [["p50", 4], ["p95", 5]].forEach(([name, column]) => {
    let d = "", pen = "M";
    state.bins.forEach((bin, i) => {
      if (bin[column] === null || !(bin[column] > 0)) { pen = "M"; return; }
      d += pen + x((i + .5) * state.width).toFixed(2) + " " + y(bin[column]).toFixed(2);
      pen = "L";
    });
    if (d) make("path", { d, class: name }, svg);
  });
}

// One path for all that is down and one for what is to come, so that shades do not add up.
function faults(state, svg, x, top, bottom) {
  const paths = { down: "", come: "" };
  for (const fault of state.faults) {
    const last = fault.end === null ? Math.max(state.at, fault.begin) : fault.end;
    const from = x(fault.begin), to = Math.max(x(last), from + 1.5);
    paths[fault.when === "to come" ? "come" : "down"] +=
      "M" + from + " " + top + "H" + to + "V" + bottom + "H" + from + "Z";
  }
  for (const [name, d] of Object.entries(paths)) if (d) make("path", { d, class: name }, svg);
}

// Names of faults that have room beside each other; the list below the chart has them all.
function names(state, x, right, label) {
  let free = 0;
  for (const fault of state.faults) {
    const at = Math.max(x(fault.begin), 58), room = 7.5 * fault.what.length + 6;
    if (at < free || at + room > right + 30) continue;
    const end = at + room > right;
    label(end ? right : at + 3, 164, fault.what, end ? "end" : "start", "what");
    free = at + room;
  }
}

async function poll() {
  clearTimeout(timer);
  let wait = document.hidden ? HIDDEN : EVERY;
  try {
    const answer = await fetch("/state.json",
      { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    if (!answer.ok) throw new Error(String(answer.status));
    last = await answer.json();
    heard = new Date();
    failures = 0;
    $("gone").hidden = true;
    show(last);
    if (last.final) wait = HIDDEN;
  } catch {
    failures += 1;
    wait = Math.min(EVERY * failures, 10000);
    if (failures >= 3) gone();  // one question may get lost
  }
  timer = setTimeout(poll, wait);
}

function gone() {
  if (last && last.final) {
    set("gone", "The simulation has ended, and its server with it.");
    if (last.report) report(last.report, false);
  } else {
    set("gone", "The simulation's server does not answer any more: it has ended or was stopped. "
      + (heard ? "The figures are those of " + heard.toLocaleTimeString() + "." : ""));
  }
  $("gone").hidden = false;
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) poll();
});
addEventListener("resize", () => { if (last) chart(last); });
poll();
