// One run: what it scored, what it cost, what its report found, and how to make it again.
"use strict";

const { config, platform } = DATA;
const tags = [config.preset, DATA.supervision, config.device, `seed ${config.seed}`, ...(DATA.mark ? [DATA.mark] : []), ...(DATA.status === "ok" ? [] : ["failed"])];
const ranking = new URLSearchParams({ task: DATA.ranking, preset: config.preset, supervision: DATA.supervision, device: config.device });
const reach = Math.max(0, ...Object.keys(DATA.curves).map(Number));
const trained = DATA.scores.find(([k, part, name]) => k === config.horizon && part === "all" && name === null);
const beyond = DATA.scores.find(([k, part, name]) => k === reach && part === "post" && name === null);

const tile = (name, value, note) => el("div", {}, el("dt", {}, name), el("dd", {}, value, note ? el("small", {}, note) : null));
const said = (value) => (value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
const facts = (label, tree) => el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, el("table", { class: "facts" }, el("tbody", {}, Object.entries(tree).map(([name, value]) => el("tr", {}, el("th", { scope: "row", class: "left" }, name), el("td", { class: "left" }, said(value)))))));
const card = (title, ...children) => el("section", { class: "card" }, el("h2", {}, title), children);

function scores() {
  const metrics = DATA.metrics;
  return card("Errors", el("p", {}, "In bits, against the exact posterior; below each row the reference predictors on the same sequences."),
    el("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "Errors" }, el("table", {},
      el("thead", {}, el("tr", {}, ["positions", "predictor"].map((name) => el("th", { scope: "col", class: "left" }, name)), metrics.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, DATA.scores.map(([k, part, name, ...values]) => el("tr", { class: name === null ? "mine" : "reference" },
        el("td", { class: "left" }, part === "all" ? `K = ${k}` : `K = ${k}, new`), el("th", { scope: "row", class: "left" }, name ?? DATA.label), values.map((value) => el("td", {}, bits(value)))))))));
}

function charts() {
  const { k, b, h, e } = DATA.curves[reach];
  const rows = [{ name: DATA.label, arch: DATA.label, exam: "own", h, e }];
  return el("div", { class: "grid" }, [
    chart("Entropy of model and Bayes", "The wide pale line is Bayes.", `Entropy by position, ${DATA.label} and Bayes`, () => positions(rows, k, { own: b }, config.horizon, "h"), 240),
    chart("MAE by position", null, `MAE by position of ${DATA.label}`, () => positions(rows, k, { own: b }, config.horizon, "e"), 240),
    DATA.training.some(([, , error]) => error > 0) ? chart("While it was trained", null, `Error by training step of ${DATA.label}`, () => dynamics(DATA.label, DATA.training), 240) : null,
  ].filter(Boolean).map((figure) => el("section", { class: "card" }, figure)));
}

function report() {
  if (!DATA.report && config.elsewhere) return card("Report", el("p", {}, "There is none: a report looks inside a model of this suite."));
  if (!DATA.report) return card("Report", el("p", {}, "There is none beside this record. With its weights at hand, this makes it: ", el("code", {}, `bench report ${DATA.id}`)));
  const number = (value) => (typeof value === "number" ? (Number.isInteger(value) ? value.toLocaleString("en") : String(value)) : value ?? "");
  return [
    DATA.report.problem ? card("Report", el("p", { class: "failed" }, DATA.report.problem)) : null,
    ...DATA.report.sections.map((section) => card(section.title,
      section.status === "ok" ? null : el("p", { class: section.status === "failed" ? "failed" : "empty" }, section.status === "failed" ? "This section failed." : "n/a"),
      section.text.split(/\n\n+/).filter(Boolean).map((text) => el("p", {}, text)),
      section.figures.map((figure) => el("figure", { class: "picture" }, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": figure.caption }, el("img", { src: figure.source, alt: figure.caption })), el("figcaption", {}, figure.caption))),
      section.tables.map((table) => el("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": table.name }, el("table", { class: "report" }, el("caption", {}, table.name.replace(/[-_]/g, " ")),
        el("thead", {}, el("tr", {}, table.header.map((name, i) => el("th", { scope: "col", class: table.rows.some((row) => typeof row[i] === "string") ? "left" : null }, name)))),
        el("tbody", {}, table.rows.map((row) => el("tr", {}, row.map((value) => el("td", { class: typeof value === "string" ? "left" : null }, String(number(value)))))))))))),
  ];
}

const good = DATA.status === "ok";
document.body.prepend(
  el("header", {}, el("div", { class: "wide" }, el("h1", {}, el("a", { href: "../index.html" }, "tunnel-bench")), el("p", {}, "Which sequence architectures really perform Bayesian inference?"),
    el("nav", { "aria-label": "Views" }, el("a", { href: `../index.html#board?${ranking}` }, "← Leaderboard"), el("a", { href: "../index.html#curves" }, "Curves"), el("a", { href: "../index.html#cost" }, "Cost")))),
  el("main", { class: "wide run" },
    el("h2", { class: "title" }, symbol(DATA.label), `${DATA.label} on ${DATA.task}`), el("p", { class: "tags" }, tags.map((tag) => el("span", {}, tag)), el("code", {}, DATA.id)),
    good ? el("dl", { class: "tiles" }, tile(`MAE, K = ${config.horizon}`, bits(trained[3]), "bits"), tile("KL", bits(trained[3 + DATA.metrics.indexOf("kl")]), "bits"),
      beyond ? tile(`MAE, new to ${reach}`, bits(beyond[3]), "bits") : null, tile("parameters", whole(DATA.parameters), `budget ${whole(DATA.budget)}`),
      tile("time", measured(DATA.total, "seconds"), DATA.tokens_per_second ? `${whole(DATA.tokens_per_second)} tokens a second` : null), tile("energy", measured(DATA.energy_joules, "joules")))
      : el("p", { class: "failed" }, el("b", {}, "This run failed: "), DATA.error),
    DATA.notes.map((note) => el("p", { class: "empty" }, String(note))),
    good ? charts() : null,
    card("Verify it, or make it again", el("pre", { tabindex: "0" }, DATA.commands.join("\n"))),
    good ? scores() : null,
    good ? report() : null,
    el("div", { class: "grid" }, card("Config", facts("Config", config)), card("Platform and cost", facts("Platform and cost", {
      commit: DATA.commit ? `${DATA.commit}${DATA.dirty ? " with uncommitted changes" : ""}` : "unknown", weights: DATA.weights, ...platform,
      ...Object.fromEntries(Object.entries(DATA.seconds).map(([name, value]) => [`seconds, ${name}`, value])),
      ...Object.fromEntries(Object.entries(DATA.memory_bytes).map(([name, value]) => [`memory, ${name}`, measured(value, "bytes")])),
      "training FLOPs": measured(DATA.train_flops, "flops"), state: DATA.state_bytes === null ? "not measured" : `${whole(DATA.state_bytes)} B`, energy: measured(DATA.energy_joules, "joules") })))));
document.title = `${DATA.label} on ${DATA.task} · tunnel-bench`;
dark.addEventListener("change", () => location.reload());
