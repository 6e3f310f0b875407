// What both pages share: elements, the data, colours, and every chart as a Vega-Lite specification.
"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);

// Text becomes text nodes: nothing from a record is ever read as markup.
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

// --- colours: the page's data has them, so that every chart of the project shares one palette
const DASHES = [[1, 0], [7, 3], [2, 3], [9, 3, 2, 3]];
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const order = (arch) => Math.max(0, DATA.archs.indexOf(arch));
const HUES = DATA.hues.light.length;
const hue = (arch) => DATA.hues[dark.matches ? "dark" : "light"][order(arch) % HUES];
const shape = (arch) => DATA.shapes[order(arch) % DATA.shapes.length];
const dash = (arch) => DASHES[Math.floor(order(arch) / HUES) % DASHES.length];
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const drawnSymbols = new Map();
function symbol(arch) {
  const key = `${arch} ${dark.matches}`;
  if (!drawnSymbols.has(key)) drawnSymbols.set(key, drawSymbol(arch));
  return drawnSymbols.get(key).cloneNode(true);
}
function drawSymbol(arch) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  for (const [name, value] of Object.entries({ viewBox: "-1.3 -1.3 2.6 2.6", class: "symbol", "aria-hidden": "true" }))
    svg.setAttribute(name, value);
  path.setAttribute("d", shape(arch));
  path.setAttribute("fill", hue(arch));
  svg.append(path);
  return svg;
}

// --- numbers, as the Markdown table writes them
function bits(value) {
  if (value === null || value === undefined) return "n/a";
  if (Math.abs(value) < 1e-9) return "0";
  return Math.abs(value) >= 0.001 ? value.toFixed(4) : value.toExponential(1).replace(/e-(\d)$/, "e-0$1");
}
const whole = (value) => (value === null || value === undefined ? "not measured" : Math.round(value).toLocaleString("en"));
function measured(value, unit) {
  if (value === null || value === undefined) return "not measured";
  if (unit === "bytes") return value < 2 ** 20 ? `${whole(value)} B` : `${whole(value / 2 ** 20)} MiB`;
  if (unit === "flops") return `${value.toPrecision(3).replace(/e\+?/, "e")} FLOP`;
  if (unit === "seconds") return `${value < 10 ? value.toPrecision(2) : whole(value)} s`;
  return unit === "joules" ? `${whole(value)} J` : whole(value);
}

// --- drawing: a chart is drawn when it comes into sight, as wide as its place
function theme() {
  const [text, muted, line] = [ink("text"), ink("muted"), ink("line")];
  const font = getComputedStyle(document.body).fontFamily;
  return {
    background: "transparent",
    font,
    view: { stroke: null },
    axis: {
      labelColor: muted, titleColor: muted, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 12,
      titleFontSize: 12, titleFontWeight: "normal", titlePadding: 8, gridOpacity: 0.7, tickSize: 4, labelOverlap: true,
    },
    text: { color: text, fontSize: 12 },
  };
}
const tip = el("div", { class: "tip", hidden: true, "aria-hidden": "true" });
document.body.append(tip);

function tooltip(_, event, __, value) {
  tip.hidden = !value;
  if (!value) return;
  tip.replaceChildren(...Object.entries(value).map(([name, said]) =>
    name === "name" ? el("strong", {}, said) : el("div", {}, `${name} `, el("b", {}, said))));
  const { clientX: x, clientY: y } = event;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, document.documentElement.clientWidth - box.width - 8))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18}px`;
}

const ready = new Promise((done) => addEventListener("load", done)); // the library comes last: tables need not wait for it
const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) if (isIntersecting) { seen.unobserve(target); ready.then(() => specs.has(target) && render(target)); }
}, { rootMargin: "300px" });
const specs = new Map();

function render(place) {
  const spec = { $schema: "https://vega.github.io/schema/vega-lite/v6.json", width: "container", ...specs.get(place)() };
  const compiled = vegaLite.compile({ autosize: { type: "fit-x", contains: "padding" }, ...spec }, { config: theme() });
  place.replaceChildren();
  new vega.View(vega.parse(compiled.spec), { renderer: "svg", container: place, tooltip, hover: true, logLevel: vega.Error })
    .runAsync()
    .then((view) => { place.querySelector("svg").setAttribute("aria-hidden", "true"); place.dataset.drawn = "yes"; return view; });
}

// A figure: its title, its chart, and in words what the chart shows.
function chart(title, note, words, make, height) {
  const place = el("div", { class: "chart", role: "img", "aria-label": words, style: `min-height:${height + 40}px` });
  specs.set(place, () => ({ height, ...make() }));
  seen.observe(place);
  return el("figure", {}, el("figcaption", {}, title, note ? el("small", {}, note) : null), place);
}

// Ticks of a log axis that can be read: the finest of these divisions of a decade that gives few enough.
function ticks(values, most = 6) {
  const [low, high] = [Math.log10(Math.min(...values)) - 0.06, Math.log10(Math.max(...values)) + 0.06];
  for (const steps of [[1, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2, 2.2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9], [1, 1.5, 2, 3, 4, 5, 7], [1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let power = Math.floor(low); power <= high; power++) for (const step of steps) found.push(+(step * 10 ** power).toPrecision(3));
    const inside = found.filter((value) => Math.log10(value) >= low && Math.log10(value) <= high);
    if (inside.length <= most) return inside;
    if (steps.length === 1) return inside.filter((_, i) => i % Math.ceil(inside.length / most) === 0);
  }
}
const BITS = { labelExpr: "datum.value == 0 ? '0' : datum.value < 0.001 ? format(datum.value, '.0e') : format(datum.value, '~g')" };
// An interval may reach far below all errors, which a log axis would show: it ends at the edge.
const ends = (points, field) => {
  const edge = Math.min(...points.map((point) => point[field])) / 2;
  return points.map((point) => ({ ...point, low: point.low === undefined ? undefined : Math.max(point.low, edge) }));
};
const logarithmic = (more = {}) => ({ type: "log", nice: false, padding: 14, ...more });

function byArch(rows) {
  const archs = [...new Set(rows.map((row) => row.arch))];
  return {
    color: { field: "arch", type: "nominal", legend: null, scale: { domain: archs, range: archs.map(hue) } },
    shape: { field: "arch", type: "nominal", legend: null, scale: { domain: archs, range: archs.map(shape) } },
    strokeDash: { field: "arch", type: "nominal", legend: null, scale: { domain: archs, range: archs.map(dash) } },
  };
}

// Curves over positions: h (entropies, with those of Bayes beneath) or e (errors); the horizon of training is marked.
// A row that reads only short sequences was scored on others than the rest: it has a line of Bayes of its own.
function positions(rows, k, exams, trained, field) {
  const bayes = [...new Set(rows.map((row) => row.exam))].flatMap((exam) => exams[exam].map((value, i) => ({ k: k[i], value, exam })));
  const points = rows.flatMap((row) => row[field].slice(0, k.length).map((value, i) => ({
    k: k[i], value, arch: row.arch, row: row.name,
    tip: { name: row.name, "position": String(k[i]), [field === "h" ? "H_model" : "error"]: `${bits(value)} bits`,
      ...(field === "h" ? { H_Bayes: `${bits(exams[row.exam][i])} bits` } : {}) },
  }))).filter((point) => field === "h" || point.value > 1e-9);
  const last = k[k.length - 1];
  const { color, strokeDash } = byArch(rows);
  const x = { field: "k", type: "quantitative", title: "position k", scale: { domain: [1, last], nice: false }, axis: { grid: false, tickMinStep: 1 } };
  const all = [...points.map((point) => point.value), ...(field === "h" ? bayes.map((point) => point.value) : [])];
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const margin = 0.05 * (most - least || 1);
  const scale = field === "h" ? { zero: false, nice: false, domain: [least - margin, most + margin] } : logarithmic({ padding: 8 });
  const title = field === "h" ? "entropy, bits" : "error, bits";
  const axis = { title, ...(field === "h" ? { tickCount: 5 } : { values: ticks(all), ...BITS }) };
  const y = { field: "value", type: "quantitative", scale, axis };
  const layer = [];
  if (last > trained) {
    layer.push({ data: { values: [{ from: trained + 0.5, to: last }] }, mark: { type: "rect", color: ink("text"), opacity: 0.05 }, encoding: { x: { ...x, field: "from" }, x2: { field: "to" } } });
    layer.push({ data: { values: [{ at: trained + 0.5 }] }, encoding: { x: { ...x, field: "at" } }, layer: [
      { mark: { type: "rule", color: ink("muted"), strokeDash: [3, 3] } },
      { mark: { type: "text", align: "left", dx: 2, y: -8, color: ink("muted"), fontSize: 11, text: `beyond training, k > ${trained} →` } },
    ] });
  }
  if (field === "h") layer.push({ data: { values: bayes }, mark: { type: "line", color: ink("bayes"), strokeWidth: 7, strokeCap: "round", strokeJoin: "round" }, encoding: { x, y, detail: { field: "exam" } } });
  layer.push({ data: { values: points }, encoding: { x, y, color, detail: { field: "row" } }, layer: [
    { mark: { type: "line", strokeWidth: 2, clip: true }, encoding: { strokeDash } },
    { mark: { type: "circle", size: 90, opacity: 0 }, encoding: { tooltip: { field: "tip" } } },
  ] });
  return { layer };
}

// Horizontal lines of the reference predictors, named at the left and the right in turn.
function lines(references, y) {
  const known = references.map(([name, value]) => ({ name, value })).filter(({ value }) => value > 1e-9);
  const named = (side) => ({ transform: [{ filter: { field: "name", oneOf: known.filter((_, i) => i % 2 === (side === "right" ? 1 : 0)).map(({ name }) => name) } }],
    mark: { type: "text", align: side, baseline: "bottom", x: side === "left" ? 4 : "width", dy: -2, fontSize: 11, color: ink("muted") }, encoding: { text: { field: "name" } } });
  return { data: { values: known }, encoding: { y: { ...y, field: "value" } }, layer: [
    { mark: { type: "rule", color: ink("muted"), strokeDash: [4, 4], opacity: 0.8 } }, named("left"), named("right"),
  ] };
}

// Error against cost; the line joins the rows that no other row beats in both.
function pareto(rows, references, cost, metric, titles) {
  const points = ends(rows.filter((row) => row[cost] > 0 && row[metric] > 0).map((row) => ({
    arch: row.arch, own: row.own, x: row[cost], y: row[metric], ...(row[metric] === row.error ? { low: row.interval?.[0], high: row.interval?.[1] } : {}),
    tip: { name: row.name, [titles.metric]: `${bits(row[metric])} bits`, [titles.cost]: measured(row[cost], cost === "state" ? "bytes" : cost) },
  })), "y");
  const floor = Math.min(...references.map(([, value]) => value).filter((value) => value > 1e-9)); // of what reads nothing
  const front = points.filter((a) => a.y < floor && !points.some((b) => b.x <= a.x && b.y <= a.y && (b.x < a.x || b.y < a.y)));
  const { color, shape } = byArch(points);
  const x = { field: "x", type: "quantitative", title: titles.axis, scale: logarithmic({ padding: 24 }), axis: { format: "~s", grid: false, values: ticks(points.map((point) => point.x)) } };
  const y = { field: "y", type: "quantitative", title: `${titles.metric}, bits`, scale: logarithmic(), axis: { values: ticks([...points.map((point) => point.y), ...references.map(([, value]) => value).filter((value) => value > 1e-9)]), ...BITS } };
  const layer = [
    lines(references, y),
    { data: { values: front }, mark: { type: "line", interpolate: "step-after", color: ink("muted"), strokeWidth: 1.5, opacity: 0.7 }, encoding: { x, y } },
    { data: { values: points }, encoding: { x, y, color, opacity: { condition: { test: "datum.own", value: 1 }, value: 0.35 } }, layer: [
      { transform: [{ filter: "isValid(datum.low)" }], mark: { type: "rule", strokeWidth: 2 }, encoding: { y: { ...y, field: "low" }, y2: { field: "high" } } },
      { mark: { type: "point", filled: true, size: 120, strokeWidth: 0 }, encoding: { shape, tooltip: { field: "tip" } } },
    ] },
  ];
  return { layer };
}

// Error at the training horizon, then on the new positions alone of each longer one.
function lengths(group, rows) {
  const stops = [`K = ${group.trained}`, ...group.longer.map((k) => `new, to ${k}`)];
  const values = (at, error) => [error, ...group.longer.map((k) => at[k]?.[1] ?? null)];
  const points = rows.flatMap((row) => values(row.at, row.error).map((value, i) => ({ arch: row.arch, row: row.name, stop: stops[i], value,
    tip: { name: row.name, [stops[i]]: `${bits(value)} bits` } }))).filter((point) => point.value > 1e-9);
  const references = group.refs.filter(({ name }) => !name.startsWith("window")).flatMap(({ name, error, at }) =>
    values(at, error).map((value, i) => ({ name, stop: stops[i], value }))).filter((point) => point.value > 1e-9);
  const { color, shape, strokeDash } = byArch(rows);
  const x = { field: "stop", type: "ordinal", sort: stops, title: null, scale: { padding: 0.6 }, axis: { labelAngle: 0, grid: false, labelOverlap: false } };
  const y = { field: "value", type: "quantitative", title: "error, bits", scale: logarithmic(), axis: { values: ticks([...points, ...references].map((point) => point.value)), ...BITS } };
  return { layer: [
    { data: { values: references }, encoding: { x, y }, layer: [
      { mark: { type: "line", color: ink("muted"), strokeDash: [4, 4] }, encoding: { detail: { field: "name" } } },
      { transform: [{ filter: { field: "stop", equal: stops[stops.length - 1] } }], mark: { type: "text", color: ink("muted"), fontSize: 11, align: "left", baseline: "middle", dx: 9 }, encoding: { text: { field: "name" } } },
    ] },
    { data: { values: points }, encoding: { x, y, color, detail: { field: "row" } }, layer: [
      { mark: { type: "line", strokeWidth: 2 }, encoding: { strokeDash } },
      { mark: { type: "point", filled: true, size: 90, opacity: 1, strokeWidth: 0 }, encoding: { shape, tooltip: { field: "tip" } } },
    ] },
  ] };
}


// Error while training, from a run's own looks at itself.
function dynamics(arch, looks) {
  const points = looks.filter(([, , error]) => error > 0).map(([step, seconds, error]) => ({ step, error,
    tip: { name: `step ${whole(step)}`, error: `${bits(error)} bits`, after: measured(seconds, "seconds") } }));
  return { data: { values: points }, encoding: {
    x: { field: "step", type: "quantitative", title: "step", axis: { grid: false, tickCount: 5 } },
    y: { field: "error", type: "quantitative", title: "error, bits", scale: logarithmic(), axis: { values: ticks(points.map((point) => point.error)), ...BITS } },
  }, layer: [
    { mark: { type: "line", color: hue(arch), strokeWidth: 2 } },
    { mark: { type: "circle", color: hue(arch), size: 28, opacity: 1 }, encoding: { tooltip: { field: "tip" } } },
  ] };
}
