// The leaderboard: what is shown is written in the address, and every view is drawn from there.
"use strict";

const FILTERS = ["task", "preset", "supervision", "device"];
const VIEWS = {
  board: ["Leaderboard", board], curves: ["Curves", curves], cost: ["Cost", cost], length: ["Length", lengthView],
  primitives: ["Primitives", primitives], bayes: ["Is it Bayesian?", bayes], claims: ["Claims", claims], reading: ["How to read", reading],
};
if (!DATA.bayes.length) delete VIEWS.bayes; // no report has these tests
const COSTS = {
  flops: "training FLOPs", seconds: "seconds", bytes: "peak memory, bytes", joules: "energy, joules", parameters: "parameters", state: "state, bytes",
};
const ERRORS = { error: "error", mae: "MAE", kl: "KL", curve: "curve MAE", far: "error on new positions" };

// --- the address: #view?name=value&...
function where() {
  const [view, query] = location.hash.slice(1).split("?");
  return { view: Object.hasOwn(VIEWS, view) ? view : "board", set: new URLSearchParams(query || "") };
}
function link(view, set) {
  const query = new URLSearchParams([...set].filter(([, value]) => value)).toString();
  return `#${view}${query ? `?${query}` : ""}`;
}
function go(change) {
  const { view, set } = where();
  for (const [name, value] of Object.entries(change)) value ? set.set(name, value) : set.delete(name);
  location.hash = link(view, set);
}

// --- what is chosen: the headline track, unless the address names another; * stands for all
const HEADLINE = DATA.overviews[0] ?? {};
const wanted = (set, name) => set.get(name) ?? HEADLINE[name] ?? "*";
const fits = (set, item, names = FILTERS) => names.every((name) => wanted(set, name) === "*" || wanted(set, name) === item[name]);
function chosen(set) {
  const off = new Set((set.get("without") || "").split(",").filter(Boolean));
  const groups = DATA.groups.filter((group) => fits(set, group));
  const apart = FILTERS.slice(1).filter((name) => new Set(groups.map((group) => group[name])).size > 1); // said where it differs
  return groups.map((group) => ({ ...group, label: [group.task, ...apart.map((name) => group[name])].join(" · "), shown: group.rows.filter((row) => !off.has(row.arch)) }));
}

function controls(set) {
  const pick = (name, values, label, none) => el("label", {}, el("span", {}, label),
    el("select", { id: `pick-${name}`, onchange: (event) => go({ [name]: event.target.value }) },
      none ? el("option", { value: "*", selected: wanted(set, name) === "*" }, none) : null,
      values.map(([value, text]) => el("option", { value, selected: (none ? wanted(set, name) : set.get(name)) === value }, text))));
  return { pick, row: el("form", { class: "filters", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() },
    FILTERS.map((name) => pick(name, [...new Set(DATA.groups.map((group) => group[name]))].sort().map((v) => [v, v]), name, "all"))) };
}

function legend(set) {
  const off = new Set((set.get("without") || "").split(",").filter(Boolean));
  const toggle = (arch) => { off.has(arch) ? off.delete(arch) : off.add(arch); go({ without: [...off].join(",") }); };
  return el("div", { class: "legend", role: "group", "aria-label": "Architectures shown" },
    DATA.archs.map((arch) => el("button", { type: "button", id: `arch-${arch}`, "aria-pressed": String(!off.has(arch)), onclick: () => toggle(arch) }, symbol(arch), arch)));
}

const heading = (group) => el("h3", {}, group.task, el("span", { class: "tags" }, FILTERS.slice(1).map((name) => el("span", {}, group[name]))));
const nothing = () => el("p", { class: "empty" }, DATA.groups.length ? "No run fits these filters." : "No records yet: bench run makes some.");
const intro = (title, ...text) => [el("h2", {}, title), el("p", { class: "lead" }, ...text)];

// --- the leaderboard
// The board's list, with the strip drawn after the error.
function columns(group) {
  const found = group.columns.map(([key, title, left], i) => ({ key, title, left, value: (row) => row.keys[i], text: (row) => row.cells[i] }));
  found.splice(found.findIndex((column) => column.key === "error") + 1, 0, { key: "strip" });
  return found;
}

function sorted(rows, column, down) {
  if (!column?.value) return rows;
  const key = (row) => column.value(row) ?? undefined;
  return [...rows].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === undefined || y === undefined) return (x === undefined) - (y === undefined); // what is missing stays last
    return (x < y ? -1 : x > y ? 1 : a.error - b.error) * (down && x !== y ? -1 : 1);
  });
}

const plural = (n, what) => `${whole(n)} ${what}${n === 1 ? "" : "s"}`;
const short = (name) => ({ uniform: "U", "best constant": "C" })[name] || name.replace("window ", "W");

// One scale a ranking: where an error lies between the smallest and the largest, in per cent, by its logarithm.
function scale(group) {
  const all = [...group.rows.flatMap((row) => [row.error, ...(row.interval || [])]), ...group.refs.map(({ error }) => error)].filter((v) => v > 1e-7);
  const [low, high] = [Math.log10(Math.min(...all)) - 0.12, Math.log10(Math.max(...all)) + 0.12];
  const at = (value) => Math.max(0, Math.min(100, (100 * (Math.log10(Math.max(value, 1e-9)) - low)) / (high - low)));
  const decades = [];
  for (let power = Math.ceil(low); power <= high; power++) decades.push(10 ** power);
  return { at, decades };
}

function ranking(group, set) {
  const [sort, down] = [set.get("sort") || "rank", set.get("order") === "down"];
  const all = columns(group);
  const { at, decades } = scale(group);
  const references = group.refs.filter(({ error }) => error > 1e-7);
  const labels = references.map(({ name, error }) => [name, at(error)]).sort((a, b) => a[1] - b[1]);
  for (let i = labels.length - 1; i >= 0; i--) labels[i][1] = Math.min(labels[i][1], (labels[i + 1]?.[1] ?? 108) - 8);
  // lines of the references: one background that all rows share
  const rules = references.map(({ error }) => `repeating-linear-gradient(var(--muted) 0 3px, transparent 3px 6px) ${at(error)}% 0 / 1px 100% no-repeat`).join(", ");
  const head = (column) => column.key === "strip"
    ? el("th", { scope: "col", class: "strip" }, el("span", { class: "ticks" }, decades.map((value, i) => el("span", { style: `left:${at(value)}%`, class: i % 2 ? "odd" : null }, value >= 0.001 ? String(+value.toPrecision(1)) : value.toExponential(0)))), el("span", { class: "hidden" }, "error on a log scale"))
    : el("th", { scope: "col", class: column.left ? "left" : null, "aria-sort": column.key === sort ? (down ? "descending" : "ascending") : null },
      el("button", { type: "button", "data-sort": column.key, onclick: () => go({ sort: column.key, order: column.key === sort && !down ? "down" : "" }) }, column.title));
  const cell = (column, row) => {
    if (column.key === "strip") return el("td", { class: "strip" },
      row.interval ? el("i", { class: "range", style: `left:${at(row.interval[0])}%;width:${at(row.interval[1]) - at(row.interval[0])}%;background:${hue(row.arch)}` }) : null,
      el("i", { class: "dot", style: `left:${at(row.error)}%` }, symbol(row.arch)));
    if (column.key === "name") return el("th", { scope: "row", class: "left" }, el("span", { class: "who" }, symbol(row.arch), el("span", {}, el("a", { href: `runs/${row.runs[0][1]}.html` }, row.name), row.mark ? el("em", {}, row.mark) : null)));
    if (column.key === "error") return el("td", {}, bits(row.error), row.interval ? el("small", {}, `${bits(row.interval[0])}–${bits(row.interval[1])}`) : null);
    if (column.key === "seeds") return el("td", { class: "seeds" }, row.runs.map(([seed, id]) => el("a", { href: `runs/${id}.html`, "aria-label": `seed ${seed} of ${row.name}` }, String(seed))));
    return el("td", {}, column.text(row));
  };
  const rows = sorted(group.shown, all.find((column) => column.key === sort), down);
  return el("section", { class: "card", "data-task": group.task }, heading(group),
    group.rows.length ? el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Ranking of ${group.task}, preset ${group.preset}` }, el("table", { class: "ranking", style: `--rules: ${rules || "none"}` },
      el("thead", {}, el("tr", {}, all.map(head))),
      el("tbody", {}, rows.map((row) => el("tr", {}, all.map((column) => cell(column, row))))),
      el("tfoot", {}, el("tr", {}, all.map((column) => column.key === "strip"
        ? el("td", { class: "strip" }, labels.map(([name, x]) => el("span", { style: `left:${x}%`, class: name.startsWith("window") ? "window" : null }, short(name))))
        : el("td", {})))))) : null,
    el("p", { class: "references" }, references.map(({ name, error }) => el("span", {}, el("b", {}, short(name)), ` ${name} ${bits(error)}`))),
    el("p", { class: "machine" }, DATA.marks.ranking),
    group.failed.map((run) => el("p", { class: "failed" }, el("b", {}, "failed"), ` ${run.arch}, seed ${run.seed}: ${run.error} `, el("a", { href: `runs/${run.id}.html` }, "its page"))));
}

// --- the heat map: one cell an architecture and task; a click opens the task's table
const rgbOf = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
function shade(share) {
  const [least, most] = DATA.ends.map(Math.log10);
  const at = Math.max(0, Math.min(1, (Math.log10(share) - least) / (most - least)));
  const [low, middle, high] = DATA.ramp[dark.matches ? "dark" : "light"].map(rgbOf);
  const [from, to, part] = at < 0.5 ? [low, middle, 2 * at] : [middle, high, 2 * at - 1];
  const rgb = from.map((value, i) => Math.round(value + part * (to[i] - value)));
  const bright = (0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]) / 255 > 0.5;
  return `background:rgb(${rgb});color:${bright ? "#111" : "#fff"}`;
}
const trackOf = ({ preset, supervision, device }) => ({ preset, supervision, device });
const tableLink = (overview, task) => link("board", new URLSearchParams({ task, ...trackOf(overview) }));

function heatmap(overview) {
  const cells = new Map(overview.cells.map((cell) => [`${cell[0]} ${cell[1]}`, cell]));
  const cell = (arch, task) => {
    const found = cells.get(`${arch} ${task}`);
    if (!found) return el("td", {}, "");
    const [, , error, share, agree, own, seeds] = found;
    const said = `${arch} on ${task}: ${bits(error)} bits, ${(100 * share).toPrecision(2)} % of ${overview.baselines[task]}'s error, ${plural(seeds, "seed")}${agree ? "" : ", seeds disagree or there is only one"}`;
    return el("td", { style: shade(share), class: agree ? null : "shaky" }, el("a", { href: tableLink(overview, task), "aria-label": said, title: said }, bits(error), own ? null : "†"));
  };
  return el("section", { class: "card" }, el("h3", {}, "How far from Bayes?", el("span", { class: "tags" }, Object.values(trackOf(overview)).map((name) => el("span", {}, name)))),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Errors of all architectures on all tasks, preset ${overview.preset}, ${overview.supervision}, ${overview.device}` }, el("table", { class: "heat" },
      el("thead", {}, el("tr", {}, el("td", {}), overview.tasks.map((task) => el("th", { scope: "col" }, el("a", { href: tableLink(overview, task) }, task))))),
      el("tbody", {}, overview.archs.map((arch) => el("tr", {}, el("th", { scope: "row", class: "left" }, arch), overview.tasks.map((task) => cell(arch, task))))),
      el("tfoot", {}, overview.floors.map(([name, ...errors]) => el("tr", {}, el("th", { scope: "row", class: "left" }, el("em", {}, name)), errors.map((error) => el("td", {}, bits(error)))))))),
    colourScale(),
    el("p", { class: "references" }, `Error in bits at the training horizon; lower is better. The colour is its share of ${[...new Set(Object.values(overview.baselines))].map((name) => `${name}'s`).join(" or ")} error, on a log scale: pale is close to Bayes. Dashed: the seeds disagree, or there is only one. ${DATA.marks.heat} Choose a cell to see its table.`));
}

// What the colours mean: the ramp from one end of the scale to the other.
function colourScale() {
  const [low, high] = DATA.ends.map((share) => `${+(100 * share).toPrecision(2)} %`);
  const ramp = DATA.ramp[dark.matches ? "dark" : "light"].join(", ");
  return el("p", { class: "scale" }, el("span", {}, `≤ ${low}`), el("i", { style: `background:linear-gradient(to right, ${ramp})` }), el("span", {}, `≥ ${high} of that error`));
}

function board(set) {
  const groups = chosen(set);
  if (wanted(set, "task") !== "*") return [
    el("h2", {}, wanted(set, "task")), el("p", {}, el("a", { href: link("board", new URLSearchParams([...set].filter(([name]) => name !== "task"))) }, "← All tasks")),
    legend(set), groups.length ? groups.map((group) => ranking(group, set)) : nothing(),
  ];
  const overviews = DATA.overviews.filter((overview) => fits(set, overview, FILTERS.slice(1)));
  const failed = groups.flatMap((group) => group.failed);
  return [
    el("h2", { class: "hidden" }, "Leaderboard"),
    el("p", { class: "lead" }, "Every task here has an exact posterior, and most cannot be memorised. So a model's error can be measured in fractions of a bit. ",
      el("b", {}, `${Object.entries(DATA.counts).map(([what, count]) => plural(count, what)).join(", ")}.`)),
    overviews.length ? overviews.map(heatmap) : groups.length ? groups.map((group) => ranking(group, set)) : nothing(),
    failed.map((run) => el("p", { class: "failed" }, el("b", {}, "failed"), ` ${run.arch}, seed ${run.seed}: ${run.error} `, el("a", { href: `runs/${run.id}.html` }, "its page"))),
  ];
}

// --- charts, one a ranking
const grid = (groups, make) => (groups.length ? el("div", { class: "grid" }, groups.map((group) => el("section", { class: "card" }, heading(group), make(group)))) : nothing());
const drawn = (group) => group.shown.filter((row) => row.shown); // one an architecture
const withRows = (set) => chosen(set).filter((group) => group.shown.length);

function curves(set) {
  return [...intro("Entropy against position", "The wide pale line is Bayes: the exact uncertainty after k observations. A model that infers lies on it; shaded positions are beyond its training. Models limited to the training length are scored there; their Bayes curve is shorter. One line per architecture: its row with the preset's settings, or else its best."),
    legend(set),
    grid(withRows(set), (group) => chart("Entropy of model and Bayes", null, `Entropy by position on ${group.task}: ${drawn(group).map((row) => row.name).join(", ")}, and Bayes`, () => positions(drawn(group), group.k, group.exams, group.trained, "h"), 260))];
}

function lengthView(set) {
  return [...intro("Who holds beyond the training horizon?", "Error at each position, and its mean over the new positions alone: the first ones cannot dilute a cliff. An architecture that cannot read a length has no mark there. One line each: the row with the preset's settings, or else the best."),
    legend(set),
    grid(withRows(set), (group) => [
      chart("Error by position", null, `Error by position on ${group.task}`, () => positions(drawn(group), group.k, group.exams, group.trained, "e"), 220),
      group.longer.length ? chart("Mean error by length", null, `Error at the training horizon and beyond on ${group.task}`, () => lengths(group, drawn(group)), 220) : el("p", { class: "empty" }, `This task ends at ${group.trained} positions: there is no longer one.`),
    ])];
}

function cost(set) {
  const { pick } = controls(set);
  const [x, y] = [Object.hasOwn(COSTS, set.get("x")) ? set.get("x") : "flops", Object.hasOwn(ERRORS, set.get("y")) ? set.get("y") : "error"];
  const far = (group) => group.longer[group.longer.length - 1];
  const place = (group) => {
    const value = (at) => (far(group) ? at[far(group)][1] : null);
    const rows = group.shown.map((row) => ({ ...row, far: value(row.at) }));
    const references = group.refs.filter(({ name }) => ["uniform", "best constant"].includes(name)).map((reference) => [reference.name, y === "far" ? value(reference.at) : reference[y]]);
    const missing = rows.filter((row) => !(row[x] > 0 && row[y] > 0));
    const why = `${y === "far" && !far(group) ? "This task has no longer horizon" : `Not on this chart (not measured, or 0): ${missing.map((row) => row.name).join(", ")}`}.`;
    return [
      missing.length < rows.length ? chart(`${ERRORS[y]} against ${COSTS[x].split(",")[0]}`, y === "far" ? `new positions, to ${far(group)}` : null, `${ERRORS[y]} against ${COSTS[x]} on ${group.task}`, () => pareto(rows, references, x, y, { metric: ERRORS[y], cost: COSTS[x].split(",")[0], axis: `${COSTS[x]} (log scale)` }), 260) : null,
      missing.length ? el("p", { class: "empty" }, why) : null,
    ];
  };
  return [...intro("What does an error cost?", "Down and left is better. The line joins the rows that no other row beats in both. Pale marks have other settings than the preset. Seconds and memory are those of the machines named below each chart, some of them shared: where there are several, compare FLOPs."),
    el("form", { class: "filters axes", "aria-label": "Axes" }, pick("x", Object.entries(COSTS), "cost", null), pick("y", Object.entries(ERRORS), "error", null)),
    legend(set),
    grid(withRows(set), (group) => [...place(group), el("p", { class: "machine" }, group.machine)])];
}

// --- tables
const MARKS = { held: "●", partly: "◐", no: "○", open: "?", "not measured": "–" };
function primitives(set) {
  const { names, legend: told, tracks } = DATA.primitives;
  const shown = tracks.filter((track) => fits(set, track, FILTERS.slice(1)));
  return [...intro("Which primitives of inference does it have?", told),
    shown.length ? shown.map(({ rows, ...track }) => el("section", { class: "card" }, el("h3", {}, Object.values(track).join(", ")),
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Primitives, ${Object.values(track).join(", ")}` }, el("table", { class: "primitives" },
        el("thead", {}, el("tr", {}, ["architecture", ...names].map((name) => el("th", { scope: "col", class: "left" }, name)))),
        el("tbody", {}, rows.map(([arch, ...cells]) => el("tr", {}, el("th", { scope: "row", class: "left" }, el("span", { class: "who" }, symbol(arch), arch)),
          cells.map(([word, shares]) => el("td", { class: `left ${word.split(" ")[0]}` }, el("b", {}, `${MARKS[word]} ${word}`),
            Object.entries(shares).map(([task, share]) => el("small", {}, `${task} ${share < 0.001 ? "<0.1" : (100 * share).toFixed(1)} %`))))))))))) : nothing()];
}

const FAR = 3; // standard deviations of the exact predictor's own numbers
function bayes() {
  const tests = [...new Set(DATA.bayes.flatMap((row) => Object.keys(row.tests)))];
  const cell = (found) => {
    if (!found || found[0] === null) return el("td", {}, "n/a");
    const [value, zero, spread, z] = found;
    const far = z !== null && Math.abs(z) > FAR;
    return el("td", { class: far ? "far" : null }, bits(value), el("small", {}, `exact ${bits(zero)}${spread ? ` ± ${bits(spread)}` : ""}`), z === null ? null : el("small", {}, `z ${z.toFixed(1)}${far ? " ▲" : ""}`));
  };
  return [...intro("Is it Bayesian?", `Four tests from the reports of single runs. Below each number is the exact predictor's own, with its standard deviation where chance plays a part; z is the distance between the two in these deviations, and ▲ marks more than ${FAR}. Martingale: how far a prediction drifts over the model's own rollouts. Exchangeability: how far the order of the evidence moves a prediction, as a share of what another sequence does. Log probability: bits between two orders of a sequence. Calibration: how far answers drawn from the model come true less or more often than it said. n/a: the test makes no sense for the task, or the model cannot do it; the run's page says why.`),
    el("div", { class: "card" }, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Is it Bayesian?" }, el("table", { class: "bayes" },
      el("thead", {}, el("tr", {}, ["architecture", "task"].map((name) => el("th", { scope: "col", class: "left" }, name)), tests.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, DATA.bayes.map((row) => el("tr", {},
        el("th", { scope: "row", class: "left" }, el("span", { class: "who" }, symbol(row.arch), el("span", {}, el("a", { href: `runs/${row.id}.html` }, row.arch), el("em", {}, `seed ${row.seed}${row.self ? ", self-reported" : ""}`)))),
        el("td", { class: "left" }, row.task, el("small", {}, FILTERS.slice(1).map((name) => row[name]).join(", "))), tests.map((name) => cell(row.tests[name]))))))))];
}

const VERDICTS = { exceeded: "▲", reproduced: "●", "not reproduced": "○", undecided: "◐", "not tested here": "–" };
function claims() {
  const count = (verdict) => DATA.claims.filter((claim) => claim.verdict === verdict).length;
  const badge = (verdict, text) => el("b", { class: `verdict ${verdict.replace(/[^a-z]+/g, "-")}` }, `${VERDICTS[verdict] ?? ""} ${text}`);
  return [...intro("Published claims, and what we measured", "What was published about these tasks, compared with the records of this leaderboard."),
    DATA.claims.length ? [el("p", { class: "counts" }, Object.keys(VERDICTS).filter(count).map((verdict) => badge(verdict, `${count(verdict)} ${verdict}`))),
      el("div", { class: "card" }, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Claims" }, el("table", { class: "ledger" },
        el("thead", {}, el("tr", {}, ["claim", "verdict", "published", "ours", "source"].map((name) => el("th", { scope: "col", class: "left" }, name)))),
        el("tbody", {}, DATA.claims.map((claim) => [
          el("tr", {}, el("th", { scope: "row", class: "left" }, claim.claim), el("td", { class: "left" }, badge(claim.verdict, claim.verdict)),
            [claim.published, claim.ours, claim.source].map((text) => el("td", { class: "left" }, text))),
          claim.where || claim.why ? el("tr", { class: "note" }, el("td", { class: "left", colspan: 5 }, el("details", {}, el("summary", {}, "Runs and reasons"), [claim.where, claim.why].filter(Boolean).join(". ")))) : null,
        ])))))] : el("p", { class: "empty" }, "No claim yet.")];
}

function reading() {
  return [...intro("How to read this", "All errors are in bits, against the exact posterior; lower is better. Rows are ranked within one task, preset, supervision and device, never across."),
    el("dl", { class: "card reading" }, DATA.legend.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]))];
}

// --- the page
const main = el("main", { id: "main", tabindex: "-1" });
const nav = el("nav", { "aria-label": "Views" });
document.body.prepend(el("a", { class: "skip", href: "#main", onclick: (event) => { event.preventDefault(); main.focus(); } }, "To the content"),
  el("header", {}, el("div", { class: "wide" }, el("h1", {}, el("a", { href: "#board" }, "tunnel-bench")), el("p", {}, "Which sequence architectures really perform Bayesian inference?"), nav)));
document.querySelector("header").after(main);
document.body.append(el("footer", { class: "wide" }, `Generated by tunnel-bench ${DATA.version} from its records. Everything on this page is in this folder: nothing is loaded from elsewhere.`));

function show() {
  const { view, set } = where();
  const focused = document.activeElement?.id || (document.activeElement?.dataset?.sort && `[data-sort="${document.activeElement.dataset.sort}"]`);
  const [title, make] = VIEWS[view];
  document.title = `${title} · tunnel-bench`;
  specs.clear();
  seen.disconnect();
  tip.hidden = true;
  const kept = new URLSearchParams([...set].filter(([name]) => FILTERS.includes(name) || name === "without"));
  nav.replaceChildren(...Object.entries(VIEWS).map(([name, [text]]) => el("a", { href: link(name, kept), "aria-current": name === view ? "page" : null }, text)));
  main.className = `wide ${view}`;
  main.replaceChildren(...[["bayes", "claims", "reading"].includes(view) ? null : controls(set).row, ...make(set).flat(2)].filter(Boolean));
  if (focused) (document.getElementById(focused) || (focused.startsWith("[") && document.querySelector(focused)))?.focus({ preventScroll: true });
}
const place = () => { const { view, set } = where(); return `${view} ${set.get("task")}`; };
let last = place();
addEventListener("hashchange", () => { show(); if (place() !== last) scrollTo(0, 0); last = place(); });
dark.addEventListener("change", show);
show();
