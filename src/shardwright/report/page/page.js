"use strict";
// One record of data, one selection (a module), one cursor (a time); every view draws both.
const began = performance.now();
const D = JSON.parse(document.getElementById("data").textContent);
const O = D.overview;
const OP = 0, PATH = 1, MODULE = 2, PHASE = 3, START = 4, TIME = 5, EXPOSED = 6, LANE = 7, BYTES = 8, LINE = 9, TENSOR = 10, CAUSE = 11;
const KIND_COLOURS = ["#4c78c8", "#8a63c4", "#8d99ab", "#d98a3d", "#5aa6b8", "#68a85f", "#c7648f", "#b59b3c"];
const state = { tab: "Summary", module: -1, cursor: 0, from: 0, to: Math.max(O.step_ps, 1), inside: new Set(), open: new Set(), filter: "", sort: "", row: 0 };
const $ = (id) => document.getElementById(id);

function el(tag, about = {}, ...inner) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(about)) {
    if (key === "style") Object.assign(made.style, value);
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== undefined) made.setAttribute(key, value);
  }
  for (const item of inner.flat()) if (item !== null && item !== undefined) made.append(item);
  return made;
}

function put(place, ...inner) {
  for (const item of inner.flat(2)) if (item !== null && item !== undefined) place.append(item);
}

const UNITS = [[1e12, 1e12, "s"], [1e8, 1e9, "ms"], [1e5, 1e6, "us"], [0, 1e3, "ns"]];
function time(ps, beside = O.step_ps) {
  const pick = (like) => UNITS.find(([least]) => Math.abs(like) >= least);
  let [, size, unit] = pick(beside);
  let text = (ps / size).toFixed(3);
  if (ps && !/[1-9]/.test(text)) { [, size, unit] = pick(ps); text = (ps / size).toFixed(3); }
  return `${text} ${unit}`;
}
function bytes(n) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) if (n >= size) return `${(n / size).toFixed(2)} ${unit}`;
  return `${n} bytes`;
}
const UNIT = time(O.step_ps).split(" ")[1];
// Round figures between two ends, so many at most: 1, 2 or 5 times a power of ten of a unit.
function ticks(from, to, most, unit = 1) {
  const least = (to - from) / Math.max(most, 1) / unit || 1, power = 10 ** Math.floor(Math.log10(least));
  const step = unit * power * [1, 2, 5, 10].find((by) => by * power >= least * 0.999);
  return Array.from({ length: Math.floor(to / step) - Math.ceil(from / step) + 1 }, (_, i) => (Math.ceil(from / step) + i) * step);
}
const round = (text) => text.replace(/\.(\d*?)0+ /, (_, kept) => (kept ? `.${kept} ` : " "));
const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)}%` : "");
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// -- what is derived once ---------------------------------------------------------------------------------

const eventCount = D.events.length;
const memoryByKind = D.kinds.map(() => new Float64Array(eventCount + 2));
for (const [, size, kind, first, last] of D.memory) {
  memoryByKind[kind][first + 1] += size;
  if (last + 2 < eventCount + 2) memoryByKind[kind][last + 2] -= size;
}
for (const series of memoryByKind) for (let i = 1; i < series.length; i++) series[i] += series[i - 1];
const memoryAt = new Float64Array(eventCount + 1);
for (const series of memoryByKind) for (let i = 0; i <= eventCount; i++) memoryAt[i] += series[i];
const peak = memoryAt.reduce((a, b) => Math.max(a, b), 0);
const eventTimes = D.events.map(([at]) => at);
const lanes = D.lanes.map(() => []);
for (const span of D.spans) lanes[span[2]].push(span);
const flat = [];
(function walk(rows, around, depth) {
  for (const row of rows) {
    row.around = around; row.depth = depth; row.title = D.modules[row.id];
    flat.push(row);
    walk(row.children, row, depth + 1);
  }
})(D.rows, null, 0);
const rowOf = new Map();
for (const row of flat) if (!rowOf.has(row.id)) rowOf.set(row.id, row);
// What takes most is unfolded first, until a screen is full.
const weight = (row) => row.compute.reduce((a, b) => a + b, 0) + row.exposed + row.memory / 1e6;
for (let room = 32 - D.rows.length; ;) {
  const closed = flat.filter((row) => row.children.length && row.children.length <= room && !state.open.has(row) && (!row.around || state.open.has(row.around)));
  if (!closed.length) break;
  const first = closed.reduce((a, b) => (weight(b) > weight(a) ? b : a));
  state.open.add(first);
  room -= first.children.length;
}

// The event that is under way at a time, -1 before the first; of several that begin together the one that holds most.
function eventAt(at) {
  let low = 0, high = eventCount;
  while (low < high) { const mid = (low + high) >> 1; if (eventTimes[mid] <= at) low = mid + 1; else high = mid; }
  let found = low - 1;
  for (let e = found - 1; e >= 0 && eventTimes[e] === eventTimes[low - 1]; e--) if (memoryAt[e + 1] > memoryAt[found + 1]) found = e;
  return found;
}

// -- selection and cursor -----------------------------------------------------------------------------------

function select(id) {
  state.module = id;
  state.inside = new Set();
  const row = rowOf.get(id);
  if (row) (function walk(r) { state.inside.add(r.id); r.children.forEach(walk); for (let a = r.around; a; a = a.around) if (!state.filter) state.open.add(a); })(row);
  refresh();
}
function moveCursor(at) { state.cursor = Math.min(Math.max(at, 0), O.step_ps); refresh(); }

function footer() {
  const event = eventAt(state.cursor);
  const there = event < 0 ? null : D.events[event][1];
  const instr = there === null ? null : D.instrs[there < 0 ? -1 - there : there];
  const what = instr ? `${there < 0 ? "wait for " : ""}${D.texts[instr[OP]]} in ${D.texts[instr[PATH]]}` : "start";
  const picked = state.module < 0 ? "nothing selected" : `selected: ${D.modules[state.module]}`;
  $("footer").textContent = `cursor ${time(state.cursor)}: ${what}, ${bytes(memoryAt[event + 1])} in use  |  ${picked}`;
}

// -- summary --------------------------------------------------------------------------------------------------

function bar(parts, whole) {
  const made = el("div", { class: "bar", role: "img" });
  for (const [label, value, colour] of parts) if (value > 0) made.append(el("span", { title: label, style: { width: `${(100 * value) / whole}%`, background: colour } }));
  return made;
}
const legend = (parts, show) => el("div", { class: "legend" }, parts.filter(([, value]) => value > 0).map(([label, value, colour]) =>
  el("span", {}, el("i", { class: "swatch", style: { background: colour } }), `${label} ${show(value)}`)));

function summary(root) {
  const hidden = O.communication_ps - O.exposed_ps;
  put(root, el("p", { class: "sentence", id: "sentence" }, O.summary));
  const times = [["compute", O.compute_ps, "var(--compute)"], ["exposed communication", O.exposed_ps, "var(--exposed)"]];
  const widest = Math.max(O.capacity_bytes, O.memory_bytes);
  const kinds = D.kinds.map((name, i) => [name, memoryByKind[i][D.peak_event + 1], KIND_COLOURS[i]]);
  const sent = new Map();
  for (const item of O.collectives) { const key = `${item.kind} over ${item.axes}`; sent.set(key, (sent.get(key) || 0) + item.bytes); }
  const traffic = [...sent].sort((a, b) => b[1] - a[1]).map(([name, value], i) => [name, value, KIND_COLOURS[i % 8]]);
  const total = traffic.reduce((sum, [, value]) => sum + value, 0);
  put(root, el("div", { class: "bars" },
    el("b", {}, "Step"), bar(times, O.step_ps || 1),
    el("div", { class: "legend" }, el("span", { id: "step" }, `${time(O.step_ps)} = `), times.map(([label, value, colour]) => el("span", {}, el("i", { class: "swatch", style: { background: colour } }), `${label} ${time(value)}`)),
      el("span", {}, `(of ${time(O.communication_ps)} communication ${time(hidden)} is hidden)`)),
    el("b", {}, "Memory"), bar([...kinds], widest || 1),
    el("div", { class: "legend" }, el("span", { id: "memory" }, `${bytes(O.memory_bytes)} of ${bytes(O.capacity_bytes)} a device`),
      O.memory_bytes > O.capacity_bytes ? el("span", { class: "warn" }, "does not fit") : null,
      kinds.filter(([, value]) => value > 0).map(([label, value, colour]) => el("span", {}, el("i", { class: "swatch", style: { background: colour } }), `${label} ${bytes(value)}`))),
    ...(total ? [el("b", {}, "Sent"), bar(traffic, total), legend(traffic, bytes)] : [])));
  const peakText = `Peak: ${O.peak.where}${O.peak.phase ? `, ${O.peak.phase}` : ""}, ${percent(O.peak.at_ps, O.step_ps)} into the step`;
  put(root, el("p", { class: "note" }, peakText, " ", el("button", { onclick: () => { state.cursor = O.peak.at_ps; show("Timeline"); } }, "show")));
  put(root, el("p", { class: "note", id: "quality" }, `Objective ${time(O.objective_ps)}: ${O.quality} (${O.solver}); ${O.proven}`));
  put(root, el("h2", {}, "Phases"), table(["phase", "compute", "exposed"], Object.entries(O.phases).map(([name, p]) => [name, time(p.compute_ps), time(p.exposed_ps)])));
  put(root, el("h2", {}, "Communication, most exposed first"), O.collectives.length ? table(["phase", "kind", "over", "count", "starts", "sent", "time", "exposed", "where"],
    O.collectives.map((c) => [c.phase, c.kind, c.axes, c.count, c.starts, bytes(c.bytes), time(c.time), time(c.exposed),
      Object.entries(c.where).slice(0, 2).map(([name, ps]) => `${name} ${time(ps)}`).join(", ")]), 3) : el("p", { class: "note" }, "none"));
  put(root, el("h2", {}, "Largest at the peak"), table(["module", "kind", "bytes", "of it", "tensors"],
    O.held.slice(0, 12).map((h) => [h.module, D.kinds[kindPlace(h.kind)], bytes(h.bytes), percent(h.bytes, O.memory_bytes), `${h.count} x ${h.largest}`]), 2, 3));
  if (D.comparison.length) comparison(root);
  if (O.notes.length) put(root, el("h2", {}, "Notes"), O.notes.map((note) => el("p", { class: "note" }, note)));
}
const KIND_KEYS = ["parameter", "state", "input", "gradient", "updated", "activation", "copy", "buffer"];
const kindPlace = (key) => KIND_KEYS.indexOf(key);

function table(head, rows, from = 1, to = 99) {
  const number = (i) => (i >= from && i <= to && i < head.length - (head[head.length - 1] === "where" || head[head.length - 1] === "tensors" ? 1 : 0) ? "n" : "");
  return el("table", {}, el("thead", {}, el("tr", {}, head.map((text, i) => el("th", { class: number(i) }, text)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => el("td", { class: number(i) }, `${cell}`))))));
}

function comparison(root) {
  const shown = D.comparison.filter((row) => !row.why).sort((a, b) => a.step_ps - b.step_ps);
  const longest = Math.max(...shown.map((row) => row.step_ps), 1);
  put(root, el("h2", {}, "Beside plans that people make by hand"));
  const bars = el("div", { class: "bars", id: "comparison" });
  for (const row of shown) {
    bars.append(el("b", {}, row.name), bar([["compute", row.compute_ps, "var(--compute)"], ["exposed", row.exposed_ps, "var(--exposed)"]], longest),
      el("div", { class: "legend" }, `${time(row.step_ps)}, ${bytes(row.memory_bytes)}`, row.fits ? null : el("span", { class: "warn" }, "does not fit")));
  }
  put(root, bars, D.comparison.filter((row) => row.why).map((row) => el("p", { class: "note" }, `${row.name}: ${row.why}`)));
}

// -- modules --------------------------------------------------------------------------------------------------

const sum = (list) => list.reduce((a, b) => a + b, 0);
const FIGURES = { forward: (r) => r.compute[0], backward: (r) => r.compute[1], update: (r) => r.compute[2] + r.compute[3], comm: (r) => r.comm, exposed: (r) => r.exposed, memory: (r) => r.memory };
const WHOLE = Object.fromEntries(Object.entries(FIGURES).map(([name, of]) => [name, Math.max(...D.rows.map(of), 1)]));

function visibleRows() {
  const word = state.filter.toLowerCase();
  if (word || state.sort) {
    const found = flat.filter((row) => !word || row.title.toLowerCase().includes(word) || row.weights.some((w) => w.name.toLowerCase().includes(word) || D.tensors[w.tensor][0].includes(word)));
    if (state.sort) found.sort((a, b) => FIGURES[state.sort](b) - FIGURES[state.sort](a));
    return found;
  }
  const found = [];
  (function walk(rows) { for (const row of rows) { found.push(row); if (state.open.has(row)) walk(row.children); } })(D.rows);
  return found;
}

function modules(root) {
  const filter = el("input", { id: "filter", placeholder: "filter by name or axis ( / )", value: state.filter, oninput: (e) => { state.filter = e.target.value; drawTree(); } });
  put(root, el("div", { class: "tools" }, filter, el("button", { onclick: () => { flat.forEach((r) => state.open.add(r)); drawTree(); } }, "unfold all"),
    el("button", { onclick: () => { state.open.clear(); drawTree(); } }, "fold all"), el("span", {}, "arrow keys move and fold; a column's head sorts")));
  put(root, el("div", { class: "split" }, el("div", { class: "tree", id: "tree", tabindex: 0, onkeydown: treeKeys }), el("div", { class: "card", id: "card" })));
  drawTree();
  drawCard();
}

function drawTree() {
  const place = $("tree");
  if (!place) return;
  const rows = visibleRows();
  const head = el("tr", {}, el("th", { class: "name" }, "module"), el("th", {}, "weight; its state"),
    Object.keys(FIGURES).map((name) => el("th", { class: "n", "data-sort": name, title: "sort", onclick: () => { state.sort = state.sort === name ? "" : name; drawTree(); } }, `${name}${name === "memory" ? "" : ` ${UNIT}`}${state.sort === name ? " ▾" : ""}`)), el("th", { class: "activation" }, "activation"));
  const body = el("tbody");
  rows.forEach((row, i) => {
    const openable = row.children.length > 0 && !state.filter && !state.sort;
    const mark = openable ? (state.open.has(row) ? "▾" : "▸") : "";
    const fold = el("span", { class: "fold", onclick: (e) => { e.stopPropagation(); toggle(row); } }, mark);
    const name = el("td", { class: "name", style: { paddingLeft: `${(state.filter || state.sort ? 0 : row.depth) * 16}px` } }, fold, state.filter || state.sort ? row.title : row.label,
      row.count > 1 ? el("span", { class: "note" }, ` x${row.count}`) : null);
    const states = [...new Set(row.weights.flatMap((w) => w.state.map(([, t]) => D.tensors[t][4]).filter((spec) => spec !== D.tensors[w.tensor][4])))];
    const made = el("tr", { class: row.id === state.module ? "row picked" : "row", "data-module": row.title, onclick: () => { state.row = i; select(row.id); } }, name,
      el("td", { class: "mono" }, [...new Set(row.weights.map((w) => D.tensors[w.tensor][0]))].join(", "), states.length ? `; ${states.join(", ")}` : ""),
      Object.entries(FIGURES).map(([key, of]) => {
        const value = of(row), share = (100 * value) / WHOLE[key];
        return el("td", { class: "n", style: { background: value ? `linear-gradient(to left, var(--bar) ${share}%, transparent ${share}%)` : "" } }, value ? (key === "memory" ? bytes(value) : time(value).replace(` ${UNIT}`, "")) : "");
      }), el("td", { class: "mono activation" }, row.activation));
    body.append(made);
  });
  place.replaceChildren(el("table", {}, el("thead", {}, head), body));
}
function toggle(row) { if (state.open.has(row)) state.open.delete(row); else state.open.add(row); drawTree(); }

function treeKeys(event) {
  const rows = visibleRows();
  let at = rows.findIndex((row) => row.id === state.module);
  const row = rows[at];
  if (event.key === "ArrowDown") at = Math.min(at + 1, rows.length - 1);
  else if (event.key === "ArrowUp") at = Math.max(at - 1, 0);
  else if (event.key === "ArrowRight" && row) { if (row.children.length && !state.open.has(row)) return event.preventDefault(), toggle(row); at = Math.min(at + 1, rows.length - 1); }
  else if (event.key === "ArrowLeft" && row) { if (state.open.has(row)) return event.preventDefault(), toggle(row); at = row.around ? rows.indexOf(row.around) : at; }
  else return;
  event.preventDefault();
  event.stopPropagation();
  if (rows[at]) select(rows[at].id);
  const picked = document.querySelector("tr.picked");
  if (picked) picked.scrollIntoView({ block: "nearest" });
}

// Where each device's part of a tensor lies: chunk after chunk, as PyTorch cuts.
const axisSizes = D.axes.map(([, size]) => size);
const deviceCount = axisSizes.reduce((a, b) => a * b, 1);
function coordinates(position) {
  const found = [];
  for (let i = axisSizes.length - 1; i >= 0; i--) { found[i] = position % axisSizes[i]; position = Math.floor(position / axisSizes[i]); }
  return found;
}
function slices(tensor, position) {
  const [, shape, dims] = tensor, at = coordinates(position);
  return shape.map((size, d) => {
    let from = 0, length = size;
    for (const [axis, pre, ways] of dims[d]) {
      const part = Math.floor(at[axis] / (axisSizes[axis] / (pre * ways))) % ways, each = Math.ceil(length / ways);
      const begin = Math.min(part * each, length);
      length = Math.min(each, length - begin);
      from += begin;
    }
    return [from, from + length];
  });
}

function deviceGrid(tensor) {
  const columns = axisSizes.length > 1 ? axisSizes[axisSizes.length - 1] : Math.min(deviceCount, 16);
  const small = deviceCount > 128, shown = Math.min(deviceCount, 2048), colours = new Map();
  const grid = el("div", { class: "grid", style: { gridTemplateColumns: `repeat(${columns}, max-content)` } });
  const parts = [];
  for (let p = 0; p < shown; p++) {
    const key = slices(tensor, p).map(([a, b]) => `${a}:${b}`).join(", ");
    if (!colours.has(key)) colours.set(key, colours.size);
    parts.push(key);
  }
  parts.forEach((key, p) => {
    const hue = Math.round((360 * colours.get(key)) / Math.max(colours.size, 1) + 205) % 360;
    grid.append(el("span", { class: `device${small ? " small" : ""}${tensor[3].length ? " pending" : ""}`, title: `device ${D.devices[p]}: [${key}]${tensor[3].length ? ", a part of the sum" : ""}`, style: { background: `hsl(${hue} 55% 68%)` } }, `${D.devices[p]}`));
  });
  const copies = deviceCount / colours.size;
  const said = colours.size === 1 ? "every device holds the whole" : `${colours.size} different parts${copies > 1 ? `, each on ${copies} devices` : ""}`;
  return [grid, el("p", { class: "note" }, shown < deviceCount ? `the first ${shown} of ${deviceCount} devices` : said)];
}

const USES = {
  split: "split, and computed with in parts (tensor parallel)", gathered: "split, and gathered before use (ZeRO-3)",
  state: "whole, only its optimizer state is split (ZeRO-1)", copied: "whole; the batch is split (data parallel)", idle: "whole, work is repeated or split otherwise",
};

function drawCard() {
  const card = $("card");
  if (!card) return;
  card.replaceChildren();
  const row = rowOf.get(state.module);
  if (!row) return put(card, el("p", { class: "note" }, "Select a module to see its shards, its reasons and its lines."));
  put(card, el("h2", {}, row.title, row.count > 1 ? ` (x${row.count})` : ""));
  put(card, el("p", { class: "note" }, `${time(sum(row.compute))} compute, ${time(row.comm)} communication (${time(row.exposed)} exposed), ${bytes(row.memory)} at the peak`),
    row.activation ? el("p", { class: "note" }, "hands on ", el("span", { class: "mono" }, row.activation)) : null);
  const tensors = row.weights.flatMap((w) => [[w.name, w.tensor, w], ...w.state.map(([name, t]) => [name, t, null])]);
  for (const [name, number, weight] of tensors) {
    const tensor = D.tensors[number];
    put(card, el("h3", {}, name), el("p", { class: "mono" }, tensor[0]), ...deviceGrid(tensor));
    if (weight) {
      put(card, weight.use.map(([axis, use]) => el("p", { class: "note" }, `over ${axis}: ${USES[use]}`)));
      put(card, weight.because.length ? weight.because.map((text) => el("p", { class: "note" }, `asked for: ${text}`)) : el("p", { class: "note" }, `nobody asked for it: chosen by ${O.solver}`));
    }
  }
  const mine = D.instrs.filter((i) => state.inside.has(i[MODULE]));
  const groups = new Map();
  for (const i of mine) if (i[BYTES] || D.lanes[i[LANE]] !== "compute") {
    const key = `${D.phases[i[PHASE]]}: ${D.texts[i[OP]]} over ${D.lanes[i[LANE]]}`, group = groups.get(key) || [0, 0, 0, 0, D.texts[i[CAUSE]]];
    group[0]++; group[1] += i[BYTES]; group[2] += i[TIME]; group[3] += i[EXPOSED];
    groups.set(key, group);
  }
  if (groups.size) put(card, el("h3", {}, "Communication, and why"), [...groups].sort((a, b) => b[1][3] - a[1][3] || b[1][2] - a[1][2]).slice(0, 10).map(([key, [count, sent, spent, exposed, cause]]) =>
    el("p", { class: "note" }, `${count} x ${key}, ${bytes(sent)}, ${time(spent)}, ${time(exposed)} exposed; for ${cause}`)));
  const lines = new Map();
  for (const i of mine) { const line = D.texts[i[LINE]]; if (line) lines.set(line, (lines.get(line) || 0) + (D.lanes[i[LANE]] === "compute" ? i[TIME] : i[EXPOSED])); }
  if (lines.size) put(card, el("h3", {}, "Lines, by what they take"), [...lines].sort((a, b) => b[1] - a[1]).slice(0, 8).map(([line, ps]) => el("p", { class: "note" }, `${time(ps)}  ${line}`)));
}

// -- timeline and memory --------------------------------------------------------------------------------------

const LANE_HEIGHT = 24, LEFT = 110, MEMORY_HEIGHT = 230;
function timeline(root) {
  put(root, el("div", { class: "tools" }, el("button", { onclick: () => zoom(0.5) }, "+"), el("button", { onclick: () => zoom(2) }, "-"), el("button", { onclick: () => { state.from = 0; state.to = Math.max(O.step_ps, 1); refresh(); } }, "all"),
    el("span", { class: "legend" }, [["compute", "--compute"], ["hidden communication", "--hidden"], ["exposed", "--exposed"]].map(([text, name]) => el("span", {}, el("i", { class: "swatch", style: { background: `var(${name})` } }), text))),
    el("span", {}, "drag to zoom, click to select; left and right move the cursor, + and - zoom")));
  const lanesCanvas = el("canvas", { id: "lanes", tabindex: 0, role: "img", "aria-label": "timeline" }), memoryCanvas = el("canvas", { id: "memoryChart", role: "img", "aria-label": "memory over the step" });
  put(root, lanesCanvas, el("h2", {}, "Memory of a device"), legend(D.kinds.map((name, i) => [name, memoryByKind[i].reduce((a, b) => Math.max(a, b), 0), KIND_COLOURS[i]]), () => ""), memoryCanvas, el("div", { id: "alive" }));
  for (const canvas of [lanesCanvas, memoryCanvas]) watch(canvas);
  drawTimeline();
}
function zoom(by) {
  const width = Math.max((state.to - state.from) * by, Math.max(O.step_ps / 1e5, 1)), at = state.cursor;
  const share = Math.min(Math.max((at - state.from) / (state.to - state.from), 0), 1);
  state.from = Math.max(0, at - width * share);
  state.to = Math.min(Math.max(O.step_ps, 1), state.from + width);
  refresh();
}
// What is under the mouse: op, module, when, and of a collective its bytes and how much of it is exposed.
function told([from, to, lane, members]) {
  const mine = members.map((m) => D.instrs[m]), first = mine[0], waits = mine.reduce((all, i) => all + i[EXPOSED], 0);
  const more = lane ? `, ${bytes(mine.reduce((all, i) => all + i[BYTES], 0))} over ${D.lanes[lane]}, ${time(waits)} exposed` : "";
  return `${members.length > 1 ? `${members.length} x ` : ""}${D.texts[first[OP]]} in ${D.modules[first[MODULE]]}, ${D.phases[first[PHASE]]}\n${time(from)} to ${time(to)}: ${time(to - from)}${more}`;
}
function watch(canvas) {
  let pressed = null;
  const at = (event) => { const box = canvas.getBoundingClientRect(); return state.from + ((event.clientX - box.left - LEFT) / (box.width - LEFT)) * (state.to - state.from); };
  canvas.addEventListener("mousedown", (event) => { pressed = [at(event), event.clientX]; });
  canvas.addEventListener("mouseup", (event) => {
    if (!pressed) return;
    const [from, x] = pressed, to = at(event);
    pressed = null;
    if (Math.abs(event.clientX - x) > 6) { state.from = Math.max(0, Math.min(from, to)); state.to = Math.min(Math.max(O.step_ps, 1), Math.max(from, to)); return refresh(); }
    if (canvas.id === "lanes") {
      const lane = Math.floor((event.clientY - canvas.getBoundingClientRect().top - 18) / LANE_HEIGHT);
      const hit = (lanes[lane] || []).find((span) => span[0] <= to && to < span[1]);
      if (hit) select(D.instrs[hit[3][0]][MODULE]);
    }
    moveCursor(to);
  });
  canvas.addEventListener("mousemove", (event) => {
    const when = at(event), lane = Math.floor((event.clientY - canvas.getBoundingClientRect().top - 18) / LANE_HEIGHT);
    const hit = canvas.id === "lanes" ? (lanes[lane] || []).find((span) => span[0] <= when && when < span[1]) : null;
    canvas.title = hit ? told(hit) : canvas.id === "lanes" || event.clientX < canvas.getBoundingClientRect().left + LEFT ? "" : `${time(when)}: ${bytes(memoryAt[eventAt(when) + 1])} in use`;
  });
  canvas.addEventListener("wheel", (event) => { if (!event.ctrlKey) return; event.preventDefault(); state.cursor = at(event); zoom(event.deltaY > 0 ? 1.25 : 0.8); }, { passive: false });
}
function prepare(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = Math.max(canvas.clientWidth, 300);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const g = canvas.getContext("2d");
  g.scale(ratio, ratio);
  g.font = "11.5px system-ui, sans-serif";
  g.clearRect(0, 0, width, height);
  return [g, width];
}
function drawTimeline() {
  const canvas = $("lanes");
  if (!canvas) return;
  const height = 22 + lanes.length * LANE_HEIGHT;
  const [g, width] = prepare(canvas, height);
  const scale = (width - LEFT) / (state.to - state.from), x = (ps) => LEFT + (ps - state.from) * scale;
  const colours = { compute: css("--compute"), hidden: css("--hidden"), exposed: css("--exposed"), dim: css("--dim"), line: css("--line"), fg: css("--fg") };
  g.fillStyle = colours.dim;
  for (const at of ticks(state.from, state.to, (width - LEFT) / 110)) {
    const text = round(time(at));
    g.fillRect(x(at), 2, 1, 12);
    if (x(at) + 6 + g.measureText(text).width < width) g.fillText(text, x(at) + 4, 12);
  }
  lanes.forEach((spans, lane) => {
    const top = 18 + lane * LANE_HEIGHT;
    g.fillStyle = colours.dim;
    g.fillText(lane ? `over ${D.lanes[lane]}` : "compute", 4, top + 15);
    for (const [from, to, , members] of spans) {
      if (to < state.from || from > state.to) continue;
      const left = Math.max(x(from), LEFT), right = Math.min(x(to), width);
      const picked = state.module >= 0 && members.some((m) => state.inside.has(D.instrs[m][MODULE]));
      g.globalAlpha = state.module < 0 || picked ? 1 : 0.42;
      g.fillStyle = lane ? colours.hidden : colours.compute;
      g.fillRect(left, top + 2, Math.max(right - left - 0.3, 0.7), LANE_HEIGHT - 5);
      if (right - left > 60) { g.fillStyle = "#ffffff"; g.save(); g.beginPath(); g.rect(left, top, right - left - 3, LANE_HEIGHT); g.clip(); g.fillText(D.texts[D.instrs[members[0]][OP]], left + 4, top + 15); g.restore(); }
    }
    g.globalAlpha = 1;
  });
  g.fillStyle = colours.exposed;
  for (const [from, to, instr] of D.stalls) {
    if (to < state.from || from > state.to) continue;
    const left = Math.max(x(from), LEFT), wide = Math.max(Math.min(x(to), width) - left, 0.7);
    g.fillRect(left, 18 + D.instrs[instr][LANE] * LANE_HEIGHT + 2, wide, LANE_HEIGHT - 5);
  }
  cursorLine(g, x, height, colours.fg);
  drawMemory();
}
function cursorLine(g, x, height, colour) {
  if (state.cursor < state.from || state.cursor > state.to) return;
  g.strokeStyle = colour;
  g.beginPath(); g.moveTo(x(state.cursor), 0); g.lineTo(x(state.cursor), height); g.stroke();
}
function drawMemory() {
  const canvas = $("memoryChart");
  const [g, width] = prepare(canvas, MEMORY_HEIGHT);
  const scale = (width - LEFT) / (state.to - state.from), x = (ps) => LEFT + (ps - state.from) * scale;
  const top = (O.capacity_bytes < 2.5 * peak ? Math.max(O.capacity_bytes, peak) : peak) * 1.06 || 1, y = (value) => MEMORY_HEIGHT - (value / top) * MEMORY_HEIGHT;
  const first = Math.max(eventAt(state.from), 0), last = Math.min(eventAt(state.to) + 1, eventCount);
  const heights = new Float64Array(eventCount + 1);
  D.kinds.forEach((name, kind) => {
    const series = memoryByKind[kind];
    g.fillStyle = KIND_COLOURS[kind];
    g.beginPath();
    for (let e = first; e < last; e++) {
      const left = Math.max(x(eventTimes[e]), LEFT), right = Math.min(x(e + 1 < eventCount ? eventTimes[e + 1] : O.step_ps), width);
      const lower = heights[e + 1], upper = lower + series[e + 1];
      heights[e + 1] = upper;
      g.rect(left, y(upper), Math.max(right - left, 0.5), y(lower) - y(upper));
    }
    g.fill();
  });
  g.fillStyle = css("--dim");
  const unit = [2 ** 30, 2 ** 20, 2 ** 10, 1].find((size) => top >= 2 * size) || 1;
  for (const value of ticks(0, top, 5, unit)) { g.fillRect(LEFT - 6, y(value), 6, 1); g.fillText(round(bytes(value)), 4, Math.min(Math.max(y(value) + 4, 11), MEMORY_HEIGHT - 3)); }
  if (O.capacity_bytes <= top) { g.strokeStyle = css("--exposed"); g.setLineDash([6, 4]); g.beginPath(); g.moveTo(LEFT, y(O.capacity_bytes)); g.lineTo(width, y(O.capacity_bytes)); g.stroke(); g.setLineDash([]); g.fillStyle = css("--exposed"); g.fillText(`what there is: ${bytes(O.capacity_bytes)}`, LEFT + 6, y(O.capacity_bytes) - 4); }
  cursorLine(g, x, MEMORY_HEIGHT, css("--fg"));
  drawAlive();
}
function drawAlive() {
  const place = $("alive"), event = eventAt(state.cursor);
  const there = D.memory.filter(([, , , first, last]) => first <= event && event <= last).sort((a, b) => b[1] - a[1]);
  const rows = there.slice(0, 20).map(([name, size, kind, , , module, tensor]) => el("tr", { class: state.inside.has(module) ? "row picked" : "row", onclick: () => select(module) },
    el("td", { class: "n" }, bytes(size)), el("td", {}, el("i", { class: "swatch", style: { background: KIND_COLOURS[kind] } }), D.kinds[kind]), el("td", {}, D.texts[name]), el("td", {}, D.modules[module]), el("td", { class: "mono" }, tensor < 0 ? "" : D.tensors[tensor][0])));
  place.replaceChildren(el("h2", { id: "aliveHead" }, `In use at ${time(state.cursor)}: ${bytes(memoryAt[event + 1])}, ${there.length} tensors, the largest:`), el("table", {}, el("tbody", {}, rows)));
}

// -- data -----------------------------------------------------------------------------------------------------

function save(name, text, type) {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 5000);
}
const exports = {
  trace: () => {
    const events = D.lanes.map((name, tid) => ({ name: "thread_name", ph: "M", pid: 0, tid, args: { name: tid ? `over ${name}` : name } }));
    for (const [from, to, lane, members] of D.spans) {
      const i = D.instrs[members[0]];
      events.push({ name: D.texts[i[OP]], cat: D.phases[i[PHASE]], ph: "X", pid: 0, tid: lane, ts: from / 1e6, dur: (to - from) / 1e6, args: { module: D.texts[i[PATH]], line: D.texts[i[LINE]], bytes: sum(members.map((m) => D.instrs[m][BYTES])) } });
    }
    for (const [from, to, n] of D.stalls) events.push({ name: `wait for ${D.texts[D.instrs[n][OP]]}`, cat: "exposed", ph: "X", pid: 0, tid: D.lanes.length, ts: from / 1e6, dur: (to - from) / 1e6 });
    return JSON.stringify({ traceEvents: events, displayTimeUnit: "ms" });
  },
  csv: () => {
    const cell = (value) => { let text = `${value}`; if (/^[=+\-@]/.test(text)) text = `'${text}`; return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text; };
    const rows = D.instrs.map((i, n) => [n, D.texts[i[OP]], D.texts[i[PATH]], D.phases[i[PHASE]], i[START], i[TIME], i[EXPOSED], D.lanes[i[LANE]], i[BYTES], i[TENSOR] < 0 ? "" : D.tensors[i[TENSOR]][0], D.texts[i[LINE]]]);
    return ["instruction,op,module,phase,start_ps,whenps,exposed_ps,lane,bytes,makes,line", ...rows.map((row) => row.map(cell).join(","))].join("\n") + "\n";
  },
  json: () => JSON.stringify(O, null, 1),
  plan: () => D.plan,
};
function data(root) {
  const buttons = [["Chrome trace (Perfetto reads it)", "trace", "trace.json", "application/json"], ["Instructions as CSV", "csv", "instructions.csv", "text/csv"], ["Figures as JSON", "json", "report.json", "application/json"], ["The plan: plan.json for load_plan", "plan", "plan.json", "application/json"]];
  put(root, el("div", { class: "tools" }, buttons.map(([label, key, name, type]) => el("button", { id: `save-${key}`, onclick: () => save(name, exports[key](), type) }, label))));
  put(root, el("h2", {}, "Asked for"), D.asked.length ? D.asked.map((text) => el("p", { class: "note" }, text)) : el("p", { class: "note" }, "nothing but the program and the mesh"));
  put(root, el("h2", {}, "Inputs"), table(["name", "sharding"], Object.entries(O.inputs), 9));
  put(root, el("p", { class: "note" }, `shardwright, data version ${D.version}; times are picoseconds, memory bytes.`));
}

// -- frame ----------------------------------------------------------------------------------------------------

const TABS = { Summary: summary, Modules: modules, Timeline: timeline, Data: data };
function show(tab) {
  state.tab = tab;
  const root = el("section", { role: "tabpanel" });
  $("main").replaceChildren(root);
  for (const button of $("tabs").children) button.setAttribute("aria-selected", button.dataset.tab === tab);
  TABS[tab](root);
  footer();
}
function refresh() {
  footer();
  if (state.tab === "Modules") { drawTree(); drawCard(); }
  if (state.tab === "Timeline") drawTimeline();
}
function theme() {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  refresh();
}
$("title").textContent = `${O.name} on (${O.mesh})`;
$("facts").textContent = `${deviceCount} x ${O.hardware}; ${time(O.step_ps)} a step; ${bytes(O.memory_bytes)} of ${bytes(O.capacity_bytes)} a device; ${O.proven}`;
$("tabs").append(...Object.keys(TABS).map((tab, i) => el("button", { role: "tab", "data-tab": tab, title: `key ${i + 1}`, onclick: () => show(tab) }, tab)));
$("theme").addEventListener("click", theme);
addEventListener("resize", refresh);
addEventListener("keydown", (event) => {
  if (event.target.tagName === "INPUT") { if (event.key === "Escape") event.target.blur(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const tab = Object.keys(TABS)[Number(event.key) - 1];
  if (tab) return show(tab);
  if (event.key === "t") theme();
  if (event.key === "/") { event.preventDefault(); if (state.tab !== "Modules") show("Modules"); $("filter").focus(); }
  if (event.key === "Escape") select(-1);
  if (state.tab === "Timeline") {
    if (event.key === "+" || event.key === "=") zoom(0.5);
    if (event.key === "-") zoom(2);
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      event.preventDefault();
      const at = eventAt(state.cursor), next = event.key === "ArrowRight" ? eventTimes.findIndex((t) => t > state.cursor) : at - 1;
      let to = next >= 0 ? eventTimes[next] : state.cursor;
      if (event.key === "ArrowLeft") { let e = at; while (e > 0 && eventTimes[e] >= state.cursor) e--; to = eventTimes[Math.max(e, 0)]; }
      moveCursor(to);
    }
  }
});
state.cursor = O.peak.at_ps;
show("Summary");
window.shardwrightReport = { state, data: D, peak, inUse: () => memoryAt[eventAt(state.cursor) + 1], exports, slices, ready: performance.now() - began };
