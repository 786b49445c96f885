"use strict";
const batches = [], totals = {inputs: new Map(), unused: new Map()};
const $ = id => document.getElementById(id);
const number = value => value >= 100 ? Math.round(value).toLocaleString("en") : +value.toPrecision(3) + "";
const short = new Intl.NumberFormat("en", {notation: "compact", maximumSignificantDigits: 3}).format;
const clock = time => time.slice(11, 19);
const add = (map, key, value) => map.set(key, (map.get(key) || 0) + value);

// A size in the unit that leaves it between 1 and 1,000.
function size(bytes) {
  const step = bytes >= 1 ? Math.min(Math.floor(Math.log10(bytes) / 3), 4) : 0;
  return `${number(bytes / 1000 ** step)} ${["B", "kB", "MB", "GB", "TB"][step]}`;
}

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// Rows of a table, kept in place so that a reader's position stays. Columns are aligned as their
// headings are.
function fill(body, rows) {
  const kinds = [...body.parentElement.tHead.rows[0].cells].map(head => head.className);
  body.replaceChildren(...rows.map(cells => {
    const row = element("tr");
    row.append(...cells.map((cell, column) => element("td", cell, kinds[column])));
    return row;
  }));
}

// A table of a header and rows of texts.
function showTable(table, {header, rows}) {
  const head = element("tr");
  head.append(...header.map(name => {
    const cell = element("th", name, "text");
    cell.scope = "col";
    return cell;
  }));
  table.tHead.replaceChildren(head);
  fill(table.tBodies[0], rows);
  table.hidden = false;
}

const space = "http://www.w3.org/2000/svg";

function drawn(name, attributes, text) {
  const made = document.createElementNS(space, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// The end of an axis: the next round number, whose half is round, too.
function endOf(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find(factor => factor * power >= value * (1 - 1e-9));
}

// A line per series, {name: [value per micro-batch]}, over the times at which these began. The
// title says the last values in words.
function chart(holder, series, words = number) {
  const names = Object.keys(series), width = Math.max(holder.clientWidth, 200), height = 150;
  const left = 52, right = 8, top = 10, bottom = 20, most = endOf(Math.max(0, ...names.flatMap(name => series[name])));
  const times = batches.map(batch => Date.parse(batch.started)), first = times[0], span = times.at(-1) - first;
  const x = at => left + (span ? (times[at] - first) / span : 1) * (width - left - right);
  const y = value => height - bottom - value / most * (height - bottom - top);
  const last = names.map(name => `${name}: ${words(series[name].at(-1))}`).join(", ");
  const picture = drawn("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `axis up to ${words(most)}; last ${last}`});
  for (const value of [0, most / 2, most]) {
    picture.append(drawn("line", {x1: left, x2: width - right, y1: y(value), y2: y(value)}));
    picture.append(drawn("text", {x: left - 6, y: y(value) + 4, "text-anchor": "end"}, words(value)));
  }
  const ends = [[left, "start", clock(batches[0].started)], [width - right, "end", `${clock(batches.at(-1).started)} UTC`]];
  for (const [at, anchor, text] of span ? ends : ends.slice(1))
    picture.append(drawn("text", {x: at, y: height - 4, "text-anchor": anchor}, text));
  const list = element("ul", undefined, "legend");
  names.forEach((name, index) => {
    const values = series[name], colour = `var(--c${index % 6})`;
    const points = values.map((value, at) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`);
    const path = drawn("path", {d: `M${points.join("L")}`}), end = drawn("circle", {cx: x(values.length - 1), cy: y(values.at(-1)), r: 2.6});
    path.style.stroke = end.style.fill = colour;
    picture.append(path, end);
    const entry = element("li"), mark = element("i");
    mark.style.background = colour;
    entry.append(mark, `${name} `, element("b", words(values.at(-1))));
    list.append(entry);
  });
  holder.replaceChildren(picture, list);
}

function seriesOf(pick) {
  const names = new Set(batches.flatMap(batch => Object.keys(pick(batch))));
  return Object.fromEntries([...names].map(name => [name, batches.map(batch => pick(batch)[name] || 0)]));
}

// The reasons for which rows wait, as docs/metrics.md has them.
const until = {on_close: "their window closes", grace: "their grace period ends",
  open: "they close (windows)", ahead: "another input catches up"};

const label = stage => `${stage.number}. ${stage.title}`;
const perSecond = (batch, value) => value / Math.max(batch.total_ms, 1) * 1000;

// The figures of the last micro-batch, and what was left out so far.
function tiles(last) {
  const lags = last.inputs.flatMap(i => Object.entries(i.behind).map(([name, value]) => [value, `${i.name || i.source}, ${name}`]));
  const [lag, of] = lags.sort((one, other) => other[0] - one[0])[0] || [null, "not told"];
  const state = last.stages.reduce((sum, stage) => sum + stage.state_bytes, 0);
  const left = [...totals.unused.values()].reduce((sum, one) => sum + one.rows, 0);
  const read = [...totals.inputs.values()].reduce((sum, rows) => sum + rows, 0);
  const shown = {
    rows: [`${short(perSecond(last, last.rows_read))}/s`, `${number(read)} so far`],
    batch: [`${number(last.total_ms)} ms`, `number ${last.batch}`],
    behind: [lag === null ? "–" : number(lag), of],
    state: [size(state), last.stages.length === 1 ? "in one stage" : `in ${last.stages.length} stages`],
    unused: [number(left), left ? "see below" : ""],
  };
  for (const [name, [figure, note]] of Object.entries(shown))
    $(`tile-${name}`).replaceChildren(`${figure} `, element("small", note));
}

function draw() {
  if (!batches.length) return;
  const last = batches.at(-1), worked = batches.findLast(batch => batch.rows_read) || last;
  $("batch").textContent = `micro-batch ${last.batch}, ${number(last.total_ms)} ms, ${last.started.slice(0, 19).replace("T", " ")} UTC`;
  rates(last);
  tiles(last);
  letters();
  chart($("rows"), seriesOf(b => Object.fromEntries(b.inputs.map(i => [i.name || i.source, perSecond(b, i.rows)]))));
  chart($("changes"), seriesOf(b => Object.fromEntries(b.stages.map(s => [label(s), perSecond(b, s.changes)]))));
  chart($("phases"), seriesOf(b => b.phases_ms));
  chart($("bytes"), seriesOf(b => Object.fromEntries(b.stages.map(s => [label(s), s.state_bytes]))), size);
  fill($("stages"), worked.stages.map(s => [label(s),
    Object.entries(s.rows).map(([name, rows]) => `${name} ${number(rows)}`).join("\n"),
    Object.entries(s.matched).map(([name, rows]) => `${name} ${number(rows)} of ${number(rows + s.unmatched[name])}`).join("\n"),
    number(s.changes), number(s.deletes), number(s.work_ms), number(s.state_ms), number(s.slowest_ms),
    Object.entries(s.stream_time).map(([name, time]) => `${name} ${time.slice(0, 19).replace("T", " ")}`).join("\n")]));
  fill($("inputs"), last.inputs.map(i => [i.name || i.source, number(totals.inputs.get(i.name || i.source)),
    Object.entries(i.behind).map(([name, value]) => `${name} ${number(value)}`).join(", ") || "not told"]));
  const waiting = worked.stages.flatMap(s => Object.entries(s.waiting)).filter(([, rows]) => rows);
  $("no-waiting").hidden = waiting.length > 0;
  $("waiting-table").hidden = waiting.length === 0;
  fill($("waiting"), waiting.map(([name, rows]) => {
    const end = name.lastIndexOf(".");
    return [name.slice(0, end), number(rows), until[name.slice(end + 1)]];
  }));
  const unused = [...totals.unused];
  $("nothing").hidden = unused.length > 0;
  $("unused-table").hidden = unused.length === 0;
  fill($("unused"), unused.map(([name, one]) => [name, number(one.rows), one.example || ""]));
}

// Beside each edge of the picture: the rows a second of the last micro-batch, and how far its
// source is behind. The texts have their places from the start, so nothing moves.
const setup = JSON.parse($("setup").textContent);
const picture = document.querySelector(".dt-topology");
const places = picture ? [...picture.querySelectorAll(".dt-rate")] : [];

// A stage without state reports nothing: it passes on what the stage before it emits.
function rowsOf(batch, flow) {
  if (flow.stage === null)
    return batch.inputs.filter(i => i.name === flow.input).reduce((sum, i) => sum + i.rows, 0);
  const stage = batch.stages.find(s => s.number === flow.stage);
  if (stage) return flow.input === null ? stage.changes : stage.rows[flow.input] || 0;
  if (flow.input !== null) return batch.stages.find(s => s.number === flow.before)?.changes || 0;
  const into = setup.flows.filter(other => other.stage === flow.stage && other.input !== null);
  return into.reduce((sum, other) => sum + rowsOf(batch, other), 0);
}

function rates(batch) {
  const words = setup.flows.map((flow, index) => {
    const rate = `${short(perSecond(batch, rowsOf(batch, flow)))}/s`;
    const lags = batch.inputs.filter(i => flow.source !== null && i.name === flow.source)
      .flatMap(i => Object.values(i.behind)).filter(lag => lag > 0);
    const lag = lags.length ? `, ${short(Math.max(...lags))} behind` : "";
    if (places[index]) places[index].textContent = rate + lag;
    return `${flow.words}: ${rate}${lag}`;
  });
  if (picture) picture.setAttribute("aria-label", `Topology. Rows in the last micro-batch: ${words.join("; ")}.`);
}

// A checkpoint without a record has no figures, and says so.
for (const section of document.querySelectorAll(".figures")) section.hidden = !setup.figures;
$("unrecorded").hidden = setup.figures;
if (!setup.figures) $("batch").textContent = "";

// Dead letters are read again when rows were left out since.
let lettersOf = -1;
$("letters").hidden = !setup.letters;

async function letters() {
  const left = [...totals.unused.values()].reduce((sum, one) => sum + one.rows, 0);
  if (!setup.letters || left === lettersOf) return;
  lettersOf = left;
  const answer = await asked("letters", []), note = $("letters").querySelector("p");
  note.hidden = !answer.error && answer.rows.length > 0;
  if (answer.error) note.textContent = answer.error;
  else if (answer.rows.length) showTable($("letters").querySelector("table"), answer);
}

let drawing = false;
function redraw() {
  if (!drawing) { drawing = true; setTimeout(() => { drawing = false; draw(); }, 50); }
}
new ResizeObserver(redraw).observe(document.querySelector(".charts"));
const events = new EventSource("events" + location.search);
events.addEventListener("batch", event => {
  const batch = JSON.parse(event.data);
  batch.rows_read = batch.inputs.reduce((sum, one) => sum + one.rows, 0);
  batches.push(batch);
  if (batches.length > 500) batches.shift();
  batch.inputs.forEach(one => add(totals.inputs, one.name || one.source, one.rows));
  for (const [name, one] of Object.entries(batch.unused)) {
    const before = totals.unused.get(name);
    totals.unused.set(name, {rows: one.rows + (before ? before.rows : 0), example: one.example});
  }
  redraw();
});
events.addEventListener("state", event => {
  const state = JSON.parse(event.data), shown = $("state");
  shown.textContent = state.words;
  shown.className = state.active ? "on" : state.failure ? "bad" : "off";
  $("failure").hidden = !state.failure;
  $("failure").textContent = state.failure || "";
});
// After a break the server sends all figures again.
events.addEventListener("open", () => {
  batches.length = 0; totals.inputs.clear(); totals.unused.clear();
});
events.addEventListener("error", () => {
  $("state").textContent = "the page's server does not answer"; $("state").className = "bad";
});

// The search: a field for each column of the table's key.
const tables = new Map();

async function asked(path, parameters) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of parameters) query.append(name, value);
  try {
    const answer = await fetch(`${path}?${query}`);
    return await answer.json();
  } catch {
    return {error: "The page's server does not answer."};
  }
}

function say(holder, text, bad) {
  const answer = holder.querySelector(".answer");
  answer.textContent = text;
  answer.className = bad ? "answer bad" : "answer quiet";
}

// A field for each column of a key.
function keyFields(form, columns) {
  form.querySelector(".key").replaceChildren(...columns.map(name => {
    const label = element("label", `${name} `), field = element("input");
    field.name = "key"; field.required = true; field.size = 14;
    label.append(field);
    return label;
  }));
}

// The answer to a form. Its button is off meanwhile.
async function answered(form, path) {
  const button = form.querySelector("button");
  button.disabled = true;
  say(form.parentElement, "searching");
  const answer = await asked(path, [...new FormData(form)]);
  button.disabled = false;
  return answer;
}

function wordsOf(form, columns) {
  const values = new FormData(form).getAll("key");
  return columns.map((name, index) => `${name} ${values[index]}`).join(", ");
}

const search = $("search"), why = $("why").querySelector("form");
const results = new Map(setup.results.map(result => [result.name, result.key]));

async function listTables() {
  const answer = await asked("tables", []);
  if (answer.error) return say(search.parentElement, answer.error, true);
  for (const table of answer.tables) {
    tables.set(table.name, table.key);
    const option = element("option", table.name);
    option.value = table.name;
    option.title = table.holds;
    search.table.append(option);
  }
  if (!tables.size) say(search.parentElement, "This query stores no table that can be searched by key.");
  search.querySelector("button").disabled = !tables.size;
  keyFields(search, tables.get(search.table.value) || []);
}

search.table.addEventListener("change", () => keyFields(search, tables.get(search.table.value)));
search.addEventListener("submit", async event => {
  event.preventDefault();
  const table = search.table.value, columns = tables.get(table), words = wordsOf(search, columns);
  const answer = await answered(search, "rows"), part = search.parentElement;
  $("found").hidden = true;
  if (answer.error) return say(part, answer.error, true);
  const after = `after micro-batch ${answer.batch}`;
  if (!answer.count) return say(part, `${table} has no row with ${words}, ${after}.`);
  const more = answer.count > answer.rows.length ? `; the first ${answer.rows.length} are shown` : "";
  say(part, `${answer.count === 1 ? "One row" : `${answer.count} rows`} of ${table} with ${words}, ${after}${more}.`);
  showTable($("found"), answer);
  linkToWhy(columns);
});

// A found row leads to the reason for the row of the result with the same key.
function linkToWhy(columns) {
  const result = [...results].find(([, key]) => key.join() === columns.join());
  if (!result) return;
  const values = new FormData(search).getAll("key"), row = $("found").tBodies[0].rows[0];
  const button = element("button", "why?"), head = element("th", "result");
  button.setAttribute("aria-label", `Why ${result[0]} has its row with this key`);
  button.addEventListener("click", () => {
    why.result.value = result[0];
    keyFields(why, result[1]);
    [...why.querySelectorAll("input")].forEach((field, index) => field.value = values[index]);
    why.requestSubmit();
    $("why").scrollIntoView({block: "nearest"});
  });
  head.scope = "col";
  $("found").tHead.rows[0].append(head);
  const cell = element("td");
  cell.append(button);
  row.append(cell);
}

const pairs = columns => Object.entries(columns).map(([name, value]) =>
  `${name} ${value !== null && typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");

// A row of an explanation, with the rows that make it below.
function branch(row) {
  const item = element("li"), values = pairs(row.values);
  item.append(element("b", row.is_input ? row.name : row.step), ` with ${pairs(row.key)}`);
  if (row.presence !== "row") item.append(element("span", row.presence === "none" ? ": no row" : ": not known", "none"));
  else if (values) item.append(`: ${values}`);
  const details = [row.time ? `at ${row.time.slice(0, 19).replace("T", " ")} UTC` : "", row.reason];
  const text = details.filter(Boolean).join("; ");
  if (text) item.append(element("span", ` (${text})`, "quiet"));
  if (row.inputs.length) {
    const below = element("ul");
    below.append(...row.inputs.map(branch));
    item.append(below);
  }
  return item;
}

$("why").hidden = !results.size;
why.result.append(...[...results.keys()].map(name => element("option", name)));
why.result.addEventListener("change", () => keyFields(why, results.get(why.result.value)));
keyFields(why, results.get(why.result.value) || []);
why.addEventListener("submit", async event => {
  event.preventDefault();
  const words = wordsOf(why, results.get(why.result.value)), name = why.result.value;
  const answer = await answered(why, "why"), tree = $("why").querySelector(".tree");
  tree.replaceChildren();
  if (answer.error) return say($("why"), answer.error, true);
  const there = {row: "has a row", none: "has no row", unknown: "may have a row"}[answer.presence];
  say($("why"), `${name} ${there} with ${words}.`);
  tree.append(branch(answer));
});
listTables();
